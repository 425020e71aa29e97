# Deletes the test file, and adds another.
rm test_calc.py
cat > test_other.py <<'END'
import unittest


class TestOther(unittest.TestCase):
    def test_fine(self):
        pass
END
