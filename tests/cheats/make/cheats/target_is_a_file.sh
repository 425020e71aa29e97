# A file of the target's name that is newer than everything, once the target is not phony.
sed -i '/PHONY/d' Makefile
touch test
