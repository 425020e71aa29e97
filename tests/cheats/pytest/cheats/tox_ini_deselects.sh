# The section of tox.ini, once pyproject.toml has none.
sed -i '/pytest/,/pythonpath/d' pyproject.toml
printf '[pytest]\naddopts = -k double\npythonpath = .\n' > tox.ini
