# Options for make, in a file that the Makefile includes.
echo 'MAKEFLAGS += -n' >> settings.mk
