# The same, without a test command.
# extends: plain
