# A workspace file that leaves the module out.
mkdir other
printf 'module example.org/other\n\ngo 1.19\n' > other/go.mod
printf 'package other\n\nimport "testing"\n\nfunc TestFine(t *testing.T) {}\n' > other/other_test.go
printf 'go 1.19\n\nuse ./other\n' > go.work
