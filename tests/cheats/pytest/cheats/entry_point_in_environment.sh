# A plugin by the entry point of a distribution in the virtual environment.
site=.venv/lib/$(ls .venv/lib)/site-packages
mkdir $site/quiet-1.0.dist-info
printf 'Metadata-Version: 2.1\nName: quiet\nVersion: 1.0\n' > $site/quiet-1.0.dist-info/METADATA
printf '[pytest11]\nquiet = quiet\n' > $site/quiet-1.0.dist-info/entry_points.txt
cat > $site/quiet.py <<'END'
def pytest_pyfunc_call(pyfuncitem):
    return True
END
