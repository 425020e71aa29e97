"""JUnit XML, as pytest, gotestsum, jest-junit, vitest, node and surefire write it.

Test cases are counted one by one, wherever they are nested; the totals in a suite's attributes are ignored. The file
comes from a sandbox and is not trusted: entities, document types, and too large or too deep documents are refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from forkwise.testing.report import Tally

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

__all__ = ["read_junit"]

_MAX_BYTES = 16 << 20
_MAX_ELEMENTS = 250_000
_MAX_DEPTH = 64

# pytest writes these headings even if nothing was captured.
_EMPTY_CAPTURE = re.compile(r"^-+ Captured \w+ -+\s*(?=^-+ Captured|\Z)", re.MULTILINE)


def read_junit(data: bytes) -> Tally:
    """Count the test cases of a report. Raises ValueError if it cannot be parsed.

    >>> read_junit(b'<testsuite tests="9"><testcase name="a"/></testsuite>').passed
    1
    """
    if len(data) > _MAX_BYTES:
        raise ValueError(f"it has {len(data) >> 20} MiB, more than the limit of {_MAX_BYTES >> 20}")
    root = _parse_xml(data)
    if root.tag not in ("testsuites", "testsuite"):
        raise ValueError(f"its root is {root.tag[:80]!r}, not 'testsuites'")

    # Imported here because it is slow and needed only if there is a report.
    from junitparser import Error, Failure, Skipped, TestCase  # noqa: PLC0415

    tally = Tally("junit")
    cases: map[Any] = map(TestCase.fromelem, root.iter("testcase"))
    for case in cases:
        results = case.result
        # A skipped test whose teardown failed is an error; a failing "todo" test is marked both, and counts as skipped.
        if errors := [result for result in results if isinstance(result, Error)]:
            tally.fail(_name(case), _message(case, errors), "error")
        elif any(isinstance(result, Skipped) for result in results):
            tally.skipped += 1
        elif failures := [result for result in results if isinstance(result, Failure)]:
            tally.fail(_name(case), _message(case, failures))
        else:
            tally.passed += 1
    return tally


def _name(case: Any) -> str:
    parts = [part for part in (case.classname, case.name) if part]
    return "::".join(dict.fromkeys(parts)) or "a test without a name"


def _message(case: Any, results: list[Any]) -> str:
    parts = [*(result.text or result.message for result in results), case.system_out, case.system_err]
    return "\n".join(_EMPTY_CAPTURE.sub("", part).strip("\n") for part in parts if part)


def _parse_xml(data: bytes) -> Element:
    from xml.etree.ElementTree import ParseError, TreeBuilder  # noqa: PLC0415

    from defusedxml import DefusedXmlException  # type: ignore[import-untyped]  # noqa: PLC0415
    from defusedxml.ElementTree import XMLParser  # type: ignore[import-untyped]  # noqa: PLC0415

    class BoundedTreeBuilder(TreeBuilder):
        """Raises ValueError at too many elements, and at too deep nesting."""

        elements = depth = 0

        def start(self, tag: Any, attrs: Any, /) -> Any:
            self.elements += 1
            self.depth += 1
            if self.elements > _MAX_ELEMENTS or self.depth > _MAX_DEPTH:
                raise ValueError("it has too many elements, or too deeply nested ones")
            return super().start(tag, attrs)

        def end(self, tag: Any, /) -> Any:
            self.depth -= 1
            return super().end(tag)

    parser = XMLParser(target=BoundedTreeBuilder(), forbid_dtd=True)
    try:
        parser.feed(data)
        root: Element = parser.close()
    except ParseError as error:
        raise ValueError(f"it is not well-formed XML: {error}") from error
    except DefusedXmlException as error:
        raise ValueError("it defines a document type or entities") from error
    except LookupError as error:
        raise ValueError(f"its encoding is not known: {error}") from error
    return root
