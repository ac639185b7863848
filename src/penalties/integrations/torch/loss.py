"""A pipeline as a loss function."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from ...errors import InputError, OptionError
from ...pipeline import LossOutput, Pipeline, Term
from ...pipeline.output import BASE
from ...pipeline.scope import scope_of
from ...pipeline.weigh import weight_of

if TYPE_CHECKING:
    import torch

__all__ = ["WrappedLoss", "wrap_loss"]

_ITEMS: Final = "num_items_in_batch"
"""What Hugging Face's Trainer calls the number of items in all micro-batches of a step."""


class WrappedLoss:
    """A loss function with the terms of a pipeline added: what `wrap_loss` returns."""

    pipeline: Final[Pipeline]
    """The terms together with the base. Call it directly to keep no state, as in validation."""
    state: Mapping[str, Any]
    """The state of the stateful terms. Assign saved state to resume, or `{}` to start over. Calls without gradients, as
    in evaluation, leave it as it is."""
    output: LossOutput | None
    """The structured result of the last call."""

    def __init__(
        self,
        base: Callable[..., Any] | Term,
        pipeline: Pipeline,
        *,
        items: Callable[[Any], Any] | None = None,
    ) -> None:
        """Start without state; the pipeline must not have its own base."""
        if not isinstance(cast("object", pipeline), Pipeline):
            raise OptionError("wrap_loss", "pipeline", pipeline, "a Pipeline")
        if pipeline.base is not None:
            raise OptionError(
                "wrap_loss", "pipeline", pipeline.name, "one without a base: remove it, or call the pipeline itself"
            )
        if not isinstance(base, Term) and not callable(cast("object", base)):
            raise OptionError("wrap_loss", "base", base, "a function of prediction and target, or a Term")
        if items is not None and not callable(cast("object", items)):
            raise OptionError("wrap_loss", "items", items, "None, or a function from the targets to their number")
        term = base if isinstance(base, Term) else Term(_ByPosition(base), name=BASE)
        if term.scope is None and _reduction(base.fn if isinstance(base, Term) else base) == "sum":
            term = term.replace(scope="sum")
        self.pipeline = pipeline.with_base(term)
        self._counted = self.pipeline if isinstance(base, Term) else pipeline.with_base(_WithItems(base))
        self._items = items
        self.state = {}
        self.output = None

    def __call__(
        self,
        prediction: Any,
        target: Any,
        *,
        weights: Mapping[str, Any] | None = None,
        step: Any = None,
        num_items_in_batch: Any = None,
        **inputs: Any,
    ) -> "torch.Tensor":
        """`base(prediction, target) + Σ weight·term`, where each term finds its inputs by name."""
        import torch

        pipeline = self.pipeline
        if num_items_in_batch is not None:
            pipeline, inputs = self._counted, {**inputs, _ITEMS: num_items_in_batch}
            weights = self._shared(target, num_items_in_batch, weights or {}, step)
        output = pipeline(weights=weights, step=step, state=self.state, prediction=prediction, target=target, **inputs)
        if torch.is_grad_enabled():
            # A term that did not run in this call keeps its state.
            self.state = {**self.state, **output.state}
        self.output = output
        return output.total

    def _shared(self, target: Any, count: Any, weights: Mapping[str, Any], step: Any) -> dict[str, Any]:
        """The weights of the terms times this micro-batch's share of the items in its step."""
        base = cast("Term", self.pipeline.base)
        fn = base.fn.base if isinstance(base.fn, _ByPosition) else None
        if not (_takes_items(fn) if fn is not None else _ITEMS in base.inputs.values()):
            expected = f"a loss that takes {_ITEMS} and divides by it: the trainer counts items over a whole step"
            raise OptionError("wrap_loss", "base", fn or base, expected)
        if self._items is None and len(self.pipeline):
            raise InputError(
                f"wrap_loss: the trainer passed {_ITEMS}, so the terms need this micro-batch's share of it; pass "
                "items=, a function from the targets to their number, or use PenaltiesMixin of "
                "penalties.integrations.huggingface"
            )
        shared = dict(weights)
        for term in self.pipeline if self._items is not None else ():
            if scope_of(term) not in ("mean", "step"):
                expected = (
                    'scope="mean" or "step": a loss function cannot see the ranks to add over; see PenaltiesMixin'
                )
                raise OptionError(term.name, "scope", scope_of(term), expected)
            # Parameters are the same in all micro-batches, whose shares add up to 1.
            shared[term.name] = weight_of(term, weights, step) * (cast("Any", self._items)(target) / count)
        return shared


@dataclasses.dataclass(frozen=True)
class _ByPosition:
    """A loss function with our names for its two inputs; every library names them differently."""

    base: Callable[[Any, Any], Any]

    def __call__(self, prediction: Any, target: Any) -> Any:
        return self.base(prediction, target)


@dataclasses.dataclass(frozen=True)
class _WithItems:
    """The same for a loss that divides by the number of items in the whole step."""

    base: Callable[..., Any]

    def __call__(self, prediction: Any, target: Any, num_items_in_batch: Any) -> Any:
        return self.base(prediction, target, num_items_in_batch=num_items_in_batch)


def _reduction(base: Any) -> Any:
    """What a loss module, or a function with its options filled in, does with the losses of examples."""
    if isinstance(base, functools.partial):
        return cast("functools.partial[Any]", base).keywords.get("reduction")
    return getattr(base, "reduction", None)


def _takes_items(base: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(getattr(base, "forward", base)).parameters.values()
    except ValueError:
        return False
    return any(p.name == _ITEMS or p.kind is p.VAR_KEYWORD for p in parameters)


def wrap_loss(
    base: Callable[..., Any] | Term, pipeline: Pipeline, *, items: Callable[[Any], Any] | None = None
) -> WrappedLoss:
    """A drop-in replacement for a loss function: `base(prediction, target)` plus the total of `pipeline`.

    `base` is a function or a loss module, called with positional arguments, or a `Term` that names its inputs. Terms
    find their inputs by name among `prediction`, `target` and any other keyword arguments. `weights` and `step` go to
    the pipeline at each call, so that schedules work. `loss.output` is the last `LossOutput`, base loss included.
    Stateful terms get the state that they returned in the previous call; it is kept in `loss.state`, except in calls
    under `torch.no_grad()`.

    Hugging Face's Trainer passes `num_items_in_batch`, the number of tokens in all micro-batches of a step. The base is
    given it, and terms are scaled by `items(target) / num_items_in_batch`, where `items` counts as the trainer does.

    >>> import torch
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.l2, weight=0.01, inputs="prediction")])
    >>> loss = pn.wrap_loss(torch.nn.functional.mse_loss, pipeline)
    >>> prediction, target = torch.tensor([[1.0], [2.0]]), torch.tensor([[1.1], [1.9]])
    >>> round(loss(prediction, target).item(), 6)
    0.06
    >>> round(loss(prediction, target, weights={"l2": 0.1}).item(), 6)
    0.51
    >>> loss.output
    LossOutput, total 0.51
      term       value  weight  contribution  share
      base_loss  0.01   1       0.01          2 %
      l2         5      0.1     0.5           98 %
    """
    return WrappedLoss(base, pipeline, items=items)
