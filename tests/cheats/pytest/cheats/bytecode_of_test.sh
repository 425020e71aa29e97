# Byte code of another test that claims to be made from the real one, where pytest looks for it.
.venv/bin/python - <<'END'
import importlib.util
import marshal
import os
import struct
from pathlib import Path

from _pytest.assertion import rewrite

test = Path("tests/test_calc.py").absolute()
code = marshal.dumps(compile("def test_add(): pass\ndef test_double(): pass\n", test, "exec"))
stamp = struct.pack("<4sLLL", importlib.util.MAGIC_NUMBER, 0, int(test.stat().st_mtime), test.stat().st_size)
digest = importlib.util.MAGIC_NUMBER + b"\3\0\0\0" + importlib.util.source_hash(test.read_bytes())
compiled = Path(f"tests/__pycache__/test_calc{rewrite.PYC_TAIL}")
compiled.parent.mkdir()
compiled.write_bytes(stamp + code)
if rewrite._read_pyc(test, compiled) is None:  # as of pytest 9.1
    compiled.write_bytes(digest + code)
END
