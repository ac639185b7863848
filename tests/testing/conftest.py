from pathlib import Path

import pytest

from tests.libraries import JAX

ON_JAX = ("test_nests_keep_their_structure", "test_a_branch_on_values_cannot_be_traced")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run all but two tests on JAX with the slow ones: it compiles every operation for every new shape."""
    for item in items:
        if not item.path.is_relative_to(Path(__file__).parent) or not isinstance(item, pytest.Function):
            continue
        given = item.callspec.params.values() if hasattr(item, "callspec") else ()
        if JAX in given and item.originalname not in ON_JAX:
            item.add_marker(pytest.mark.slow)
