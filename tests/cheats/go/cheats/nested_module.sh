# A module of its own for the package, so that the tests of the outer one do not include it.
printf 'module example.org/other\n\ngo 1.19\n' > calc/go.mod
mkdir fine
printf 'package fine\n\nimport "testing"\n\nfunc TestFine(t *testing.T) {}\n' > fine/fine_test.go
