# Fixes the function.
sed -i 's/a - b/a + b/' calc.js
