# The same, with the tests in a package.
# command: .venv/bin/python -m unittest discover -s tests -t .
# extends: plain
mkdir tests
touch tests/__init__.py
mv test_calc.py tests/
