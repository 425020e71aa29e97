"""A checkpointer and a node for LangGraph: the files are branched together with the state of a graph.

Each thread has a branch of the workspace, and each of its checkpoints a saved copy of what the branch had changed. A
node works in a branch of its own, which is committed into the thread's when the node returns and dropped when it
raises. A run that continues from an earlier checkpoint starts with the files of that checkpoint.

``ThreadFiles`` handles the files and knows nothing of LangGraph, which is imported only when a saver is made.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forkwise.concurrency import call_any, finish, finish_then_cancel, run_in_thread
from forkwise.errors import BranchError, BranchingError, BranchNotFoundError
from forkwise.files.shelf import copy_saved, drop_copy, list_copies, restore_copy, save_copy
from forkwise.files.workspace import Workspace
from forkwise.linux.file_write import replace_file

if TYPE_CHECKING:
    from forkwise.files.branch import Branch
    from forkwise.files.store.changes import Commit

__all__ = ["ThreadFiles", "make_node", "make_saver"]

FILES_KEY = "forkwise_files"
"""The key in a checkpoint's metadata that names its files."""

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}\Z", re.ASCII)
_PATIENCE_S = 60.0  # for a checkpoint that is being saved in the background

Position = dict[str, str]
"""Checkpoint ids by the namespace of their graph: the outermost graph's is empty, those of its subgraphs follow."""


@dataclass
class _Mark:
    """The position of a thread's branch: its checkpoints, the copy that belongs to them, and later committed tasks."""

    base: str  # the copy without any changes
    copy: str
    position: Position = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
    landed: str | None = None  # the copy that was committed to the workspace, whose files ``base`` now has

    @classmethod
    def load(cls, branch: Branch) -> _Mark | None:
        """Read the mark of a branch; None if there is none that can be read."""
        try:
            with open(f"{branch.home}/langgraph.json", encoding="utf-8") as file:
                return cls(**json.load(file))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def save(self, branch: Branch) -> None:
        """Write the mark beside the branch, in one step."""
        path = f"{branch.home}/langgraph.json"
        replace_file(path, json.dumps(asdict(self)), beside=f"{path}.new")


