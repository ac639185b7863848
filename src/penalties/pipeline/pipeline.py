"""An ordered set of terms that becomes one loss."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from ..backends import owner
from ..errors import InputError, OptionError, TermError
from ..functional.options import is_whole
from ..telemetry import events
from .call import Call, Job, Runner, guarded
from .combine import combined
from .evaluate import compute
from .inputs import check_unmapped, prepared, surroundings
from .output import BASE, LossOutput
from .reading import NOTHING, Row
from .state import Wrapper
from .table import table
from .term import Regularizer, Term, Weight, check_weight, same, weight_at

__all__ = ["Pipeline", "check_wrt", "is_due"]

TermLike: TypeAlias = Term | Callable[..., Any] | Regularizer | str

_MOST: Final = 100
"""Terms that a pipeline may have."""

_INPUT: Final = "input"
"""What a single positional input is called."""


class Pipeline:
    """An ordered set of terms, and perhaps a base loss, that is called as one loss. It never changes.

    >>> import numpy as np
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([
    ...     pn.Term(pn.l1, weight=0.1, inputs="params"),
    ...     pn.Term(pn.kl_divergence, weight=0.5, inputs=("student", "teacher")),
    ... ])
    >>> half = np.log([0.5, 0.5])
    >>> pipeline(params=[np.ones(3), np.ones(2)], student=half, teacher=half).metrics()
    {'l1': 5.0, 'l1_weighted': 0.5, 'kl_divergence': 0.0, 'kl_divergence_weighted': 0.0, 'total': 0.5}
    """

    # JAX keeps weak references to what it compiles.
    __slots__ = ("__weakref__", "_alone", "_base_alone", "_known", "_not_alone", "_unmapped", "base", "name", "terms")

    terms: tuple[Term, ...]
    base: Term | None
    """A term of weight 1 that is reported as `base_loss`."""
    name: str | None
    """For logs and events."""

    def __init__(
        self, terms: Sequence[TermLike] = (), *, base: TermLike | None = None, name: str | None = None
    ) -> None:
        """Check that the names differ; what is no `Term` yet becomes one of weight 1."""
        if isinstance(terms, str | Term) or not isinstance(cast("object", terms), Sequence):
            raise OptionError("Pipeline", "terms", terms, "a sequence of terms")
        made = tuple(_as_term(term) for term in terms)
        if len(made) > _MOST:
            raise OptionError("Pipeline", "terms", len(made), f"at most {_MOST} terms")
        seen: set[str] = set()
        for term in made:
            if term.name == BASE:
                raise OptionError("Pipeline", "terms", BASE, "another name: the base loss has this one (base=)")
            if term.name in seen:
                raise OptionError("Pipeline", "terms", term.name, "different names: give one of the two a name=")
            seen.add(term.name)
        if name is not None and not isinstance(cast("object", name), str):
            raise OptionError("Pipeline", "name", name, "a string or None")
        self._fill(made, None if base is None else _as_base(base), name)

    def _fill(self, terms: tuple[Term, ...], base: Term | None, name: str | None) -> None:
        put = object.__setattr__
        put(self, "terms", terms)
        put(self, "base", base)
        put(self, "name", name)
        put(self, "_known", frozenset([*(term.name for term in terms), BASE]))
        # The same terms as they are called with one positional input, and the first that cannot be.
        put(self, "_alone", tuple(_alone(term) for term in terms if len(term.inputs) == 1))
        put(self, "_base_alone", None if base is None or len(base.inputs) != 1 else _alone(base))
        everything = terms if base is None else (base, *terms)
        put(self, "_unmapped", frozenset([name for term in everything if term.enabled for name in term.unmapped]))
        put(self, "_not_alone", next((term for term in everything if term.enabled and len(term.inputs) != 1), None))

    def __setattr__(self, attribute: str, value: object) -> None:
        """Refuse: edits return a new pipeline."""
        raise AttributeError(
            f"a Pipeline never changes; {attribute} is set on a new one: add, replace, with_weights, …"
        )

    def __delattr__(self, attribute: str) -> None:
        """Refuse, as `__setattr__` does."""
        raise AttributeError(f"a Pipeline never changes; {attribute} cannot be deleted")

    # Looking at it.

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the terms, in order."""
        return tuple(term.name for term in self.terms)

    @property
    def weights(self) -> dict[str, Weight]:
        """The weight of each term."""
        return {term.name: term.weight for term in self.terms}

    def __getitem__(self, name: str) -> Term:
        """A term by name."""
        return self.terms[self._place("pipeline", name)]

    def __contains__(self, name: object) -> bool:
        """Whether a term has this name."""
        return name in self.names

    def __iter__(self) -> Iterator[Term]:
        """The terms in order."""
        return iter(self.terms)

    def __len__(self) -> int:
        """How many terms."""
        return len(self.terms)

    def __eq__(self, other: object) -> bool:
        """Equal terms in the same order, and an equal base."""
        if not isinstance(other, Pipeline):
            return NotImplemented
        return same(self.terms, other.terms) and same(self.base, other.base)

    def __hash__(self) -> int:
        """By the terms."""
        return hash(self.terms)

    def __repr__(self) -> str:
        """A small table."""
        title = f"Pipeline{f' {self.name}' if self.name else ''}, {len(self)} term{'' if len(self) == 1 else 's'}"
        rows = [*([self.base] if self.base is not None else []), *self.terms]
        lines = [
            [
                term.name,
                f"{term.weight:g}" if isinstance(term.weight, int | float) else str(term.weight),
                ", ".join(term.inputs.values()),
                ", ".join(_remarks(term)),
            ]
            for term in rows
        ]
        return "\n".join([title, *table(["term", "weight", "inputs", ""], lines, indent="  ")]) if rows else title

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the parts."""
        return _made, (self.terms, self.base, self.name)

    # Edits: each gives a new pipeline.

    def add(self, term: TermLike) -> "Pipeline":
        """One more term, at the end."""
        return Pipeline([*self.terms, term], base=self.base, name=self.name)

    def remove(self, name: str) -> "Pipeline":
        """One term less."""
        place = self._place("remove", name)
        return Pipeline([*self.terms[:place], *self.terms[place + 1 :]], base=self.base, name=self.name)

    def replace(self, name: str, term: TermLike) -> "Pipeline":
        """Another term in the place of this one."""
        place = self._place("replace", name)
        return Pipeline([*self.terms[:place], term, *self.terms[place + 1 :]], base=self.base, name=self.name)

    def with_weights(self, weights: Mapping[str, Weight]) -> "Pipeline":
        """Other weights for the named terms."""
        terms = list(self.terms)
        for name, weight in _mapping("with_weights", "weights", weights).items():
            place = self._place("with_weights", name)
            terms[place] = terms[place].with_weight(weight)
        return _made(tuple(terms), self.base, self.name)

    def with_options(self, options: Mapping[str, Mapping[str, Any]]) -> "Pipeline":
        """Further options for the named terms, on top of those they have."""
        terms = list(self.terms)
        for name, more in _mapping("with_options", "options", options).items():
            place = self._place("with_options", name)
            terms[place] = _with_options(terms[place], more)
        return _made(tuple(terms), self.base, self.name)

    def with_base(self, base: TermLike | None) -> "Pipeline":
        """Another base loss, or none."""
        return _made(self.terms, None if base is None else _as_base(base), self.name)

    def enable(self, *names: str) -> "Pipeline":
        """The named terms switched on."""
        return self._switched("enable", names, True)

    def disable(self, *names: str) -> "Pipeline":
        """The named terms switched off: as if they were not there."""
        return self._switched("disable", names, False)

    def _switched(self, edit: str, names: Sequence[str], enabled: bool) -> "Pipeline":
        places = {self._place(edit, name) for name in names}
        terms = [t.replace(enabled=enabled) if i in places else t for i, t in enumerate(self.terms)]
        return _made(tuple(terms), self.base, self.name)

    def _place(self, edit: str, name: str) -> int:
        for place, term in enumerate(self.terms):
            if term.name == name:
                return place
        there = ", ".join(f'"{known}"' for known in self.names) or "none"
        raise InputError(f'{edit}: no term is named "{name}"; there is {there}')

    # Configuration.

    @classmethod
    def from_config(cls, config: Sequence[Mapping[str, Any]], *, name: str | None = None) -> "Pipeline":
        """The pipeline that a list of dicts describes, each with the arguments of a `Term`.

        `fn` is the name of a penalty or a dotted path. `"base": True` makes one the base loss; `"wrap"` lists what
        goes around a term, as `{"kind": "ema", "decay": 0.9}`, from the inside out.

        >>> import penalties as pn
        >>> pipeline = pn.Pipeline.from_config([{"fn": "l1", "weight": 0.1}, {"fn": "l2", "name": "decay"}])
        >>> pipeline.names
        ('l1', 'decay')
        >>> pipeline.to_config()
        [{'fn': 'l1', 'weight': 0.1}, {'fn': 'l2', 'name': 'decay'}]
        """
        from .config import pipeline_of

        terms, base = pipeline_of(config)
        return cls(terms, base=base, name=name)

    def to_config(self) -> list[dict[str, Any]]:
        """The list of dicts that `from_config` makes this pipeline of; a function without a path is an error."""
        from .config import config_of

        return config_of(self.terms, self.base)

    # Calling it.

    def __call__(
        self,
        /,
        *inputs: Any,
        weights: Mapping[str, Weight] | None = None,
        step: Any = None,
        state: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> LossOutput:
        """Evaluate every term, and add them up.

        With one positional input every term gets it; else terms find their inputs by name. `weights` overrides
        weights by name with numbers or arrays. Values are never looked at: see `LossOutput.check`.
        """
        return self._run(inputs, named, weights, step, state, None)

    def total(
        self,
        /,
        *inputs: Any,
        weights: Mapping[str, Weight] | None = None,
        step: Any = None,
        state: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> Any:
        """The total alone, as `pipeline(...)` computes it.

        >>> import numpy as np
        >>> import penalties as pn
        >>> float(pn.Pipeline(["l1", "l2"]).total(np.array([1.0, -2.0]), weights={"l2": 0.1}))
        3.5
        """
        found = self._run(inputs, named, weights, step, state, None, bare=True)
        return found.total if isinstance(found, LossOutput) else found

    def value_and_grad(
        self,
        /,
        *inputs: Any,
        wrt: str | Sequence[str] | None = None,
        cosines: bool = False,
        weights: Mapping[str, Weight] | None = None,
        step: Any = None,
        state: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> LossOutput:
        """As a call, with the gradient of the total, the norm of every term's, and perhaps the cosines between them.

        `wrt` names the inputs that gradients are taken with respect to; without it, every input that requires grad
        (JAX: every floating input). Each term is evaluated once; the total's gradient is the sum of the terms'.
        Cosines need the gradients of all terms at once.

        >>> import torch
        >>> import penalties as pn
        >>> pipeline = pn.Pipeline([pn.Term(pn.l1, weight=0.001), pn.Term(pn.l2, weight=0.01)])
        >>> out = pipeline.value_and_grad(torch.tensor([1.0, 2.0, 3.0]), wrt="input")
        >>> {name: round(number, 6) for name, number in out.metrics().items() if "grad" in name}
        {'l1_grad_norm': 1.732051, 'l2_grad_norm': 7.483315, 'total_grad_norm': 0.07644}
        """
        asked = (check_wrt("value_and_grad", wrt), bool(cosines))
        return self._run(inputs, named, weights, step, state, asked)

    def run_with(
        self,
        runner: Runner,
        positional: tuple[Any, ...],
        named: dict[str, Any],
        weights: Mapping[str, Weight] | None,
        step: Any,
        state: Mapping[str, Any] | None,
        asked: tuple[Sequence[str] | None, bool] | None,
    ) -> LossOutput:
        """The output of a call whose terms somebody else evaluates, as an executor does."""
        return self._run(positional, named, weights, step, state, asked, runner=runner)

    def _run(
        self,
        positional: tuple[Any, ...],
        named: dict[str, Any],
        weights: Mapping[str, Weight] | None,
        step: Any,
        state: Mapping[str, Any] | None,
        asked: tuple[Sequence[str] | None, bool] | None,
        *,
        bare: bool = False,
        runner: Runner | None = None,
    ) -> Any:
        """The output; where nobody listens and `bare` says that the total is enough, that alone."""
        inputs, terms, base = self._given(positional, named)
        overrides = None if weights is None else self._overrides(weights)
        step = _checked_step(step)
        if state is not None and not isinstance(cast("object", state), Mapping):
            raise OptionError("pipeline", "state", state, "None, or the state of an output, as out.state")
        quiet, ops, like = surroundings(inputs)
        if events.handlers and ops is not None and not quiet:
            # Inside jax.jit even a constant is traced, where all inputs come from outside.
            quiet = ops.tracing(ops.zero(like))
        listened = len(events.handlers) > 0 and not quiet
        call = Call(self, step, asked) if asked is not None or listened or runner is not None else None
        if call is not None:
            call.start(quiet)
        try:
            if call is not None and asked is not None:
                call.differentiate(inputs, terms if base is None else (base, *terms))
            ran: list[Term] = []
            rows: list[Row] = []
            jobs: list[Job] = []
            # Who rests, or is skipped, keeps what it knows.
            new_state = {} if state is None else {name: state[name] for name in state if name in self._known}
            for term in terms if base is None else (base, *terms):
                due = True
                if not term.usual:
                    if not term.enabled or (term.every > 1 and (due := is_due(term, step)) is False):
                        continue
                    if runner is None and (term.runs != "inline" or term.asynchronous):
                        if call is not None:
                            call.running = term
                        raise TermError(term.name, _elsewhere(term))
                if overrides is not None and term is not base and term.name in overrides:
                    weight = overrides[term.name]
                else:
                    weight = weight_at(term, step)
                before = None if state is None else state.get(term.name)
                if runner is not None:
                    jobs.append((term, weight, before))
                    continue
                if call is not None:
                    row, new = call.evaluate(term, weight, inputs, before, due)
                elif term.usual:
                    # The common case, without another frame: the budget is a few microseconds a term.
                    start = 0.0 if quiet else time.perf_counter()
                    value, _, metrics, new = compute(term, inputs, step, before)
                    duration = None if quiet else time.perf_counter() - start
                    row = (term.name, value, weight, None, None, NOTHING, metrics, duration, None)
                else:
                    row, new = guarded(term, weight, inputs, step, before, None, quiet, due)
                ran.append(term)
                rows.append(row)
                if new is not None:
                    new_state[term.name] = new
            failure = None
            if runner is not None and call is not None:
                found, failure = runner(call, jobs, inputs)
                ran = [term for term, _, _ in jobs]
                rows = [row for row, _ in found]
                for row, new in found:
                    if new is not None:
                        new_state[row[0]] = new
            gradients = None if call is None else call.gradients
            output = combined(
                ran, rows, base, ops, like, gradients, new_state, single=len(positional) > 0, bare=bare and call is None
            )
            if failure is not None:
                failure.output = output
                raise failure
        except BaseException as error:
            if call is not None:
                call.failed(error)
            raise
        if call is not None:
            call.stop(output)
        return output

    def _given(
        self, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[dict[str, Any], tuple[Term, ...], Term | None]:
        """The inputs by name, and the terms that read them under these names."""
        if not positional:
            if not self._unmapped.isdisjoint(named):
                check_unmapped(self.terms if self.base is None else (self.base, *self.terms), named)
            return prepared(named), self.terms, self.base
        if named or len(positional) > 1:
            given = f"{len(positional)} positional and {len(named)} named"
            raise InputError(f"a call takes one positional input, or named inputs; given: {given}")
        if self._not_alone is not None:
            term = self._not_alone
            wanted = ", ".join(term.inputs.values()) or "no input"
            raise InputError(f"{term.name}: reads {wanted}; pass inputs by name, not by position")
        return prepared(dict.fromkeys((_INPUT,), *positional)), self._alone, self._base_alone

    def _overrides(self, weights: Mapping[str, Weight]) -> dict[str, Weight]:
        if not isinstance(cast("object", weights), Mapping):
            raise OptionError("pipeline", "weights", weights, "a mapping from terms to weights")
        for name in weights:
            self._place("weights", name)
        return {name: check_weight(name, weight) for name, weight in weights.items()}


def check_wrt(function: str, wrt: str | Sequence[str] | None) -> Sequence[str] | None:
    """What gradients are taken with respect to, as names; None is whatever requires one."""
    names = (wrt,) if isinstance(wrt, str) else wrt
    if owner(wrt) is not None:
        raise OptionError(function, "wrt", "an array", "the name of an input, or names")
    if names is not None and (not names or not all(isinstance(cast("object", name), str) for name in names)):
        raise OptionError(function, "wrt", wrt, "a name or names of inputs, or None")
    return names


def _made(terms: tuple[Term, ...], base: Term | None, name: str | None) -> Pipeline:
    """A pipeline of terms that are known to fit together."""
    pipeline = object.__new__(Pipeline)
    pipeline._fill(terms, base, name)  # pyright: ignore[reportPrivateUsage]
    return pipeline


def _mapping(edit: str, argument: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(cast("object", value), Mapping):
        raise OptionError(edit, argument, value, "a mapping from the names of terms")
    return value


def _as_term(term: TermLike) -> Term:
    return term if isinstance(term, Term) else Term(term)


def _as_base(base: TermLike) -> Term:
    """The term of weight 1 that is reported as the base loss."""
    if not isinstance(base, Term):
        return Term(base, name=BASE)
    if not same(base.weight, 1):
        raise OptionError("Pipeline", "base", base, "a function or a term of weight 1")
    return base.replace(name=BASE)


def _with_options(term: Term, more: Mapping[str, Any]) -> Term:
    return term.replace(options={**term.options, **more})


def _alone(term: Term) -> Term:
    """The term as it reads a single positional input."""
    new = term.with_weight(term.weight)
    put = object.__setattr__
    put(new, "inputs", dict.fromkeys(term.inputs, _INPUT))
    put(new, "positional", (_INPUT,) if term.positional else ())
    put(new, "named", tuple((parameter, _INPUT) for parameter, _ in term.named))
    return new


def _checked_step(step: Any) -> Any:
    """The step as a whole number, or as the 0-d array of PyTorch or JAX that it is."""
    ops = owner(step)
    if ops is not None and ops.LIBRARY == "NumPy" and step.dtype.kind in "iu" and not step.shape:
        step, ops = int(step), None
    if step is None or (ops is not None and ops.LIBRARY != "NumPy" and not len(step.shape)):
        return step
    if ops is None and is_whole(step) and step >= 0:
        return step
    raise OptionError("pipeline", "step", step, "a whole number of at least 0, or a 0-d array of one")


def is_due(term: Term, step: Any) -> Any:
    """Whether the term runs at this step; where the step is traced, an array that says so."""
    if step is None:
        raise InputError(f"{term.name}: runs every {term.every} steps; pass step= to the call")
    due: Any = step % term.every == 0
    if owner(due) is None:
        # By a branch: inside torch.compile a step is a symbol, and bool() of it would be one too.
        return True if due else False  # noqa: SIM210
    return due


def _elsewhere(term: Term) -> str:
    where = "is asynchronous" if term.asynchronous else f'runs="{term.runs}"'
    return f"{where}, and a pipeline runs its terms inline; use an Executor: executor.run(pipeline, inputs)"


def _remarks(term: Term) -> list[str]:
    if isinstance(term.fn, Wrapper):
        remarks = [*_remarks(term.fn.term), f"{term.fn.title} {term.fn.decay:g}"]
    else:
        remarks = [f"{key}={value}" for key, value in term.options.items() if isinstance(value, str | int | float)]
    if not term.enabled:
        remarks.append("disabled")
    if not term.differentiable:
        remarks.append("not differentiable")
    if term.runs != "inline":
        remarks.append(term.runs)
    if term.every > 1:
        remarks.append(f"every {term.every}")
    if term.chunk is not None:
        remarks.append(f"chunk {term.chunk}")
    return remarks
