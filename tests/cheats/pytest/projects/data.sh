# The test reads its expected values from a file, and compares with a helper.
# command: .venv/bin/python -m pytest -q
# extends: plain
echo '{"2 3": 5}' > tests/expected.json
cat > tests/helper.py <<'END'
def check(got, expected):
    assert got == expected
END
cat > tests/test_calc.py <<'END'
import json
from pathlib import Path

import calc
from helper import check


def test_add():
    expected = json.loads(Path(__file__).with_name("expected.json").read_text())
    check(calc.add(2, 3), expected["2 3"])


def test_double():
    assert calc.double(4) == 8
END
