"""The parts of a chat on their own: what is written, what is said, and the tabs, without a session."""

from __future__ import annotations

import pytest
from textual import events
from textual.app import App, ComposeResult

from forkwise.chat.events import BranchChanged, BranchText, TextDelta, ToolReturned, TurnBegan
from forkwise.tui.chat import transcript as transcript_module
from forkwise.tui.chat.panels import Stage
from forkwise.tui.chat.prompt import Prompt
from forkwise.tui.chat.screen import show_event
from forkwise.tui.chat.transcript import Transcript
from tests.tui.chat.chat_pilot import until
from tests.tui.pilot import Scene, play

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

    def on_prompt_walked(self, event: Prompt.Walked) -> None:
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


def test_what_is_said_is_wrapped_once(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Parts()
    wrapped: list[str] = []
    wrap = transcript_module.wrapped

    def noted(text: str, width: int) -> list[str]:
        wrapped.append(text)
        return wrap(text, width)

    async def script(scene: Scene) -> None:
        talk = app.stage.talk
        for number in range(200):
            talk.say("text", f"line {number}")
        talk.flush()
        await shows(scene, "line 199")
        monkeypatch.setattr(transcript_module, "wrapped", noted)
        for word in ("a `word` of ", "**more** ", "\x1b[31mred\r\n", "```py\n", "x = 1\t# so\n", "```\n", "# head"):
            show_event(app.stage, TextDelta(word))
        await shows(scene, "a `word` of **more** \\x1b[31mred", "x = 1   # so", "# head")
        assert not any(text.startswith("line") for text in wrapped)
        styles = [row.style for row in talk._rows[-5:]]
        assert styles == ["text", "code", "code", "code", "heading"]
        show_event(app.stage, TurnBegan("a question"))
        show_event(app.stage, ToolReturned("1", "write", "could not", is_error=True))
        await shows(scene, "> a question", "✗ could not")

    play(app, script, size=(60, 20))


def test_scrolling_and_resizing() -> None:
    app = Parts()

    async def script(scene: Scene) -> None:
        talk = app.stage.talk
        talk.say("text", "\n".join(f"line {number} of some words that are long" for number in range(100)))
        app.stage.changed()
        await shows(scene, "line 99")
        await until(lambda: talk.allow_vertical_scroll)  # else it is not heard: the bar comes with the next frame
        talk.scroll_home(animate=False)
        await shows(scene, "line 0 of")
        talk.say("note", "later")
        app.stage.changed()
        await until(lambda: not talk.is_behind)
        assert "line 0 of" in scene.text
        talk.scroll_end(animate=False)
        await shows(scene, "· later")
        await scene.pilot.resize_terminal(24, 20)
        await shows(scene, "are long\n", "· later")
        talk.say("note", "and more")
        app.stage.changed()
        await shows(scene, "· and more")
        talk.begin()
        await until(lambda: "later" not in scene.text)

    play(app, script, size=(60, 20))


def test_ten_branches_of_which_one_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Parts()
    drawn: dict[int, int] = {}
    flush = Transcript.flush

    def noted(self: Transcript) -> None:
        drawn[id(self)] = drawn.get(id(self), 0) + 1
        flush(self)

    async def script(scene: Scene) -> None:
        stage = app.stage
        stage.open_fork(TEN)
        stage.choose("b3")
        await shows(scene, "branch b3 · ● running")
        monkeypatch.setattr(Transcript, "flush", noted)
        for number in range(300):
            for label in TEN:
                show_event(stage, BranchText(label, f"word{number} "))
            if number % 10 == 0:
                await scene.pilot.pause()
        await shows(scene, "word299")
        seen = stage.panels["b3"].transcript
        assert set(drawn) == {id(seen)}
        assert drawn[id(seen)] <= 100
        assert stage.panels["b4"].transcript.is_behind
        show_event(stage, BranchText("b4/inner", "from inside"))
        stage.choose("b4")
        await shows(scene, "branch b4", "word299", "from inside")
        show_event(stage, BranchChanged("f", "b9", "f.9", "aggregate_budget_exhausted", 2, "too dear"))
        stage.choose("b9")
        await shows(scene, "branch b9 · $$ agg-exhausted · turn 3 · too dear", "[$$ b9]")
        assert "overview" not in scene.text, "the tab that is shown is in sight"
        stage.choose("")
        await shows(scene, "[+ overview]", "b0 ● running", "b9 $$ agg-exhausted", "word299")
        assert stage.strip.beside(-1) == "b9"
        show_event(stage, BranchText("b4", "\nand another"))
        await shows(scene, "and another")
        stage.choose("b4")
        await shows(scene, "branch b4", "and another")
        stage.close_fork()
        await until(lambda: "b0" not in scene.text and not scene.app.query("BranchPanel"))

    play(app, script)
