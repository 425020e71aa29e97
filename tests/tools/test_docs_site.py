"""The documentation site: its reference is complete, its links work in both places, a mistake fails the build."""

from __future__ import annotations

import json
import logging
import re
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from tools.dist import check_sdist, check_wheel
from tools.docs_site.command_line import format_commands, walk_commands
from tools.docs_site.links import ROOT, ROOT_PAGES, rewrite_links
from tools.docs_site.reference import documented_names, find_problems, format_index

import forkwise
from tests.need import need


@pytest.fixture
def site_tools() -> None:
    """Skip the test unless the dependency group ``docs`` is installed."""
    need(find_spec("mkdocstrings") is not None, "the tools for the documentation site are missing; run: make docs")


def test_the_reference_documents_every_public_name() -> None:
    assert find_problems(documented_names()) == []


def test_a_missing_an_unknown_and_a_repeated_name_are_reported() -> None:
    pages = {"all.md": [*forkwise.__all__[1:], "Nonsense", forkwise.__all__[1]]}
    problems = find_problems(pages)
    assert [forkwise.__all__[0] in problems[0], "Nonsense" in problems[1], "2 times" in problems[2]] == [True] * 3
    assert len(problems) == 3


def test_the_index_of_names_links_to_the_page_of_each() -> None:
    index = format_index({"files.md": ["Workspace"], "index.md": ["__version__"]})
    assert "[`Workspace`](files.md#forkwise.Workspace)" in index
    assert "[`__version__`](#forkwise.__version__)" in index


def test_the_command_line_reference_has_every_verb_and_option() -> None:
    text = format_commands()
    commands = list(walk_commands())
    assert len(commands) > 30
    for context, command in commands:
        section = text.partition(f"\n## {context.command_path} {{")[2].partition("\n## ")[0]
        assert section, f"{context.command_path} is missing"
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[-1] in section, f"{context.command_path} {parameter.opts[-1]} is missing"
    assert "`--confinement [open\\|standard\\|strict]`" in text
    assert "| standard |" in text


@pytest.mark.parametrize(
    ("page", "link", "rewritten"),
    [
        ("index.md", "[a](../SECURITY.md#scope)", "[a](project/security.md#scope)"),
        ("pitfalls/threads.md", "[a](../../ARCHITECTURE.md)", "[a](../project/architecture.md)"),
        ("project/security.md", "[a](docs/sandbox.md)", "[a](../sandbox.md)"),
        ("project/contributing.md", "[a](ARCHITECTURE.md)", "[a](architecture.md)"),
        ("tutorial.md", "[a](../README.md#install)", "[a](index.md#install)"),
        ("chat.md", "![a](images/chat-dark.svg)", "![a](images/chat-dark.svg)"),
        ("chat.md", "[![a](../docs/x.svg)](../README.md)", "[![a](x.svg)](index.md)"),
        ("performance.md", "see [`cost`](../tests/files/test_cost.py).", "see `cost`."),
        ("performance.md", "[a](../tests/no-such-file.py)", "[a](../tests/no-such-file.py)"),
        ("index.md", "[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
        ("index.md", "[a](#install)", "[a](#install)"),
        ("faq.md", "([how to\n  install](../README.md#x))", "([how to\n  install](index.md#x))"),
        ("faq.md", "[a\n\nb](../README.md)", "[a\n\nb](../README.md)"),
        ("index.md", "```text\n[a](../README.md)\n```", "```text\n[a](../README.md)\n```"),
    ],
)
def test_links_of_the_sources_become_links_of_the_site(page: str, link: str, rewritten: str) -> None:
    assert rewrite_links(link, page) == rewritten


def test_a_file_outside_the_site_is_linked_in_the_repository_if_that_has_an_address() -> None:
    rewritten = rewrite_links("[a](../LICENSE)", "index.md", "https://example.org/forkwise/")
    assert rewritten == "[a](https://example.org/forkwise/blob/main/LICENSE)"


def test_the_pages_of_the_root_exist() -> None:
    assert all((ROOT / name).is_file() for name in ROOT_PAGES)


@pytest.mark.usefixtures("site_tools")
def test_a_docstring_becomes_markdown() -> None:
    from tools.docs_site.docstrings import format_docstring

    text = "Use ``Workspace``, ``pick`` or ``pick()``.\n>>> a()  # doctest: +SKIP\n1\n\nMore of ``Branch``."
    assert format_docstring(text, "Branch") == (
        "Use [`Workspace`][forkwise.Workspace], ``pick`` or [`pick()`][forkwise.pick].\n\n"
        "```pycon\n>>> a()\n1\n```\n\nMore of ``Branch``."
    )


@pytest.mark.usefixtures("site_tools")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# Home\n\n[a](missing.md)\n", "missing.md"),
        ("# Home\n\n[a](../README.md#no-such-anchor)\n", "no-such-anchor"),
        ("# Home\n\n[a](../README.md#home)\n", ""),
    ],
    ids=["broken link", "missing anchor", "nothing wrong"],
)
def test_a_broken_link_or_a_missing_anchor_fails_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, text: str, message: str
) -> None:
    import yaml
    from mkdocs.commands.build import build
    from mkdocs.config import load_config
    from mkdocs.exceptions import Abort

    for name in list(ROOT_PAGES):  # they link to pages that this small site does not have
        monkeypatch.delitem(ROOT_PAGES, name)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text(text)
    # The same as in mkdocs.yml, with the names of Python objects left out.
    settings = yaml.safe_load(re.sub(r"!!python/name:\S+", "x", (ROOT / "mkdocs.yml").read_text()))
    small = {
        "site_name": "test",
        "theme": {"name": "mkdocs", "highlightjs": False},
        "hooks": [str(ROOT / "tools/docs_site/hooks.py")],
        "validation": settings["validation"] | {"nav": {"omitted_files": "ignore"}},
        "plugins": [],
    }
    (tmp_path / "mkdocs.yml").write_text(json.dumps(small))
    with caplog.at_level(logging.WARNING, "mkdocs"):
        config = load_config(str(tmp_path / "mkdocs.yml"), strict=True)
        if message:
            with pytest.raises(Abort):
                build(config)
        else:
            build(config)
    assert message in caplog.text
    assert bool(message) == bool(caplog.text)


