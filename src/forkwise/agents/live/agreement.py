"""Agreement: how the branches of a fork relate, path by path as the guide counts it, and by the work itself.

The guide's score measures conflict: branches that each edit other files agree fully. Whether they did the *same* work
is another question, answered here by the changed lines, wherever they stand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set

from forkwise.agents.live.diff_report import BranchDiffAgreement, BranchDiffReport, PathDiff
from forkwise.files.merge import Merge, merge

__all__ = ["changed_lines", "classify", "combination", "content_agreement", "support"]


def classify(end_states: Sequence[Hashable]) -> BranchDiffAgreement:
    """How the branches that touched a path relate, by the state each left it in.

    >>> classify([b"x", b"x"]), classify([b"x", None]), classify([b"x"]), classify([])
    ('unanimous_change', 'split', 'unique', 'unanimous_no_change')
    """
    if not end_states:
        return "unanimous_no_change"
    if len(end_states) == 1:
        return "unique"
    return "unanimous_change" if len(set(end_states)) == 1 else "split"


def changed_lines(before: Set[bytes], after: Set[bytes]) -> frozenset[bytes]:
    r"""The lines that only one of two texts has, each with its sign; none that say nothing, like a brace.

    >>> sorted(changed_lines({b"keep", b"  one"}, {b"keep", b"  two", b"}"}))
    [b'+two', b'-one']
    """
    added = (b"+" + line.strip() for line in after - before)
    removed = (b"-" + line.strip() for line in before - after)
    return frozenset(line for line in (*added, *removed) if len(line) > 2)


def content_agreement(work: Mapping[str, Iterable[Hashable]]) -> float | None:
    """How much of the work of several branches is the same, by the pieces (changed lines) of each.

    Of all the places where a piece could be shared, the share where it is: for two branches, what both have among
    all that either has. None where fewer than two branches did anything.

    >>> content_agreement({"a": {"+x", "+y"}, "b": {"+y"}}), content_agreement({"a": {"+x"}, "b": {"+y"}})
    (0.5, 0.0)
    """
    done = [pieces for each in work.values() if (pieces := frozenset(each))]
    if len(done) < 2:
        return None
    having = Counter(piece for pieces in done for piece in pieces)
    return sum(count - 1 for count in having.values()) / (len(having) * (len(done) - 1))


def support(report: BranchDiffReport, branch_id: str) -> float:
    """How far the others did what this branch did: of its changed paths, the mean share of others that left the same.

    A branch that changed nothing is supported by those that changed nothing either. With no others it is 1.0: nothing
    speaks against it.

    >>> from forkwise.agents.live.diff_report import DiffSummary
    >>> support(BranchDiffReport("f", [], DiffSummary(0, 0, 0, {}, 1.0)), "a")
    1.0
    """
    shares = []
    for path, own in report.changes_of(branch_id):
        state = (own.operation, own.new_content, own.binary_sha256)
        others = [change for other, change in path.branches.items() if other != branch_id]
        if not others:
            return 1.0
        shares.append(sum((c.operation, c.new_content, c.binary_sha256) == state for c in others) / len(others))
    if shares:
        return sum(shares) / len(shares)
    return 1.0 if all(c.operation == "untouched" for p in report.paths for c in p.branches.values()) else 0.0


def combination(path: PathDiff) -> Merge | None:
    r"""What the versions of a path that several branches changed come to together, conflicts and all.

    Versions that split may still go together, where each changed other lines: then the merge is clean. None where they
    cannot be merged line by line, because one deleted the path, or is not text.
    """
    touched = [change for change in path.branches.values() if change.operation != "untouched"]
    if any(change.new_content is None for change in touched):
        return None
    base = (path.parent_content or "").encode()
    merged = Merge(base, ())
    for content in dict.fromkeys(change.new_content for change in touched):
        both = merge(base, merged.content, (content or "").encode())
        merged = Merge(both.content, merged.conflicts + both.conflicts)
        if merged.conflicts:
            return merged
    return merged
