# Changes what the test expects.
sed -i 's/, 5)/, -1)/' test_calc.py
