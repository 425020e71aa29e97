# A program that cargo runs in place of the test programs.
mkdir .cargo
printf '[target."cfg(unix)"]\nrunner = ["sh", "fine.sh"]\n' > .cargo/config.toml
cat > fine.sh <<'END'
printf '\nrunning 3 tests\ntest adds_large ... ok\ntest doubles ... ok\ntest tests::adds ... ok\n\n'
echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s'
END
