"""Two minutes of training with terms everywhere, some of which fail; an hour of it is part of `make campaign`."""

import pytest
from benchmarks.soak import grown, soak

pytestmark = pytest.mark.slow


@pytest.mark.timeout(400)
def test_two_minutes_leave_nothing_behind() -> None:
    steps, samples = soak(120.0)
    assert steps > 200
    assert not grown(samples)
