# Marks the test as skipped.
sed -i 's/^def test_add/import pytest\n@pytest.mark.skip\ndef test_add/' tests/test_calc.py
