# A target that does nothing.
printf 'test:\n\ttrue\n' > Makefile
