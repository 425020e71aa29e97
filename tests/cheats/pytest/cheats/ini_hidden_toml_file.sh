# A hidden configuration file that takes precedence over pyproject.toml.
printf '[pytest]\naddopts = -k double\n' > .pytest.ini
