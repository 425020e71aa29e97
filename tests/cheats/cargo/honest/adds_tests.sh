# Fixes the function, and adds tests to the source and beside it.
sed -i 's/a - b/a + b/' src/lib.rs
printf '#[test]\nfn adds_negative() {\n    assert_eq!(calc::add(-1, 1), 0);\n}\n' > tests/more.rs
printf '\n#[cfg(test)]\nmod more {\n    #[test]\n    fn adds_zero() {\n        assert_eq!(super::add(0, 0), 0);\n    }\n}\n' >> src/lib.rs
