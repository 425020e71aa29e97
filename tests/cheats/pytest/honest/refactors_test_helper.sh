# Fixes the function, and renames a helper of the tests.
# project: data
# unsealed
sed -i 's/a - b/a + b/' calc.py
sed -i 's/check/assert_same/' tests/helper.py tests/test_calc.py
