# A hook of the runner that the target starts.
# project: runner
cat > conftest.py <<'END'
def pytest_pyfunc_call(pyfuncitem):
    return True
END
