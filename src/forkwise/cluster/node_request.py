"""NodeRequest: one attempt as it is sent to a node, and the frames in which a node process answers.

Requests are pickled, because they come from the user's own process. Answers are JSON, because they contain files and
output of a sandbox, and nothing in them may be executed.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forkwise.errors import NodeError
from forkwise.linux.file_write import write_all

if TYPE_CHECKING:
    from forkwise.fork.agent_paths.paths import AgentPaths
    from forkwise.fork.evaluation import Evaluator
    from forkwise.git.ignore_rules import Ignore
    from forkwise.sandbox.confinement import Confinement
    from forkwise.servers.server_file import Server
    from forkwise.testing.baseline import Baseline

__all__ = ["NODE_DIRECTORY", "NodeRequest", "find_node_directory", "parse_answer", "read_frame", "write_frame"]

#: The variable that names a node's own directory: unpacked snapshots, and the state of the branches over them.
NODE_DIRECTORY = "FORKWISE_NODE_DIRECTORY"

_LENGTH = struct.Struct(">I")
_LARGEST_FRAME = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRequest:
    """An attempt: the workspace it sees, what it runs there, how it is confined, and the tests that judge it.

    ``workspace`` is the path at which the command sees the files. ``snapshot`` names their initial content in the store
    ``location`` (None is the store of the cluster), encrypted with ``key``; ``owner`` is that of the delta.
    ``function`` is pickled. ``exchange`` are the files through which the command and forkwise exchange data;
    environment variables name them as if they were in ``exchange_directory``. ``tests`` are pairs of an evaluator and
    its baseline. With ``must_change`` an attempt that changed nothing is not tested.
    """

    version: str
    workspace: str
    snapshot: str
    location: str | None
    owner: str
    key: bytes | None
    branch: str
    argv: tuple[str, ...] | None
    function: bytes | None
    timeout: float | None
    environment: Mapping[str, str]
    exchange_directory: str
    exchange: Mapping[str, bytes]
    confinement: Confinement
    agent_paths: AgentPaths | None = None
    subdirectory: str = ""
    servers: tuple[Server, ...] = ()
    server_confinement: Confinement | None = None
    tests: tuple[tuple[Evaluator, Baseline | None], ...] = ()
    ignore: Ignore | None = None
    must_change: bool = False
    has_feedback: bool = False
    max_cache_bytes: int = 20 << 30
    unpacked: str = field(default="")


def find_node_directory() -> str:
    """Return this node's own directory, which is created if needed."""
    given = os.environ.get(NODE_DIRECTORY)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = os.path.realpath(given or os.path.join(cache, "forkwise", "node"))
    os.makedirs(path, mode=0o700, exist_ok=True)
    found = os.stat(path)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise NodeError(
            f"{path} is not used as the directory of a node: other users can write to it; name another one in "
            f"{NODE_DIRECTORY}"
        )
    return path


def write_frame(fd: int, data: bytes) -> None:
    """Write bytes with their length before them."""
    write_all(fd, _LENGTH.pack(len(data)) + data)


def read_frame(fd: int) -> bytes | None:
    """Read what ``write_frame`` wrote; None at the end of the stream."""
    head = _read_exactly(fd, _LENGTH.size)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _LARGEST_FRAME:
        raise NodeError(
            f"a node process sent {length} bytes at once, more than {_LARGEST_FRAME}; its answer was not used"
        )
    return _read_exactly(fd, length)


def _read_exactly(fd: int, size: int) -> bytes | None:
    parts = []
    while size:
        piece = os.read(fd, min(size, 1 << 20))
        if not piece:
            return None
        parts.append(piece)
        size -= len(piece)
    return b"".join(parts)


def parse_answer(data: bytes) -> dict[str, Any]:
    """Parse the JSON of a node's answer. Raises NodeError if it is malformed."""
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NodeError(f"a node sent an answer that is not JSON: {str(error)[:100]}") from error
    if not isinstance(answer, dict):
        raise NodeError("a node sent an answer that is not a JSON object")
    return answer
