"""An ordered set of terms that becomes one loss."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from ..errors import OptionError, unknown_term
from .call import check_wrt, inputs_of, plan_call, run_call
from .kinds import is_mapping
from .output import BASE, LossOutput
from .plan import Plan, Plans
from .runner import run_inline
from .table import Table
from .targets import Gradients
from .term import Regularizer, Term, Weight, same
from .wrappers.wrapper import Wrapper

__all__ = ["Pipeline", "TermLike"]

TermLike: TypeAlias = Term | Callable[..., Any] | Regularizer | str

_MOST: Final = 100
"""Terms that a pipeline may have."""


class Pipeline:
    """An ordered set of terms, and perhaps a base loss, that is called as one loss. Immutable.

    - `terms`: terms; anything that is not a `Term` is wrapped in one of weight 1.
    - `base`: a function or a term of weight 1 that is reported as `base_loss`, apart from the others.
    - `name`: for logs and events.

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
    __slots__ = (
        "__weakref__",
        "all_terms",
        "base",
        "name",
        "names",
        "origin",
        "paths",
        "plans",
        "reads",
        "terms",
        "unmapped",
    )

    terms: tuple[Term, ...]
    base: Term | None
    """A term of weight 1 that is reported as `base_loss`."""
    name: str | None
    """For logs and events."""
    names: tuple[str, ...]
    """The names of the terms, in order."""
    all_terms: tuple[Term, ...]
    """The base loss, if there is one, and the terms."""
    unmapped: frozenset[str]
    """Parameters of the terms that are neither inputs nor options: an input of such a name would be left unread."""
    reads: frozenset[str]
    """The inputs that the terms read, each with what its path leads through: `heads.policy` and `heads`."""
    paths: tuple[str, ...]
    """Those of them that are paths into others."""
    plans: Plans
    """Which terms are evaluated together, for the kinds of inputs that it has been called with."""
    origin: "_Origin"
    """The same for a pipeline and what was made of it by other weights, options or switches."""

    def __init__(
        self, terms: Sequence[TermLike] = (), *, base: TermLike | None = None, name: str | None = None
    ) -> None:
        """Check that the names differ; anything that is not a `Term` is wrapped in one of weight 1."""
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
        self._fill(made, None if base is None else _as_base(base), name, _Origin())

    def _fill(self, terms: tuple[Term, ...], base: Term | None, name: str | None, origin: "_Origin") -> None:
        put = object.__setattr__
        put(self, "terms", terms)
        put(self, "base", base)
        put(self, "name", name)
        put(self, "names", tuple([term.name for term in terms]))
        put(self, "all_terms", terms if base is None else (base, *terms))
        put(self, "unmapped", frozenset([name for term in self.all_terms if term.enabled for name in term.unmapped]))
        read = dict.fromkeys(path for term in self.all_terms for path in term.inputs.values())
        put(self, "paths", tuple(path for path in read if "." in path))
        parts = [path.split(".") for path in read]
        put(self, "reads", frozenset(".".join(path[: i + 1]) for path in parts for i in range(len(path))))
        put(self, "origin", origin)
        put(self, "plans", Plans())

    def __setattr__(self, attribute: str, value: object) -> None:
        """Raise: edits return a new pipeline."""
        raise AttributeError(
            f"a Pipeline is immutable, so {attribute} cannot be set; add, replace, with_weights, … return a new one"
        )

    def __delattr__(self, attribute: str) -> None:
        """Raise, as `__setattr__` does."""
        raise AttributeError(f"a Pipeline is immutable, so {attribute} cannot be deleted")

    # Looking at it.

    @property
    def weights(self) -> dict[str, Weight]:
        """The weight of each term."""
        return {term.name: term.weight for term in self.terms}

    def __getitem__(self, name: str) -> Term:
        """A term by name."""
        return self.terms[self._index("pipeline", name)]

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
        return self._table().text()

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        return self._table().html()

    def _table(self) -> Table:
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
        return Table(title, ["term", "weight", "inputs", ""], lines)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the parts."""
        return _unpickled, (self.terms, self.base, self.name)

    # Edits: each returns a new pipeline.

    def add(self, term: TermLike) -> "Pipeline":
        """One more term, at the end."""
        return Pipeline([*self.terms, term], base=self.base, name=self.name)

    def remove(self, name: str) -> "Pipeline":
        """One term less."""
        index = self._index("remove", name)
        return Pipeline([*self.terms[:index], *self.terms[index + 1 :]], base=self.base, name=self.name)

    def replace(self, name: str, term: TermLike) -> "Pipeline":
        """Another term instead of this one."""
        index = self._index("replace", name)
        return Pipeline([*self.terms[:index], term, *self.terms[index + 1 :]], base=self.base, name=self.name)

    def with_weights(self, weights: Mapping[str, Weight]) -> "Pipeline":
        """Other weights for the named terms."""
        terms = list(self.terms)
        for name, weight in _mapping("with_weights", "weights", weights).items():
            index = self._index("with_weights", name)
            terms[index] = terms[index].with_weight(weight)
        return _made(tuple(terms), self.base, self.name, self.origin)

    def with_options(self, options: Mapping[str, Mapping[str, Any]]) -> "Pipeline":
        """Further options for the named terms, on top of those they have."""
        terms = list(self.terms)
        for name, more in _mapping("with_options", "options", options).items():
            index = self._index("with_options", name)
            term = terms[index]
            terms[index] = term.replace(options={**term.options, **more})
        return _made(tuple(terms), self.base, self.name, self.origin)

    def with_base(self, base: TermLike | None) -> "Pipeline":
        """Another base loss, or none."""
        return _made(self.terms, None if base is None else _as_base(base), self.name, self.origin)

    def enable(self, *names: str) -> "Pipeline":
        """The named terms switched on."""
        return self._switched("enable", names, True)

    def disable(self, *names: str) -> "Pipeline":
        """The named terms switched off: as if they were not there."""
        return self._switched("disable", names, False)

    def _switched(self, edit: str, names: Sequence[str], enabled: bool) -> "Pipeline":
        indices = {self._index(edit, name) for name in names}
        terms = [t.replace(enabled=enabled) if i in indices else t for i, t in enumerate(self.terms)]
        return _made(tuple(terms), self.base, self.name, self.origin)

    def _index(self, edit: str, name: str) -> int:
        if name in self.names:
            return self.names.index(name)
        raise unknown_term(edit, name, self.names)

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
        weights by name with numbers or arrays. `step` is the number of the training step, which schedules and `every=`
        need, and `state` the `out.state` of the call before. Values are never looked at: see `LossOutput.check`.
        """
        given = inputs_of(self, inputs, named)
        return run_call(self, given, run_inline, weights=weights, step=step, state=state)

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
        return self(*inputs, weights=weights, step=step, state=state, **named).total

    def value_and_grad(
        self,
        /,
        *inputs: Any,
        wrt: str | Sequence[str] | None = None,
        cosines: bool = False,
        keep: bool = False,
        accumulate: bool = False,
        weights: Mapping[str, Weight] | None = None,
        step: Any = None,
        state: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> LossOutput:
        """As a call, with the gradient of the total and the norm of every term's.

        Inputs, `weights`, `step` and `state` are those of a call. `wrt` names the inputs that gradients are taken with
        respect to; without it, every input that requires grad (JAX: every floating input). Each term is evaluated once;
        the total's gradient is the weighted sum of theirs. `cosines=True` adds the cosines between the terms'
        gradients, `keep=True` each unscaled gradient, as `out[name].gradient`; both add `out.gram` and hold the
        gradients of all terms at once. `accumulate=True` adds the gradient to the `.grad` of torch parameters, as a
        backward would, and leaves `out.gradient` None: the total has no graph then, and gradients of a loss scaler are
        yours to scale.

        >>> import torch
        >>> import penalties as pn
        >>> pipeline = pn.Pipeline([pn.Term(pn.l1, weight=0.001), pn.Term(pn.l2, weight=0.01)])
        >>> out = pipeline.value_and_grad(torch.tensor([1.0, 2.0, 3.0]), wrt="input")
        >>> {name: round(number, 6) for name, number in out.metrics().items() if "grad" in name}
        {'l1_grad_norm': 1.732051, 'l2_grad_norm': 7.483315, 'total_grad_norm': 0.07644}
        """
        if accumulate and (cosines or keep):
            expected = "False with cosines=True or keep=True, which need the gradient of each term"
            raise OptionError("value_and_grad", "accumulate", accumulate, expected)
        gradients = Gradients(check_wrt("value_and_grad", wrt), bool(cosines), bool(keep), bool(accumulate))
        given = inputs_of(self, inputs, named)
        return run_call(self, given, run_inline, weights=weights, step=step, state=state, gradients=gradients)

    def plan(
        self,
        /,
        *inputs: Any,
        wrt: str | Sequence[str] | None = None,
        cosines: bool = False,
        keep: bool = False,
        step: Any = None,
        **named: Any,
    ) -> Plan:
        """Which terms `value_and_grad` would evaluate together for these inputs, and why; nothing is evaluated.

        >>> import torch
        >>> import penalties as pn
        >>> pn.Pipeline(["l1", "l2"]).plan(torch.zeros(1_000_000), wrt="input")
        Plan, 1 group
          terms   why
          l1, l2  one sweep over input by a kernel for element-wise penalties
        """
        gradients = Gradients(check_wrt("plan", wrt), bool(cosines), bool(keep))
        return plan_call(self, inputs_of(self, inputs, named), step, gradients)


class _Origin:
    """Where a pipeline comes from; it is compared by identity."""


def _made(terms: tuple[Term, ...], base: Term | None, name: str | None, origin: _Origin) -> Pipeline:
    """A pipeline of terms that are known to fit together."""
    pipeline = object.__new__(Pipeline)
    pipeline._fill(terms, base, name, origin)  # pyright: ignore[reportPrivateUsage]
    return pipeline


def _unpickled(terms: tuple[Term, ...], base: Term | None, name: str | None) -> Pipeline:
    return _made(terms, base, name, _Origin())


def _mapping(edit: str, argument: str, value: Mapping[str, Any]) -> Mapping[str, Any]:
    if not isinstance(cast("object", value), Mapping):
        raise OptionError(edit, argument, value, "a mapping from the names of terms")
    return value


def _as_term(term: TermLike) -> Term:
    if is_mapping(term):
        raise OptionError("Pipeline", "terms", dict(term), "terms; Pipeline.from_config takes dicts")
    return term if isinstance(term, Term) else Term(term)


def _as_base(base: TermLike) -> Term:
    """The term of weight 1 that is reported as the base loss."""
    if not isinstance(base, Term):
        return Term(base, name=BASE)
    if not same(base.weight, 1):
        raise OptionError("Pipeline", "base", base, "a function or a term of weight 1")
    return base.replace(name=BASE)


def _remarks(term: Term) -> list[str]:
    if isinstance(term.fn, Wrapper):
        # Whether it has a gradient is up to the term outside.
        inside = [remark for remark in _remarks(term.fn.term) if remark != "not differentiable"]
        remarks = [*inside, term.fn.remark]
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
    if term.scope is not None:
        remarks.append(f"scope {term.scope}")
    if term.separable:
        remarks.append("separable")
    return remarks
