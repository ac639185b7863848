"""A slow term that is computed at some steps, and whose value and gradient are reused at those between."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ... import trees
from ...backends import Backend, owner
from ...errors import BackendError, OptionError, TermError
from ...functional.options import check_count
from ..evaluate import compute, evaluate_term
from ..evaluation import Evaluation
from ..inputs import CallInputs
from ..targets import is_followed
from ..term import Term
from .wrapper import Wrapper, around, check_term, is_estimated, parameters_of, without_jax

__all__ = ["Reused", "Stale"]


class Reused(Wrapper):
    """A term with the gradient of an earlier step."""

    kind = "stale"
    title = "Stale"
    needs_step = True
    # Beside its inputs it may have the same value, which is reused.
    estimable = False

    def __init__(self, term: Term, steps: int, wrt: tuple[str, ...]) -> None:
        """Check the options."""
        check_count(self.title, "steps", steps, 1)
        self.steps: int = int(steps)
        self.wrt: tuple[str, ...] | None = wrt
        super().__init__(term, steps=self.steps, wrt=wrt)

    @property
    def names(self) -> tuple[str, ...]:
        """The inputs that stay."""
        return self.wrt or ()

    @property
    def remark(self) -> str:
        """What a table of terms says of it."""
        return f"{self.title} {self.steps}"

    def evaluated(self, given: dict[str, Any], step: Any, state: Any) -> Evaluation:
        """What the state has, if it is recent; otherwise the term with its gradient, which the new state has."""
        plain = without_jax({name: given[name] for name in self.term.inputs.values()})
        if CallInputs.of(plain).transformed:
            raise BackendError("Stale: called inside a compiler or vmap, where steps cannot differ; call it outside")
        wanted = self._wanted(given)
        step = int(step)
        forms = {name: _form(plain[name]) for name in self.names}
        trained = {name: [is_estimated(array) for array in trees.arrays(given[name])] for name in self.names}
        if state is not None and self._is_recent(state, step) and _covers(state["trained"], trained):
            if state["inputs"] != forms:
                raise TermError(
                    self.term.name,
                    f"its gradient of step {state['step']} is for {_listed(state['inputs'])}, and the inputs have "
                    f"changed to {_listed(forms)}; expected inputs that stay the same, as parameters do: leave others "
                    f'out of wrt, or pass a state without "{self.term.name}"',
                )
            kept: dict[str, Any] = {**state, "value": _beside(state["value"], plain)}
        else:
            kept = self._fresh(plain, wanted, step, None if state is None else state["inner"])
            kept |= {"inputs": forms, "trained": trained}
        metrics = {**kept["metrics"], "age": step - kept["step"]}
        gradient = None
        if kept["gradient"] is not None:
            gradient = {
                name: trees.flatten(plain[name]).rebuild(_copies(parts)) for name, parts in kept["gradient"].items()
            }
        return Evaluation(kept["value"], gradient, metrics, kept)

    def _is_recent(self, state: Mapping[str, Any], step: int) -> bool:
        # A mean over micro-batches, of which one may not have been finite.
        return 0 <= step - int(state["step"]) <= self.steps and float(state["finite"]) > 1.0 - 1e-6

    def _wanted(self, given: Mapping[str, Any]) -> list[str]:
        """The inputs that a gradient is wanted at; raises for one at which it could not be reused."""
        for name in self.term.inputs.values():
            arrays = [array for array in trees.arrays(given[name]) if is_followed(array)]
            if arrays and name not in self.names:
                raise TermError(
                    self.term.name,
                    f'its input "{name}" requires a gradient and is not in wrt={self.names!r}; a gradient can be '
                    "reused only for what stays between steps, as parameters do: name it in wrt, or detach it",
                )
            if any(_is_computed(array) for array in arrays):
                raise TermError(
                    self.term.name,
                    f'its input "{name}" is computed anew at each step, as activations are, and a gradient of another '
                    "step is not its own; expected leaves, as parameters are: let the term read these, or use every= "
                    "instead",
                )
        return [name for name in self.names if any(map(is_estimated, trees.arrays(given[name])))]

    def _fresh(self, plain: Mapping[str, Any], wanted: Sequence[str], step: int, inner: Any) -> dict[str, Any]:
        ops = CallInputs.of(plain).ops
        by_hand = ops is None or ops.LIBRARY == "NumPy"
        if wanted and not by_hand:
            found = evaluate_term(self.term, plain, wanted, step=step, state=inner)
            if found.gradient is None:
                raise TermError(self.term.name, f"has no gradient to reuse: {found.grad_error}", "gradient")
        else:
            found = compute(self.term, CallInputs.of(plain), step, inner)
        library = owner(found.value)
        assert library is not None, "a value is an array"
        gradient = None
        if found.gradient is not None and wanted:
            gradient = {name: trees.pair(plain[name], found.gradient.get(name)) for name in wanted}
        return {
            "value": library.stop_gradient(found.value),
            "gradient": gradient,
            "metrics": dict(found.metrics),
            "step": step,
            "finite": float(_is_finite(library, found.value, gradient)),
            "inner": found.state,
        }


def _covers(then: Mapping[str, Sequence[bool]], now: Mapping[str, Sequence[bool]]) -> bool:
    """Whether a gradient was taken at all that one is wanted at: parameters may have been frozen then."""
    pairs = [pair for name, wanted in now.items() for pair in zip(then.get(name, ()), wanted, strict=False)]
    return all(had or not wanted for had, wanted in pairs)


def _is_finite(library: Backend, value: Any, gradient: Mapping[str, Sequence[Any]] | None) -> bool:
    """Whether it can be reused: what a loss scaler skips once would be skipped at every step until the next one."""
    parts = [part for nest in (gradient or {}).values() for part in nest if part is not None]
    parts = [part if owner(part) is library else library.as_array(part, value) for part in parts]
    return all(map(math.isfinite, library.read([value, *([library.norm(parts)] if parts else [])])))


def _beside(value: Any, plain: Mapping[str, Any]) -> Any:
    """The value in the library and on a device of the inputs: state may have been loaded to others."""
    inputs = CallInputs.of(plain)
    if inputs.ops is None:
        return value
    here = owner(value) is inputs.ops
    arrays = [array for array in trees.arrays(list(plain.values())) if owner(array) is inputs.ops]
    if here and inputs.ops.device(value) in [inputs.ops.device(array) for array in arrays]:
        return value
    return inputs.ops.as_array(value, inputs.ops.zero(inputs.like))


def _form(nest: Any) -> list[str]:
    """The path and the shape of every array of an input."""
    flat = trees.flatten(nest)
    return [f"{path} {tuple(leaf.shape)}".strip() for path, leaf in zip(flat.paths, flat.leaves, strict=True)]


def _listed(forms: Mapping[str, Sequence[str]]) -> str:
    return "; ".join(f"{name}: {', '.join(form[:3])}{' …' if len(form) > 3 else ''}" for name, form in forms.items())


def _copies(parts: Sequence[Any]) -> list[Any]:
    """NumPy's arrays as copies: a gradient is handed to the caller, who may write to it."""
    return [part if (ops := owner(part)) is None or ops.LIBRARY != "NumPy" else part.copy() for part in parts]


