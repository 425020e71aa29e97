# The script that the target runs.
echo true > check.sh
