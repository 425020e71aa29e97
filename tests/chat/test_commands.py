"""Every slash command: its effect, its output, and when it is refused."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from pathlib import Path

import pytest

import forkwise
from forkwise.chat.events import Copied, Failed, ForkResolved, Judged, Moved, Notice, SettingsChanged, Shown
from forkwise.chat.interpreter import Interpreter
from forkwise.chat.settings import load_settings
from forkwise.chat.slash_commands import COMMANDS, UsageError, format_help, parse
from tests.acceptance import write_accepted
from tests.chat.scripted_chat import EventLog, call, chatting, write_script
from tests.leftovers import processes_about
from tests.need import need_recorded_changes

pytestmark = pytest.mark.anyio


def test_lines_are_parsed_by_the_table() -> None:
    assert parse("   ") is None
    for line in ("/nonsense", ">>", "!", "/undo more", "/quit now"):
        with pytest.raises(UsageError):
            parse(line)
    line = parse("//etc is a directory")
    assert line is not None
    assert (line.kind, line.rest) == ("prompt", "/etc is a directory")
    for command in COMMANDS:
        name = command.name.replace("-", "_").replace(" ", "_")
        assert callable(getattr(Interpreter, f"_do_{name}"))
        assert command.usage in format_help()
    with pytest.raises(UsageError, match="/merge"):
        parse("/mege")


async def test_commands_allowed_while_a_fork_is_open(project: Path, model: str) -> None:
    """Commands that work on the fork are allowed; the others are refused with a reason."""
    async with chatting(project, model) as (session, log):
        await session.submit("/fork task")
        await log.branch("b", "done")
        refused = []
        for command in COMMANDS:
            before = len(log.of(Failed))
            if command.name not in ("quit", "merge", "abort", "fork diff"):
                await session.submit(f"/{command.name} 1" if command.arguments else f"/{command.name}")
                texts = [event.text for event in log.of(Failed)[before:]]
                if any("a fork is open" in text for text in texts):
                    refused.append(command.name)
        assert refused == [
            "fork", "fork-branches", "fork-budget", "fork-model", "override", "undo", "load", "go", "combine", "model",
        ]  # fmt: skip
        await session.submit("!cat a.txt")
        assert log.last(Shown).text == "one\nexit code: 0"
        await session.submit("/abort")


async def test_settings_are_saved(project: Path, model: str) -> None:
    file = project / ".forkwise" / "config.toml"
    write_accepted(file, '# mine\n[other]\nx = 1 # kept\n\n[chat]\nbranches = 3 # three\ntest = "true"\n')
    async with chatting(project, model) as (session, log):
        for line, text in {
            "/fork-branches": "fork_branch_count = 3",
            "/fork-branches 4": "fork_branch_count = 4",
            "/fork-budget per-branch 0.25": "per-branch budget = $0.25",
            "/fork-budget 2": "aggregate budget = $2.00",
            "/fork-budget": "per-branch budget = $0.25, aggregate budget = $2.00",
            "/fork-model 1 anthropic:claude-opus-4-6": "Branch 1 model = anthropic:claude-opus-4-6",
            "/fork-model 2 local": "Branch 2 model = local",
            "/fork-model 1 clear": "Branch 1 runs on the chat's model",
            "/fork-model": "Branch 2 model = local",
        }.items():
            await session.submit(line)
            assert log.last(SettingsChanged).text == text
        log.check_no_failures()
        for line in ("/fork-branches 11", "/fork-branches x", "/fork-budget per-branch -1", "/fork-budget nan",
                     "/fork-model 9 local", "/fork-model 1 claude", "/fork-budget a b c"):  # fmt: skip
            before = len(log.of(Failed))
            await session.submit(line)
            assert len(log.of(Failed)) == before + 1, line
        form = session.fork_form("do it")
        assert [(row.label, row.model, row.budget_usd) for row in form.rows] == [
            ("a", None, 0.25), ("b", "local", 0.25), ("c", None, 0.25), ("d", None, 0.25),
        ]  # fmt: skip
        assert form.budget_usd == 2.0
    text = file.read_text()
    assert text.startswith("# mine\n[other]\nx = 1 # kept\n")
    assert "branches = 4 # three" in text
    assert load_settings(project) == session.settings
    async with chatting(project, model) as (session, log):
        await session.submit("/fork-budget clear")
        await session.submit("/fork-model clear")
        assert session.fork_form().budget_usd is None
    assert load_settings(project).models == {}


@pytest.mark.parametrize("how", ["auto", "vote"])
async def test_judges_decide_and_are_overridden(project: Path, model: str, how: str) -> None:
    async with chatting(project, model) as (session, log):
        await session.submit("hello")
        await session.submit("/fork task")
        await session.submit("/merge judge")
        judged = log.last(Judged)
        assert (judged.winner, judged.reasoning) == ("b", "b is shorter")
        assert session.fork is not None
        assert not judged.is_sure
        await session.submit(f"/merge {how}")  # at once, whatever the confidence
        assert (log.last(ForkResolved).how, log.last(ForkResolved).winners) == (how, ("b",))
        assert (project / "lib.txt").read_text() == "from b\n"
        await session.submit("/override a")
        assert log.last(ForkResolved).how == "override"
        assert (project / "lib.txt").read_text() == "from a\n"
        assert session.last_answer == "a wrote lib.txt."
        log.check_no_failures()
        await session.submit("/undo")
        log.check_no_failures()
        assert not (project / "lib.txt").exists()
        await session.submit("/override b")
        assert "no verdict to override" in log.last(Failed).text


async def test_nodes_of_the_conversation(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        await session.submit("hello")
        await session.submit("write it")
        last = session.here.id
        await session.submit("/go 2")
        assert log.last(Moved).node == session.here.id == 2
        await session.submit("hello again")
        await session.submit("/tree")
        tree = log.last(Shown).text
        assert "* " in tree
        assert f"[{last}]" in tree
        await session.submit(f"/compare {last} {session.here.id}")
        assert "-user: write it" in log.last(Shown).text
        await session.submit(f"/combine {last} {session.here.id}")
        assert "Wrote it." in session.last_answer
        assert "Hi there" in session.last_answer
        await session.submit("/copy")
        assert log.last(Copied).text == session.last_answer
        log.check_no_failures()
        for line in ("/go", "/go nowhere", "/go 99", "/compare 1", "/combine llm_guess", "/combine 1"):
            before = len(log.of(Failed))
            await session.submit(line)
            assert len(log.of(Failed)) == before + 1, line


async def test_a_checkpoint_is_loaded_with_its_files(project: Path, model: str) -> None:
    need_recorded_changes(project)
    async with chatting(project, model) as (session, log):
        await session.submit("write it")
        await session.submit("more of it")
        await session.submit("/load")
        listed = log.last(Shown).text.splitlines()
        assert len(listed) == 2
        await session.submit(f"/load {listed[1].split()[0]}")
        log.check_no_failures()
        assert not (project / "more.txt").exists()
        assert (project / "x.txt").exists()
        assert [line.text for line in session.said() if line.who == "user"] == ["write it"]
        await session.submit("/load nowhere")
        assert "no checkpoint" in log.last(Failed).text


async def test_commands_about_the_chat(project: Path, model: str) -> None:
    async with chatting(project, model) as (session, log):
        await session.submit("/copy")
        assert "no answer to copy" in log.last(Failed).text
        await session.submit("hello")
        shown = {}
        for name in ("cost", "tokens", "model", "version", "help", "help merge", "branches"):
            await session.submit(f"/{name}")
            shown[name] = log.last(Shown).text
        assert shown["cost"] == "conversation: free, 1 request"
        assert " in, " in shown["tokens"]
        assert shown["model"] == model
        assert shown["version"] == forkwise.__version__
        assert "/fork diff [PATH]" in shown["help"]
        assert shown["help merge"].startswith("/merge")
        assert shown["branches"] == "no fork is open"
        await session.submit("/model nobody:x")
        assert "nobody" in log.last(Failed).text
        await session.submit("/model test")
        assert session.model_name == "test"
        await session.submit("/quit")
        assert session.is_closed


async def test_versions_are_lined_up_chosen_and_committed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "text").write_text("one\ntwo\nthree\nfour\nfive\n")
    texts = {"a": "ONE\ntwo\nthree\nfour\nfive\n", "b": "one\ntwo\nthree\nfour\nFIVE\n"}
    rules = [
        {"branch": name, "steps": [{"calls": [call("write", path="text", content=text)]}, {"say": f"I am {name}."}]}
        for name, text in texts.items()
    ]
    model = write_script(project.parent, rules)
    async with chatting(project, model) as (session, log):
        await session.submit("/fork task")
        await log.branch("a", "done")
        await log.branch("b", "done")
        await session.submit("/nway text")
        assert "hunk 2 of b: lines 5 to 5 become\n    FIVE" in log.last(Shown).text
        await _check_diff(session.submit, log, project, monkeypatch)
        [lineup] = await session.choices.line_up()
        assert lineup.alignment is not None
        prepared = await session.choices.prepare({"text": frozenset(lineup.alignment.hunks)})
        assert "+FIVE" in prepared.diff
        await session.choices.drop(prepared)
        prepared = await session.choices.prepare({"text": frozenset(lineup.alignment.hunks)})
        await session.choices.commit(prepared)
        log.check_no_failures()
        assert (project / "text").read_text() == "ONE\ntwo\nthree\nfour\nFIVE\n"
        assert log.last(ForkResolved).how == "choice"
        assert log.last(ForkResolved).winners == ("a", "b")
        assert session.fork is None
        await session.submit("/undo")
        log.check_no_failures()
        assert (project / "text").read_text().startswith("one\n")


async def _check_diff(submit: object, log: EventLog, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As text if there is no diff tool, else in the tool."""
    assert callable(submit)
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    await submit("/fork diff")
    assert log.last(Shown).text == "text: a modified, b modified (split)"
    await submit("/fork diff text")
    assert "+ONE" in log.last(Shown).text
    monkeypatch.undo()
    tool = project.parent / "tool"
    tool.write_text('#!/bin/sh\ncat "$@" > "$0.new" && mv "$0.new" "$0.shown"\n')
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("FORKWISE_DIFFTOOL", f"{tool} {{parent}} {{branches}}")
    await submit("/fork diff text")
    assert "in a diff tool" in log.last(Notice).text
    async with asyncio.timeout(60):
        while not Path(f"{tool}.shown").exists() or processes_about(str(tool)):
            await asyncio.sleep(0.01)
    assert Path(f"{tool}.shown").read_text().splitlines().count("FIVE") == 1
    await submit("/fork diff nowhere")
    assert log.of(Failed).pop().text == "no branch changed nowhere"
    log[:] = [event for event in log if not isinstance(event, Failed)]
