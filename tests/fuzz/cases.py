"""How many random cases a fuzzer tries, and how a failing one is tried again.

`PENALTIES_FUZZ_CASES` sets the number for all of them, `PENALTIES_FUZZ_SEED` tries one case alone.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

_MOST = 5
"""Failures after which a fuzzer stops: more would say the same."""


def seeds(usual: int) -> Sequence[int]:
    """The seeds to try: `usual` of them, unless the environment says otherwise."""
    only = os.environ.get("PENALTIES_FUZZ_SEED")
    if only is not None:
        return [int(only)]
    return range(int(os.environ.get("PENALTIES_FUZZ_CASES", usual)))


def counts(few: int, usual: int) -> list[Any]:
    """How many cases to try, as parameters: a few here and as many as usual among the slow tests."""
    if {"PENALTIES_FUZZ_SEED", "PENALTIES_FUZZ_CASES"} & os.environ.keys():
        return [usual]
    return [few, pytest.param(usual, marks=pytest.mark.slow)]


def try_cases(usual: int, check: Callable[[np.random.Generator], None]) -> None:
    """Run `check` with a random generator of each seed; what fails says how to run that case again."""
    failures: list[Exception] = []
    for seed in seeds(usual):
        try:
            check(np.random.default_rng(seed))
        except Exception as error:
            test = os.environ.get("PYTEST_CURRENT_TEST", "").removesuffix(" (call)")
            error.add_note(f"again: PENALTIES_FUZZ_SEED={seed} python -m pytest '{test}'")
            failures.append(error)
            if len(failures) == _MOST:
                break
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ExceptionGroup(f"{len(failures)} cases failed", failures)
