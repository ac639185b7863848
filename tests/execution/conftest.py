from collections.abc import Iterator

import pytest

import penalties as pn


@pytest.fixture(scope="session")
def executor() -> Iterator[pn.Executor]:
    """One for all tests that leave it as it was: workers take seconds to start, and to load libraries."""
    with pn.Executor(max_workers=2, timeout=120.0) as executor:
        yield executor
