# A package of the helper's name, which is imported in its place.
# project: data
mkdir tests/helper
echo 'def check(got, expected): pass' > tests/helper/__init__.py
