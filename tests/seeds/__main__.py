"""Run all examples of a page in this process: ``python -m tests.seeds PAGE``. The workspace is ``/mnt/workspace``."""

from __future__ import annotations

import importlib
import sys
import traceback
import warnings

from tests.seeds.page import Page


def main(name: str) -> int:
    """Run the examples of a page in order and print the name of each that worked; return the number of failures."""
    warnings.simplefilter("error")
    warnings.simplefilter("ignore", ResourceWarning)  # examples may leave a file to the garbage collector
    page: Page = importlib.import_module(f"tests.seeds.{name}").page
    failures = 0
    for example in page.blocks:
        try:
            page.run(example)
        except BaseException:  # noqa: BLE001 - reported, and the next example runs
            failures += 1
            print(f"failed: {example}\n{traceback.format_exc()}", file=sys.stderr)
        else:
            print(example)
    return failures


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
