# Options for pytest in the file of environment variables.
# project: path
echo "export PYTEST_ADDOPTS='-k double'" >> .env
