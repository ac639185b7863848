"""The score function: a gradient of the log-probability of samples, times what the term says of each."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

import numpy as np

from ...backends import Backend, owner
from ...errors import OptionError, TermError
from ...functional.options import check_choice
from ..evaluate import called
from ..evaluation import Evaluation
from ..inputs import CallInputs
from ..kinds import described, is_mapping, is_row
from ..term import Term
from .running import check_decay, lasting
from .wrapper import Wrapper, around, check_term, detached

__all__ = ["ScoreFunction", "Scored"]

_LOGPROBS: Final = "score_logprobs"
_MASK: Final = "score_mask"
_BASELINES: Final = ("mean", "leave_one_out", "none")


class Scored(Wrapper):
    """A term of samples, by the gradient of their log-probability."""

    kind = "score_function"
    title = "ScoreFunction"

    def __init__(self, term: Term, baseline: str = "mean", decay: float = 0.9, masked: bool = False) -> None:
        """Check the options."""
        check_choice(self.title, "baseline", baseline, _BASELINES)
        self.baseline: str = baseline
        self.decay: float = check_decay(self.title, decay)
        own = (_LOGPROBS, _MASK) if masked else (_LOGPROBS,)
        super().__init__(term, own, baseline=baseline, decay=self.decay, masked=masked)

    @property
    def label(self) -> str:
        """Without what shows among the inputs."""
        inner = getattr(self.term.fn, "label", None) or self.term.name
        return f"{self.title}({inner}, baseline={self.baseline!r})"

    def layer(self, inputs: Any) -> tuple[dict[str, Any], Any]:
        """With the names of its own inputs, which the term inside does not read."""
        own = {"logprobs": _LOGPROBS, "mask": _MASK}
        named = {key: inputs[parameter] for key, parameter in own.items() if parameter in inputs}
        settings = {"baseline": self.baseline, "decay": self.decay}
        rest = {parameter: name for parameter, name in inputs.items() if parameter not in self.own}
        return {"kind": self.kind, **named, **settings}, rest

    def evaluated(self, given: dict[str, Any], step: Any, state: Any) -> Evaluation:
        """The mean over the samples, with the gradient at their log-probabilities."""
        before, inner = (None, None) if state is None else (state["baseline"], state["inner"])
        plain = detached(given)
        logprobs, mask = plain[_LOGPROBS], plain.get(_MASK)
        ops, like = self._library(logprobs)
        result, metrics, after = self._samples(called(self.term, CallInputs.of(plain), step, inner)[1])
        values = self._values(ops, like, result)
        count = math.prod(tuple(values.shape))
        mean = ops.mean(values)
        deviations = values - mean
        if self.baseline == "leave_one_out":
            if count < 2:
                raise TermError(self.term.name, 'has 1 sample; expected 2 or more for baseline="leave_one_out"')
            advantages = deviations * (count / (count - 1))
        else:
            level: Any = 0.0 if before is None else ops.where(before == before, before, 0.0)
            advantages = values if self.baseline == "none" else values - level
        gradient = {_LOGPROBS: self._gradient(ops, logprobs, mask, advantages / count)}
        found: dict[str, Any] = {"advantage": ops.sqrt(ops.mean(advantages * advantages))}
        if count > 1:
            found["variance"] = ops.sum(deviations * deviations) / (count - 1)
        new: Any = after
        if self.baseline == "mean":
            moved = mean
            if before is not None:
                moved = ops.where(before == before, self.decay * before + (1.0 - self.decay) * mean, mean)
            new = {"baseline": lasting(ops, mean, moved, before), "inner": after}
        elif after is not None:
            new = {"baseline": None, "inner": after}
        return Evaluation(mean, gradient, {**metrics, **found}, new)

    def _library(self, logprobs: Any) -> tuple[Backend, Any]:
        first: Any = logprobs[0] if is_row(logprobs) and len(logprobs) else logprobs
        ops = owner(first)
        if ops is None or not ops.differentiable(first, requested=True):
            kind = described(logprobs) if ops is None else f"an array of {first.dtype}"
            raise TermError(self.term.name, f"its logprobs are {kind}; expected an array of floats, or a list of them")
        return ops, ops.upcast(self.term.name, first)

    def _samples(self, result: Any) -> tuple[Any, Mapping[str, Any], Any]:
        """The value of each sample, the metrics and the new state that the function returned."""
        if isinstance(result, Evaluation):
            return result.value, result.metrics, result.state
        if self.term.takes_state:
            message = f"takes state and returned {described(result)}; expected Evaluation(…, state=new)"
            raise TermError(self.term.name, message)
        if is_row(result) and len(result) == 2 and is_mapping(result[1]):
            return result[0], result[1], None
        return result, {}, None

    def _values(self, ops: Backend, like: Any, result: Any) -> Any:
        if owner(result) is None:
            try:
                result = np.asarray(result, np.float64)
            except (TypeError, ValueError) as error:
                message = f"returned {described(result)}; expected an array, or a list of numbers, with one per sample"
                raise TermError(self.term.name, message) from error
        if owner(result) is not ops:
            result = np.asarray(result.tolist(), np.float64)
        values = ops.stop_gradient(ops.as_array(result, like))
        if not len(values.shape) or not values.shape[0]:
            raise TermError(
                self.term.name,
                f"returned an array of shape {tuple(values.shape)}; expected one value per sample: do not reduce it "
                'over the samples (a penalty: reduction="none")',
            )
        return values

    def _gradient(self, ops: Backend, logprobs: Any, mask: Any, factors: Any) -> Any:
        """What each log-probability is multiplied by, in the structure that they have."""
        if not is_row(logprobs):
            return self._of_array(ops, logprobs, mask, factors)
        if tuple(factors.shape) != (len(logprobs),) or (mask is not None and len(mask) != len(logprobs)):
            raise self._unlike(factors, f"{len(logprobs)} arrays of log-probabilities, one per sample")
        masks: Sequence[Any] = [None] * len(logprobs) if mask is None else mask
        return [
            self._of_array(ops, one, kept, factors[index])
            for index, (one, kept) in enumerate(zip(logprobs, masks, strict=True))
        ]

    def _of_array(self, ops: Backend, logprobs: Any, mask: Any, factors: Any) -> Any:
        shape, own = tuple(logprobs.shape), tuple(factors.shape)
        if shape[: len(own)] != own:
            raise self._unlike(factors, f"log-probabilities of shape {shape}")
        wide = ops.upcast(self.term.name, logprobs)
        spread = ops.zeros_like(wide) + factors.reshape((*own, *[1] * (len(shape) - len(own))))
        if mask is None:
            return spread
        if owner(mask) is not ops or tuple(mask.shape) != shape:
            found = described(mask) if owner(mask) is not ops else f"of shape {tuple(mask.shape)}"
            raise TermError(self.term.name, f"its mask is {found}; expected a {ops.LIBRARY} array of shape {shape}")
        return spread * ops.cast(mask, wide)

    def _unlike(self, factors: Any, logprobs: str) -> TermError:
        return TermError(
            self.term.name,
            f"returned values of shape {tuple(factors.shape)} for {logprobs}; expected one value per sample, along the "
            "first axes",
        )


def ScoreFunction(
    term: Term,
    logprobs: str,
    baseline: Literal["mean", "leave_one_out", "none"] = "mean",
    decay: float = 0.9,
    mask: str | None = None,
) -> Term:
    """The expectation of a term over samples, with the score-function gradient (REINFORCE; Williams, 1992).

    The term's function returns one value per sample: an array, or a list of numbers, such as rewards or costs. It needs
    no gradient, and may return metrics or an `Evaluation` as any term. With values f₁ … fₙ of samples drawn from p:

        value    = 1/n · Σᵢ fᵢ
        gradient = 1/n · Σᵢ (fᵢ − bᵢ) · ∇ log pᵢ

    It is unbiased for each baseline; a baseline lowers its variance. The function is called once.

    - `logprobs`: the input with the log-probabilities of the samples. Further axes than those of the values are parts
      of a sample, such as tokens, which are added up; so is each array of a list, which has one per sample.
    - `baseline`: `"mean"`, the running mean of earlier calls (0 in the first one); `"leave_one_out"`, the mean of the
      other samples, of which there must be some; or `"none"`, 0.
    - `decay`: how much of the running mean a call keeps.
    - `mask`: an input like `logprobs` that says which of them count, where some are parts that were not sampled.

    >>> import torch
    >>> import penalties as pn
    >>> def cost(samples):
    ...     return [3.0 if sample == "no" else 1.0 for sample in samples]
    >>> logprobs = torch.tensor([-0.5, -1.0], requires_grad=True)
    >>> term = pn.ScoreFunction(pn.Term(cost), logprobs="logprobs", baseline="leave_one_out")
    >>> out = pn.Pipeline([term]).value_and_grad(samples=["no", "yes"], logprobs=logprobs, wrt="logprobs")
    >>> out.total.item(), out.gradient["logprobs"]
    (2.0, tensor([ 1., -1.]))
    """
    check_term("ScoreFunction", term)
    for option, name in (("logprobs", logprobs), ("mask", mask)):
        if not (isinstance(cast("object", name), str) and name) and not (option == "mask" and name is None):
            raise OptionError("ScoreFunction", option, name, "the name of an input")
    if any(parameter.startswith("*") for parameter in term.inputs):
        raise OptionError("ScoreFunction", "term", term, "a function whose parameters have names")
    own = {_LOGPROBS: logprobs, **({} if mask is None else {_MASK: mask})}
    settings = {"baseline": baseline, "decay": decay, "masked": mask is not None}
    return around(Scored, term, reads=own, inner={"differentiable": False}, **settings)