def _is_computed(array: Any) -> bool:
    """Whether a tensor was computed from others; a view of a leaf, as gradients are taken at, was not."""
    node = getattr(array, "grad_fn", None)
    if node is None:
        return False
    above = [follower for follower, _ in node.next_functions if follower is not None]
    memory = array.untyped_storage().data_ptr()
    while len(above) == 1:
        if hasattr(above[0], "variable"):
            return above[0].variable.untyped_storage().data_ptr() != memory
        above = [follower for follower, _ in above[0].next_functions if follower is not None]
    return True


def Stale(term: Term, steps: int, wrt: str | tuple[str, ...] | list[str]) -> Term:
    """A slow term of parameters whose value and gradient are reused for up to so many steps before it runs again.

    At a step s it is computed, and its value and gradient count at the steps s to s + `steps`. The metric `age` is how
    many steps old they are: 0 where it was computed. Both are in the state, which goes from one call to the next, and
    into checkpoints. Pass `step=` too.

    A gradient is reused only at the inputs that `wrt` names, of which you say that they stay between steps. It is an
    error if their shapes change, if one of them is computed anew, as activations are, or if another input requires a
    gradient. One that is not finite is not reused. Inputs of data may change: a reused value and gradient are those of
    the data they were computed from.

    - `steps`: how many steps a gradient is reused for.
    - `wrt`: the inputs that stay, such as `"params"`.

    >>> import torch
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Stale(pn.Term(pn.l2, inputs="params"), steps=2, wrt="params")])
    >>> params, state = torch.tensor([1.0], requires_grad=True), None
    >>> for step in range(4):
    ...     out = pipeline.value_and_grad(params=params, step=step, state=state)
    ...     state = out.state
    ...     params.data -= 0.1 * out.gradient["params"]
    ...     print(f"{out.gradient['params'].item():.2f}, {out.metrics()['l2/age']:.0f} steps old")
    2.00, 0 steps old
    2.00, 1 steps old
    2.00, 2 steps old
    0.80, 0 steps old
    """
    check_term("Stale", term)
    names = parameters_of("Stale", term, wrt)
    if names is None:
        raise OptionError("Stale", "wrt", wrt, "the names of the inputs that stay between steps, as parameters do")
    if not term.differentiable:
        raise OptionError("Stale", "term", term, "a term with a gradient; for one without, every= runs it less often")
    return around(Reused, term, steps=steps, wrt=names)
