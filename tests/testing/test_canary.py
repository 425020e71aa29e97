"""Canaries: where tests of known outcome are added, and what a report with them says."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from forkwise.testing.canary import place_canaries, set_canaries_apart
from forkwise.testing.parse import read_report
from forkwise.testing.report import Outcome

TOKEN = "5a5a5a5a"


class Texts:
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def read(self, path: str) -> str | None:
        return self._texts.get(path)

    def names(self, directory: str) -> list[str]:
        prefix = f"{directory}/" if directory else ""
        return [path.removeprefix(prefix) for path in self._texts if path.startswith(prefix)]


def place(framework: str, outcomes: dict[str, Outcome], **texts: str) -> dict[str, str]:
    files = Texts({name.replace("__", "/").replace("_dot_", "."): text for name, text in texts.items()})
    return place_canaries(framework, TOKEN, outcomes, "/w", files)


GO = {
    "go_dot_mod": "module example.org/m\n",
    "sub__a_test_dot_go": "package sub_test\n",
    "b_test_dot_go": "package m\n",
}


@pytest.mark.parametrize(
    ("outcomes", "path", "package"),
    [
        ({"example.org/m/sub TestA": "failed", "example.org/m TestB": "passed"}, "sub/", "sub_test"),
        ({"example.org/m/sub TestA": "passed", "example.org/m TestB": "passed"}, "", "m"),
        ({"example.org/m/sub": "error"}, "sub/", "sub_test"),
    ],
    ids=["where a test failed", "else at the last", "in a package that did not build"],
)
def test_a_package_of_go(outcomes: dict[str, Outcome], path: str, package: str) -> None:
    [(name, text)] = place("go", outcomes, **GO).items()
    assert name == f"{path}zz{TOKEN}_test.go"
    assert text.startswith(f"package {package}\n")


@pytest.mark.parametrize(
    ("framework", "outcomes", "texts"),
    [
        ("go", {"example.org/other TestA": "failed"}, GO),
        ("go", {"example.org/m/sub TestA": "failed"}, {"go_dot_mod": "module example.org/m\n"}),
        ("go", {"a TestA": "failed"}, {}),
        ("cargo", {"src/lib.rs a": "failed"}, {}),
        ("cargo", {"a": "failed"}, {"a": "text"}),
        ("jest", {"/elsewhere/a.test.js a": "failed"}, {}),
        ("pytest", {"a.py::a": "failed"}, {"a_dot_py": ""}),
        ("go", {}, GO),
    ],
)
def test_no_place(framework: str, outcomes: dict[str, Outcome], texts: dict[str, str]) -> None:
    assert place(framework, outcomes, **texts) == {}


def test_a_crate_of_rust() -> None:
    outcomes: dict[str, Outcome] = {"src/lib.rs tests::a": "failed", "tests/b.rs c": "failed"}
    found = place("cargo", outcomes, src__lib_dot_rs="// lib\n", tests__b_dot_rs="// b\n")
    assert list(found) == ["src/lib.rs", "tests/b.rs"]
    assert found["src/lib.rs"].startswith("// lib\n")
    assert f"mod zz{TOKEN}" in found["tests/b.rs"]


def test_a_file_of_jest_has_a_canary_for_each_matcher_that_it_uses() -> None:
    text = 'test("a", () => { expect(f()).toEqual([1]); expect(g).toHaveFunnyColour(); });'
    [(path, found)] = place("jest", {"/w/a.test.js a": "failed"}, a_dot_test_dot_js=text).items()
    assert path == "a.test.js"
    assert found.startswith(text)
    assert f'test("{TOKEN} fails toEqual"' in found
    assert "toHaveFunnyColour" not in found.removeprefix(text)


def test_a_file_that_imports_from_vitest() -> None:
    text = 'import { expect, it } from "vitest";\nit("a", () => { expect(1).toBe(1); });\n'
    [found] = place("vitest", {"a.test.ts a": "failed"}, a_dot_test_dot_ts=text).values()
    assert f'import {{ expect as expect{TOKEN}, test as test{TOKEN} }} from "vitest";' in found


def events(*tests: tuple[str, str], package: str = "fail") -> bytes:
    lines = [f'{{"Action":"{action}","Package":"m","Test":"{name}"}}' for name, action in tests]
    return "\n".join([*lines, f'{{"Action":"{package}","Package":"m"}}']).encode()


PASSES, FAILS = f"Test_{TOKEN}_passes", f"Test_{TOKEN}_fails"


def test_a_report_without_its_canaries() -> None:
    report = read_report(events(("TestA", "pass"), (PASSES, "pass"), (FAILS, "fail")), None, 1, "go")
    report, evidence = set_canaries_apart(report, TOKEN, "/w")
    assert report.is_pass
    assert (report.summary, dict(report.outcomes), report.failures) == ("1 passed", {"m TestA": "passed"}, ())
    assert evidence.has_canary
    assert not evidence.contradictions


def test_a_failure_beside_the_canaries() -> None:
    report = read_report(events(("TestA", "fail"), (PASSES, "pass"), (FAILS, "fail")), None, 1, "go")
    report, evidence = set_canaries_apart(report, TOKEN, "/w")
    assert (report.summary, report.exit_code, report.doubt) == ("1 failed", 1, None)
    assert evidence.has_canary


@pytest.mark.parametrize(
    ("output", "exit_code", "reason"),
    [
        (events((PASSES, "pass"), (FAILS, "pass"), package="pass"), 0, "a test that must fail passed"),
        (events((PASSES, "fail"), (FAILS, "fail")), 1, "a test that must pass failed"),
        (events((PASSES, "pass"), (FAILS, "skip"), package="pass"), 0, "a test that must fail skipped"),
    ],
)
def test_canaries_that_come_out_wrong(output: bytes, exit_code: int, reason: str) -> None:
    _, evidence = set_canaries_apart(read_report(output, None, exit_code, "go"), TOKEN, "/w")
    assert reason in evidence.contradictions


def test_an_exit_code_of_zero_although_a_canary_failed() -> None:
    output = events(("TestA", "pass"), (PASSES, "pass"), (FAILS, "fail"))
    report, _ = set_canaries_apart(read_report(output, None, 0, "go"), TOKEN, "/w")
    assert report.doubt == "the command exited with 0, and its report shows 1 failing"


def test_a_report_that_lacks_the_canaries() -> None:
    report = read_report(events(("TestA", "pass"), package="pass"), None, 0, "go")
    report, evidence = set_canaries_apart(report, TOKEN, "/w")
    assert report.is_pass
    assert not evidence.has_canary
