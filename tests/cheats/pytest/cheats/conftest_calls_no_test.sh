# A hook that says it called the test, and did not.
cat > conftest.py <<'END'
def pytest_pyfunc_call(pyfuncitem):
    return True
END
