"""Canaries: tests of known outcome in the files of a test run, for runners whose process forkwise does not enter.

One test that must pass and some that must fail are added to the program that runs the project's own tests: to the Go
package, the Rust crate, or the file of jest and vitest. Their names are random, so that a forged report cannot contain
them. A run in which they do not have the expected outcomes is not believed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from forkwise.testing.evidence import RunEvidence
from forkwise.testing.report import Outcome, TestReport

__all__ = ["TestedFiles", "can_have_canaries", "place_canaries", "set_canaries_apart"]

_MAX_CANARIES = 20
_PASSES, _FAILS = "passes", "fails"
_GO_MODULE = re.compile(r"^module\s+(\S+)", re.MULTILINE)
_GO_PACKAGE = re.compile(r"^package\s+(\w+)", re.MULTILINE)
_MATCHER = re.compile(r"\.(to[A-Z]\w*)\(")
_VITEST_IMPORT = re.compile(r"""from\s+["']vitest["']""")

_FAILING_MATCHERS = {
    "toBe": "(1).toBe(2)",
    "toBeCloseTo": "(1).toBeCloseTo(2)",
    "toBeDefined": "(undefined).toBeDefined()",
    "toBeFalsy": "(1).toBeFalsy()",
    "toBeGreaterThan": "(1).toBeGreaterThan(2)",
    "toBeGreaterThanOrEqual": "(1).toBeGreaterThanOrEqual(2)",
    "toBeInstanceOf": "([]).toBeInstanceOf(Map)",
    "toBeLessThan": "(2).toBeLessThan(1)",
    "toBeLessThanOrEqual": "(2).toBeLessThanOrEqual(1)",
    "toBeNaN": "(1).toBeNaN()",
    "toBeNull": "(1).toBeNull()",
    "toBeTruthy": "(0).toBeTruthy()",
    "toBeUndefined": "(1).toBeUndefined()",
    "toContain": "([1]).toContain(2)",
    "toContainEqual": "([[1]]).toContainEqual([2])",
    "toEqual": "([1]).toEqual([2])",
    "toHaveLength": "([1]).toHaveLength(2)",
    "toHaveProperty": '({}).toHaveProperty("a")',
    "toMatch": '("a").toMatch(/b/)',
    "toMatchObject": "({ a: 1 }).toMatchObject({ a: 2 })",
    "toStrictEqual": "([1]).toStrictEqual([2])",
    "toThrow": "(() => {}).toThrow()",
    "toThrowError": "(() => {}).toThrowError()",
}


class TestedFiles(Protocol):
    """The files of a run."""

    def read(self, path: str) -> str | None:
        """Return the text of a file; None if there is none."""

    def names(self, directory: str) -> Iterable[str]:
        """Return the names in a directory; none if there is no such directory."""


def place_canaries(
    framework: str | None, token: str, outcomes: Mapping[str, Outcome], root: str, files: TestedFiles
) -> dict[str, str]:
    """Return the files to write before a run, by path, with their whole content; none for other frameworks.

    ``outcomes`` are those of an earlier run: canaries go where tests failed, or else where the last tests are.
    """
    place = _PLACES.get(framework or "")
    if place is None:
        return {}
    failing = [name for name, outcome in outcomes.items() if outcome in ("failed", "error")]
    names = (name.partition(" ")[0] for name in failing or list(outcomes)[-1:])
    places = dict.fromkeys(name.removeprefix(f"{root}/") for name in names)
    found = (place(where, token, files) for where in list(places)[:_MAX_CANARIES])
    return {path: text for one in found if one is not None for path, text in [one]}


def _place_go(package: str, token: str, files: TestedFiles) -> tuple[str, str] | None:
    module = _GO_MODULE.search(files.read("go.mod") or "")
    if module is None or not f"{package}/".startswith(f"{module[1]}/"):
        return None
    directory = package[len(module[1]) :].strip("/")
    prefix = f"{directory}/" if directory else ""
    for name in sorted(files.names(directory)):
        text = files.read(f"{prefix}{name}") if name.endswith("_test.go") else None
        if text and "//go:build" not in text and (clause := _GO_PACKAGE.search(text)):
            return f"{prefix}zz{token}_test.go", _GO_TEXT.replace("TOKEN", token).replace("PACKAGE", clause[1])
    return None


_GO_TEXT = """package PACKAGE

import "testing"

func Test_TOKEN_passes(t *testing.T) {}

func Test_TOKEN_fails(t *testing.T) { t.Error("as it must") }

func Test_TOKEN_fails_at_once(t *testing.T) { t.Fatal("as it must") }
"""


def _place_cargo(source: str, token: str, files: TestedFiles) -> tuple[str, str] | None:
    text = files.read(source) if source.endswith(".rs") else None
    return None if text is None else (source, text + _RUST_TEXT.replace("TOKEN", token))


_RUST_TEXT = """
#[cfg(test)]
mod zzTOKEN {
    #[test]
    fn passes() {
        assert_eq!(1 + 1, 2);
    }

    #[test]
    fn fails() {
        assert_eq!(1 + 1, 3);
    }

    #[test]
    fn fails_plainly() {
        assert!(1 + 1 == 3);
    }

    #[test]
    fn fails_unequally() {
        assert_ne!(1 + 1, 2);
    }
}
"""


def _place_javascript(path: str, token: str, files: TestedFiles) -> tuple[str, str] | None:
    text = None if path.startswith("/") else files.read(path)
    if text is None:
        return None
    declare, expect, head = "test", "expect", ""
    if _VITEST_IMPORT.search(text):
        declare, expect = f"test{token}", f"expect{token}"
        head = f'import {{ expect as {expect}, test as {declare} }} from "vitest";\n'
    used = sorted({"toBe", *_MATCHER.findall(text)} & set(_FAILING_MATCHERS))
    lines = [f'{declare}("{token} {_PASSES}", () => {{ {expect}(1).toBe(1); }});']
    lines += [f'{declare}("{token} {_FAILS} {name}", () => {{ {expect}{_FAILING_MATCHERS[name]}; }});' for name in used]
    return path, f"{text}\n;\n{head}" + "\n".join(lines) + "\n"


_PLACES: dict[str, Callable[[str, str, TestedFiles], tuple[str, str] | None]] = {
    "cargo": _place_cargo,
    "go": _place_go,
    "jest": _place_javascript,
    "vitest": _place_javascript,
}


def can_have_canaries(framework: str | None) -> bool:
    """Return whether a framework's canaries are written as files."""
    return framework in _PLACES


def set_canaries_apart(report: TestReport, token: str, root: str) -> tuple[TestReport, RunEvidence]:
    """Return the report without the canaries, and what they say about it.

    The workspace's path ``root`` is removed from ids.

    >>> outcomes = {"a TestT0_passes": "passed", "a TestT0_fails": "failed", "a TestSum": "passed"}
    >>> report = TestReport(passed=2, failed=1, outcomes=outcomes, source="go test -json", exit_code=1)
    >>> report, evidence = set_canaries_apart(report, "T0", "/w")
    >>> report.summary, report.exit_code, evidence.has_canary
    ('1 passed', 0, True)
    """
    canaries = {name: outcome for name, outcome in report.outcomes.items() if token in name}
    own = {name.removeprefix(f"{root}/"): outcome for name, outcome in report.outcomes.items() if token not in name}
    wrong = [
        f"a test that must {'pass' if _PASSES in name else 'fail'} {outcome}"
        for name, outcome in canaries.items()
        if outcome != ("passed" if _PASSES in name else "failed")
    ]
    passed = sum(outcome == "passed" for outcome in canaries.values())
    failed = sum(outcome == "failed" for outcome in canaries.values())
    reduced = replace(
        report,
        passed=report.passed - passed,
        failed=report.failed - failed,
        skipped=report.skipped - sum(outcome == "skipped" for outcome in canaries.values()),
        failures=tuple(failure for failure in report.failures if token not in failure.name),
        outcomes=own,
    )
    if failed and report.exit_code != 0 and not reduced.failing:
        reduced = replace(reduced, exit_code=0)
    evidence = RunEvidence(
        outcomes=own,
        messages={},
        plugins={},
        patched=frozenset(),
        contradictions=tuple(dict.fromkeys(wrong)),
        has_canary=bool(passed and failed),
        is_complete=True,
    )
    return reduced, evidence
