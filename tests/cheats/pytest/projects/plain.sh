# A function that subtracts instead of adding, and pytest in a virtual environment of the project.
# command: .venv/bin/python -m pytest -q
mkdir tests
cat > calc.py <<'END'
def add(a, b):
    return a - b


def double(a):
    return 2 * a
END
cat > tests/test_calc.py <<'END'
import calc


def test_add():
    assert calc.add(2, 3) == 5


def test_double():
    assert calc.double(4) == 8
END
cat > pyproject.toml <<'END'
[project]
name = "calc"
version = "1"
dependencies = []

[tool.pytest.ini_options]
testpaths = ["tests"]
pythonpath = ["."]

[tool.ruff]
line-length = 100
END
