"""Preview links: addresses at which the servers inside a fork's branches can be tried in the same browser.

Each workspace gets one listener, once a page shows the first link. It listens on the loopback interface only.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from forkwise.display.html.markup import Child, Markup, build_element
from forkwise.errors import BranchingError
from forkwise.preview.listener import PreviewListener
from forkwise.preview.target import PreviewTarget, TargetBook, find_target
from forkwise.text.clean import truncate_line
from forkwise.web.page_shell import build_panel

if TYPE_CHECKING:
    from forkwise.web.admission import Visitor
    from forkwise.web.catalogue import ForkView, ServedWorkspace

__all__ = ["PreviewDesk"]

_MOST_PORTS = 20  # of one attempt


class PreviewDesk:
    """Opens listeners as they are needed. If it ``is_remote``, the browser is elsewhere, and no link would work."""

    def __init__(self, *, is_remote: bool = False) -> None:
        self._is_remote = is_remote
        self._listeners: dict[str, PreviewListener] = {}
        self._lock = threading.Lock()
        self._open = ExitStack()

    def close(self) -> None:
        """Close all listeners."""
        with self._lock:
            self._listeners.clear()
            self._open.close()

    def render(self, view: ForkView, visitor: Visitor) -> Markup:
        """Render the links to the servers that listen in the branches of a fork's attempts now.

        A read-only link shows none, because a server can be used to change its data.
        """
        rows = self._list_rows(view) if visitor.can_write and not view.report.fork.is_over else []
        content: Child = None
        if rows:
            listed = build_element("ul", rows, class_="paths previews", aria_label="Previews")
            content = [build_element("h2", "Previews"), listed]
        return build_panel("previews", f"{view.path}previews", content, trigger="sse:fork, sse:progress throttle:2s")

    def _list_rows(self, view: ForkView) -> list[Child]:
        rows: list[Child] = []
        for attempt in view.attempts:
            target = self._find_target(view, attempt.record.branch)
            for one in [] if target is None else target.list_ports(with_programs=not view.is_hidden)[:_MOST_PORTS]:
                assert target is not None
                name = view.name_of(attempt.record.id)
                program = f" ({truncate_line(one.program, 40)})" if one.program and not view.is_hidden else ""
                text = f"Port {one.port} of {name}{program}"
                rows.append(build_element("li", self._render_link(view, target, one.port, text), class_="stop"))
        return rows

    def _render_link(self, view: ForkView, target: PreviewTarget, port: int, text: str) -> Child:
        if self._is_remote or view.is_hidden:  # the address of an attempt has its name
            return f"{text}: forkwise open shows it on that machine" if self._is_remote else text
        url = self._find_listener(view.served).format_url(f"{target.label}--{port}")
        return build_element("a", text, href=url, target="_blank", rel="noopener noreferrer")

    def _find_target(self, view: ForkView, branch: str) -> PreviewTarget | None:
        with suppress(BranchingError, OSError):  # dropped, or not created yet
            target = find_target(view.served.workspace.open(f"{view.report.fork.origin}/{branch}"))
            return target if target.process is not None else None
        return None

    def _find_listener(self, served: ServedWorkspace) -> PreviewListener:
        with self._lock:
            if served.key not in self._listeners:
                book = TargetBook(served.workspace)
                self._open.callback(book.close)
                self._listeners[served.key] = self._open.enter_context(PreviewListener(book.connect))
            return self._listeners[served.key]
