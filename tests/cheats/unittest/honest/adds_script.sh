# Fixes the function, and adds a script that is not a test.
sed -i 's/a - b/a + b/' calc.py
mkdir scripts
echo 'import calc; print(calc.add(1, 2))' > scripts/show.py
