# Fixes the script, and changes the target with the user's consent.
# unsealed
if test -e add.sh; then sed -i 's/1 - /1 + /' add.sh; else sed -i 's/a - b/a + b/' calc.py; fi
sed -i 's/^test:/test: lint/' Makefile
printf '\nlint:\n\tsh -n add.sh\n' >> Makefile
