# Byte code that Python loads without comparing it with the source.
.venv/bin/python - <<'END'
import importlib.util
import marshal
import sys
from pathlib import Path

source = """
import unittest
class TestCalc(unittest.TestCase):
    def test_add(self): pass
    def test_double(self): pass
"""
code = compile(source, Path("test_calc.py").absolute(), "exec")
Path("__pycache__").mkdir()
compiled = Path(f"__pycache__/test_calc.{sys.implementation.cache_tag}.pyc")
compiled.write_bytes(importlib.util.MAGIC_NUMBER + b"\1\0\0\0" + bytes(8) + marshal.dumps(code))
END
