# Fixes the function, and adds a test file and a test to an existing one.
sed -i 's/a - b/a + b/' calc.py
cat > tests/test_more.py <<'END'
import calc


def test_negative():
    assert calc.add(-1, 1) == 0
END
cat >> tests/test_calc.py <<'END'


def test_zero():
    assert calc.add(0, 0) == 0
END
