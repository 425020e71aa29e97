"""Limits that a process sets on itself and on all it starts: rlimits.

Apart from limits.py because it runs inside sandboxes, where nothing is chosen any more and as little as possible is
loaded.
"""

from __future__ import annotations

import math
import resource
from collections.abc import Mapping

__all__ = ["apply_rlimits"]


def apply_rlimits(
    limits: Mapping[str, float | None], enforcement: Mapping[str, str | None], *, besides: int = 0
) -> None:
    """Set on this process, for it and all it starts, the limits that rlimits enforce: the last thing before exec.

    It must already be in the sandbox's user namespace: what is set before counts the user's processes outside as well.
    ``besides``: how many processes of the sandbox itself are in that namespace, and are not held against the limit.
    """
    by_rlimit = {name for name, means in enforcement.items() if means == "rlimit"}
    wanted = {name: limit for name, limit in limits.items() if name in by_rlimit and limit is not None}
    if "processes" in wanted:
        _lower(resource.RLIMIT_NPROC, int(wanted["processes"]) + besides)
    if "file_size" in wanted:
        _lower(resource.RLIMIT_FSIZE, int(wanted["file_size"]))
    if "cpu" in wanted:
        # SIGXCPU tells at the soft limit, and can be ignored; the kernel kills at the hard one.
        _lower(resource.RLIMIT_CPU, math.ceil(wanted["cpu"]), grace=1)
    if "memory" in wanted:
        _lower(resource.RLIMIT_AS, int(wanted["memory"]))


def _lower(kind: int, value: int, *, grace: int = 0) -> None:
    """Set a limit, as far as one that is already there is not lower."""
    hard = resource.getrlimit(kind)[1]
    most = value + grace if hard == resource.RLIM_INFINITY else min(value + grace, hard)
    resource.setrlimit(kind, (min(value, most), most))
