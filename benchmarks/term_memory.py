"""Peak memory a term of `value_and_grad`, 1e6 log-probabilities, beyond the one gradient that it gives."""

from torch import Tensor

import penalties as pn

from .harness import Row, peak
from .terms import WEIGHTS, logprobs, pipeline


def run(scale: float) -> list[Row]:
    x = logprobs(1000, 1000)
    gradient = x.nbytes / 1e6
    y = logprobs(1000, 1000).detach()
    cases = {f"1 term, {name}": (pn.Pipeline([name]), {"input": x}) for name in WEIGHTS}
    for name in ("kl_divergence", "js_divergence", "consistency"):
        cases[f"1 term, {name}"] = (pn.Pipeline([pn.Term(name, inputs=("input", "y"))]), {"input": x, "y": y})
    cases |= {f"a term of {count}": (pipeline(count), {"input": x}) for count in (10, 100)}
    rows: list[Row] = []
    for case, (terms, inputs) in cases.items():

        def step(terms: pn.Pipeline = terms, inputs: dict[str, Tensor] = inputs) -> pn.LossOutput:
            return terms.value_and_grad(**inputs) if "y" in inputs else terms.value_and_grad(*inputs.values())

        taken = [peak(step) / len(terms)]
        given = [gradient / len(terms)]
        rows.append(Row(case, "MB", given, taken, given, most_more=10.0))
    return rows
