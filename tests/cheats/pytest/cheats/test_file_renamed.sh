# Gives the file a name that is not collected.
mv tests/test_calc.py tests/calc_checks.py
echo 'def test_add(): pass' > tests/test_other.py
