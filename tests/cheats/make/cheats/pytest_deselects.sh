# The configuration of the runner that the target starts.
# project: runner
printf '[pytest]\npythonpath = .\naddopts = --deselect tests/test_calc.py::test_add\n' > pytest.ini
echo 'def test_fine(): pass' > tests/test_fine.py
