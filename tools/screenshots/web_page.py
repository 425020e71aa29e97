"""Draw ``docs/images/web-*.png``: run a fork for real, serve it with ``forkwise serve``, and take pictures.

Run it with ``python -m tools.screenshots.web_page docs/images``; it needs Chromium and Playwright.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

from tools.screenshots.report_page import GOAL, find_chromium, make_project

_MAIN = "from forkwise.cli import main; main()"


def draw(scratch: Path, chromium: str, target: Path) -> None:
    """Run the fork, and draw its page and the comparison of all attempts."""
    project, environment = make_project(scratch)

    def run(*words: str) -> str:
        command = [sys.executable, "-c", _MAIN, *words]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    run("best-of", "5", "--agent", "claude", "--test", "python -m pytest -q", "--no-commit", GOAL)
    fork = json.loads(run("ls", "--json"))["forks"][0]["id"]
    try:
        _draw_pages(project, environment, fork, chromium, target)
    finally:
        run("abort", fork)


def _draw_pages(project: Path, environment: dict[str, str], fork: str, chromium: str, target: Path) -> None:
    served = subprocess.Popen(
        [sys.executable, "-c", _MAIN, "serve", "--json"],
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert served.stdout is not None
    found = json.loads(served.stdout.readline())["serving"]
    try:
        with sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for theme in ("dark", "light"):
                context = browser.new_context(
                    viewport={"width": 1280, "height": 1000},
                    color_scheme="dark" if theme == "dark" else "light",
                    reduced_motion="reduce",
                )
                page = context.new_page()
                page.goto(found["url"])
                page.wait_for_url(f"{found['address']}/")
                for name, path in (("web-fork", ""), ("web-compare", "compare")):
                    page.goto(f"{found['address']}/w/shop/{fork}/{path}")
                    page.wait_for_timeout(1500)
                    page.screenshot(path=target / f"{name}-{theme}.png")
                    print(target / f"{name}-{theme}.png")
            browser.close()
    finally:
        served.send_signal(signal.SIGINT)
        served.wait()


if __name__ == "__main__":
    program = find_chromium()
    if program is None:
        raise SystemExit("tools.screenshots.web_page needs chromium; install it with apt install chromium")
    with tempfile.TemporaryDirectory(prefix="forkwise-picture-") as directory:
        draw(Path(os.path.realpath(directory)), program, Path(sys.argv[1]))
