# Skips the test.
sed -i 's/    def test_add/    @unittest.skip("slow")\n    def test_add/' test_calc.py