class ThreadFiles:
    """The files of the threads of a graph: a branch each, and a saved copy for each checkpoint.

    Only one process at a time may work on a thread, but not always the same one.
    """

    def __init__(self, workspace: Workspace | str | os.PathLike[str]) -> None:
        self.workspace = workspace if isinstance(workspace, Workspace) else Workspace(workspace)
        view = self.workspace.child_view()
        if view.whole or view.native:
            raise BranchError(
                f"the files of checkpoints cannot be saved with the view {view.name} of {self.workspace.path}, whose "
                "branches are whole trees; forkwise doctor says what other views need"
            )
        self._copies: dict[tuple[str, str, str], str | None] = {}  # by thread, namespace and checkpoint
        self._failed: set[tuple[str, str, str]] = set()
        self._changed = threading.Condition(threading.RLock())

    # What checkpoints have

    def note(self, thread: str, namespace: str, checkpoint: str, copy: str | None) -> None:
        """Record which copy belongs to a checkpoint; None if it was made without files."""
        with self._changed:
            self._copies[thread, namespace, checkpoint] = copy
            self._changed.notify_all()

    def note_failure(self, thread: str, namespace: str, checkpoint: str) -> None:
        """Record that a checkpoint could not be saved, so that no task waits for it."""
        with self._changed:
            self._failed.add((thread, namespace, checkpoint))
            self._changed.notify_all()

    def is_known(self, thread: str, namespace: str, checkpoint: str | None) -> bool:
        """Return whether ``note`` was called for a checkpoint; True if there is no checkpoint."""
        return checkpoint is None or (thread, namespace, checkpoint) in self._copies

    def advance(self, thread: str, namespace: str, parent: str | None, outer: Position, is_step: bool) -> str:
        """Return the copy that belongs to a checkpoint which is about to be made.

        ``parent`` is the checkpoint before it, ``outer`` are those of the graphs around it. A checkpoint that is a step
        (``is_step``) includes what the tasks since its parent changed; any other has the files of its parent.
        """
        with self._changed:
            branch, mark = self._open(thread)
            if is_step and parent is not None and mark.position.get(namespace) == parent:
                if mark.tasks:
                    mark.copy, mark.tasks = save_copy(branch), []
                    mark.save(branch)
                return mark.copy
            if parent is not None:
                return self._wait_for_copy(thread, namespace, parent) or mark.base
            if outer:
                nearest = max(outer, key=len)
                return self._wait_for_copy(thread, nearest, outer[nearest]) or mark.base
            return mark.base

    def settle(self, thread: str, namespace: str, parent: str | None, checkpoint: str, copy: str) -> None:
        """Record that a checkpoint was made with the copy that ``advance`` returned."""
        with self._changed:
            branch, mark = self._open(thread)
            if parent is not None and mark.position.get(namespace) == parent and mark.copy == copy and not mark.tasks:
                mark.position = {**(mark.position if namespace else {}), namespace: checkpoint}
                mark.save(branch)
            self.note(thread, namespace, checkpoint, copy)

    # What tasks do

    @contextmanager
    def task_branch(self, thread: str, position: Position, task: str) -> Iterator[Branch]:
        """Yield a branch for a task that continues from ``position``; commit it into the thread's, or drop it."""
        branch = self.begin_task(thread, position, task)
        try:
            yield branch
        except BaseException:
            self.drop_task(branch)
            raise
        self.end_task(thread, task, branch)

    def begin_task(self, thread: str, position: Position, task: str) -> Branch:
        """Return a new branch of the thread's, whose files are those of ``position``."""
        with self._changed:
            namespace = max(position, key=len)
            copy = self._wait_for_copy(thread, namespace, position[namespace])
            parent, mark = self._open(thread)
            if task in mark.tasks or not self._continues(mark, position):
                self._go_to(parent, mark, position, copy)
            mark.position |= position
            mark.save(parent)
            return parent.branch(f"task-{_shorten(task)}", None, None)

    def end_task(self, thread: str, task: str, branch: Branch) -> None:
        """Commit a task's changes to its thread's branch. Raises ConflictError if another changed the same paths."""
        with self._changed:
            try:
                if not branch.delta():
                    branch.abort()
                    return
                parent, mark = self._open(thread)
                mark.tasks.append(task)  # before the commit, so that a kill in between does not lose the note
                mark.save(parent)
                if branch.status == "stale":
                    branch.rebase()
                branch.commit()
            except BaseException:
                self.drop_task(branch)
                raise

    def drop_task(self, branch: Branch) -> None:
        """Drop what a task changed."""
        with self._changed, suppress(BranchNotFoundError):
            branch._abort_if_open()

    def _continues(self, mark: _Mark, position: Position) -> bool:
        """Return whether the thread's branch is at ``position``, or ahead of it by tasks of the same step."""
        return "" in mark.position and all(mark.position.get(name, id_) == id_ for name, id_ in position.items())

    def _go_to(self, branch: Branch, mark: _Mark, position: Position, copy: str | None) -> None:
        wanted = mark.base if copy in (None, mark.landed) else str(copy)
        if wanted != mark.copy or mark.tasks:
            try:
                restore_copy(branch, wanted)
            except BranchError as error:
                raise BranchError(
                    f"the files of the checkpoint {position} cannot be restored: {error}. Files that were committed "
                    "to the workspace are only those of the last checkpoint; runs that continue from different "
                    "checkpoints at the same time need a thread each (fork_thread)",
                    branch=branch.name,
                ) from error
        mark.copy, mark.position, mark.tasks = wanted, dict(position), []

    # Threads

    def branch(self, thread: str) -> Branch:
        """Return the branch of a thread, for inspection; nodes work in branches of it."""
        with self._changed:
            return self._open(thread)[0]

    def commit(self, thread: str, namespace: str = "", checkpoint: str | None = None, **options: Any) -> Commit:
        """Commit a thread's files to the workspace: those of its last checkpoint, or of another one.

        ``options`` are those of ``Branch.commit``. The thread can continue, but its earlier checkpoints then have no
        files.
        """
        with self._changed:
            branch, mark = self._open(thread)
            if checkpoint is not None and mark.position.get(namespace) != checkpoint:
                self._go_to(branch, mark, {namespace: checkpoint}, self._wait_for_copy(thread, namespace, checkpoint))
            elif mark.tasks:
                restore_copy(branch, mark.copy)
            mark.tasks = []
            mark.save(branch)
            if branch.status == "stale":  # another thread was committed first
                branch.rebase()
            done = branch.commit(**options)
            landed = mark.copy
            branch, new = self._open(thread)
            new.position, new.landed = mark.position, landed
            new.save(branch)
            return done

    def fork_thread(self, thread: str, namespace: str, checkpoint: str, target: str) -> str:
        """Give another thread, which has no branch yet, the files of a checkpoint; return the copy it starts from.

        Raises BranchError if the target has files, or as ``copy_thread`` does if the workspace was committed to.
        """
        with self._changed:
            source, mark = self._open(thread)
            copy = self._wait_for_copy(thread, namespace, checkpoint)
            if self._has_branch(target):
                raise BranchError(f"the thread {target} has files already: choose another name", branch=_name(target))
            is_changed = copy not in (None, mark.base, mark.landed)
            if is_changed:
                _check_current(source, thread)
            branch, new = self._open(target)
            if is_changed:
                copy_saved(source, str(copy), branch)
                restore_copy(branch, str(copy))
                new.copy = str(copy)
                new.save(branch)
            return new.copy

    def copy_thread(self, thread: str, target: str) -> None:
        """Give another thread, which has no branch yet, a branch and copies like those of a thread.

        Copies keep their names, because the checkpoints' metadata refers to them. Does nothing if the thread has no
        files. Raises BranchError if the target has some, or if another thread was committed since the thread's branch
        was made: the new branch would be based on the new files, and conflicts between the two would go unnoticed.
        """
        with self._changed:
            if self._has_branch(target):
                raise BranchError(f"the thread {target} has files already: choose another name", branch=_name(target))
            if not self._has_branch(thread):
                return
            source, mark = self._open(thread)
            _check_current(source, thread)
            # The copy does not run tasks again that ended since the last checkpoint, so it needs their files.
            current = save_copy(source) if mark.tasks else mark.copy
            made = self.workspace.branch(_name(target), None, None)
            try:
                for name in list_copies(source):
                    copy_saved(source, name, made)
                _Mark(mark.base, mark.base, tasks=["copy"]).save(made)  # after a kill, the base is restored first
                restore_copy(made, current)
                replace(mark).save(made)
                made.keep()
            except BaseException:
                made.abort()
                raise
            finally:
                if current != mark.copy:
                    drop_copy(source, current)
            if current != mark.copy:
                drop_copy(made, current)

    def require_idle(self, threads: Iterable[str]) -> None:
        """Raise BranchError if a task works in a branch of one of the threads."""
        with self._changed:
            for thread in threads:
                if self._has_branch(thread) and (tasks := self._open(thread)[0].children()):
                    names = ", ".join(task.name for task in tasks)
                    raise BranchError(f"the thread {thread} has tasks that run: {names}; wait until they end")

    def retain(self, thread: str, checkpoints: Mapping[tuple[str, str], str | None]) -> None:
        """Drop everything that the remaining ``checkpoints``, by namespace and id, do not need.

        If the checkpoint of the thread's branch was deleted, the branch moves to the last remaining one. If none
        remains, the branch is dropped.
        """
        with self._changed:
            if not checkpoints:
                self.delete(thread)
                return
            self._copies = {
                key: copy for key, copy in self._copies.items() if key[0] != thread or key[1:] in checkpoints
            }
            if not self._has_branch(thread):
                return
            branch, mark = self._open(thread)
            if "" in mark.position and ("", mark.position[""]) not in checkpoints:
                last = max((id_ for namespace, id_ in checkpoints if not namespace), default=None)
                copy = None if last is None else checkpoints["", last]
                if last is None or copy not in {None, mark.landed, *list_copies(branch)}:
                    self._go_to(branch, mark, {}, None)  # its files were committed to the workspace
                else:
                    self._go_to(branch, mark, {"": last}, copy)
                mark.save(branch)
            self.collect(thread, {copy for copy in checkpoints.values() if copy is not None})

    def delete(self, thread: str) -> None:
        """Drop the branch of a thread with all its copies."""
        with self._changed:
            self._copies = {key: copy for key, copy in self._copies.items() if key[0] != thread}
            with suppress(BranchNotFoundError):
                self.workspace.open(_name(thread)).abort()

    def collect(self, thread: str, used: set[str]) -> None:
        """Drop the saved copies of a thread that no checkpoint uses any more."""
        with self._changed:
            branch, mark = self._open(thread)
            for name in list_copies(branch) - used - {mark.base, mark.copy}:
                drop_copy(branch, name)

    def _wait_for_copy(self, thread: str, namespace: str, checkpoint: str) -> str | None:
        """Return the copy of a checkpoint; wait if the checkpoint is being saved in the background."""
        key = (thread, namespace, checkpoint)
        if not self._changed.wait_for(lambda: key in self._copies or key in self._failed, _PATIENCE_S):
            raise BranchError(
                f"the checkpoint {checkpoint} of thread {thread} was not saved within {_PATIENCE_S:.0f} seconds: its "
                "files are unknown"
            )
        if key in self._failed:
            raise BranchError(f"the checkpoint {checkpoint} of thread {thread} could not be saved")
        return self._copies[key]

    def _has_branch(self, thread: str) -> bool:
        return os.path.exists(self.workspace.state_dir.home(_name(thread)))

    def _open(self, thread: str) -> tuple[Branch, _Mark]:
        """Open the branch of a thread, or create it."""
        name = _name(thread)
        try:
            branch = self.workspace.open(name)
            for child in branch.children():
                if not child.owner_alive:  # left by a process that was killed inside a node
                    child.abort()
        except BranchNotFoundError:
            branch = self.workspace.branch(name, None, None)
        mark = _Mark.load(branch)
        if mark is None:
            base = save_copy(branch)
            mark = _Mark(base, base)
            mark.save(branch)
            branch.keep()  # with its mark, so that another process can continue
        return branch, mark


