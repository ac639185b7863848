"""Peak memory a term of `value_and_grad`, 1e6 log-probabilities, beyond the one gradient that it gives."""

from .harness import Row, peak
from .terms import logprobs, pipeline


def run(scale: float) -> list[Row]:
    x = logprobs(1000, 1000)
    gradient = x.nbytes / 1e6
    rows: list[Row] = []
    for count in (1, 10, 100):
        terms = pipeline(count)
        taken = [peak(lambda terms=terms: terms.value_and_grad(x)) / count]
        given = [gradient / count]
        case = f"a term of {count}"
        rows.append(Row(case, "MB", given, taken, given, most_more=10.0))
    return rows
