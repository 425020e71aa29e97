"""``make dist``: build the wheel and the sdist, check their contents, and try the wheel in a clean environment.

The wheel is installed into a new virtual environment outside the checkout. There the first examples of README.md and
the demo run with nothing but the wheel and its dependencies.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import forkwise
from tools.docs_examples import parse_blocks, run_console

__all__ = ["check_sdist", "check_wheel", "main"]

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"


def check_wheel(names: Sequence[str]) -> list[str]:
    """Return one line for each problem with the files of a wheel."""
    required = ("forkwise/py.typed", "forkwise/agents/agents.toml", "dist-info/licenses/LICENSE", "dist-info/METADATA")
    folders = {name.partition("/")[0] for name in names}
    return [
        *(f"the wheel has no {suffix}" for suffix in required if not any(name.endswith(suffix) for name in names)),
        *(
            f"the wheel contains {folder}/"
            for folder in sorted(folders)
            if folder != "forkwise" and not folder.endswith(".dist-info")
        ),
        *(f"the wheel contains {name}" for name in names if "__pycache__" in name),
    ]


def check_sdist(names: Sequence[str]) -> list[str]:
    """Return one line for each problem with the files of a sdist."""
    files = {name.partition("/")[2] for name in names}
    required = (
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "Makefile",
        "mkdocs.yml",
        "pyproject.toml",
        "docs/index.md",
        "scripts/run-tests",
        "src/forkwise/__init__.py",
        "tests/conftest.py",
        "tools/demo.py",
    )
    unwanted = ("site/", ".venv/", "dist/")
    return [
        *(f"the sdist has no {name}" for name in required if name not in files),
        *(f"the sdist contains {folder}" for folder in unwanted if any(name.startswith(folder) for name in files)),
    ]


def _build() -> tuple[Path, Path]:
    """Build both archives into ``dist``. Return the wheel and the sdist."""
    shutil.rmtree(DIST, ignore_errors=True)
    # Without isolation the build backend comes from the environment, so that no network is needed.
    _run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(ROOT)], quiet=True)
    (wheel,) = DIST.glob("*.whl")
    (sdist,) = DIST.glob("*.tar.gz")
    _run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)])
    return wheel, sdist


def _check_contents(wheel: Path, sdist: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        problems = check_wheel(archive.namelist())
    with tarfile.open(sdist) as archive:
        problems += check_sdist(archive.getnames())
    for path in (wheel, sdist):
        if not path.name.startswith(f"forkwise-{forkwise.__version__}"):
            problems.append(f"{path.name} is not version {forkwise.__version__}")
    if problems:
        raise SystemExit("\n".join(problems))


def _try_wheel(wheel: Path, directory: Path) -> None:
    """Install the wheel in ``directory`` and run the first examples of README.md and the demo there."""
    environment_directory = directory / "venv"
    venv.create(environment_directory, with_pip=True)
    python = environment_directory / "bin/python"
    _run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(wheel)])

    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FORKWISE_"))}
    environment |= {
        "PATH": f"{environment_directory / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(directory),
        "FORKWISE_STATE": str(directory / "state"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    for name in ("FORCE_COLOR", "COLORTERM", "VIRTUAL_ENV"):
        environment.pop(name, None)
    show = "import forkwise; print(forkwise.__version__, forkwise.__file__)"
    version, location = _run([str(python), "-c", show], environment, directory, quiet=True).split(maxsplit=1)
    if version != forkwise.__version__ or environment_directory not in Path(location.strip()).parents:
        raise SystemExit(f"the clean environment imports forkwise {version} from {location.strip()}")

    example = directory / "example"
    example.mkdir()
    for block in parse_blocks(ROOT / "README.md"):
        if block.language == "console":
            run_console(block, "README.md", directory=example, environment=environment)
        elif block.language == "python":
            _run([str(python), "-c", block.text], environment, example, quiet=True)
            break
    print("README.md: the examples up to the first in Python work")

    shutil.copy(ROOT / "tools/demo.py", directory)
    _run([str(python), "demo.py"], environment, directory, quiet=True)
    print("tools/demo.py: works")


def _run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    *,
    quiet: bool = False,
) -> str:
    """Run a command and return its output if ``quiet``. Exit with its output if it fails."""
    output = subprocess.PIPE if quiet else None
    done = subprocess.run(
        command, env=environment, cwd=directory, stdout=output, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout or ''}{' '.join(command)} exited with {done.returncode}")
    return done.stdout or ""


def main() -> int:
    """Build, check and try the archives."""
    wheel, sdist = _build()
    _check_contents(wheel, sdist)
    directory = Path(tempfile.mkdtemp(prefix="forkwise-dist-"))
    try:
        _try_wheel(wheel, directory)
    except AssertionError as error:
        raise SystemExit(f"the example failed: {error}") from None
    finally:
        shutil.rmtree(directory)
    print(f"{wheel.relative_to(ROOT)} and {sdist.relative_to(ROOT)} are ready")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