def _check_current(source: Branch, thread: str) -> None:
    """Raise BranchError if there was a commit to the workspace since the branch of a thread was made."""
    if source.status == "stale":
        raise BranchError(
            f"the thread {thread} cannot be copied, because the workspace was committed to since its files were made: "
            "commit the thread first, or delete it",
            branch=source.name,
        )


def _name(thread: str) -> str:
    return f"langgraph-{_shorten(thread)}"


def _shorten(text: str) -> str:
    """Return a name without special characters for a text; the text itself if it has none."""
    return text if _PLAIN.match(text) else f"x{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:24]}"


def make_saver(workspace: Workspace | str | os.PathLike[str], saver: Any = None) -> Any:
    """Return a checkpointer that keeps a thread's files with its checkpoints: ``compile(checkpointer=…)``.

    ``saver`` stores the checkpoints themselves, in memory by default. In a node, ``with saver.branch(config) as
    branch`` (or ``async with saver.abranch(config)``) is the branch to work in. ``saver.commit(config)`` commits the
    files of a thread to the workspace, ``saver.fork_thread(config, thread_id)`` starts another thread from a
    checkpoint. Raises ImportError without LangGraph, and BranchError if branches are whole trees here.
    """
    from langgraph.checkpoint.base import BaseCheckpointSaver, get_checkpoint_id
    from langgraph.checkpoint.memory import InMemorySaver
    from langgraph.config import get_config

    inner = InMemorySaver() if saver is None else saver
    files = ThreadFiles(workspace)

    def read_position(config: Any) -> tuple[str, Position, str]:
        values = (get_config() if config is None else config).get("configurable", {})
        position, task = values.get("checkpoint_map"), values.get("__pregel_task_id")
        if not position or not task:
            raise BranchError("there is no branch outside of a node: pass the config that LangGraph passes to the node")
        if values.get("__pregel_durability") == "exit":
            raise BranchError(
                "with durability='exit', no checkpoints are saved between steps, so there are none to keep files "
                "for: use 'async' or 'sync'"
            )
        return values["thread_id"], position, task

    def note(found: Any) -> Any:
        if found is not None:
            values = found.config["configurable"]
            copy = (found.metadata or {}).get(FILES_KEY)
            files.note(values["thread_id"], values.get("checkpoint_ns", ""), values["checkpoint_id"], copy)
        return found

    def prepare(config: Any, metadata: Any) -> tuple[str, str, str | None, Any]:
        values = config["configurable"]
        thread, namespace, parent = values["thread_id"], values.get("checkpoint_ns", ""), get_checkpoint_id(config)
        if not files.is_known(thread, namespace, parent) and note(inner.get_tuple(config)) is None:
            files.note(thread, namespace, str(parent), None)
        outer = {name: id_ for name, id_ in (metadata.get("parents") or {}).items() if name != namespace}
        copy = files.advance(thread, namespace, parent, outer, metadata.get("source") == "loop")
        return thread, namespace, parent, {**metadata, FILES_KEY: copy}

    @contextmanager
    def report_failure(config: Any, checkpoint: Any) -> Iterator[None]:
        try:
            yield
        except BaseException:
            values = config["configurable"]
            files.note_failure(values["thread_id"], values.get("checkpoint_ns", ""), checkpoint["id"])
            raise

    def has_own(name: str) -> bool:
        return getattr(type(inner), name, None) not in (None, getattr(BaseCheckpointSaver, name, None))

    def find(name: str, in_memory: Callable[..., None]) -> Callable[..., None]:
        """Return a method that a saver may lack, as LangGraph's in-memory one does."""
        if has_own(name):
            method: Callable[..., None] = getattr(inner, name)
            return method
        if isinstance(inner, InMemorySaver):
            return partial(in_memory, inner)
        raise NotImplementedError(f"{type(inner).__name__}, which stores the checkpoints, has no {name}")

    def afind(name: str, in_memory: Callable[..., None]) -> Callable[..., Awaitable[None]]:
        if has_own(f"a{name}"):
            method: Callable[..., Awaitable[None]] = getattr(inner, f"a{name}")
            return method
        return partial(run_in_thread, find(name, in_memory))

    def read_copies(rows: Iterable[Any]) -> dict[tuple[str, str], str | None]:
        copies = {}
        for found in rows:
            values, copy = found.config["configurable"], (found.metadata or {}).get(FILES_KEY)
            copies[values.get("checkpoint_ns", ""), values["checkpoint_id"]] = copy if isinstance(copy, str) else None
        return copies

    def retain_files(threads: Iterable[str]) -> None:
        for thread in threads:
            files.retain(thread, read_copies(inner.list({"configurable": {"thread_id": thread}})))

    async def aretain_files(threads: Iterable[str]) -> None:
        for thread in threads:
            rows = [found async for found in inner.alist({"configurable": {"thread_id": thread}})]
            await run_in_thread(files.retain, thread, read_copies(rows))

    class BranchSaver(BaseCheckpointSaver):  # type: ignore[misc]  # Any without the package
        """Checkpoints of another saver, with the files that belong to them."""

        def __init__(self) -> None:
            super().__init__(serde=inner.serde)
            self.files = files

        @property
        def config_specs(self) -> list[Any]:
            return list(inner.config_specs)

        def get_next_version(self, current: Any, channel: Any) -> Any:
            return inner.get_next_version(current, channel)

        # Reading

        def get_tuple(self, config: Any) -> Any:
            return note(inner.get_tuple(config))

        async def aget_tuple(self, config: Any) -> Any:
            return note(await inner.aget_tuple(config))

        def list(self, config: Any, **options: Any) -> Iterator[Any]:
            return map(note, inner.list(config, **options))

        async def alist(self, config: Any, **options: Any) -> AsyncIterator[Any]:
            async for found in inner.alist(config, **options):
                yield note(found)

        def get_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
            return inner.get_delta_channel_history(config=config, channels=channels)

        async def aget_delta_channel_history(self, *, config: Any, channels: Any) -> Any:
            return await inner.aget_delta_channel_history(config=config, channels=channels)

        # Writing

        def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            with report_failure(config, checkpoint):
                thread, namespace, parent, data = prepare(config, metadata)
                done = inner.put(config, checkpoint, data, new_versions)
                files.settle(thread, namespace, parent, checkpoint["id"], data[FILES_KEY])
            return done

        async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            with report_failure(config, checkpoint):
                thread, namespace, parent, data = await run_in_thread(prepare, config, metadata)
                done = await inner.aput(config, checkpoint, data, new_versions)
                await run_in_thread(files.settle, thread, namespace, parent, checkpoint["id"], data[FILES_KEY])
            return done

        def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            inner.put_writes(config, writes, task_id, task_path)

        async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            await inner.aput_writes(config, writes, task_id, task_path)

        def delete_thread(self, thread_id: str) -> None:
            inner.delete_thread(thread_id)
            files.delete(thread_id)

        async def adelete_thread(self, thread_id: str) -> None:
            await inner.adelete_thread(thread_id)
            await run_in_thread(files.delete, thread_id)

        def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
            """Copy a thread with all its checkpoints and their files; the target must not exist."""
            copy = find("copy_thread", _copy_in_memory)
            files.copy_thread(source_thread_id, target_thread_id)
            try:
                copy(source_thread_id, target_thread_id)
            except BaseException:
                files.delete(target_thread_id)
                raise

        async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
            copy = afind("copy_thread", _copy_in_memory)
            await run_in_thread(files.copy_thread, source_thread_id, target_thread_id)
            try:
                await copy(source_thread_id, target_thread_id)
            except BaseException:
                await finish(run_in_thread(files.delete, target_thread_id))
                raise

        def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
            """Delete the checkpoints of threads with their files: all, or all but the last of each namespace."""
            prune = find("prune", _prune_in_memory)
            files.require_idle(thread_ids)
            prune(thread_ids, strategy=strategy)
            retain_files(thread_ids)

        async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
            prune = afind("prune", _prune_in_memory)
            await run_in_thread(files.require_idle, thread_ids)
            await prune(thread_ids, strategy=strategy)
            await aretain_files(thread_ids)

        def delete_for_runs(self, run_ids: Sequence[str]) -> None:
            """Delete the checkpoints of runs, with their files; a thread returns to its last remaining one."""
            delete = find("delete_for_runs", _delete_runs_in_memory)
            rows = [found for run in run_ids for found in inner.list(None, filter={"run_id": run})]
            threads = sorted({found.config["configurable"]["thread_id"] for found in rows})
            files.require_idle(threads)
            delete(run_ids)
            retain_files(threads)

        async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
            delete = afind("delete_for_runs", _delete_runs_in_memory)
            rows = [found for run in run_ids async for found in inner.alist(None, filter={"run_id": run})]
            threads = sorted({found.config["configurable"]["thread_id"] for found in rows})
            await run_in_thread(files.require_idle, threads)
            await delete(run_ids)
            await aretain_files(threads)

        # Files

        @contextmanager
        def branch(self, config: Any = None) -> Iterator[Branch]:
            """Yield the branch of a node; it becomes part of the thread's files if the block ends normally."""
            with files.task_branch(*read_position(config)) as branch:
                yield branch

        @asynccontextmanager
        async def abranch(self, config: Any = None) -> AsyncIterator[Branch]:
            """Yield the branch of an asynchronous node."""
            thread, position, task = read_position(config)
            start = run_in_thread(files.begin_task, thread, position, task)
            try:
                branch = await finish_then_cancel(start)
            except asyncio.CancelledError:
                if not start.cancelled() and start.exception() is None:
                    await finish(run_in_thread(files.drop_task, start.result()))
                raise
            try:
                yield branch
            except BaseException:
                await finish(run_in_thread(files.drop_task, branch))
                raise
            await finish_then_cancel(run_in_thread(files.end_task, thread, task, branch))

        def commit(self, config: Any, **options: Any) -> Commit:
            """Commit the files of a thread, or of the checkpoint that ``config`` names, to the workspace."""
            values = config["configurable"]
            namespace, checkpoint = values.get("checkpoint_ns", ""), get_checkpoint_id(config)
            if checkpoint is not None and self.get_tuple(config) is None:
                raise BranchError(f"thread {values['thread_id']} has no checkpoint {checkpoint}")
            return files.commit(values["thread_id"], namespace, checkpoint, **options)

        def fork_thread(self, config: Any, thread_id: str) -> Any:
            """Start another thread from a checkpoint, with its state and its files; return the new thread's config."""
            found = self.get_tuple(config)
            if found is None:
                raise BranchError(f"there is no such checkpoint: {config['configurable']}")
            values = found.config["configurable"]
            namespace = values.get("checkpoint_ns", "")
            copy = files.fork_thread(values["thread_id"], namespace, values["checkpoint_id"], thread_id)
            target = {"configurable": {"thread_id": thread_id, "checkpoint_ns": namespace}}
            metadata = {**found.metadata, "source": "fork", FILES_KEY: copy}
            made = inner.put(target, found.checkpoint, metadata, found.checkpoint["channel_versions"])
            files.note(thread_id, namespace, found.checkpoint["id"], copy)
            return {"configurable": {"thread_id": thread_id, **made["configurable"]}}

        def collect_files(self, thread_id: str) -> None:
            """Drop the saved files of checkpoints that were deleted from the inner saver."""
            used = read_copies(inner.list({"configurable": {"thread_id": thread_id}})).values()
            files.collect(thread_id, {copy for copy in used if copy is not None})

    return BranchSaver()


