"""Two minutes of what `python -m benchmarks.soak` does for an hour."""

import pytest
from benchmarks.soak import MOST_GROWTH, growth, soak

pytestmark = pytest.mark.slow


@pytest.mark.timeout(400)
def test_two_minutes_leave_nothing_behind() -> None:
    steps, samples = soak(120.0)
    assert steps > 200
    found = growth(samples)
    for key in ("caller, MB", "workers, MB"):
        early, late = found[key]
        assert late <= early * (1 + MOST_GROWTH), (key, early, late)
    for key in ("descriptors", "threads", "processes", "blocks"):
        early, late = found[key]
        assert late <= early + 2, (key, early, late)
