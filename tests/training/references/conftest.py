"""No thread outlives a test."""

import time
from typing import Any

import pytest

from tests.training.references.cases import WAIT, threads


@pytest.fixture(autouse=True)
def _no_thread_stays() -> Any:
    before = set(threads())
    yield
    end = time.monotonic() + WAIT
    while set(threads()) - before and time.monotonic() < end:
        time.sleep(0.005)
    assert not set(threads()) - before
