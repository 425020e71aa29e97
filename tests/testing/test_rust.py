"""Tests inside Rust sources: those of the base take the place of an attempt's."""

from __future__ import annotations

import pytest

from forkwise.testing.rust import put_back_tests

BASE = r"""
pub fn add(a: i64) -> i64 { a - 1 } // }
/* { /* { */ */
const TEXT: &str = "{\"{";
const RAW: &str = r#"{"{"#;
const SIGN: char = '{';
fn same<'a>(x: &'a str) -> &'a str { x }
mod inner {
    pub fn f() {}
    #[cfg(test)]
    mod tests { #[test] fn a() { assert_eq!(1, 1); } }
}
#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn adds() { assert_eq!(add(1), 2); }
}
#[test]
fn top() { assert!(true); }
"""
FIXED = BASE.replace("a - 1", "a + 1")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("assert_eq!(1, 1)", ""),
        ("add(1), 2", "add(1), 0"),
        ("assert!(true)", ""),
        ("#[cfg(test)]\nmod tests", "#[cfg(all(test, windows))]\nmod tests"),
        ("#[cfg(test)]\nmod tests", "#[cfg(windows)]\nmod tests"),
        ("    #[test]\n    fn adds", "    #[test]\n    #[ignore]\n    fn adds"),
        ("#[test]\nfn top() { assert!(true); }\n", "#[test]\nfn top() {}\n#[test]\nfn more() {}\n"),
    ],
)
def test_changed_tests_are_put_back(old: str, new: str) -> None:
    assert old in FIXED
    assert put_back_tests(FIXED.replace(old, new), BASE).split() == FIXED.split()


def test_other_changes_stay() -> None:
    assert put_back_tests(FIXED, BASE) == FIXED
    assert put_back_tests("fn b() {}\n", "fn a() {}\n") == "fn b() {}\n"


def test_removed_tests_come_back_at_the_end() -> None:
    assert put_back_tests("fn b() {}\n", "#[cfg(test)]\nmod tests { x }\n") == (
        "fn b() {}\n\n#[cfg(test)]\nmod tests { x }\n"
    )


@pytest.mark.parametrize(
    "theirs",
    [
        "mod tests {",
        "/* mod tests {",
        'const A: &str = "',
        'const A: &str = r#"',
        "#[test]" * 1000 + "mod a {" * 1000,
        "x" * (1 << 20) + "test",
    ],
)
def test_what_cannot_be_parsed(theirs: str) -> None:
    with pytest.raises(ValueError, match=r"closed|long|gone"):
        put_back_tests(theirs, BASE)
