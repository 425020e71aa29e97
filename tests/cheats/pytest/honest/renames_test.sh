# Fixes the function, and renames a test file.
# unsealed
sed -i 's/a - b/a + b/' calc.py
mv tests/test_calc.py tests/test_arithmetic.py
