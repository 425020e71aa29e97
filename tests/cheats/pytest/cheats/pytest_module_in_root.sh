# A module named pytest in the project's directory, which python -m finds first.
cat > pytest.py <<'END'
print("..\n2 passed in 0.01s")
END
