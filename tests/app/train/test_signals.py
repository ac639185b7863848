"""Ctrl-C, once and twice."""

import signal
import threading
from collections.abc import Iterator

import pytest

from penalties.app.train.signals import Interruption


@pytest.fixture(autouse=True)
def _hangups_end_the_process() -> Iterator[None]:
    """As from a terminal: `nohup` starts the tests with the signal ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_is_remembered_and_the_second_insists(number: int) -> None:
    told: list[str] = []
    before = signal.getsignal(number)
    with Interruption(lambda: told.append("asked")) as interruption:
        assert not interruption
        signal.raise_signal(number)
        assert interruption
        assert told == ["asked"]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("error", [BrokenPipeError, ValueError])
def test_a_signal_is_remembered_even_if_notify_fails(error: type[Exception]) -> None:
    def asked() -> None:
        raise error

    with Interruption(asked) as interruption:
        signal.raise_signal(signal.SIGHUP)
        assert interruption


def test_one_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interruption(lambda: None) as interruption:
            signal.raise_signal(signal.SIGHUP)
            assert not interruption
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_changes_nothing() -> None:
    found: list[bool] = []

    def work() -> None:
        before = signal.getsignal(signal.SIGINT)
        with Interruption(lambda: None):
            found.append(signal.getsignal(signal.SIGINT) is before)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [True]
