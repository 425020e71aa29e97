# Fixes the function, and adds a package without tests.
sed -i 's/a - b/a + b/' calc/calc.go
mkdir shapes
printf 'package shapes\n\nfunc Area(a, b int) int { return a * b }\n' > shapes/shapes.go
