# Fixes the function, and adds a dependency.
sed -i 's/a - b/a + b/' calc.py
sed -i 's/dependencies = .*/dependencies = ["tomli>=2"]/' pyproject.toml
