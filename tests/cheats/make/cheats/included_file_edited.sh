# A file that the Makefile includes.
echo 'SHELL_PROGRAM = true' > settings.mk
