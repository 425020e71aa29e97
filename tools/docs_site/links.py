"""Translation of the links in the Markdown sources into links between pages of the site.

The sources link to each other by their paths in the repository, so that the links work on a git forge. The site has
another layout: ``docs/`` is its root, and the Markdown files of the repository's root are pages under ``project/``.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

__all__ = ["ROOT", "ROOT_PAGES", "rewrite_links", "source_path"]

ROOT = Path(__file__).parents[2]

#: The Markdown files of the repository's root, and the page of the site that shows each.
ROOT_PAGES = {
    "ARCHITECTURE.md": "project/architecture.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "CHANGELOG.md": "project/changelog.md",
}

# Nothing to gain from showing the README next to the home page.
_SITE_PATHS = {**ROOT_PAGES, "README.md": "index.md"}
_REPOSITORY_PATHS = {page: name for name, page in ROOT_PAGES.items()}
_FENCE = re.compile(r"^ *(`{3,}|~{3,})")
_LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`]*`|!\[[^\]]*\]\([^)]*\))*)\]\(([^)\s]+)\)")


def source_path(page: str) -> str:
    """Return the path in the repository of a page of the site."""
    return _REPOSITORY_PATHS.get(page, f"docs/{page}")


def rewrite_links(markdown: str, page: str, repository_url: str | None = None) -> str:
    """Translate the links of the page ``page``, leaving code blocks alone.

    A link to a file that the site does not show leads to ``repository_url``, or becomes plain text if there is none. A
    link to a file that does not exist is left alone: mkdocs reports it.
    """
    parts: list[str] = []
    paragraph: list[str] = []

    def end_paragraph() -> None:
        if paragraph:
            parts.append(_LINK.sub(lambda link: _rewrite(link, page, repository_url), "\n".join(paragraph)))
            paragraph.clear()

    fence = ""
    for line in markdown.split("\n"):
        found = _FENCE.match(line)
        if line.strip() and not fence and not found:
            paragraph.append(line)  # a link may go on in the next line
            continue
        end_paragraph()
        parts.append(line)
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence):
            fence = ""
    end_paragraph()
    return "\n".join(parts)


def _rewrite(link: re.Match[str], page: str, repository_url: str | None) -> str:
    is_image, text, address = link.groups()
    text = _LINK.sub(lambda inner: _rewrite(inner, page, repository_url), text)
    target, hash_sign, anchor = address.partition("#")
    if not target or ":" in target or target.startswith("/"):
        return f"{is_image}[{text}]({address})"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source_path(page)), target))
    site_path = _SITE_PATHS.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
    if site_path is not None:
        relative = posixpath.relpath(site_path, posixpath.dirname(page) or ".")
        return f"{is_image}[{text}]({relative}{hash_sign}{anchor})"
    if path.startswith("..") or not (ROOT / path).exists():
        return f"{is_image}[{text}]({address})"
    if repository_url:
        return f"{is_image}[{text}]({repository_url.rstrip('/')}/blob/main/{path}{hash_sign}{anchor})"
    return text
