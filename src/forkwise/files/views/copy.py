"""The copy view: a branch is a full copy of the workspace. Slow and large, and it works everywhere."""

from __future__ import annotations

from typing import ClassVar

from forkwise.files.views.protocol import Refusal, Site
from forkwise.files.views.whole import CopiedView, state_refusal

__all__ = ["CopyView"]


class CopyView(CopiedView):
    """A branch as a copy of every file."""

    name: ClassVar[str] = "copy"
    reflink_only: ClassVar[bool] = False

    def refusal(self, site: Site) -> Refusal | None:
        return state_refusal(site)
