# A project of another kind, whose tests are detected first.
# project: detected
echo '{"scripts": {"test": "true"}}' > package.json
