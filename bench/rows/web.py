"""The page of ``forkwise serve`` in Chromium: first paints, changes, frames, and what the server needs for it."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from bench.figure import Figure
from bench.line import Goal, Line
from bench.scratch import Scratch
from forkwise import Workspace
from forkwise.ledger.sqlite import open_ledger
from forkwise.ledger.stored_changes import save_changes

__all__ = ["measure_web"]

_MAIN = "from forkwise.cli import main; main()"
_TICK = os.sysconf("SC_CLK_TCK")
_IDLE_S = 10.0
_PAINT = """() => ({
    paint: performance.getEntriesByName('first-contentful-paint')[0]?.startTime,
    sent: [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
        .reduce((sum, one) => sum + one.transferSize, 0),
})"""
_PAINTED = """() => new Promise(done => new PerformanceObserver(list => {
    if (list.getEntriesByName('first-contentful-paint').length) done(true);
}).observe({ type: 'paint', buffered: true }))"""
_SCROLL = """() => new Promise(done => {
    const frames = [];
    let last = performance.now(), left = 90;
    const step = now => {
        frames.push(now - last);
        last = now;
        window.scrollBy(0, 900);
        if (left-- > 0) requestAnimationFrame(step); else done(frames.slice(1));
    };
    requestAnimationFrame(step);
})"""
_WATCH = """text => { window.seen = new Promise(done => {
    const look = () => { if (document.body.textContent.includes(text)) done(Date.now()); };
    new MutationObserver(look).observe(document.body, { childList: true, subtree: true, characterData: true });
    look();
}); }"""


def measure_web(scratch: Scratch) -> list[Line]:
    """Measure with the browser that is installed; without Playwright or Chromium, only what the server needs."""
    scratch.report("writing forks for the page")
    os.environ["FORKWISE_STATE"] = scratch.make_directory("web-state")
    try:
        workspace = scratch.workspace(scratch.make_directory("shop"))
        attempts, files = (3, 200) if scratch.quick else (8, 1000)
        wide = _make_fork(
            workspace, [{f"d{n % 20}/f{n}.py": f"x = {i}\n" for n in range(files)} for i in range(attempts)]
        )
        old = "".join(f"value_{number} = compute({number})\n" for number in range(5000))
        new = "".join(f"value_{number} = compute({number + number % 2})\n" for number in range(5000))
        (workspace.path / "long.py").write_text(old)
        long = _make_fork(workspace, [{"long.py": new}])
        busy = _make_running_fork(workspace, 50)
        with ExitStack() as stack:
            served = _Served(workspace, stack)
            lines = _measure_server(served, busy)
            if (page := _open_browser(stack, served)) is not None:
                rounds = scratch.rounds(15, 3)
                lines += _measure_paints(served, page, rounds, f"w/{served.key}/{wide}/", attempts, files)
                lines += _measure_long_diff(served, page, rounds, f"w/{served.key}/{long}/a/{long}.1/")
                lines += _measure_change(served, page, rounds, workspace, wide)
        for branch in workspace.branches():
            branch.abort()
        return lines
    finally:
        del os.environ["FORKWISE_STATE"]


def _make_fork(workspace: Workspace, changes: list[dict[str, str]]) -> str:
    with open_ledger(workspace) as ledger:
        fork = ledger.begin_fork("best-of", workspace=str(workspace.path), spec={"goal": "Compare"})
        for index, change in enumerate(changes):
            record = ledger.add_attempt(fork.id, str(index), index=index, label=f"agent-{index}")
            ledger.start_attempt(record.id)
            branch = workspace.branch(record.branch, on_success=None, on_error=None)
            for path, content in change.items():
                target = branch.path / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(content)
            branch.keep()
            ledger.end_attempt(record.id, "succeeded", files=save_changes(ledger.directory, record.id, branch))
        ledger.await_pick(fork.id)
        return fork.id


def _make_running_fork(workspace: Workspace, count: int) -> str:
    with open_ledger(workspace) as ledger:
        fork = ledger.begin_fork("best-of", workspace=str(workspace.path), spec={"goal": "Run"})
        for index in range(count):
            record = ledger.add_attempt(fork.id, str(index), index=index, label=f"agent-{index}")
            ledger.start_attempt(record.id)
            ledger.note_progress(record.id, files=index, last_line="working", output_bytes=1000)
        return fork.id


class _Served:
    """A server, what it has used, and requests to it."""

    def __init__(self, workspace: Workspace, stack: ExitStack) -> None:
        command = [sys.executable, "-c", _MAIN, "serve", "--json", "-C", str(workspace.path)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        stack.callback(self._stop)
        assert self._process.stdout is not None
        found = json.loads(self._process.stdout.readline())["serving"]
        self.url, self.base = found["url"], found["address"]
        self._cookie = ""
        answer = self.ask(urlsplit(self.url).path + "?" + urlsplit(self.url).query)
        self._cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
        self.key = self.read("/forks").partition('href="/w/')[2].partition("/")[0]

    def ask(self, path: str) -> http.client.HTTPResponse:
        """Send a request, and return the response without reading it."""
        address = urlsplit(self.base)
        connection = http.client.HTTPConnection("127.0.0.1", address.port or 0, timeout=60)
        connection.request("GET", path, headers={"Host": address.netloc, "Cookie": self._cookie})
        return connection.getresponse()

    def read(self, path: str) -> str:
        """Return the body of a page."""
        answer = self.ask(path)
        assert answer.status == 200, (path, answer.status)
        return answer.read().decode()

    @property
    def cpu_s(self) -> float:
        """The processor time that it has used."""
        with open(f"/proc/{self._process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    @property
    def memory(self) -> int:
        """The bytes of memory that it occupies."""
        with open(f"/proc/{self._process.pid}/status") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmRSS"))

    def _stop(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _bound(line: Line, text: str, bound: float) -> Line:
    line.goals.append(Goal(text, line.ours.median, bound))
    return line


def _measure_server(served: _Served, fork: str) -> list[Line]:
    """Open twenty pages of a fork with fifty live attempts, and leave them open."""
    key = served.key
    streams = []
    for _ in range(20):
        served.read(f"/w/{key}/{fork}/")
        streams.append(served.ask(f"/events/{key}/{fork}"))
    for path in ("columns", "verdict", "tests", "actions", "pictures", "comments"):
        served.read(f"/w/{key}/{fork}/{path}")
    time.sleep(1)
    memory = Figure((served.memory,), "B")
    before, started = served.cpu_s, time.monotonic()
    time.sleep(_IDLE_S)
    share = (served.cpu_s - before) / (time.monotonic() - started)
    for stream in streams:
        stream.close()
    return [
        _bound(Line("memory of forkwise serve, 20 open pages of 50 live attempts", memory), "≤ 150 MB", 150 << 20),
        _bound(
            Line("processor time of forkwise serve in a second, 20 open pages, idle", Figure((share,))), "≤ 10 ms", 0.01
        ),
    ]


def _open_browser(stack: ExitStack, served: _Served) -> Any:
    program = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    if program is None:
        return None
    driver = stack.enter_context(sync_playwright())
    browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"])
    stack.callback(browser.close)
    page = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce").new_page()
    page.set_default_timeout(60_000)
    page.goto(served.url)
    page.wait_for_url(f"{served.base}/")
    return page


def _paint(served: _Served, page: Any, path: str, *, times: int) -> tuple[Figure, Figure, Figure]:
    """Return the first paints of a page, the server's processor time for them, and the bytes that were sent."""
    paints, costs, sizes = [], [], []
    for number in range(times + 1):
        before = served.cpu_s
        page.goto(f"{served.base}/{path}")
        page.evaluate(_PAINTED)
        page.wait_for_timeout(500)  # parts of the page that are asked for later count as well
        found = page.evaluate(_PAINT)
        if number:  # the first fills caches
            paints.append(found["paint"] / 1000)
            costs.append(served.cpu_s - before)
            sizes.append(found["sent"])
    return Figure(tuple(paints)), Figure(tuple(costs)), Figure(tuple(sizes), "B")


def _measure_paints(served: _Served, page: Any, rounds: int, path: str, attempts: int, files: int) -> list[Line]:
    floor, _, _ = _paint(served, page, "c/", times=rounds)
    paint, cost, size = _paint(served, page, path, times=rounds)
    what = f"a fork with {attempts} attempts of {files:,} files"
    return [
        _bound(Line(f"first paint of {what} (floor: an empty page)", paint, floor), "≤ 300 ms", 0.3),
        Line(f"processor time of the server for {what}", cost),
        _bound(Line(f"sent for {what}", size), "≤ 1 MB", 1 << 20),
    ]


def _measure_long_diff(served: _Served, page: Any, rounds: int, path: str) -> list[Line]:
    paint, cost, _ = _paint(served, page, path, times=rounds)
    floor, _, _ = _paint(served, page, "c/", times=rounds)
    longest = []
    for _ in range(rounds):
        page.goto(f"{served.base}/{path}")
        page.wait_for_timeout(300)
        longest.append(max(page.evaluate(_SCROLL)) / 1000)
    page.goto(f"{served.base}/c/")
    empty = [max(page.evaluate(_SCROLL)) / 1000 for _ in range(rounds)]
    what = "a diff of 5,000 lines, half of them changed"
    scrolled = Line(f"longest frame while {what} is scrolled (floor: an empty page)", _figure(longest), _figure(empty))
    return [
        _bound(Line(f"first paint of {what} (floor: an empty page)", paint, floor), "≤ 200 ms", 0.2),
        Line(f"processor time of the server for {what}", cost),
        _bound(scrolled, "≤ 50 ms", 0.05),
    ]


def _figure(samples: list[float]) -> Figure:
    return Figure(tuple(samples))


def _measure_change(served: _Served, page: Any, rounds: int, workspace: Workspace, fork: str) -> list[Line]:
    page.goto(f"{served.base}/w/{served.key}/{fork}/")
    page.wait_for_timeout(1500)
    delays = []
    with open_ledger(workspace) as ledger:
        for number in range(rounds):
            text = f"remark {number} of {time.time_ns()}"
            page.evaluate(_WATCH, text)
            ledger.record_comment(fork, {"text": text})
            written = time.time()
            delays.append(page.evaluate("window.seen") / 1000 - written)
            page.wait_for_timeout(300)
    name = "a change in the ledger until an open page shows it"
    return [_bound(Line(name, Figure(tuple(delays))), "≤ 500 ms", 0.5)]
