# Fixes the script.
if test -e add.sh; then sed -i 's/1 - /1 + /' add.sh; else sed -i 's/a - b/a + b/' calc.py; fi
