"""`import penalties` beyond NumPy's own import, each in a fresh interpreter."""

import subprocess
import sys
from collections.abc import Callable

from .harness import Row, compare


def fresh(code: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, "-c", code], check=True)


def run(scale: float) -> list[Row]:
    plain = fresh("import numpy")
    package = fresh("import numpy, penalties")
    used = fresh("import numpy, penalties; penalties.l1")
    return [
        compare("import penalties", plain, package, seconds=10.0 * scale, unit="ms", most_more=100.0),
        compare("import penalties; penalties.l1", plain, used, seconds=10.0 * scale, unit="ms"),
    ]
