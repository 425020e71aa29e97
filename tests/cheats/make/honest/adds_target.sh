# Fixes the script, and adds a target that does not grade.
if test -e add.sh; then sed -i 's/1 - /1 + /' add.sh; else sed -i 's/a - b/a + b/' calc.py; fi
printf '\nlint:\n\tsh -n add.sh\n' >> Makefile