# What LangGraph's in-memory saver lacks


def _copy_in_memory(saver: Any, source: str, target: str) -> None:
    """Copy all checkpoints, writes and values of a thread. Raises BranchError if the target has some."""
    if any(saver.storage.get(target, {}).values()):
        raise BranchError(f"the thread {target} has checkpoints already: choose another name")
    for namespace, rows in list(saver.storage.get(source, {}).items()):
        saver.storage[target][namespace].update(rows)
    for key, value in list(saver.blobs.items()):
        if key[0] == source:
            saver.blobs[target, *key[1:]] = value
    for key, writes in list(saver.writes.items()):
        if key[0] == source:
            saver.writes[target, *key[1:]].update(writes)


def _prune_in_memory(saver: Any, threads: Iterable[str], *, strategy: str = "keep_latest") -> None:
    """Delete the checkpoints of threads: all, or all but the last of each namespace and what it is computed from."""
    if strategy not in ("keep_latest", "delete"):
        raise ValueError(f"{strategy!r} is not a strategy: use keep_latest or delete")
    for thread in threads:
        if strategy == "delete":
            saver.delete_thread(thread)
            continue
        for namespace, rows in list(saver.storage.get(thread, {}).items()):
            _delete_rows(saver, thread, namespace, set(rows) - _find_needed(saver, thread, namespace, rows))


