"""Site: the addresses of the server, and what answers them."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from forkwise.display.html.markup import Child, Markup, build_element
from forkwise.errors import BranchingError
from forkwise.preview.listener import PreviewListener
from forkwise.preview.target import PreviewTarget, TargetBook, find_target
from forkwise.text.clean import truncate_line
from forkwise.web.admission import Admission, Keys, Visitor, visitor_of
from forkwise.web.catalogue import Catalogue, ForkView
from forkwise.web.change_view import DiffOptions, find_image, read_comparison, render_changes, render_window
from forkwise.web.comments import add_comment, render_comments, render_follow_ups
from forkwise.web.conversation_view import (
    find_conversation,
    load_tree,
    render_conversation,
    render_conversations,
)
from forkwise.web.feed import EventFeed
from forkwise.web.fork_list import render_list, render_list_page
from forkwise.web.fork_overview import (
    build_trail,
    render_attempt_panel,
    render_files,
    render_fork,
    render_output,
    render_output_part,
)
from forkwise.web.nway_table import render_comparison, render_path
from forkwise.web.page_shell import build_panel, load_assets, render_fragment
from forkwise.web.picture import render_agreement, render_pictures
from forkwise.web.resolution import ACTIONS, Desk, Form, render_actions, render_no_decision
from forkwise.web.task import TaskBook

if TYPE_CHECKING:
    from forkwise.display.attempt_report import AttemptReport
    from forkwise.web.catalogue import ServedWorkspace
    from forkwise.web.conversation_view import ConversationTree

__all__ = ["build_site"]

_MOST_PORTS = 20  # of one attempt that are linked
_MAX_START = 1 << 40
_MAX_FORM = 1 << 20  # bytes of a form
_QUICK_S = 0.3  # how long a decision may take before the page polls for its state

_Page = Callable[[Request, ForkView], Response]


def build_site(
    catalogue: Catalogue,
    keys: Keys,
    hosts: Sequence[str],
    *,
    program: Sequence[str] = ("forkwise",),
    is_encrypted: bool = False,
    is_remote: bool = False,
) -> Starlette:
    """Build the application. ``hosts`` are the names and ports that it answers to, ``program`` is the forkwise command.

    ``is_remote`` means that browsers on other machines open the pages.
    """
    feed = EventFeed(catalogue)
    desk = Desk(program)
    previews = _PreviewDesk(is_remote=is_remote)
    site = _Site(catalogue, feed, desk, keys, previews)

    @asynccontextmanager
    async def run(_: Starlette) -> AsyncIterator[None]:
        try:
            yield
        finally:
            feed.close()
            await run_in_threadpool(desk.close)
            await run_in_threadpool(previews.close)

    fork = "/{mode:mode}/{key:str}/{fork:str}"
    attempt = f"{fork}/a/{{attempt:str}}"
    routes = [
        Route("/", site.show_list),
        Route("/forks", site.show_forks),
        Route("/events", site.follow),
        Route("/events/{key:str}/{fork:str}", site.follow),
        Route("/c/", site.show_conversations),
        Route("/c/{key:str}/{name:str}/", site.show_conversation),
        Route("/c/{key:str}/{name:str}/{part:str}", site.show_conversation),
        Route("/favicon.ico", lambda _: Response(status_code=204)),
        Route("/assets/{digest:str}/{name:str}", site.send_asset),
    ]
    pages: dict[str, _Page] = {
        f"{fork}/": site.show_fork,
        f"{fork}/verdict": site.show_panel,
        f"{fork}/columns": site.show_panel,
        f"{fork}/tests": site.show_panel,
        f"{fork}/actions": site.show_actions,
        f"{fork}/agreement": site.show_agreement,
        f"{fork}/pictures": site.show_pictures,
        f"{fork}/comments": site.show_comments,
        f"{fork}/follow-ups": site.show_follow_ups,
        f"{fork}/previews": site.show_previews,
        f"{fork}/compare": site.show_comparison,
        f"{fork}/compare/file": site.show_path,
        f"{fork}/conversation/": site.show_fork_conversation,
        f"{fork}/conversation/{{part:str}}": site.show_fork_conversation,
        f"{fork}/jobs/{{job:str}}": site.show_job,
        f"{attempt}/": site.show_changes,
        f"{attempt}/rows": site.show_rows,
        f"{attempt}/touched": site.show_touched,
        f"{attempt}/image": site.send_image,
        f"{attempt}/output": site.show_output,
        f"{attempt}/output/part": site.show_output_part,
    }
    for mode in ("w", "blind"):
        decide = site.wrap_decision(is_blind=mode == "blind")
        base = fork.replace("{mode:mode}", mode)
        routes.append(Route(f"{base}/do/{{action:str}}", decide, methods=["POST"]))
        routes.append(Route(f"{base}/comments", site.wrap_comment(is_blind=mode == "blind"), methods=["POST"]))
        for path, page in pages.items():
            routes.append(Route(path.replace("{mode:mode}", mode), site.wrap(page, is_blind=mode == "blind")))
    app = Starlette(
        routes=routes,
        lifespan=run,
        middleware=[Middleware(Admission, keys=keys, hosts=hosts, is_encrypted=is_encrypted)],
        exception_handlers={HTTPException: _answer_refusal, BranchingError: _answer_failure},
    )
    app.router.redirect_slashes = False
    return app


async def _answer_refusal(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainTextResponse(f"{error.detail}\n", error.status_code)


async def _answer_failure(_: Request, error: Exception) -> Response:
    return PlainTextResponse(f"{error}\n", 409)


class _Site:
    """The answers to requests. Those that read a ledger or files run in threads."""

    def __init__(self, catalogue: Catalogue, feed: EventFeed, desk: Desk, keys: Keys, previews: _PreviewDesk) -> None:
        self._catalogue = catalogue
        self._feed = feed
        self._desk = desk
        self._keys = keys
        self._previews = previews
        self._jobs = TaskBook()

    def wrap(self, page: _Page, *, is_blind: bool) -> Callable[[Request], Response]:
        """Return a handler that reads the fork of an address first."""

        def answer(request: Request) -> Response:
            key, fork = request.path_params["key"], request.path_params["fork"]
            return page(request, self._catalogue.open_fork(key, fork, is_blind=is_blind))

        return answer

    def wrap_decision(self, *, is_blind: bool) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that makes a decision with the values of a form."""

        async def answer(request: Request) -> Response:
            form = Form(await _read_form(request))
            return await run_in_threadpool(self._decide, request, form, is_blind)

        return answer

    def wrap_comment(self, *, is_blind: bool) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler that records a comment."""

        async def answer(request: Request) -> Response:
            form = Form(await _read_form(request))
            return await run_in_threadpool(self._comment, request, form, is_blind)

        return answer

    def _comment(self, request: Request, form: Form, is_blind: bool) -> Response:
        key, fork = request.path_params["key"], request.path_params["fork"]
        view = self._catalogue.open_fork(key, fork, is_blind=is_blind)
        add_comment(view, form)
        return HTMLResponse(render_comments(view, visitor_of(request), form.get("attempt")))

    def _decide(self, request: Request, form: Form, is_blind: bool) -> Response:
        key, fork, action = (request.path_params[name] for name in ("key", "fork", "action"))
        view = self._catalogue.open_fork(key, fork, is_blind=is_blind)
        if action == "cancel":
            return HTMLResponse(render_no_decision(view))
        if action not in ACTIONS:
            raise HTTPException(404, "There is no such decision.")
        title, decide = ACTIONS[action]
        job = self._jobs.start(view.path, title, lambda: decide(self._desk, view, form))
        self._jobs.wait(job, _QUICK_S)
        return HTMLResponse(self._jobs.render(job, view.path, view.path))

    # All forks

    def show_list(self, request: Request) -> Response:
        return HTMLResponse(render_list_page(self._catalogue, visitor_of(request), request.query_params))

    def show_forks(self, request: Request) -> Response:
        return _answer_panel(request, render_list(self._catalogue, request.query_params))

    async def follow(self, request: Request) -> Response:
        key, fork = request.path_params.get("key"), request.path_params.get("fork")
        if key is not None and fork is not None:
            await run_in_threadpool(self._catalogue.open_fork, key, fork)
        after = _read_number(request.query_params, "after") if "after" in request.query_params else -1
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self._feed.follow(key, fork, after), media_type="text/event-stream", headers=headers)

    async def send_asset(self, request: Request) -> Response:
        found = load_assets().get(request.path_params["name"])
        if found is None or found.address != request.url.path:
            raise HTTPException(404, "There is no such file.")
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(found.content, media_type=found.media_type, headers=headers)

    # Conversations

    def show_conversations(self, request: Request) -> Response:
        return HTMLResponse(render_conversations(self._catalogue, visitor_of(request)))

    def show_conversation(self, request: Request) -> Response:
        served = self._catalogue.find(request.path_params["key"])
        tree = load_tree(served.ledger, request.path_params["name"])
        trail = build_element("a", "Conversations", href="/c/")
        address = f"/c/{served.key}/{tree.id}/"
        return self._answer_conversation(request, tree, address, trail=trail)

    def show_fork_conversation(self, request: Request, view: ForkView) -> Response:
        if view.is_hidden:
            raise HTTPException(403, "Messages are hidden until you choose, because they may name their author.")
        name = find_conversation(view)
        if name is None:
            raise HTTPException(404, "This fork has no stored conversation.")
        tree, trail = load_tree(view.served.ledger, name), build_trail(view, "conversation")
        address = f"{view.path}conversation/"
        return self._answer_conversation(request, tree, address, events=view.events, trail=trail)

    def _answer_conversation(
        self,
        request: Request,
        tree: ConversationTree,
        address: str,
        *,
        events: str | None = None,
        trail: Child,
    ) -> Response:
        part = request.path_params.get("part", "")
        if part not in ("", "tree", "messages"):
            raise HTTPException(404, "There is no such page.")
        query = request.query_params.multi_items()
        page = render_conversation(tree, visitor_of(request), address, query, events=events, trail=trail, only=part)
        return _answer_panel(request, page) if part == "tree" else HTMLResponse(page)

    # One fork

    def show_fork(self, request: Request, view: ForkView) -> Response:
        visitor = visitor_of(request)
        actions = [self._build_actions(view, visitor), render_no_decision(view)]
        pictures = [
            self._previews.render(view, visitor),
            self._build_pictures(view),
            build_element("div", id="agreement", hx_get=f"{view.path}agreement", hx_trigger="load"),
        ]
        talk = [render_comments(view, visitor), render_follow_ups(view)]
        return HTMLResponse(render_fork(view, visitor, actions=actions, pictures=pictures, talk=talk))

    def _build_pictures(self, view: ForkView) -> Markup:
        return build_panel("pictures", f"{view.path}pictures", render_pictures(view), trigger="sse:fork delay:500ms")

    def show_pictures(self, request: Request, view: ForkView) -> Response:
        return _answer_panel(request, self._build_pictures(view))

    def show_agreement(self, request: Request, view: ForkView) -> Response:
        return HTMLResponse(render_fragment(render_agreement(view)))

    def show_comments(self, request: Request, view: ForkView) -> Response:
        attempt = request.query_params.get("attempt", "")
        return _answer_panel(request, render_comments(view, visitor_of(request), attempt))

    def show_previews(self, request: Request, view: ForkView) -> Response:
        return _answer_panel(request, self._previews.render(view, visitor_of(request)))

    def show_follow_ups(self, request: Request, view: ForkView) -> Response:
        return _answer_panel(request, render_follow_ups(view, request.query_params.get("attempt", "")))

    def _build_actions(self, view: ForkView, visitor: Visitor) -> Markup:
        content: list[Child] = [render_actions(view, visitor)]
        if visitor.can_write:
            token = self._keys.reader_token(f"{view.served.key}/{view.report.fork.id}")
            link = build_element("a", "Read-only link", href=f"/?token={token}", class_="small soft")
            content.append(link)
        return build_panel("actions", f"{view.path}actions", content, trigger="sse:fork")

    def show_actions(self, request: Request, view: ForkView) -> Response:
        return _answer_panel(request, self._build_actions(view, visitor_of(request)))

    def show_comparison(self, request: Request, view: ForkView) -> Response:
        return HTMLResponse(render_comparison(view, visitor_of(request), decision=render_no_decision(view)))

    def show_path(self, request: Request, view: ForkView) -> Response:
        return HTMLResponse(render_path(view, visitor_of(request), _read_path(request, "file")))

    def show_job(self, request: Request, view: ForkView) -> Response:
        return HTMLResponse(self._jobs.render(request.path_params["job"], view.path, view.path))

    def show_panel(self, request: Request, view: ForkView) -> Response:
        return _answer_panel(request, render_attempt_panel(view, request.url.path.rpartition("/")[2]))

    # One attempt

    def show_changes(self, request: Request, view: ForkView) -> Response:
        attempt = view.find(request.path_params["attempt"])
        options = DiffOptions.read(request.query_params)
        wanted = _read_path(request, "file")
        visitor = visitor_of(request)
        name = request.path_params["attempt"]
        talk = [render_comments(view, visitor, name), render_no_decision(view), render_follow_ups(view, name)]
        return HTMLResponse(render_changes(view, attempt, options, visitor, talk=talk, wanted=wanted))

    def show_rows(self, request: Request, view: ForkView) -> Response:
        attempt = view.find(request.path_params["attempt"])
        options = DiffOptions.read(request.query_params)
        path = _read_path(request, "file")
        file = next((one for one in read_comparison(view, attempt, options) if one.path == path), None)
        if file is None:
            raise HTTPException(404, "This attempt did not change such a file.")
        address = request.url.path.removesuffix("rows")
        window = render_window(address, file, options, _read_number(request.query_params, "start"))
        return HTMLResponse(render_fragment(window))

    def show_touched(self, request: Request, view: ForkView) -> Response:
        return HTMLResponse(render_fragment(render_files(view, view.find(request.path_params["attempt"]))))

    def send_image(self, request: Request, view: ForkView) -> Response:
        attempt = view.find(request.path_params["attempt"])
        path, side = _read_path(request, "file"), request.query_params.get("side", "new")
        content, media_type = find_image(view, attempt, path, side)
        return Response(
            content, media_type=media_type, headers={"content-security-policy": "sandbox; default-src 'none'"}
        )

    def show_output(self, request: Request, view: ForkView) -> Response:
        attempt = self._find_shown(request, view)
        server = request.query_params.get("server", "")
        return HTMLResponse(render_output(view, attempt, visitor_of(request), server))

    def show_output_part(self, request: Request, view: ForkView) -> Response:
        attempt = self._find_shown(request, view)
        start = _read_number(request.query_params, "start")
        size, part = render_output_part(view, attempt, request.query_params.get("server", ""), start)
        return HTMLResponse(part, headers={"x-output-size": str(size)})

    def _find_shown(self, request: Request, view: ForkView) -> AttemptReport:
        if view.is_hidden:
            raise HTTPException(403, "Output is hidden until you choose, because it may name its author.")
        return view.find(request.path_params["attempt"])


class _PreviewDesk:
    """Links to servers inside branches: one listener per workspace, opened with the first link.

    If it ``is_remote``, the browser is elsewhere, and no link would work.
    """

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
        """Render the links to the servers that currently listen in the branches of a fork's attempts.

        A read-only link shows none, because a server can be used to change its data.
        """
        rows = self._list_rows(view) if visitor.can_write and not view.report.fork.is_over else []
        content: Child = None
        if rows:
            listed = build_element("ul", rows, class_="paths previews", aria_label="Previews")
            content = [build_element("h2", "Previews"), listed]
        return build_panel("previews", f"{view.path}previews", content, trigger="sse:fork, sse:progress")

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
        if self._is_remote or view.is_hidden:  # the host name of a preview contains the attempt's id
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


def _answer_panel(request: Request, panel: str) -> Response:
    """Answer with a part of a page, or with nothing if the page has it already."""
    version = request.query_params.get("version")
    if version and f'data-version="{version}"' in panel[:2000]:
        return Response(status_code=204)
    return HTMLResponse(panel)


async def _read_form(request: Request) -> list[tuple[str, str]]:
    """Read the values of a form. Raises HTTPException if there are too many."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _MAX_FORM:
            raise HTTPException(413, "This form is too large.")
    try:
        return parse_qsl(body.decode("ascii"), keep_blank_values=True, errors="surrogateescape", max_num_fields=5000)
    except ValueError as error:
        raise HTTPException(400, "This is not a form.") from error


def _read_number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "0")
    if not (text.isascii() and text.isdecimal()) or len(text) > 13:
        raise HTTPException(400, f"{name} is not a number.")
    return min(int(text), _MAX_START)


def _read_path(request: Request, name: str) -> str:
    """Return a path from the query, which may contain arbitrary bytes."""
    found = dict(parse_qsl(request.url.query, keep_blank_values=True, errors="surrogateescape"))
    return found.get(name, "")
