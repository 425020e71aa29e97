# A plugin named in the options.
sed -i 's/^testpaths.*/addopts = "-p quiet"/' pyproject.toml
cat > quiet.py <<'END'
def pytest_pyfunc_call(pyfuncitem):
    return True
END
