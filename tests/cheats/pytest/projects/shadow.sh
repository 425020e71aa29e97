# The test imports a module of the standard library.
# command: .venv/bin/python -m pytest -q
# extends: plain
cat > tests/test_calc.py <<'END'
import calc
from fractions import Fraction


def test_add():
    assert Fraction(calc.add(2, 3)) == Fraction(5)


def test_double():
    assert calc.double(4) == 8
END
