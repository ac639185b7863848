"""Cheap inline terms run by an executor, against calling the pipeline: what the executor itself costs."""

import penalties as pn

from .harness import Row, compare
from .terms import agree, backward, logprobs, pipeline


def run(scale: float) -> list[Row]:
    five = pipeline()
    rows: list[Row] = []
    with pn.Executor() as executor:
        for case, x in (("5 terms, 10", logprobs(2, 5)), ("5 terms, 1e4", logprobs(100, 100))):
            agree(x, five.total, lambda x: executor.run(five, x).total)
            plain, ours = lambda x=x: five(x), lambda x=x: executor.run(five, x)
            rows.append(compare(case, plain, ours, seconds=6.0 * scale, most_more=20.0))
            # To be seen, without a limit: the same backward pass follows on both sides.
            plain, ours = backward(lambda x: five(x).total, x), backward(lambda x: executor.run(five, x).total, x)
            rows.append(compare(f"{case}, and backward", plain, ours, seconds=3.0 * scale))
    return rows
