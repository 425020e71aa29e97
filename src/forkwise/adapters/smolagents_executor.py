"""An executor for smolagents: the code that an agent writes runs in a branch, in a sandbox.

Results come back as JSON and are never unpickled. smolagents is imported only when an executor is made, because
forkwise does not require it.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.adapters.branch_shell import TIMEOUT_S, BranchShell
from forkwise.errors import BranchingError
from forkwise.linux import fds
from forkwise.sandbox.run import spawn
from forkwise.text.clean import clean_text

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.sandbox.confinement import Confinement
    from forkwise.sandbox.process import SandboxProcess

__all__ = ["make_executor"]

_MAX_ANSWER = 16 << 20
_MAX_REMARKS = 64 << 10


def make_executor(
    branch: Branch,
    *,
    confinement: str | Confinement | None = None,
    timeout_s: float = TIMEOUT_S,
    python: str | None = None,
    logger: Any = None,
) -> Any:
    """Return a ``PythonExecutor`` of smolagents on a branch: pass it to ``CodeAgent(executor=…)``.

    The code runs in one interpreter, ``python`` (this one by default), so that names persist from step to step; it can
    import whatever that interpreter can. Each step is stopped after ``timeout_s`` seconds; the interpreter then
    restarts with the agent's tools and variables. Call ``cleanup`` before the branch is committed, or use the executor
    in a ``with`` statement. Raises ImportError without smolagents.
    """
    from smolagents.default_tools import FinalAnswerTool
    from smolagents.local_python_executor import CodeOutput
    from smolagents.monitoring import AgentLogger, LogLevel
    from smolagents.remote_executors import RemotePythonExecutor
    from smolagents.utils import AgentError

    shell = BranchShell(branch, confinement, timeout_s)

    class BranchExecutor(RemotePythonExecutor):  # type: ignore[misc]  # Any without the package
        """Python in the sandbox of one branch."""

        def __init__(self) -> None:
            super().__init__([], logger or AgentLogger(level=LogLevel.OFF), allow_pickle=False)
            self._kernel: _Kernel | None = None
            self._setup: dict[str, str] = {}
            self._recorded: list[str] | None = None

        def __enter__(self) -> BranchExecutor:
            return self

        def __exit__(self, *_: object) -> None:
            self.cleanup()

        def run_code_raise_errors(self, code: str) -> Any:
            if self._kernel is None:
                self._kernel = _Kernel(shell, python or sys.executable)
                for earlier in self._setup.values():
                    self._ask(earlier)
            if self._recorded is not None:
                self._recorded.append(code)
            answer = self._ask(code)
            logs = answer["logs"]
            if answer.get("final") is not None:
                try:
                    value = self._deserialize_final_answer(answer["final"], allow_pickle=False)
                except Exception as error:  # the agent's code wrote the answer, so it may contain anything
                    raise AgentError(f"{logs}\nThe final answer cannot be read: {error}", self.logger) from error
                return CodeOutput(output=value, logs=logs, is_final_answer=True)
            if answer.get("error") is not None:
                raise AgentError(f"{logs}\nExecuting code yielded an error:\n{answer['error']}", self.logger)
            return CodeOutput(output=answer.get("output"), logs=logs, is_final_answer=False)

        def _ask(self, code: str) -> dict[str, Any]:
            assert self._kernel is not None
            try:
                return self._kernel.ask(code, timeout_s)
            except BranchingError as error:
                self.cleanup()
                raise AgentError(f"{error}; all names defined so far are gone", self.logger) from error

        def send_tools(self, tools: Any) -> None:
            # The interpreter has smolagents' plain tool for final answers itself: the package's version for other
            # machines imports numpy and Pillow there.
            sent = {name: tool for name, tool in tools.items() if type(tool) is not FinalAnswerTool}
            with self._record("tools"):
                super().send_tools(sent)

        def send_variables(self, variables: Any) -> None:
            with self._record("variables"):
                super().send_variables(variables)

        @contextmanager
        def _record(self, kind: str) -> Iterator[None]:
            """Record the code that runs in the block, to run it again if the interpreter restarts."""
            self._recorded = []
            try:
                yield
                self._setup[kind] = "\n".join(self._recorded)
            finally:
                self._recorded = None

        def install_packages(self, additional_imports: list[str]) -> list[str]:
            return additional_imports  # the sandbox installs nothing: a missing package is an ImportError

        def cleanup(self) -> None:
            """End the interpreter."""
            kernel, self._kernel = self._kernel, None
            if kernel is not None:
                kernel.close()

    return BranchExecutor()


class _Kernel:
    """A running interpreter in a sandbox, asked with one line of JSON at a time."""

    def __init__(self, shell: BranchShell, python: str) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (ask_reader, self._ask_fd), (self._answer_fd, answer_writer), (self._remark_fd, remark_writer) = pipes
        program = Path(__file__).with_name("python_kernel.py").read_text(encoding="utf-8")
        try:
            self._process: SandboxProcess = spawn(
                shell.branch,
                [python, "-u", "-c", program],
                (ask_reader, answer_writer, remark_writer),
                confinement=shell.confinement,
            )
        except BaseException:
            fds.close(self._ask_fd, self._answer_fd, self._remark_fd)
            raise
        finally:
            fds.close(ask_reader, answer_writer, remark_writer)
        os.set_blocking(self._ask_fd, False)
        os.set_blocking(self._remark_fd, False)
        # The output of programs that the code starts, and the errors of an interpreter that cannot start.
        self._remarks = b""
        self._rest = b""

    def ask(self, code: str, timeout_s: float) -> dict[str, Any]:
        """Run code and return the answer, checked. Raises BranchingError if there is none in time."""
        line = self._exchange(json.dumps({"code": code}).encode() + b"\n", timeout_s)
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BranchingError("the interpreter gave no readable answer") from error
        if not isinstance(answer, dict):
            raise BranchingError("the interpreter gave no readable answer")
        self._read_remarks()
        remarks, self._remarks = self._remarks, b""
        answer["logs"] = clean_text(str(answer.get("logs", ""))) + clean_text(remarks)
        if answer.get("error") is not None:
            answer["error"] = clean_text(str(answer["error"]))
        return answer

    def _exchange(self, request: bytes, timeout_s: float) -> bytes:
        deadline = time.monotonic() + timeout_s if timeout_s else None
        answer = bytearray(self._rest)
        with selectors.DefaultSelector() as selector:
            selector.register(self._answer_fd, selectors.EVENT_READ)
            selector.register(self._remark_fd, selectors.EVENT_READ)
            selector.register(self._ask_fd, selectors.EVENT_WRITE)
            selector.register(self._process, selectors.EVENT_READ)  # becomes readable when the process ends
            while request or b"\n" not in answer:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise BranchingError(f"the code was ended after {timeout_s:g} seconds")
                if len(answer) > _MAX_ANSWER:
                    raise BranchingError(f"the code's answer is longer than {_MAX_ANSWER} bytes")
                for key, _ in sorted(selector.select(left), key=lambda found: found[0].fileobj is self._process):
                    if key.fd == self._ask_fd:
                        with suppress(BlockingIOError, BrokenPipeError):
                            request = request[os.write(self._ask_fd, request[: 1 << 16]) :]
                        if not request:
                            selector.unregister(self._ask_fd)
                    elif key.fd == self._remark_fd:
                        if not self._read_remarks():
                            selector.unregister(self._remark_fd)
                    elif key.fd == self._answer_fd and (piece := os.read(self._answer_fd, 1 << 16)):
                        answer += piece
                    elif b"\n" not in answer:
                        self._read_remarks()
                        raise BranchingError(f"the interpreter ended. {clean_text(self._remarks)}".strip())
        line, _, self._rest = bytes(answer).partition(b"\n")
        return line

    def _read_remarks(self) -> bool:
        """Read what was printed besides the answers, and keep the end of it. Return False at the end of the stream."""
        try:
            while piece := os.read(self._remark_fd, 1 << 16):
                self._remarks = (self._remarks + piece)[-_MAX_REMARKS:]
                if len(piece) < 1 << 16:
                    return True
        except BlockingIOError:
            return True
        return False

    def close(self) -> None:
        """Kill the interpreter with all its descendants."""
        self._process.close()
        fds.close(self._ask_fd, self._answer_fd, self._remark_fd)
