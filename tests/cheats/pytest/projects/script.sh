# The same, with the script that pip writes for pytest.
# command: .venv/bin/pytest -q
# extends: plain
cat > .venv/bin/pytest <<END
#!$PWD/.venv/bin/python
import sys
from pytest import console_main
sys.exit(console_main())
END
chmod +x .venv/bin/pytest
