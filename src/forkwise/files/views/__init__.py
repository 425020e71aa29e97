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


def choose(site: Site, name: str | None = None) -> View:
    """Return the named view, or the best available one; raise MountError with the reasons and remedies if none is."""
    refusals = []
    for wanted in (name,) if name else _VIEWS:
        view = view_named(wanted)
        refusal = view.refusal_if_requested(site) if name else view.refusal(site)
        if refusal is None:
            return view
        refusals.append((view.name, refusal))
    reason = "; ".join(f"{n}: {r.reason}" for n, r in refusals)
    remedy = "; ".join(f"{n}: {r.remedy}" for n, r in refusals)
    message = f"the {name} view of {site.workspace} is not available" if name else f"no view of {site.workspace} works"
    raise MountError(f"{message} ({reason}). {remedy}", view=name, reason=reason, remedy=remedy)
