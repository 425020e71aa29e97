"""The parts of a chat without a session: the prompt, the transcript and the tabs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from textual import events
from textual.app import App, ComposeResult

from forkwise.chat.events import BranchChanged, BranchText, TextDelta, ToolCalled, ToolReturned, TurnBegan
from forkwise.tui.chat.panels import Stage
from forkwise.tui.chat.prompt import Prompt
from forkwise.tui.chat.screen import show_event
from forkwise.tui.entry_view import MarkdownEntry, PlainEntry
from forkwise.tui.transcript import Transcript
from forkwise.tui.transcript_entry import TranscriptEntry
from tests.tui.chat.chat_pilot import until
from tests.tui.pilot import Scene, play

pytestmark = pytest.mark.integration

TEN = [f"b{number}" for number in range(10)]


class Parts(App[None]):
    """A stage over a prompt."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage()
        self.prompt = Prompt(lambda: ["/fork", "/fork-branches", "/fork-budget", "/help", ">>a "])
        self.sent: list[str] = []
        self.walked: list[int] = []

    def compose(self) -> ComposeResult:
        yield self.stage
        yield self.prompt

    def on_mount(self) -> None:
        self.prompt.focus()

    def on_prompt_sent(self, event: Prompt.Sent) -> None:
        self.sent.append(event.text)

    def on_prompt_tab_requested(self, event: Prompt.TabRequested) -> None:
        self.walked.append(event.step)


async def shows(scene: Scene, *texts: str) -> None:
    await until(lambda: all(text in scene.text for text in texts), lambda: scene.text)


def test_writing() -> None:
    app = Parts()

    async def script(scene: Scene) -> None:
        await scene.press(*"one", "enter", *"two", "ctrl+j", *"lines", "enter", *"two", "enter", *"draft")
        assert app.sent == ["one", "two\nlines", "two"]
        seen = []
        for key in ("up", "up", "up", "up", "up", "down", "down", "down", "down", "down"):
            await scene.press(key)
            seen.append(app.prompt.text)
        assert seen == ["two", "two\nlines", "two\nlines", "one", "one", "two\nlines", "two", "draft", "draft", "draft"]
        app.prompt.text = ""
        await scene.press(*"/f")
        assert app.prompt.suggestion == "ork"
        await scene.press("tab")
        assert app.prompt.text == "/fork"
        await scene.press("tab")
        assert app.prompt.text == "/fork-b"
        await scene.press("u", "tab", "tab", "shift+tab")
        assert app.prompt.text == "/fork-budget"
        assert app.walked == [1, -1]
        app.prompt.text = ""
        app.post_message(events.Paste("several\nlines"))
        await shows(scene, "several\n", "lines")
        await scene.press("enter")
        assert app.sent[-1] == "several\nlines"

    play(app, script, size=(60, 12))


def test_markdown_and_tool_calls_are_rendered() -> None:
    app = Parts()

    async def script(scene: Scene) -> None:
        talk = app.stage.talk
        pieces = (
            "```python\nif a:\n",  # a piece ends inside a block
            "    b = c\n```\n\n",
            "a `word` of ",
            "**more** ",
            "\x1b[31mred <b>\r\n",
            "\n```\n",
            "x = 1\t# so\n",
            "```\n\n",
            "# head\n",
            "- it",
        )
        for piece in pieces:
            show_event(app.stage, TextDelta(piece))
            await until(lambda: not app.stage.is_due)
        await shows(scene, "if a:\n      b = c\n", "a word of more \\x1b[31mred <b>", "x = 1", "# so", "head", "• it")
        assert "# head" not in scene.text
        show_event(app.stage, TurnBegan("a question\nof two lines"))
        show_event(app.stage, ToolCalled("1", "write", '{"path": "a.py", "content": "def f():\\n    return [b]"}'))
        show_event(app.stage, ToolReturned("1", "write", "could not", is_error=True))
        await shows(
            scene, "> a question\n   of two lines", "tool: write a.py", "def f():", "    return [b]", "✗ could not"
        )
        [view] = [view for view in scene.app.query(PlainEntry) if view.has_class("tool")]
        assert view.entry.call.language == "python"
        assert "tool: write a.py\ndef f():" in talk.text
        assert talk.last_lines[-4:] == ["tool: write a.py", "  def f():", "      return [b]", "✗ could not"]

    play(app, script, size=(60, 24))


