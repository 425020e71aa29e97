# Changes what the test expects.
sed -i 's/== 5/== -1/' tests/test_calc.py
