import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penalties as pn

from . import resources
from .campaign import tables
from .faults import CHATTER, released
from .trials import probe


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything here is slow, and looks into /proc and /dev/shm."""
    elsewhere = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.slow)
            item.add_marker(elsewhere)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(600))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was injected, and what went wrong."""
    for table in tables:
        terminalreporter.write_line(table)


@pytest.fixture(scope="session")
def warm() -> None:
    """Whatever starts once and stays, as Python's own tracker and the threads of libraries, starts now."""
    resources.mark()
    with pn.Executor(max_workers=2) as executor:
        probe(executor)


@pytest.fixture(autouse=True)
def nothing_stays(warm: None, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test nothing is held that was not before it, and nobody but the terms has printed anything.

    A module may name lines that others print, as `PRINTED_BY_OTHERS`.
    """
    by_others: frozenset[str] = getattr(request.module, "PRINTED_BY_OTHERS", frozenset())
    released.clear()
    before = resources.held()
    yield
    released.set()
    more = resources.back_to(before)
    lines = [line for stream in capfd.readouterr() for line in stream.splitlines()]
    said = [line for line in lines if not line.startswith(CHATTER) and line not in by_others]
    assert not more, f"stays behind: {more}"
    assert not said, "\n".join(["printed:", *said])


@pytest.fixture
def executor(nothing_stays: None) -> Iterator[pn.Executor]:
    with pn.Executor(max_workers=2) as executor:
        yield executor
