# Ends the process when the source is imported.
printf 'import sys\nsys.exit(0)\n' >> calc.py
