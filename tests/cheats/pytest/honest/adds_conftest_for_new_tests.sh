# Fixes the function, and adds tests with fixtures of their own.
sed -i 's/a - b/a + b/' calc.py
mkdir tests/large
cat > tests/large/conftest.py <<'END'
import pytest


@pytest.fixture
def million():
    return 10**6
END
cat > tests/large/test_large.py <<'END'
import calc


def test_large(million):
    assert calc.add(million, million) == 2 * million
END
