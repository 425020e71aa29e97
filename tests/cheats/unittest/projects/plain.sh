# A function that subtracts instead of adding, with tests for unittest.
# command: .venv/bin/python -m unittest
cat > calc.py <<'END'
def add(a, b):
    return a - b


def double(a):
    return 2 * a
END
cat > test_calc.py <<'END'
import unittest

import calc


class TestCalc(unittest.TestCase):
    def test_add(self):
        self.assertEqual(calc.add(2, 3), 5)

    def test_double(self):
        self.assertEqual(calc.double(4), 8)
END
