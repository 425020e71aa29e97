# Fixes the function, and adds a test file.
sed -i 's/a - b/a + b/' calc.py
cat > test_more.py <<'END'
import unittest

import calc


class TestMore(unittest.TestCase):
    def test_negative(self):
        self.assertEqual(calc.add(-1, 1), 0)
END
