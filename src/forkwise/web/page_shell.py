"""Page shell: what all pages of the server have in common, and the files that they load from it."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from forkwise.display.html.markup import Child, Markup, build_element, build_title, join_markup
from forkwise.web.admission import FORM_HEADER, Visitor

__all__ = ["Asset", "build_panel", "load_assets", "render_fragment", "render_shell"]

_ASSETS = {
    "page.css": ("forkwise.display.html", "page.css", "text/css"),
    "web.css": ("forkwise.web", "assets/web.css", "text/css"),
    "htmx.js": ("forkwise.web", "assets/htmx.min.js", "text/javascript"),
    "sse.js": ("forkwise.web", "assets/sse.min.js", "text/javascript"),
    "icon.svg": ("forkwise.web", "assets/icon.svg", "image/svg+xml"),
    "forkwise.js": ("forkwise.web", "assets/forkwise.js", "text/javascript"),
}
_SETTINGS = json.dumps(
    {
        "allowEval": False,
        "allowScriptTags": False,
        "historyCacheSize": 0,
        "includeIndicatorStyles": False,
        "selfRequestsOnly": True,
        "scrollBehavior": "instant",
    }
)
_KEYS = {
    "j, k": "next and previous line, hunk, attempt or fork",
    "n, p": "next and previous file",
    "x": "choose the hunk or the attempt, or withdraw the choice",
    "c": "comment on the line, or on the attempt",
    "Enter": "open what is selected",
    "s": "side by side, or one below the other",
    "?": "this list",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that pages load. ``address`` contains its digest, so that browsers can cache it forever."""

    address: str
    content: bytes
    media_type: str


@cache
def load_assets() -> dict[str, Asset]:
    """Load the files that pages need, by name."""
    found = {}
    for name, (package, path, media_type) in _ASSETS.items():
        content = files(package).joinpath(path).read_bytes()
        digest = hashlib.sha256(content).hexdigest()[:16]
        found[name] = Asset(f"/assets/{digest}/{name}", content, media_type)
    return found


def render_shell(title: str, body: Child, visitor: Visitor, *, events: str | None, trail: Child = None) -> str:
    """Render a complete page. ``events`` is the address of its events, ``trail`` what leads to it."""
    assets = load_assets()
    head = build_element(
        "head",
        build_element("meta", charset="utf-8"),
        build_element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        build_element("meta", name="color-scheme", content="light dark"),
        build_element("meta", name="htmx-config", content=_SETTINGS),
        build_title(title),
        build_element("link", rel="icon", href=assets["icon.svg"].address, type="image/svg+xml"),
        [build_element("link", rel="stylesheet", href=assets[name].address) for name in ("page.css", "web.css")],
        [
            build_element("script", src=assets[name].address, defer=True)
            for name in ("htmx.js", "sse.js", "forkwise.js")
        ],
    )
    top = build_element(
        "header",
        build_element("a", "forkwise", href="/", class_="brand")
        if visitor.fork is None
        else build_element("span", "forkwise", class_="brand"),
        build_element("nav", trail, aria_label="Where this page is", class_="trail"),
        build_element("span", class_="live", id="live", role="status", aria_live="polite"),
        None if visitor.can_write else build_element("span", "read-only", class_="pill"),
        build_element("button", "?", type="button", id="help-button", aria_label="Keys", title="Keys (?)"),
        class_="bar-top",
    )
    page = build_element(
        "body",
        build_element("a", "Skip to the content", href="#content", class_="skip"),
        top,
        build_element("main", body, id="content", class_="wide", tabindex=-1),
        build_element("div", id="notices", role="status", aria_live="polite"),
        _render_help(),
        hx_ext="sse",
        sse_connect=events,
        hx_headers=json.dumps({FORM_HEADER: visitor.form}),
    )
    return f"<!doctype html>\n{build_element('html', head, page, lang='en')}\n"


def _render_help() -> Markup:
    rows = [
        build_element("div", build_element("dt", build_element("kbd", keys)), build_element("dd", text))
        for keys, text in _KEYS.items()
    ]
    close = build_element("form", build_element("button", "Close", type="submit"), method="dialog")
    title = build_element("h2", "Keys", id="keys-title")
    return build_element(
        "dialog", title, build_element("dl", rows, class_="keys"), close, id="keys", aria_labelledby="keys-title"
    )


def build_panel(name: str, address: str, content: Child, *, trigger: str) -> Markup:
    """Build a part of a page that is fetched again when ``trigger`` occurs, and replaced only if it changed.

    The trigger has no ``throttle``: with it, htmx drops all events during that time, including the last change.
    """
    inner = join_markup([content])
    version = hashlib.sha256(inner.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return build_element(
        "div",
        inner,
        id=name,
        hx_get=address,
        hx_trigger=trigger,
        hx_swap="outerHTML",
        hx_vals=json.dumps({"version": version}),
        hx_sync="this:replace",
        hx_disinherit="*",
        data_version=version,
    )


def render_fragment(content: Child) -> str:
    """Render a part of a page."""
    return join_markup([content])
