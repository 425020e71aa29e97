# Changes the file that the test compares with.
# project: data
printf -- -1 > calc/testdata/sum.txt