def test_scrolling_and_resizing() -> None:
    app = Parts()

    async def script(scene: Scene) -> None:
        talk = app.stage.talk
        for number in range(100):
            talk.add("text", f"line {number} of some words that are long")
        app.stage.schedule_flush()
        await shows(scene, "line 99")
        assert len(scene.app.query(MarkdownEntry)) == 24, "only the last ones are mounted"
        await until(lambda: talk.allow_vertical_scroll)  # otherwise scrolling is ignored
        for mounted in (48, 72, 96, 100):
            await until(lambda: not talk.is_behind and talk.scroll_y > 0)
            talk.scroll_home(animate=False)
            await until(lambda mounted=mounted: len(scene.app.query(MarkdownEntry)) == mounted)
        await until(lambda: not talk.is_behind)
        talk.scroll_home(animate=False)
        await shows(scene, "line 0 of")
        talk.add("note", "later")
        app.stage.schedule_flush()
        await until(lambda: not talk.is_behind)
        assert "line 0 of" in scene.text
        talk.scroll_end(animate=False)
        await shows(scene, "· later")
        await scene.pilot.resize_terminal(24, 20)
        await shows(scene, "are long\n", "· later")
        talk.add("note", "and more")
        app.stage.schedule_flush()
        await shows(scene, "· and more")
        assert len(scene.app.query(MarkdownEntry)) < 48, "the first ones are removed when the end is in view"
        talk.load([TranscriptEntry("text", "line 0 of some words that are long"), TranscriptEntry("user", "again")])
        app.stage.schedule_flush()
        await shows(scene, "line 0", "> again")
        assert "later" not in scene.text

    play(app, script, size=(60, 20))


def test_loading_keeps_the_widgets_of_entries_that_stay_the_same() -> None:
    app = Parts()

    async def script(scene: Scene) -> None:
        talk = app.stage.talk
        entries = [TranscriptEntry("user", "question"), TranscriptEntry("text", "answer")]
        for more in ("one", "two"):
            before = set(scene.app.query(PlainEntry))
            talk.load([*entries, TranscriptEntry("note", more)])
            app.stage.schedule_flush()
            await shows(scene, "> question", "answer", f"· {more}")
        assert len(before & set(scene.app.query(PlainEntry))) == 1
        assert "one" not in scene.text

    play(app, script, size=(60, 20))


def test_of_ten_branches_only_the_visible_one_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Parts()
    drawn: Counter[int] = Counter()
    due: list[Callable[[], None]] = []
    flush = Transcript.flush

    def noted(self: Transcript) -> None:
        drawn[id(self)] += 1
        flush(self)

    async def script(scene: Scene) -> None:
        stage = app.stage
        stage.open_fork(TEN)
        stage.choose("b3")
        await shows(scene, "branch b3 · ● running")
        await until(lambda: not stage.is_due)
        seen = stage.panels["b3"].transcript
        monkeypatch.setattr(Transcript, "flush", noted)
        with monkeypatch.context() as patch:  # the test decides when the timer fires, however long the rest takes
            patch.setattr(stage, "set_timer", lambda _, callback: due.append(callback))
            for number in range(300):
                for label in TEN:
                    show_event(stage, BranchText(label, f"word{number} "))
                if number % 10 == 0:
                    assert len(due) == 1, "one drawing is due, however much has arrived"
                    due.pop()()
                    await scene.pilot.pause()
            assert drawn == {id(seen): 30}
        due.pop()()
        await shows(scene, "word299")
        assert set(drawn) == {id(seen)}
        assert stage.panels["b4"].transcript.is_behind
        show_event(stage, BranchText("b4/inner", "nested"))
        stage.choose("b4")
        await shows(scene, "branch b4", "word299", "nested")
        show_event(stage, BranchChanged("f", "b9", "f.9", "aggregate_budget_exhausted", 2, "too dear"))
        stage.choose("b9")
        await shows(scene, "branch b9 · $$ agg-exhausted · turn 3 · too dear", "[$$ b9]")
        assert "overview" not in scene.text, "the current tab is visible"
        stage.choose("")
        await shows(scene, "[+ overview]", "b0 ● running", "b9 $$ agg-exhausted", "word299")
        assert stage.strip.find_neighbour(-1) == "b9"
        show_event(stage, BranchText("b4", "\nand another"))
        await shows(scene, "and another")
        stage.choose("b4")
        await shows(scene, "branch b4", "and another")
        stage.close_fork()
        await until(lambda: "b0" not in scene.text and not scene.app.query("BranchPanel"))

    play(app, script)
