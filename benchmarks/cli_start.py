"""`penalties --help` beyond the start of a bare interpreter, and commands that load more, each in a fresh one."""

import subprocess
import sys
from collections.abc import Callable

from .harness import Row, compare


def fresh(*arguments: str) -> Callable[[], object]:
    return lambda: subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def run(scale: float) -> list[Row]:
    bare = fresh("-c", "pass")
    seconds = 10.0 * scale
    return [
        compare(
            "penalties --help",
            bare,
            fresh("-m", "penalties.app", "--help"),
            seconds=seconds,
            unit="ms",
            most_more=150.0,
        ),
        compare("penalties version", bare, fresh("-m", "penalties.app", "version"), seconds=seconds, unit="ms"),
        compare("penalties check demo", bare, fresh("-m", "penalties.app", "check", "-q"), seconds=seconds, unit="ms"),
    ]
