"""Landing: how a winner is committed although somebody else was committed to its parent meanwhile.

Two explorations of one workspace do not stand in each other's way as long as their winners touch different paths.
"""

from __future__ import annotations

from forkwise.errors import BranchStaleError, ConflictError
from forkwise.files.branch import Branch
from forkwise.files.commit import Commit
from forkwise.files.conflict import Conflict, OnConflict

__all__ = ["commit_winner"]


def commit_winner(branch: Branch, on_conflict: OnConflict, *, trust: bool = False) -> Commit:
    """Commit a branch, rebased onto what its parent is now where that was committed to.

    A path that both changed is a conflict, as it is where anybody else changed it: raised, unless ``on_conflict``
    decides. The branch then holds both changes where text could be merged, and its own where not.
    """
    while True:
        try:
            return branch.commit(on_conflict=on_conflict, trust=trust)
        except BranchStaleError:
            done = branch.rebase()
        if done.merged and on_conflict == "refuse":
            raise ConflictError(
                f"{branch.branch_path} was not committed, nothing was changed: others committed to "
                f"{', '.join(done.merged[:5])} meanwhile. The branch holds both changes now; look at it and commit it, "
                "or say on_conflict='merge' beforehand",
                branch=branch.name,
                conflicts=[Conflict(path, "changed", "committed to by others") for path in done.merged],
            )
