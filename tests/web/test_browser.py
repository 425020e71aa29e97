"""The page in a real browser, by mouse and by keyboard: decisions, live changes, hostile contents, accessibility."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from forkwise import Workspace
from forkwise.explore.follow_up import find_follow_ups
from forkwise.fork.resolve import pick
from forkwise.ledger.logs import AttemptLog
from forkwise.ledger.sqlite import open_ledger
from tests.display.hostile import CORPUS
from tests.need import need
from tests.preloaded import preloaded_command
from tests.web.conftest import SHOP, make_fork
from tests.web.test_conversation_view import TALK, store

pytestmark = pytest.mark.integration

AXE = "axe-core@4.14.0"
SERVER_MODULES = ("forkwise.web.site", "uvicorn", "uvicorn.lifespan.on", "uvicorn.protocols.http.auto")


class Served:
    """A server in a process of its own, which can be ended and started again."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self.port = ""
        self.start()

    def start(self) -> None:
        words = ["serve", "--json", "-C", str(self.workspace.path), *(["--port", self.port] if self.port else [])]
        command = [preloaded_command(*SERVER_MODULES), *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = json.loads(self.process.stdout.readline())["serving"]
        self.url, self.base = found["url"], found["address"]
        self.port = self.base.rpartition(":")[2]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(30) == 130
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def served(workspace: Workspace) -> Iterator[Served]:
    found = Served(workspace)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    # For the whole browser each page is a window with a toolbar, which takes four times the CPU time of the page.
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    need(program is not None, "chromium is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield browser
        browser.close()


Open = Callable[..., Any]


@pytest.fixture
def visit(chromium: Any, served: Served) -> Iterator[Open]:
    """Open pages, and check afterwards that they ran without an error and loaded nothing from elsewhere."""
    contexts, problems = [], []

    def visit(path: str, width: int = 1280, scheme: str = "light") -> Any:
        context = chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("pageerror", lambda error: problems.append(f"error: {error}"))
        page.on("dialog", lambda dialog: (problems.append("a dialog opened"), dialog.dismiss()))
        page.on("request", lambda one: None if one.url.startswith(served.base) else problems.append(one.url))
        page.goto(served.url)
        page.wait_for_url(f"{served.base}/")
        page.goto(f"{served.base}{path}")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert problems == []


def test_pick_by_mouse_and_undo(served: Served, fork: str, visit: Open) -> None:
    page = visit("/")
    page.get_by_role("link", name="Tax is 20 percent").or_(page.locator(".subject")).first.click()
    page.get_by_label(f"Choose {fork}.1").check()
    page.get_by_role("button", name="Pick").click()
    page.get_by_role("button", name="Commit it").click()
    page.get_by_text("Committed as 1").first.wait_for()
    assert "value * 1.2" in (served.workspace.path / "shop.py").read_text()
    page.locator("#actions").get_by_role("button", name="Undo").click()
    page.get_by_role("button", name="Undo it").click()
    page.get_by_text("Undid 1 as 2").first.wait_for()
    assert (served.workspace.path / "shop.py").read_text() == SHOP


def test_pick_by_keyboard(served: Served, fork: str, visit: Open) -> None:
    page = visit(f"/w/shop/{fork}/")
    page.keyboard.press("?")
    page.locator("#keys").wait_for(state="visible")
    page.keyboard.press("Escape")
    page.locator("#keys").wait_for(state="hidden")
    for key in ("j", "j", "j", "k", "x"):
        page.keyboard.press(key)
    page.get_by_text(f"Chosen: {fork}.2").first.wait_for()
    page.get_by_role("button", name="Pick").focus()
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Commit it").focus()
    page.keyboard.press("Enter")
    page.get_by_text("Committed as 1").first.wait_for()
    assert (served.workspace.path / "notes.md").exists()


def test_hunks_of_several_attempts(served: Served, fork: str, visit: Open) -> None:
    page = visit(f"/w/shop/{fork}/")
    page.get_by_role("link", name="Compare all").click()
    page.get_by_label(f"take {fork}.1").check()
    page.get_by_label(f"take {fork}.2").first.check()
    assert not page.get_by_label(f"take {fork}.1").is_checked()  # one change of each place
    page.get_by_label(f"take {fork}.3").check()
    page.reload()
    page.get_by_text("2 changes chosen").first.wait_for()
    page.get_by_role("button", name="Test the combination").click()
    page.get_by_text("nothing is committed yet").first.wait_for()
    page.get_by_role("button", name="Commit it").click()
    page.get_by_text("Committed as 1").first.wait_for()
    text = (served.workspace.path / "shop.py").read_text()
    assert "value * 6 / 5" in text
    assert "RATE = 1.2" in text


def test_two_browsers_and_another_process(served: Served, fork: str, visit: Open) -> None:
    pages = [visit(f"/w/shop/{fork}/"), visit(f"/w/shop/{fork}/", 390), visit("/")]
    pages[0].get_by_label("Comment on this fork").fill("Looks good")
    pages[0].get_by_role("button", name="Comment").click()
    pages[1].get_by_text("Looks good").first.wait_for()
    pick(served.workspace, f"{fork}.3")
    for page in pages[:2]:
        page.get_by_role("heading", name=f"{fork}.3 won").wait_for()
    pages[2].locator(".forks .pill", has_text="decided").wait_for()


def test_the_server_is_started_again(served: Served, fork: str, visit: Open) -> None:
    page = visit(f"/w/shop/{fork}/")
    served.stop()
    page.get_by_text("Not connected").first.wait_for()
    pick(served.workspace, f"{fork}.1")
    served.start()
    page.get_by_role("heading", name=f"{fork}.1 won").wait_for()


def test_a_hidden_page_gives_its_connection_back(served: Served, fork: str, visit: Open) -> None:
    show = """state => {
        Object.defineProperty(document, 'visibilityState', { value: state, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page = visit(f"/w/shop/{fork}/")
    others = []
    for _ in range(8):
        page.evaluate(show, "hidden")
        others.append(page)
        page = page.context.new_page()
        page.goto(f"{served.base}/w/shop/{fork}/")  # waits for ever once six connections are in use
    pick(served.workspace, f"{fork}.3")
    others[0].evaluate(show, "visible")
    others[0].get_by_role("heading", name=f"{fork}.3 won").wait_for()


def test_a_line_is_commented_by_keyboard(served: Served, fork: str, visit: Open) -> None:
    page = visit(f"/w/shop/{fork}/a/{fork}.1/")
    page.locator("table.diff tr.new").first.wait_for()
    page.keyboard.press("n")
    while "value * 1.2" not in (page.locator("tr.here").text_content() if page.locator("tr.here").count() else ""):
        page.keyboard.press("j")
    page.keyboard.press("c")
    page.get_by_text("Comment on shop.py, line 6").first.wait_for()
    page.keyboard.type("Why 1.2?")
    page.get_by_role("button", name="Comment").click()
    page.locator(".comments").get_by_text("Why 1.2?").first.wait_for()
    with open_ledger(served.workspace) as ledger:
        assert ledger.find_comments(fork)[0]["line"] == 6


def test_hostile_contents_run_nothing(served: Served, visit: Open) -> None:
    files: dict[str, str | bytes] = {f"{n}.js": f"{text}\n" for n, text in enumerate(CORPUS)}
    files |= {"pic.svg": "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>"}
    fork = make_fork(served.workspace, [files, {"a<img src=x onerror=alert(1)>.py": CORPUS[0]}])
    with open_ledger(served.workspace) as ledger:
        for text in CORPUS[:8]:
            ledger.record_comment(fork, {"text": text, "attempt": f"{fork}.1", "path": text, "quote": text, "line": 1})
        ledger.record_verdict(fork, {"winner": f"{fork}.1", "how": CORPUS[1]})
    base = f"/w/shop/{fork}/"
    page = visit("/")
    for path in (
        base,
        f"{base}a/{fork}.1/",
        f"{base}a/{fork}.1/?view=split",
        f"{base}a/{fork}.2/output",
        f"{base}compare",
    ):
        page.goto(f"{served.base}{path}")
        page.mouse.wheel(0, 5000)
        page.wait_for_timeout(300)
        assert page.evaluate("document.querySelectorAll('script:not([src]), iframe, object, embed').length") == 0


def test_fifty_attempts_and_a_long_diff(served: Served, visit: Open) -> None:
    text = "".join(f"line {number}\n" for number in range(2000))
    changes: list[Any] = [{"long.txt": text}, *({f"f{number}.txt": "x\n"} for number in range(49))]
    fork = make_fork(served.workspace, changes)
    page = visit(f"/w/shop/{fork}/")
    assert page.locator(".attempt-card").count() == 50
    page = visit(f"/w/shop/{fork}/a/{fork}.1/")
    rows = page.locator("table.diff tr.new")
    while (count := rows.count()) < 2000:  # each part is loaded when the end of the last one comes near
        page.mouse.wheel(0, 20_000)
        page.wait_for_function("count => document.querySelectorAll('table.diff tr.new').length > count", arg=count)
    assert rows.count() == 2000


@pytest.fixture(scope="module")
def axe(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("axe")
    need(shutil.which("npm") is not None, "npm is not installed")
    done = subprocess.run(["npm", "pack", "--silent", AXE], cwd=directory, capture_output=True, text=True, check=False)
    need(done.returncode == 0, "axe-core cannot be fetched")
    with tarfile.open(next(directory.glob("*.tgz"))) as archive:
        found = archive.extractfile("package/axe.min.js")
        assert found is not None
        return found.read().decode()


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 390)])
def test_nothing_serious_for_accessibility(
    served: Served, fork: str, visit: Open, axe: str, scheme: str, width: int
) -> None:
    base = f"/w/shop/{fork}/"
    page = visit("/", width, scheme)
    for path in (
        "/",
        base,
        f"{base}a/{fork}.2/",
        f"{base}a/{fork}.2/?view=split",
        f"{base}compare",
        f"{base}a/{fork}.1/output",
    ):
        page.goto(f"{served.base}{path}")
        page.wait_for_timeout(500)
        page.evaluate(axe)
        found = page.evaluate("axe.run().then(result => result.violations)")
        serious = [
            (path, one["id"], [node["html"][:200] for node in one["nodes"][:3]])
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == []
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def press(page: Any, name: str, *, by_keyboard: bool, within: str = "body") -> None:
    """Use a button, by mouse or by keyboard."""
    button = page.locator(within).get_by_role("button", name=name, exact=True).first
    button.wait_for()
    if by_keyboard:
        button.focus()
        page.keyboard.press("Enter")
    else:
        button.click()


def choose(page: Any, fork: str, numbers: tuple[int, ...], *, by_keyboard: bool) -> None:
    """Choose attempts of a fork of three."""
    for number in range(1, max(numbers) + 1) if by_keyboard else ():
        page.keyboard.press("j")
        if number in numbers:
            page.keyboard.press("x")
    for number in () if by_keyboard else numbers:
        page.get_by_label(f"Choose {fork}.{number}").check()
    page.get_by_text(f"Chosen: {', '.join(f'{fork}.{number}' for number in numbers)}").first.wait_for()


@pytest.mark.parametrize("by_keyboard", [False, True], ids=["mouse", "keyboard"])
def test_every_decision(served: Served, visit: Open, by_keyboard: bool) -> None:
    workspace = served.workspace
    changes: list[Any] = [
        {"shop.py": SHOP.replace("return value\n", "return value * 1.2\n")},
        {"notes.md": "# Tax\n"},
        {"shop.py": SHOP.replace("RATE = 1", "RATE = 1.2")},
    ]

    fork = make_fork(workspace, changes)  # combine, undo, undo the undo
    page = visit(f"/w/shop/{fork}/")
    choose(page, fork, (1, 2), by_keyboard=by_keyboard)
    press(page, "Combine", by_keyboard=by_keyboard)
    press(page, "Merge, test and commit", by_keyboard=by_keyboard)
    page.get_by_text("Committed as 1").first.wait_for()
    assert (workspace.path / "notes.md").exists()
    page.reload()
    press(page, "Undo", by_keyboard=by_keyboard)
    press(page, "Undo it", by_keyboard=by_keyboard)
    page.get_by_text("Undid 1 as 2").first.wait_for()
    assert (workspace.path / "shop.py").read_text() == SHOP
    press(page, "Undo the undo", by_keyboard=by_keyboard)
    press(page, "Undo it", by_keyboard=by_keyboard)
    page.get_by_text("Undid 2 as 3").first.wait_for()
    assert "value * 1.2" in (workspace.path / "shop.py").read_text()
    page.reload()
    press(page, "Undo", by_keyboard=by_keyboard)
    press(page, "Undo it", by_keyboard=by_keyboard)
    page.get_by_text("as 4").first.wait_for()
    assert (workspace.path / "shop.py").read_text() == SHOP

    fork = make_fork(workspace, changes)  # override
    pick(workspace, f"{fork}.1", keep=True)
    page = visit(f"/w/shop/{fork}/")
    choose_one(page, fork, 3, by_keyboard=by_keyboard)
    press(page, "Override", by_keyboard=by_keyboard)
    press(page, "Replace the winner", by_keyboard=by_keyboard)
    page.locator("#decision").get_by_text("Committed as").first.wait_for()
    assert "RATE = 1.2" in (workspace.path / "shop.py").read_text()
    page.reload()
    press(page, "Undo", by_keyboard=by_keyboard)
    press(page, "Undo it", by_keyboard=by_keyboard)
    page.locator("#decision").get_by_text("Undid").first.wait_for()

    fork = make_fork(workspace, changes)  # a conflict, explained and answered
    (workspace.path / "shop.py").write_text(SHOP.replace("RATE = 1", "RATE = 7"))
    page = visit(f"/w/shop/{fork}/")
    choose(page, fork, (1,), by_keyboard=by_keyboard)
    press(page, "Pick", by_keyboard=by_keyboard)
    press(page, "Cancel", by_keyboard=by_keyboard, within="#decision")  # the form for comments has one, too
    page.get_by_role("button", name="Commit it", exact=True).wait_for(state="detached")
    press(page, "Pick", by_keyboard=by_keyboard)
    press(page, "Commit it", by_keyboard=by_keyboard)
    page.get_by_text("The workspace was changed meanwhile").first.wait_for()
    press(page, "Merge", by_keyboard=by_keyboard)
    page.locator("#decision").get_by_text("Committed as").first.wait_for()
    assert "RATE = 7" in (workspace.path / "shop.py").read_text()

    fork = make_fork(workspace, changes)  # abort
    page = visit(f"/w/shop/{fork}/")
    press(page, "Abort all", by_keyboard=by_keyboard)
    press(page, "Abort", by_keyboard=by_keyboard)
    page.get_by_role("heading", name="Aborted", exact=True).wait_for()
    with open_ledger(workspace) as ledger:
        assert ledger.fork(fork).state == "aborted"


@pytest.mark.parametrize("by_keyboard", [False, True], ids=["mouse", "keyboard"])
def test_running_attempts_are_stopped_resumed_and_aborted(served: Served, visit: Open, by_keyboard: bool) -> None:
    workspace = served.workspace
    words = ["best-of", "3", "--detach", "--json", "--network", "host", "-C", str(workspace.path)]
    command = [preloaded_command(*SERVER_MODULES), *words, "-c", "echo begun; echo > notes.md; sleep 600"]
    started = subprocess.run(command, check=True, capture_output=True, text=True)
    detached = json.loads(started.stdout)["detached"]
    fork = detached["fork"]
    page = visit(f"/w/shop/{fork}/")
    for number in (1, 2, 3):
        page.locator(f".attempt-card[data-attempt='{fork}.{number}']", has_text="begun").wait_for()
    choose(page, fork, (2,), by_keyboard=by_keyboard)
    press(page, "Stop attempts", by_keyboard=by_keyboard)
    press(page, "Stop", by_keyboard=by_keyboard)
    page.get_by_role("heading", name=f"Stopped {fork}.2").wait_for()
    page.locator(f".attempt-card[data-attempt='{fork}.2']", has_text="cancelled").wait_for()

    os.kill(detached["process"], signal.SIGKILL)
    press(page, "Resume", by_keyboard=by_keyboard)
    page.get_by_role("heading", name="Resumed").wait_for()
    with open_ledger(workspace) as ledger:
        while [one.state for one in ledger.attempts(fork)] != ["running", "cancelled", "running"]:
            time.sleep(0.1)
        assert ledger.fork(fork).state == "running"
    press(page, "Abort all", by_keyboard=by_keyboard)
    press(page, "Abort", by_keyboard=by_keyboard)
    page.get_by_role("heading", name="Aborted", exact=True).wait_for()
    with open_ledger(workspace) as ledger:
        assert ledger.fork(fork).state == "aborted"
    assert not (workspace.path / "notes.md").exists()


def choose_one(page: Any, fork: str, number: int, *, by_keyboard: bool) -> None:
    """Choose an attempt of a decided fork, which has no line that says what is chosen."""
    box = page.get_by_label(f"Choose {fork}.{number}")
    if by_keyboard:
        for _ in range(number):
            page.keyboard.press("j")
        page.keyboard.press("x")
    else:
        box.check()
    page.locator(f".attempt-card[data-attempt='{fork}.{number}']:has(input:checked)").wait_for()


@pytest.mark.parametrize("by_keyboard", [False, True], ids=["mouse", "keyboard"])
def test_comments_are_sent_to_a_follow_up(served: Served, visit: Open, by_keyboard: bool) -> None:
    workspace = served.workspace
    script = 'cat "$FORKWISE_FEEDBACK" > heard.txt; echo "# more" >> shop.py'
    words = ["run", "--no-commit", "--quiet", "--network", "host", "-C", str(workspace.path), "-c", script]
    subprocess.run([preloaded_command(*SERVER_MODULES), *words], check=True, capture_output=True)
    with open_ledger(workspace) as ledger:
        fork = ledger.forks()[0].id
    other = visit(f"/w/shop/{fork}/")
    page = visit(f"/w/shop/{fork}/a/{fork}.1/?file=shop.py")
    row = page.locator("table.diff tr.new", has_text="# more")
    row.wait_for()
    if by_keyboard:
        while not page.locator("tr.here", has_text="# more").count():
            page.keyboard.press("j")
        page.keyboard.press("c")
        page.keyboard.type("Less, please")
    else:
        row.locator("td.n").nth(1).click()
        page.locator("#comment-text").fill("Less, please")
    press(page, "Comment", by_keyboard=by_keyboard)
    press(page, f"Send to {fork}.1", by_keyboard=by_keyboard)
    page.get_by_text("with 1 comment").first.wait_for()
    press(page, "Start it", by_keyboard=by_keyboard)
    page.get_by_role("heading", name="Started").wait_for()
    other.get_by_role("heading", name="Follow-ups").wait_for()  # on the fork's own page, in another browser
    with open_ledger(workspace) as ledger:
        following = find_follow_ups(ledger, fork)[0]["fork"]
        while (record := ledger.fork(following)).state == "running":
            time.sleep(0.2)
        assert record.state == "open", (record, ledger.attempts(following))
    other.locator("#follow-ups .pill", has_text="waits for a pick").wait_for()
    link = page.get_by_role("link", name="Follow", exact=False).last
    if by_keyboard:
        link.focus()
        page.keyboard.press("Enter")
    else:
        link.click()
    page.get_by_role("button", name="Pick").wait_for()
    assert page.url.endswith(f"/{following}/")
    pick(workspace, f"{following}.1")
    page.get_by_role("heading", name=f"{following}.1 won").wait_for()
    assert (workspace.path / "shop.py").read_text() == SHOP + "# more\n# more\n"
    assert "# more\nLess, please" in (workspace.path / "heard.txt").read_text()


def test_a_conversation_is_walked_by_keyboard_and_mouse(served: Served, visit: Open) -> None:
    store(served.workspace, TALK)
    page = visit("/")
    page.get_by_role("link", name="Conversations").click()
    page.get_by_role("link", name="On tax").click()
    page.locator("#messages").get_by_text("Done with a fraction.").first.wait_for()
    page.get_by_role("link", name="It is not.").click()
    page.locator("#messages").get_by_role("heading", name="Message 4").wait_for()
    page.locator("#messages details.call summary").click()
    page.locator("#messages").get_by_text("return value").first.wait_for()
    page.keyboard.press("Escape")
    for _ in range(4):
        page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.locator("#messages").get_by_role("heading", name="Message 6").wait_for()
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("x")
    press(page, "Compare", by_keyboard=True)
    page.get_by_text("They share 4 messages").first.wait_for()


def test_a_hundred_megabytes_of_output_scroll(served: Served, fork: str, visit: Open) -> None:
    line = b"%08d " + b"x" * 90 + b"\n"
    with open_ledger(served.workspace) as ledger, AttemptLog(ledger.directory, f"{fork}.1", cap=1 << 30) as log:
        for start in range(0, 1_000_000, 10_000):
            log.write("stdout", b"".join(line % number for number in range(start, start + 10_000)))
    page = visit(f"/w/shop/{fork}/a/{fork}.1/output")
    page.get_by_text("00999999 ").first.wait_for()
    page.locator("#output").focus()
    page.keyboard.press("Home")
    page.get_by_text("00000000 ").first.wait_for()
    assert page.evaluate("document.querySelectorAll('#output pre').length") < 40
    assert page.evaluate("document.getElementById('output').textContent.length") < 4_000_000


def test_output_that_arrives_after_it_was_scrolled_away_is_dropped(served: Served, fork: str, visit: Open) -> None:
    with open_ledger(served.workspace) as ledger, AttemptLog(ledger.directory, f"{fork}.1", cap=1 << 30) as log:
        log.write("stdout", b"".join(b"%08d %s\n" % (number, b"x" * 90) for number in range(20_000)))
    page = visit(f"/w/shop/{fork}/a/{fork}.1/output")
    page.get_by_text("00019999 ").first.wait_for()
    held: list[Any] = []
    is_held = True

    def hold(route: Any) -> None:
        if not is_held or route.request.url.endswith("&start=0"):
            route.continue_()
        else:
            held.append(route)

    page.route("**/output/part*", hold)
    page.locator("#output").evaluate("output => output.scrollTop = output.scrollHeight / 2")
    loading = page.locator("#output [data-state=loading]")
    loading.first.wait_for(state="attached")
    page.locator("#output").evaluate("output => output.scrollTop = 0")
    page.get_by_text("00000000 ").first.wait_for()
    assert held
    is_held = False
    for route in held:
        route.continue_()
    loading.first.wait_for(state="detached")
    first_s = "[...document.querySelectorAll('#output pre')].map(pre => Number(pre.textContent.slice(0, 8)))"
    assert max(page.evaluate(first_s)) < 5_000
