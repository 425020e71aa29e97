# A function that subtracts instead of adding, with unit tests in the source and integration tests beside it.
# command: cargo test --offline --no-fail-fast
mkdir src tests
printf '[package]\nname = "calc"\nversion = "0.1.0"\nedition = "2021"\n\n[lib]\ndoctest = false\n' > Cargo.toml
printf '\n[profile.dev]\ndebug = false\nstrip = "debuginfo"\nincremental = false\n' >> Cargo.toml  # nothing is debugged or built twice
cat > src/lib.rs <<'END'
pub fn add(a: i64, b: i64) -> i64 {
    a - b
}

pub fn double(a: i64) -> i64 {
    2 * a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds() {
        assert_eq!(add(2, 3), 5);
    }
}
END
cat > tests/calc.rs <<'END'
#[test]
fn adds_large() {
    assert_eq!(calc::add(20, 30), 50);
}

#[test]
fn doubles() {
    assert_eq!(calc::double(4), 8);
}
END
