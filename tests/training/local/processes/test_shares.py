"""How rows are shared between processes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penalties.training.local.batch import Row, batches
from penalties.training.local.processes.shares import Counts, by_tokens, evenly

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=20)


def rows_of(lengths: list[int]) -> list[Row]:
    return [Row(np.full(n, index), np.zeros((n, 2)), {"weights": np.ones(n)}) for index, n in enumerate(lengths)]


@given(LENGTHS, st.integers(1, 6))
def test_every_row_is_in_one_share_and_in_order(lengths: list[int], count: int) -> None:
    rows = rows_of(lengths)
    for shares in (by_tokens(rows, count), evenly(rows, count)):
        assert len(shares) == count
        assert [row for share in shares for row in share.rows] == rows
        assert shares[0].rows
        counts = Counts.of(shares)
        assert sum(counts.rows("hidden.1")) == sum(lengths)
        assert sum(counts.rows("logprobs")) == 2 * sum(lengths)


@given(LENGTHS, st.integers(2, 6))
def test_shares_by_tokens_differ_by_a_row_at_most(lengths: list[int], count: int) -> None:
    tokens = [sum(len(row.tokens) for row in share.rows) for share in by_tokens(rows_of(lengths), count)]
    # The first row is with the first process, whatever its length.
    assert max(tokens) <= sum(lengths) / count + 2 * max(lengths)


@settings(max_examples=50)
@given(LENGTHS, st.integers(1, 6), st.integers(1, 100) | st.none(), st.integers(1, 5) | st.none())
def test_even_shares_take_as_many_parts(
    lengths: list[int], count: int, tokens: int | None, at_once: int | None
) -> None:
    shares = evenly(rows_of(lengths), count, at_once, tokens)
    parts = [batches([*share.rows, *share.added], share.at_once) for share in shares]
    assert len({len(found) for found in parts}) == 1
    for batch in (batch for found in parts for batch in found):
        assert at_once is None or len(batch.lengths) <= at_once
        assert tokens is None or len(batch.lengths) == 1 or batch.tokens.size <= tokens


def test_what_is_added_has_no_weight() -> None:
    _, last = evenly(rows_of([3, 2, 2]), 2)
    (added,) = last.added
    assert (len(added.tokens), added.arrays["weights"].tolist()) == (1, [0.0])


@pytest.mark.parametrize(("lengths", "expected"), [([9], [1, 0]), ([2, 2], [1, 1]), ([1, 1, 6], [2, 1])])
def test_shares_by_tokens(lengths: list[int], expected: list[int]) -> None:
    assert [len(share.rows) for share in by_tokens(rows_of(lengths), 2)] == expected
