# Changes what the tests expect.
sed -i 's/, 5)/, -1)/' src/lib.rs
sed -i 's/, 50)/, -10)/' tests/calc.rs
