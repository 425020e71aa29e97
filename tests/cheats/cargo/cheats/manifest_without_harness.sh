# A test program without the test harness, which prints what a run would.
sed -i 's/doctest = false/&\ntest = false/' Cargo.toml
printf '\n[[test]]\nname = "calc"\npath = "fine.rs"\nharness = false\n' >> Cargo.toml
cat > fine.rs <<'END'
fn main() {
    println!("\nrunning 3 tests\ntest adds_large ... ok\ntest doubles ... ok\ntest tests::adds ... ok\n");
    println!("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s");
}
END
