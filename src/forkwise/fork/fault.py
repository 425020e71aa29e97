"""Fault: a failure of the machine, of a service or of a provider, which says nothing about the attempt that it hits.

An attempt that a fault prevented from being judged is ``faulted``, not ``failed``.
"""

from __future__ import annotations

import errno
import os
from typing import Literal

from forkwise.errors import (
    BranchError,
    ForkError,
    LedgerError,
    MountError,
    NamespaceError,
    NodeError,
    ProcessBranchError,
    ServerError,
    StoreError,
)

__all__ = ["Fault", "find_fault", "is_disk_full"]

#: What failed: the sandbox, the view of the branch, a server in the branch, the disk, the model's provider, the ledger,
#: a cluster, one of its nodes or their store, or another resource.
Fault = Literal["sandbox", "view", "server", "disk", "provider", "ledger", "node", "system"]

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.ESTALE, errno.EUCLEAN)
_SYSTEM = (errno.ENOMEM, errno.EAGAIN, errno.EMFILE, errno.ENFILE, errno.EUSERS, errno.ENOBUFS)

# Errors of model requests, by name, so that no library is imported for this: one that is not loaded raised nothing.
_PROVIDER_ERRORS = {
    "pydantic_ai": (
        "ModelConnectionError",
        "ModelOverloadedError",
        "ModelRateLimitError",
        "ModelRequestTimeout",
        "ModelServerError",
        "ModelTimeoutError",
        "ModelUnavailableError",
    ),
    "openai": ("APIConnectionError", "InternalServerError", "RateLimitError"),
    "anthropic": ("APIConnectionError", "InternalServerError", "RateLimitError"),
}
_RETRIABLE = (408, 429)  # HTTP: too slow, too many requests
_FIRST_SERVER_ERROR = 500

_ALMOST_FULL = 16  # blocks; a filesystem may refuse to allocate its last ones


def find_fault(error: BaseException | None) -> Fault | None:
    """Return what failed, if an error is a fault; None if it may be the attempt's own failure.

    >>> find_fault(OSError(errno.ENOSPC, "no space left")), find_fault(ValueError("wrong"))
    ('disk', None)
    """
    match error:
        case NamespaceError() | ForkError():
            return "sandbox"
        case MountError():
            return "view"
        case ServerError():
            return "server"
        case LedgerError():
            return "ledger"
        case NodeError() | StoreError():
            return "node"
        case BranchError():
            return find_fault(error.__cause__)
        case OSError() | ProcessBranchError():
            return "disk" if error.errno in _DISK else "system" if error.errno in _SYSTEM else None
        case Exception() if _is_from_provider(error):
            return "provider"
    return None


def _is_from_provider(error: Exception) -> bool:
    for kind in type(error).__mro__:
        library = kind.__module__.partition(".")[0]
        if kind.__name__ in _PROVIDER_ERRORS.get(library, ()):
            return True
        if library == "pydantic_ai" and kind.__name__ == "ModelHTTPError":
            status = getattr(error, "status_code", None)
            return isinstance(status, int) and (status in _RETRIABLE or status >= _FIRST_SERVER_ERROR)
    return False


def is_disk_full(path: str) -> bool:
    """Return whether the filesystem of ``path`` has no space or no inodes left."""
    try:
        found = os.statvfs(path)
    except OSError:
        return False
    has_inodes = found.f_files == 0 or found.f_favail > 0  # btrfs reports no number of inodes
    return found.f_bavail < _ALMOST_FULL or not has_inodes
