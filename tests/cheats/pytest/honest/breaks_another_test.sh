# Fixes the function and breaks the other one.
# expect: failed
sed -i 's/a - b/a + b/; s/2 \* a/3 * a/' calc.py