def _find_needed(saver: Any, thread: str, namespace: str, rows: Mapping[str, Any]) -> set[str]:
    """Return the last checkpoint, and those before it up to one that has the whole value of each delta channel."""
    current: str | None = max(rows, default=None)
    needed: set[str] = set()
    channels: set[str] | None = None
    while current is not None and current in rows and channels != set():
        needed.add(current)
        row, metadata, parent = rows[current]
        if channels is None:
            channels = set(saver.serde.loads_typed(metadata).get("counters_since_delta_snapshot") or ())
        versions = saver.serde.loads_typed(row)["channel_versions"]
        keys = {channel: (thread, namespace, channel, versions.get(channel)) for channel in channels}
        channels = {channel for channel, key in keys.items() if saver.blobs.get(key, ("empty",))[0] == "empty"}
        current = parent
    return needed


def _delete_runs_in_memory(saver: Any, runs: Iterable[str]) -> None:
    """Delete the checkpoints of runs in all threads."""
    wanted = set(runs)
    for thread, namespaces in list(saver.storage.items()):
        for namespace, rows in list(namespaces.items()):
            found = {id_ for id_, row in rows.items() if saver.serde.loads_typed(row[1]).get("run_id") in wanted}
            _delete_rows(saver, thread, namespace, found)


