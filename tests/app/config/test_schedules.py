"""Schedules in a config."""

from pathlib import Path

import pytest

from penalties import schedules
from penalties.pipeline.schedules import Schedule

from ..configs import config

CASES: list[tuple[str, Schedule]] = [
    ('kind = "constant"', schedules.constant(0.5)),
    ('kind = "constant", value = 0.1', schedules.constant(0.1)),
    ('kind = "linear"', schedules.linear(0.0, 0.5, 60)),
    ('kind = "linear", start = 1, end = 0.2, steps = 5', schedules.linear(1.0, 0.2, 5)),
    ('kind = "warmup", steps = 20', schedules.warmup(0.5, 20)),
    ('kind = "warmup", steps = 0, value = 2', schedules.warmup(2.0, 0)),
    ('kind = "cosine"', schedules.cosine(0.5, 0.0, 60)),
    ('kind = "cosine", start = 0.0, end = 0.3, steps = 9', schedules.cosine(0.0, 0.3, 9)),
    ('kind = "exponential", rate = 0.9', schedules.exponential(0.5, 0.9)),
    ('kind = "exponential", rate = 0.9, value = 0.0', schedules.exponential(0.0, 0.9)),
    ('kind = "piecewise", values = { 0 = 0.0, 30 = 0.1 }', schedules.piecewise({0: 0.0, 30: 0.1})),
    (
        'kind = "product", schedules = [{ kind = "warmup", steps = 5 }, { kind = "exponential", rate = 0.9 }]',
        schedules.product(schedules.warmup(0.5, 5), schedules.exponential(1.0, 0.9)),
    ),
    (
        'kind = "chain", parts = [{ steps = 5, schedule = { kind = "linear" } }], last = { kind = "cosine" }',
        schedules.chain((schedules.linear(0.0, 0.5, 5), 5), schedules.cosine(0.5, 0.0, 60)),
    ),
]


@pytest.mark.parametrize(("text", "expected"), CASES)
def test_a_table_makes_its_schedule(tmp_path: Path, text: str, expected: Schedule) -> None:
    term = f'[train]\nsteps = 60\n[[term]]\nfn = "l2"\nweight = 0.5\ninputs = "params"\nschedule = {{ {text} }}'
    assert config(tmp_path, term).pipeline()["l2"].weight == expected
