# Fixes the function, and adds a feature, which does not grade.
sed -i 's/a - b/a + b/' src/lib.rs
printf '\n[features]\nlarge = []\n' >> Cargo.toml
