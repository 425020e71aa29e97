# Tests that rely on unittest's, pytest's and the standard library's own checks.
# command: .venv/bin/python -m pytest -q
# extends: plain
cat > tests/test_calc.py <<'END'
import unittest

import calc
import pytest


class TestAdd(unittest.TestCase):
    def test_add(self):
        self.assertEqual(calc.add(2, 3), 5)


def test_add_text():
    with pytest.raises(TypeError):
        calc.add("a", 1)
    assert calc.add(1, 1) >= 0


def test_double():
    assert calc.double(4) == 8
END
