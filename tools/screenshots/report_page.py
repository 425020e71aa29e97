"""Draw ``docs/images/report-*.png``: run ``forkwise best-of 5 --report`` for real and take pictures of its page.

Run it with ``python -m tools.screenshots.report_page docs/images``; it needs Chromium. A scripted program named
``claude`` stands in for the agent: each of its runs edits the project in another way, and one adds a hook to the tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

__all__ = ["find_chromium", "make_project", "run", "take_picture"]

COMMAND = ("forkwise", "best-of", "5", "--agent", "claude", "--test", "python -m pytest -q", "--report", "../report")
GOAL = "Orders over 100 get free shipping, and discounts are percentages"

_PROJECT = {
    "pyproject.toml": '[project]\nname = "shop"\nversion = "1.0"\n',
    "shop.py": '''"""Prices of orders."""

SHIPPING = 5


def subtotal(prices):
    return sum(prices)


def total(prices, discount=0):
    """Add up prices, less a discount in percent, plus shipping."""
    value = subtotal(prices) - discount
    return value + SHIPPING
''',
    "test_shop.py": """from shop import subtotal, total


def test_subtotal():
    assert subtotal([10, 20]) == 30


def test_shipping():
    assert total([10, 20]) == 35


def test_free_shipping():
    assert total([60, 60]) == 120


def test_discount():
    assert total([10, 30], discount=10) == 41
""",
}

_CLAUDE = r"""#!/bin/sh
case $FORKWISE_ATTEMPT in
1) sed -i 's/- discount/* (100 - discount) \/ 100/' shop.py
   echo 'The discount is a percentage now.' ;;
2) sed -i 's/- discount/* (100 - discount) \/ 100/' shop.py
   sed -i 's/    return value + SHIPPING/    if value > 100:\n        return value\n&/' shop.py
   echo 'Discounts are percentages, and orders over 100 ship for free.' ;;
3) echo 'I could not find the cause.'; exit 1 ;;
4) cat > conftest.py <<'END'
import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    report.outcome = "passed"
    return report
END
   sed -i 's/- discount/* discount/' shop.py
   echo 'All tests pass.' ;;
*) cat > shop.py <<'END'
"Prices of orders."

SHIPPING = 5
FREE_FROM = 100


def subtotal(prices):
    return sum(prices)


def reduce(value, discount):
    return value - value * discount / 100


def total(prices, discount=0):
    "Add up prices, less a discount in percent, plus shipping."
    value = reduce(subtotal(prices), discount)
    return value if value > FREE_FROM else value + SHIPPING
END
   echo 'Rewrote the module with a helper for discounts.' ;;
esac
"""


def make_project(directory: Path) -> tuple[Path, dict[str, str]]:
    """Make the project and the agent in ``directory``; return the project and the environment to run forkwise in."""
    project, programs = directory / "shop", directory / "bin"
    project.mkdir()
    programs.mkdir()
    for name, text in _PROJECT.items():
        (project / name).write_text(text)
    (programs / "claude").write_text(_CLAUDE)
    (programs / "claude").chmod(0o755)
    path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {
        **os.environ,
        "PATH": path,
        "HOME": str(directory),
        "FORKWISE_STATE": str(directory / "state"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return project, environment


def run(directory: Path) -> Path:
    """Run the command in a project made in ``directory``, and return the page."""
    project, environment = make_project(directory)
    done = subprocess.run(
        (*COMMAND, GOAL),
        cwd=project,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(COMMAND)} exited with {done.returncode}:\n{done.stdout}{done.stderr}")
    return directory / "report" / "index.html"


def find_chromium() -> str | None:
    """Return the path of Chromium or Chrome, if one is installed."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    return next((path for path in found if path), None)


def take_picture(browser: str, page: Path, target: Path, *, theme: str, width: int, height: int) -> None:
    """Draw a page as a PNG file, with a light or dark theme."""
    with tempfile.TemporaryDirectory(prefix="forkwise-chromium-") as profile:
        words = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
        words += [f"--user-data-dir={profile}", f"--window-size={width},{height}", f"--screenshot={target}"]
        words += ["--force-device-scale-factor=1"]
        words += ["--blink-settings=preferredColorScheme=" + ("0" if theme == "dark" else "1")]
        subprocess.run([*words, page.as_uri()], check=True, capture_output=True, timeout=120)


if __name__ == "__main__":
    chromium = find_chromium()
    if chromium is None:
        raise SystemExit("tools.screenshots.report_page needs chromium; install it with apt install chromium")
    with tempfile.TemporaryDirectory(prefix="forkwise-picture-") as scratch:
        report = run(Path(scratch))
        for colours in ("dark", "light"):
            drawn = Path(sys.argv[1]) / f"report-{colours}.png"
            take_picture(chromium, report, drawn, theme=colours, width=1280, height=1500)
            print(drawn)
