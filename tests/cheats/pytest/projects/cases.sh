# The test takes its cases from the source.
# command: .venv/bin/python -m pytest -q
# extends: plain
echo 'CASES = [(1, 1), (2, 3)]' >> calc.py
cat > tests/test_calc.py <<'END'
import calc
import pytest


@pytest.mark.parametrize(("a", "b"), calc.CASES)
def test_add(a, b):
    assert calc.add(a, b) == a + b


def test_double():
    assert calc.double(4) == 8
END