@pytest.mark.usefixtures("site_tools")
def test_a_page_of_the_site_has_no_notes_to_the_tests_and_no_backslashes_in_code() -> None:
    from types import SimpleNamespace

    from tools.docs_site.hooks import on_page_markdown

    page, config = SimpleNamespace(file=SimpleNamespace(src_uri="a.md")), SimpleNamespace(repo_url=None)
    text = on_page_markdown("<!-- project: empty -->\n# A\n\n| `a\\|b` | c\\|d |\n", page, config, None)
    assert text == "# A\n\n| `a|b` | c\\|d |\n"


def test_what_a_wheel_and_an_sdist_must_contain() -> None:
    wheel = ["forkwise/py.typed", "forkwise/agents/agents.toml", "f.dist-info/METADATA", "f.dist-info/licenses/LICENSE"]
    assert check_wheel(wheel) == []
    assert check_wheel([*wheel, "tests/test_a.py"]) == ["the wheel contains tests/"]
    assert check_wheel(wheel[1:]) == ["the wheel has no forkwise/py.typed"]
    assert "the sdist has no LICENSE" in check_sdist(["forkwise-1/README.md"])


@pytest.mark.usefixtures("site_tools")
@pytest.mark.parametrize("name", ["README.md", "docs/chat.md", "docs/watch.md"])
def test_a_picture_has_a_light_and_a_dark_variant_that_follow_the_switch_of_the_site(name: str) -> None:
    from tools.docs_site.hooks import on_page_markdown

    text = (ROOT / name).read_text()
    assert "-dark.svg)" not in text, "only a dark variant is shown"
    page = Mock(file=Mock(src_uri=ROOT_PAGES.get(name, Path(name).name)))
    markdown = on_page_markdown(text, page=page, config=Mock(repo_url=None), files=Mock())
    assert "<picture>" not in markdown
    count = text.count("<picture>")
    assert count
    shown = [len(re.findall(rf"-{kind}\.(?:svg|png)#only-{kind}\)", markdown)) for kind in ("light", "dark")]
    assert shown == [count, count]