def _delete_rows(saver: Any, thread: str, namespace: str, checkpoints: set[str]) -> None:
    """Delete checkpoints of a namespace, their writes, and the values that no other checkpoint uses."""
    if not checkpoints:
        return
    rows = saver.storage[thread][namespace]
    for id_ in checkpoints:
        rows.pop(id_, None)
        saver.writes.pop((thread, namespace, id_), None)
    left = [saver.serde.loads_typed(row)["channel_versions"] for row, _, _ in rows.values()]
    used = {(channel, version) for versions in left for channel, version in versions.items()}
    for key in list(saver.blobs):
        if key[:2] == (thread, namespace) and key[2:] not in used:
            saver.blobs.pop(key, None)


Try = Callable[[Any, Path], Any]
"""One way to do a node's work: a function that takes the state and a directory, and returns the update of the state."""


def make_node(saver: Any, tries: Sequence[Try] | Mapping[str, Try], **options: Any) -> Any:
    """Return a node that tries several ways side by side, each in a branch, and keeps the best one.

    The files of the winner become the thread's, and its update becomes the node's. ``options`` are those of
    ``BestOfN``, such as ``evaluate=Tests("pytest -q")`` or ``judge``. Raises BranchingError in the node if no way
    succeeds.
    """
    from langchain_core.runnables import RunnableLambda

    from forkwise.concurrency import run_sync
    from forkwise.explore.best_of_n import BestOfN

    ways = list(tries.values() if isinstance(tries, Mapping) else tries)

    async def explore(state: Any, branch: Branch) -> Any:
        updates: dict[int, Any] = {}

        def build(index: int, way: Try) -> Any:
            async def attempt(directory: Path) -> bool:
                updates[index] = await call_any(way, state, directory)
                return True

            return attempt

        outcome = await BestOfN([build(index, way) for index, way in enumerate(ways)], **options).run(branch)
        if outcome.winner is None or not outcome.committed:
            reasons = "; ".join(f"{result.branch_index + 1}: {result.reason}" for result in outcome.all_results)
            raise BranchingError(f"none of {len(ways)} ways succeeded: {reasons or outcome.note}")
        return updates[outcome.winner.branch_index]

    def run(state: Any, config: Any) -> Any:
        with saver.branch(config) as branch:
            return run_sync(explore(state, branch), alone=True)

    async def arun(state: Any, config: Any) -> Any:
        async with saver.abranch(config) as branch:
            return await explore(state, branch)

    # LangChain looks at the parameters' names: one called config gets the config.
    run.__annotations__ = arun.__annotations__ = {}
    return RunnableLambda(run, afunc=arun, name="fork")
