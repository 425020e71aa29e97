# A plugin by the entry point of a distribution that setuptools seems to have built in the project's directory.
mkdir calc.egg-info
printf 'Metadata-Version: 2.1\nName: calc\nVersion: 1.0\n' > calc.egg-info/PKG-INFO
printf '[pytest11]\nquiet = quiet\n' > calc.egg-info/entry_points.txt
cat > quiet.py <<'END'
def pytest_pyfunc_call(pyfuncitem):
    return True
END
