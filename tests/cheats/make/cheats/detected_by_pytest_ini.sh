# A project of another kind, whose tests are detected first.
# project: detected
printf '[pytest]\n' > pytest.ini
echo 'def test_add(): pass' > test_add.py
