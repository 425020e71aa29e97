"""The views of a branch, best first, and the choice among them.

``choose`` tries each in turn, unless the user requested one by name: then no other is used.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from forkwise.errors import MountError

if TYPE_CHECKING:
    from forkwise.files.store.view import Site, View

__all__ = ["catalogue", "choose", "view_named"]

_VIEWS = {
    "overlay": ("overlay", "OverlayView"),
    "btrfs": ("btrfs", "BtrfsView"),
    "fuse": ("fuse", "FuseView"),
    "reflink": ("reflink", "ReflinkView"),
    "copy": ("whole", "CopyView"),
}


@cache
def view_named(name: str) -> View:
    """Return a view by its name."""
    if name not in _VIEWS:
        remedy = f"choose one of {', '.join(_VIEWS)}"
        raise MountError(f"there is no view {name!r}; {remedy}", view=name, reason="unknown view", remedy=remedy)
    module, kind_name = _VIEWS[name]
    kind = getattr(import_module(f"forkwise.files.views.{module}"), kind_name)
    view: View = kind()
    return view


def catalogue() -> list[View]:
    """Return all views, best first."""
    return [view_named(name) for name in _VIEWS]


#: The views that show the workspace as it was at the fork, without reading every file for that.
_FROZEN = ("btrfs", "reflink")


def choose(site: Site, name: str | None = None, *, frozen: bool = False) -> View:
    """Return the named view, or the best available one; raise MountError with the reasons and remedies if none is.

    With ``frozen`` it shows the workspace as it was at the fork, whatever is edited there later: a btrfs snapshot or a
    tree of clones, or ``copy`` if that is named.
    """
    if frozen and name is not None and not view_named(name).whole:
        remedy = f"leave the view out, or choose one of {', '.join(_FROZEN)} or copy"
        raise MountError(
            f"branches of {site.workspace} cannot be frozen with the view {name}, through which later edits of the "
            f"workspace are seen; {remedy}",
            view=name,
            reason=f"{name} shows later edits of the workspace",
            remedy=remedy,
        )
    refusals = []
    for wanted in (name,) if name else _FROZEN if frozen else _VIEWS:
        view = view_named(wanted)
        refusal = view.refusal_if_requested(site) if name else view.refusal(site)
        if refusal is None:
            return view
        refusals.append((view.name, refusal))
    reason = "; ".join(f"{n}: {r.reason}" for n, r in refusals)
    remedy = "; ".join(f"{n}: {r.remedy}" for n, r in refusals)
    if frozen and name is None:
        message = f"branches of {site.workspace} cannot be frozen"
        remedy += "; or open the workspace with view='copy' (--view copy), which copies every file for each branch"
    else:
        message = (
            f"the {name} view of {site.workspace} is not available" if name else f"no view of {site.workspace} works"
        )
    raise MountError(f"{message} ({reason}). {remedy}", view=name, reason=reason, remedy=remedy)
