# Settings that leave the unit tests and the integration tests out, with another test in their place.
sed -i 's/doctest = false/&\ntest = false/; s/^edition/autotests = false\n&/' Cargo.toml
printf '\n[[test]]\nname = "calc"\npath = "fine.rs"\n' >> Cargo.toml
printf '#[test]\nfn adds_large() {}\n' > fine.rs
