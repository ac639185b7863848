"""Peak memory a term of `value_and_grad`, 1e6 log-probabilities, beyond the one gradient that it gives."""

import math

import penalties as pn

from .harness import Row, peak
from .terms import WEIGHTS, logprobs, pipeline


def run(scale: float) -> list[Row]:
    x = logprobs(1000, 1000)
    gradient = x.nbytes / 1e6
    # One alone holds what its passes hold at their height; of many, each frees its graph before the next.
    cases = {f"1 term, {name}": pn.Pipeline([name]) for name in WEIGHTS}
    cases["1 term, entropy, chunk=250"] = pn.Pipeline([pn.Term("entropy", chunk=250)])
    cases |= {f"a term of {count}": pipeline(count) for count in (10, 100)}
    rows: list[Row] = []
    for case, terms in cases.items():
        taken = [peak(lambda terms=terms: terms.value_and_grad(x)) / len(terms)]
        given = [gradient / len(terms)]
        # Three arrays of the input's size at once are in the formula of entropy itself, however it is written.
        most = math.inf if case == "1 term, entropy" else 10.0
        rows.append(Row(case, "MB", given, taken, given, most_more=most))
    return rows
