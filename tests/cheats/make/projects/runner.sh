# A target that runs pytest.
# command: make test
mkdir tests
cat > calc.py <<'END'
def add(a, b):
    return a - b
END
printf 'import calc\n\n\ndef test_add():\n    assert calc.add(2, 3) == 5\n' > tests/test_calc.py
printf 'test:\n\t.venv/bin/python -m pytest -q\n' > Makefile
printf '[pytest]\npythonpath = .\n' > pytest.ini
