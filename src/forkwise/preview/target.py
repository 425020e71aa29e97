"""PreviewTarget: a branch with a network of its own, and the connections into it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from forkwise.errors import BranchNotFoundError, ProcessBranchError
from forkwise.preview.address import build_label
from forkwise.preview.listener import TargetError
from forkwise.sandbox.network.ports import ListeningPort, list_ports
from forkwise.sandbox.network.space import NetworkSpace, find_process

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.workspace import Workspace
    from forkwise.linux.process_id import ProcessId

__all__ = ["PreviewTarget", "TargetBook", "find_target", "list_targets"]

_CONNECT_TIMEOUT_S = 10.0
_SPARE = 32


@dataclass(frozen=True, slots=True)
class PreviewTarget:
    """A branch, its label, and the process that holds its network; None if nothing runs in it."""

    branch: Branch
    label: str
    process: ProcessId | None

    @property
    def is_running(self) -> bool:
        """Whether its network still exists."""
        return self.process is not None and self.process.alive

    def list_ports(self, *, with_programs: bool = True) -> list[ListeningPort]:
        """List the ports on which programs inside listen; none if its network is gone."""
        with suppress(OSError):
            if self.process is not None and self.process.alive:
                return list_ports(self.process.pid, with_programs=with_programs)
        return []


def find_target(branch: Branch) -> PreviewTarget:
    """Return a branch as a target, whether or not it has a network now."""
    return PreviewTarget(branch, build_label(branch.branch_path, branch.created.isoformat()), find_process(branch))


def list_targets(workspace: Workspace) -> Iterator[PreviewTarget]:
    """Yield the branches that have a network of their own now."""
    for branch in workspace.branches():
        with suppress(BranchNotFoundError):  # another process dropped it
            target = find_target(branch)
            if target.process is not None:
                yield target


class _EnteredSpace:
    """A network with some sockets opened in advance, because the process inside takes a while to answer."""

    def __init__(self, space: NetworkSpace) -> None:
        self._space = space
        self._spare: SimpleQueue[socket.socket] = SimpleQueue()
        self._filling = threading.Lock()

    def connect(self, port: int) -> socket.socket:
        """Connect to a port of 127.0.0.1 inside."""
        try:
            opened = self._spare.get_nowait()
        except Empty:
            opened = self._space.open_socket()
        if self._spare.qsize() < _SPARE // 2 and self._filling.acquire(blocking=False):
            threading.Thread(target=self._fill, name="preview", daemon=True).start()
        return _connect(opened, ("127.0.0.1", port))

    def connect_by_ipv6(self, port: int) -> socket.socket:
        """Connect to a port of ::1 inside."""
        return _connect(self._space.open_socket(socket.AF_INET6), ("::1", port))

    def _fill(self) -> None:
        try:
            with suppress(ProcessBranchError, OSError):  # the process has ended; the next request reports that
                while self._spare.qsize() < _SPARE:
                    self._spare.put(self._space.open_socket())
        finally:
            self._filling.release()

    def close(self) -> None:
        """Leave the network."""
        with self._filling, suppress(Empty):
            while True:
                self._spare.get_nowait().close()
        self._space.close()


def _connect(opened: socket.socket, address: tuple[str, int]) -> socket.socket:
    try:
        opened.settimeout(_CONNECT_TIMEOUT_S)
        opened.connect(address)
        opened.settimeout(None)
    except BaseException:
        opened.close()
        raise
    return opened


class TargetBook:
    """The networks that one listener has entered, by label. Any thread may use it."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._lock = threading.Lock()
        self._spaces: dict[str, tuple[ProcessId, _EnteredSpace]] = {}

    def connect(self, label: str, port: int | None) -> socket.socket:
        """Connect to a port of the branch with a label; without a port, to the only one. Raises TargetError."""
        process, space = self._enter(label)
        if port is None:
            port = self._choose_port(label, process)
        for connect in (space.connect, space.connect_by_ipv6):
            try:
                return connect(port)
            except ProcessBranchError as error:
                raise TargetError(f"the processes in {label} have ended") from error
            except OSError as error:
                problem = error.strerror or str(error)
        raise TargetError(f"nothing answers on port {port} of {label} ({problem}){self._describe_ports(process)}")

    def close(self) -> None:
        """Leave all networks."""
        with self._lock:
            for _, space in self._spaces.values():
                space.close()
            self._spaces.clear()

    def _enter(self, label: str) -> tuple[ProcessId, _EnteredSpace]:
        with self._lock:
            known = self._spaces.get(label)
            if known is not None and known[0].alive:
                return known
            for ended in [name for name, (process, _) in self._spaces.items() if not process.alive]:
                self._spaces.pop(ended)[1].close()
            for target in list_targets(self._workspace):
                if target.label == label and target.process is not None:
                    try:
                        entered = target.process, _EnteredSpace(NetworkSpace.attach(target.process))
                    except ProcessBranchError as error:
                        raise TargetError(f"the network of {label} cannot be entered: {error}") from error
                    self._spaces[label] = entered
                    return entered
        raise TargetError(f"nothing runs in a branch with the name {label}; see forkwise port ls", 404)

    def _choose_port(self, label: str, process: ProcessId) -> int:
        with suppress(OSError):
            ports = list_ports(process.pid)
            if len(ports) == 1:
                return ports[0].port
        raise TargetError(f"no server, or more than one, listens in {label}{self._describe_ports(process)}", 404)

    def _describe_ports(self, process: ProcessId) -> str:
        with suppress(OSError):
            if ports := list_ports(process.pid):
                return f"; servers there listen on {', '.join(str(one.port) for one in ports[:20])}"
        return "; no server there listens on any port"
