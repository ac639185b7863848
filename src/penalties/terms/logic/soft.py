"""Rules as fuzzy logic: differentiable, and computed like any other penalty."""

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

from ...backends import Backend
from ...errors import OptionError
from ...functional.options import check_choice, check_flag
from ...functional.penalty import strict_options
from ...functional.reduction import REDUCTIONS, hide, reduce
from ..probabilities import probability_of
from .metrics import mean_of
from .norms import CRISP, Norm, godel, lukasiewicz, product
from .reading import named_rules, parse
from .rules import Rule
from .truths import Degree, by_name, truth_of

__all__ = ["soft_rules"]

_NORMS: Final = ("product", "lukasiewicz", "godel")


@strict_options
def soft_rules(
    p: Any,
    *,
    rules: Mapping[str, Rule | str] | Iterable[Rule | str],
    variables: Iterable[str] | None = None,
    norm: Norm = "product",
    loss: Literal["linear", "log"] = "linear",
    logits: bool = False,
    mask: Any = None,
    reduction: Literal["sum", "mean", "none"] = "mean",
) -> tuple[Any, dict[str, Any]]:
    """How far rules are from holding, `Σ 1 − truth` over the rules, and metrics; differentiable.

    Metrics: `truth/NAME`, the mean truth of each rule; `satisfied/NAME`, the fraction of rows on which it holds when
    every variable above one half counts as true; and `satisfied`, the fraction on which all rules do.

    - `p`: probabilities, (…, variables), or a mapping from names to arrays (…).
    - `rules`: `{name: rule}`, or a list of rules. A rule is built of `Var`, or is a string that `parse` reads.
    - `variables`: the names of the last axis of `p`; None where `p` is a mapping.
    - `norm`: what `a & b` is: "product" `ab`, "lukasiewicz" `max(0, a + b − 1)`, "godel" `min(a, b)`. `~a` is `1 − a`,
      `a | b` is `~(~a & ~b)`, and `a >> b` is `~a | b`.
    - `loss`: "linear" is `1 − truth`. "log", of the product norm, is `−log truth`: +inf, with gradient 0, where
      the truth is exactly 0, which it is for no finite logits.
    - `logits`: `p` holds log-odds, and their sigmoid is taken.
    - `mask`: which rows count, as flags or weights, in the shape of `p` without the last axis.
    - `reduction`: "mean" or "sum" over the rows, or "none" for a value per row.

    >>> import numpy as np
    >>> p = np.array([[0.9, 0.2], [0.1, 0.2]])
    >>> value, metrics = soft_rules(p, rules=["rain >> wet"], variables=["rain", "wet"])
    >>> round(float(value), 6), float(metrics["satisfied"])
    (0.4, 0.5)
    """
    name = "soft_rules"
    check_choice(name, "norm", norm, _NORMS)
    check_choice(name, "loss", loss, ("linear", "log"))
    check_flag(name, "logits", logits)
    check_choice(name, "reduction", reduction, REDUCTIONS)
    if loss == "log" and norm != "product":
        raise OptionError(name, "loss", loss, f'"linear" with norm="{norm}", whose truth is exactly 0 too often')
    named = {key: parse(rule) if isinstance(rule, str) else rule for key, rule in named_rules(name, rules).items()}
    needed = tuple(dict.fromkeys(variable for rule in named.values() for variable in rule.variables))

    def convert(ops: Backend, x: Any) -> Any:
        if norm == "product":
            return truth_of(name, ops, x, logits=logits)
        return Degree(probability_of(name, ops, x, logits=logits))

    ops, truths, mask = by_name(name, p, variables, needed, mask, convert)
    crisp = {key: t.log_true > t.log_false if norm == "product" else t.probability > 0.5 for key, t in truths.items()}
    losses: Any = 0.0
    together: Any = True
    metrics: dict[str, Any] = {}
    for key, rule in named.items():
        value, truth = _of_rule(ops, rule, truths, norm, loss)
        holds = rule.evaluate(crisp, CRISP)
        together = holds & together
        metrics[f"truth/{key}"] = mean_of(ops, truth, mask)
        metrics[f"satisfied/{key}"] = mean_of(ops, ops.cast(holds, truth), mask)
        losses = losses + hide(ops, value, mask)
    metrics["satisfied"] = mean_of(ops, ops.cast(together, losses), mask)
    return reduce(ops, losses, reduction, mask), metrics


def _of_rule(ops: Backend, rule: Rule, truths: dict[str, Any], norm: Norm, loss: str) -> tuple[Any, Any]:
    """The loss of a rule on each row, and its truth."""
    if norm != "product":
        values = {name: truth.probability for name, truth in truths.items()}
        truth = rule.evaluate(values, (lukasiewicz if norm == "lukasiewicz" else godel)(ops))
        return 1.0 - truth, truth
    found = rule.evaluate(truths, product(ops))
    if loss == "linear":
        return ops.exp(found.log_false), ops.exp(found.log_true)
    # Rounding may leave a logarithm just above 0; the gradient is right all the same.
    below = found.log_true - ops.clip(ops.stop_gradient(found.log_true), 0.0, None)
    return ops.where(found.possible, -below, float("inf")), ops.exp(below)
