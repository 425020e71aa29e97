"""Hooks of mkdocs: the pages of the repository's root, the links between pages, and the generated references.

``mkdocs.yml`` names this file. An error that a hook raises ends the build.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docs_site.command_line import COMMANDS_MARKER, format_commands
from tools.docs_site.links import ROOT, ROOT_PAGES, rewrite_links
from tools.docs_site.reference import INDEX_MARKER, documented_names, find_problems, format_index

__all__ = ["on_files", "on_page_markdown", "on_post_build"]

_log = get_plugin_logger("docs_site")

# Stylesheets, scripts, pictures and fonts; links that a reader follows are not loaded.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(https?:)?//|<link\b[^>]*\bhref=["']?https?://"""
)
_IDENTITY = re.compile(r"""<link\b[^>]*\brel=["']?(?:canonical|prev|next)\b[^>]*>""")

_ADDRESS = re.compile(r"""<[a-z][^<>]*\b(?:src|srcset|href)="([^"]*)\"""")
_TABLE_ROW = re.compile(r"^\|.*$", re.MULTILINE)
# A picture in two variants, for a git forge: it follows the system's colours, and the site has a switch of its own.
_PICTURE = re.compile(
    r"""<picture>\n<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>\S+)">\n"""
    r"""<img alt="(?P<alt>[^"]*)" src="(?P<light>\S+)">\n</picture>"""
)
# The note to tests/test_docs.py in the first line of a page.
_PROJECT = re.compile(r"\A<!-- project: \S+ -->\n")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Check the reference for missing names, and add the pages of the repository's root."""
    if problems := find_problems(documented_names()):
        raise PluginError("\n".join(problems))
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Insert the generated references, and translate the pictures and the links."""
    markdown = _PROJECT.sub("", markdown)
    markdown = _PICTURE.sub(r"![\g<alt>](\g<light>#only-light)\n![\g<alt>](\g<dark>#only-dark)", markdown)
    if page.file.src_uri == "reference/index.md":
        markdown = _insert(markdown, INDEX_MARKER, format_index(documented_names()))
    elif page.file.src_uri == "reference/cli.md":
        markdown = _insert(markdown, COMMANDS_MARKER, format_commands())
    markdown = _TABLE_ROW.sub(_unescape_pipes, markdown)
    return rewrite_links(markdown, page.file.src_uri, config.repo_url)


def on_post_build(config: MkDocsConfig) -> None:
    """Check that no page loads anything over the network, and that every picture and page it names exists."""
    site = Path(config.site_dir)
    for path in sorted(site.rglob("*.html")):
        text = _IDENTITY.sub("", path.read_text())
        if found := _LOADED.search(text):
            raise PluginError(f"{path.relative_to(site)} loads something over the network: {found[0]}")
        for address in set(_ADDRESS.findall(text)):
            target = address.partition("#")[0].partition("?")[0]
            # mkdocs checks the links of Markdown, but not those of HTML in a page. 404.html has absolute ones.
            if not target or ":" in target or target.startswith("/") or target.endswith(".md"):
                continue
            if not (path.parent / target).exists():
                _log.warning(f"{path.relative_to(site)} refers to {address}, which does not exist")


def _unescape_pipes(row: re.Match[str]) -> str:
    """Drop the backslash before a pipe in the code of a table's row: a git forge needs it, mkdocs would show it."""
    return re.sub("`[^`]*`", lambda code: code[0].replace("\\|", "|"), row[0])


def _insert(markdown: str, marker: str, text: str) -> str:
    """Replace the part of a page between ``<!-- marker -->`` and ``<!-- /marker -->``."""
    before, opening, rest = markdown.partition(f"<!-- {marker} -->")
    _, closing, after = rest.partition(f"<!-- /{marker} -->")
    if not opening or not closing:
        raise PluginError(f"<!-- {marker} --> or <!-- /{marker} --> is missing")
    return f"{before}{text}{after}"
