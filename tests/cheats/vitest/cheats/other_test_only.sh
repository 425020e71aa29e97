# Selects the other test.
sed -i 's/^test("doubles/test.only("doubles/' calc.test.js
