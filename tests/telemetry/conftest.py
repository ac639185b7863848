from collections.abc import Iterator

import pytest

from penalties.telemetry import detach, events


@pytest.fixture(autouse=True)
def _nobody_listens() -> Iterator[None]:
    """Start and end each test with no handler attached."""
    assert events.handlers == ()
    yield
    for attached in events.handlers:
        detach(attached.handler_id)
