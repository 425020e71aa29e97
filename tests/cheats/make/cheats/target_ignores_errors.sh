# A target that ignores what its command returns.
sed -i 's/^\t/\t-/' Makefile
