"""Hooks of mkdocs: the pages of the repository's root, the links between pages, and the generated references.

``mkdocs.yml`` names this file. An error that a hook raises ends the build.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools.docs_site.command_line import COMMANDS_MARKER, format_commands
from tools.docs_site.links import ROOT, ROOT_PAGES, rewrite_links
from tools.docs_site.reference import INDEX_MARKER, documented_names, find_problems, format_index

__all__ = ["on_files", "on_page_markdown", "on_post_build"]

# Stylesheets, scripts, pictures and fonts; links that a reader follows are not loaded.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(https?:)?//|<link\b[^>]*\bhref=["']?https?://"""
)
_IDENTITY = re.compile(r"""<link\b[^>]*\brel=["']?(?:canonical|prev|next)\b[^>]*>""")

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
    """Insert the generated references, and translate the links."""
    markdown = _PROJECT.sub("", markdown)
    if page.file.src_uri == "reference/index.md":
        markdown = _insert(markdown, INDEX_MARKER, format_index(documented_names()))
    elif page.file.src_uri == "reference/cli.md":
        markdown = _insert(markdown, COMMANDS_MARKER, format_commands())
    return rewrite_links(markdown, page.file.src_uri, config.repo_url)


def on_post_build(config: MkDocsConfig) -> None:
    """Check that no page loads anything over the network."""
    for path in sorted(Path(config.site_dir).rglob("*.html")):
        if found := _LOADED.search(_IDENTITY.sub("", path.read_text())):
            raise PluginError(f"{path.relative_to(config.site_dir)} loads something over the network: {found[0]}")


def _insert(markdown: str, marker: str, text: str) -> str:
    if marker not in markdown:
        raise PluginError(f"the marker {marker} is missing")
    return markdown.replace(marker, text)
