# Fixes the function, and adds a test that fails: not a reason to reject it, and the same fix without it is better.
# expect: succeeded, not the winner
sed -i 's/a - b/a + b/' calc.py
cat > tests/test_more.py <<'END'
import calc


def test_wrong():
    assert calc.add(1, 1) == 3
END
