"""A term in a thread, in a process and on a cluster, against the same term inline: what the place adds.

Both sides are run by the same executor, whose workers are warm, and differ in nothing but where the term runs. With
`wrt` both take the gradient in the call, so what is left is the place. The rows "and backward" leave it to the total:
inline that only builds a graph, while elsewhere the gradient is taken all the same and stitched in, so that they also
hold what a complete evaluation costs over a graph. They are there to be seen. So is what the standard library's pool of
threads adds to a bare gradient: on a machine whose cores sleep between calls, most of it is waking them.
"""

import importlib.util
import math
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

import penalties as pn

from .harness import Row, compare
from .terms import agree, backward

# Place, elements, and at most how many microseconds more than inline.
_CASES = (("thread", 10_000, 100.0), ("process", 10_000, 600.0), ("process", 1_000_000, 4000.0))
_RAY = ("ray", 10_000, 5000.0)

# Calls until every worker has the term, its libraries and the memory that inputs lie in.
_WARM = 50


def squares(x: torch.Tensor) -> torch.Tensor:
    """A term whose own time is small at every size, so that what the place adds is most of what is seen."""
    return (x * x).sum()


def run(scale: float) -> list[Row]:
    rows = [_pool(seconds=6.0 * scale), *(row for case in _CASES for row in _rows(*case, seconds=6.0 * scale))]
    if importlib.util.find_spec("ray") is None:
        print("ray is not installed: its rows are left out\n")
        return rows
    return [*rows, *_rows(*_RAY, seconds=6.0 * scale)]


def _pool(*, seconds: float) -> Row:
    x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).requires_grad_()

    def gradient() -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(squares(x), x)

    with ThreadPoolExecutor(1) as pool:
        return compare("bare, in a pool of threads", gradient, lambda: pool.submit(gradient).result(), seconds=seconds)


def _rows(place: str, elements: int, limit: float, *, seconds: float) -> Iterator[Row]:
    x = torch.randn(elements, generator=torch.Generator().manual_seed(0)).requires_grad_()
    here, away = (pn.Pipeline([pn.Term(squares, runs=runs)]) for runs in ("inline", place))
    case = f"{place}, 1e{round(math.log10(elements))}"
    with pn.Executor() as executor:

        def taken(pipeline: pn.Pipeline) -> Callable[[], pn.LossOutput]:
            return lambda: executor.run(pipeline, x, wrt="input")

        def total(pipeline: pn.Pipeline) -> Callable[[torch.Tensor], torch.Tensor]:
            return lambda x: executor.run(pipeline, x).total

        agree(x, total(here), total(away))
        for _ in range(_WARM):
            taken(away)()
        yield compare(case, taken(here), taken(away), seconds=seconds, most_more=limit)
        plain, ours = backward(total(here), x), backward(total(away), x)
        yield compare(f"{case}, and backward", plain, ours, seconds=seconds / 2)
