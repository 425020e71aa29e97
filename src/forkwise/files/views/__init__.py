"""The views of a branch, best first, and how one is chosen: by trying, and never silently a weaker one than asked."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from forkwise.errors import MountError
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
    """One view by its name."""
    if name not in _VIEWS:
        raise MountError(
            f"there is no view {name!r}; there are {', '.join(_VIEWS)}",
            view=name,
            reason="unknown view",
            remedy=f"choose one of {', '.join(_VIEWS)}",
        )
    module, kind_name = _VIEWS[name]
    kind = getattr(import_module(f"forkwise.files.views.{module}"), kind_name)
    view: View = kind()
    return view


def catalogue() -> list[View]:
    """All views, best first."""
    return [view_named(name) for name in _VIEWS]


def choose(site: Site, name: str | None = None) -> View:
    """The view asked for, or the best that can be had; MountError says why not and what would help."""
    refusals = []
    for wanted in (name,) if name else _VIEWS:
        view = view_named(wanted)
        refusal = view.refusal_if_asked(site) if name else view.refusal(site)
        if refusal is None:
            return view
        refusals.append((view.name, refusal))
    reason = "; ".join(f"{n}: {r.reason}" for n, r in refusals)
    remedy = "; ".join(f"{n}: {r.remedy}" for n, r in refusals)
    asked = f"the {name} view" if name else "a view"
    raise MountError(
        f"{asked} of {site.workspace} cannot be had ({reason}). {remedy}", view=name, reason=reason, remedy=remedy
    )
