"""What a penalty knows about itself, declared where it is written."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, ParamSpec, TypeVar, cast

from .blocks import DISTRIBUTIONS, over_logits
from .options import unknown_option

__all__ = ["DISTRIBUTIONS", "Classwise", "Elementwise", "Facts", "facts_of", "penalty", "strict_options"]

P = ParamSpec("P")
R = TypeVar("R")

_ATTRIBUTE: Final = "__penalty_facts__"
_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Elementwise:
    """A sum of one function over all elements, with its derivative in closed form.

    With `s = sign(x)`, or `s = clamp(x/δ, −1, 1)` where `δ = delta` is above 0, an element contributes

        value       bent·(s·x − δ/2·s²) + straight/2·x²
        derivative  bent·s + straight·x

    so that value, derivative and norm of the gradient follow from the sums of `s·x`, `s²` and `x²`.
    """

    bent: float
    straight: float
    delta: float = 0.0


@dataclass(frozen=True, slots=True)
class Classwise:
    """A sum over the classes of one or two distributions, for each position.

    entropy       Σ p·log p
    kl            Σ p·(log p − log q)
    symmetric_kl  ½ Σ (p − q)·(log p − log q)
    js            ½ Σ p·(log p − log m) + ½ Σ q·(log q − log m), with m = ½(p + q)
    target        log p of one class, which a whole number says
    """

    kind: Literal["entropy", "kl", "symmetric_kl", "js", "target"]
    factor: float = 1.0
    """What the sum is multiplied by."""
    swapped: bool = False
    """With p and q exchanged."""
    per_log_classes: bool = False
    """Divided by the logarithm of the number of classes."""
    temperature: float = 1.0
    logits: bool = False
    """Of log_softmax(x / temperature), instead of x."""
    ignore_index: int | None = None
    """A target whose position does not count."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a penalty that composing, chunking, fusing, testing and documenting it need."""

    function: Callable[..., Any]
    """The penalty itself, without the check of its options' names."""

    example: Callable[[], tuple[Any, ...]]
    """Makes small arguments to try it on: NumPy arrays, after `fn` where it takes one."""

    rows: bool = False
    """A sum or mean over rows (the leading axes), so that a few rows can be computed at a time."""

    coupled: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of options that couple the rows after all: `{"center": "mean"}`."""

    classes: bool = False
    """It works over the last axis, or may, before it reduces."""

    elements: Mapping[str, tuple[Any, ...]] = field(default_factory=dict[str, tuple[Any, ...]])
    """Values of options with which it works on each element after all: `{"metric": ("mse", "l1")}`."""

    distribution: bool = False
    """Its inputs are log-probabilities over the last axis."""

    distribution_with: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Values of options with which they are, where otherwise they are not: `{"metric": "kl"}`."""

    labels: tuple[str, ...] = ()
    """Inputs that hold the indices of classes: whole numbers, without a gradient, one for each position."""

    weights: Callable[..., Any] | None = None
    """How much each position counts in a mean, from the arguments of a call; None: by its mask, or all alike."""

    divergence: Literal["kl", "js", "entropy", "cross_entropy"] | None = None
    """Which class-wise sum it is, for kernels that know it."""

    estimates: Literal["kl", "entropy"] | None = None
    """Which class-wise sum it estimates from the log-probabilities of sampled tokens."""

    draws: bool = False
    """It draws at random, from its option `seed`."""

    needs_gradient: bool = False
    """It differentiates a function `fn` that it is given, so that NumPy cannot run it."""

    elementwise: Callable[[Mapping[str, Any]], Elementwise | None] | None = None
    """The closed form of its sum, from all of its options; None where these options have none."""

    classwise: Callable[[Mapping[str, Any]], Classwise | None] | None = None
    """What it sums over the classes, from all of its options; None where these options have no such form."""

    config: str = ""
    """The lines after `fn` of a `[[term]]` table that uses it, or a comment on what to use; empty: it reads logits."""

    defaults: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Its options and their defaults."""

    def options(self, given: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        """All options, with the given ones in place of their defaults."""
        return {**self.defaults, **given}

    def separable(self, given: Mapping[str, Any] = _NOTHING) -> bool:
        """Whether, with these options, it is a sum or mean over rows.

        A mask that is an option rather than an input is not cut with the rows, so with one it is not separable.
        """
        options = self.options(given)
        if not self.rows or options.get("reduction") not in ("sum", "mean") or options.get("mask") is not None:
            return False
        return not _has_one_of(options, self.coupled)

    def over_vectors(self, given: Mapping[str, Any] = _NOTHING) -> bool:
        """Whether, with these options, a row is a vector of the last axis rather than an element."""
        options = self.options(given)
        return self.classes and not any(options[name] in values for name, values in self.elements.items())

    def softmax(self, given: Mapping[str, Any] = _NOTHING) -> float | None:
        """The temperature of the log_softmax that it takes of its distributions; None where it takes none.

        With `logits=False` and `temperature=1` it is the same function of log-probabilities. One with labels is not:
        rows whose label does not count are hidden before it is taken.
        """
        return None if self.labels or not self.takes_logits(given) else float(self.options(given)["temperature"])

    def takes_logits(self, given: Mapping[str, Any] = _NOTHING) -> bool:
        """Whether, with these options, its distributions are unnormalised scores."""
        options = self.options(given)
        return self.distribution and bool(options["logits"] or options["temperature"] != 1)

    def takes_logprobs(self, given: Mapping[str, Any] = _NOTHING) -> bool:
        """Whether, with these options, its inputs are log-probabilities, which it does not normalise itself."""
        if self.distribution:
            return not self.takes_logits(given)
        return _has_one_of(self.options(given), self.distribution_with)

    def closed_form(self, given: Mapping[str, Any] = _NOTHING) -> Elementwise | Classwise | None:
        """The closed form of its sum with these options, or None. Whether it is a mean is for the caller to ask."""
        form = self.elementwise or self.classwise
        return None if form is None else form(self.options(given))


def _has_one_of(options: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    # By type too: an option may be an array, which equals nothing in particular.
    return any(type(options[name]) is type(value) and options[name] == value for name, value in values.items())


def penalty(
    *,
    example: Callable[[], tuple[Any, ...]],
    rows: bool = False,
    coupled: Mapping[str, Any] = _NOTHING,
    classes: bool = False,
    elements: Mapping[str, tuple[Any, ...]] = _NOTHING,
    distribution: bool = False,
    distribution_with: Mapping[str, Any] = _NOTHING,
    labels: tuple[str, ...] = (),
    weights: Callable[..., Any] | None = None,
    divergence: Literal["kl", "js", "entropy", "cross_entropy"] | None = None,
    estimates: Literal["kl", "entropy"] | None = None,
    draws: bool = False,
    needs_gradient: bool = False,
    elementwise: Callable[[Mapping[str, Any]], Elementwise | None] | None = None,
    classwise: Callable[[Mapping[str, Any]], Classwise | None] | None = None,
    config: str = "",
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Declare the facts of a penalty; an option that it does not have becomes an `OptionError`.

    The arguments are those of `Facts`. `facts_of(fn)` reads them.
    """

    def declare(fn: Callable[P, R]) -> Callable[P, R]:
        parameters = inspect.signature(fn).parameters.values()
        defaults = MappingProxyType({p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY})
        function = over_logits(fn, defaults, weights, distribution=distribution)
        facts = Facts(
            function=function,
            example=example,
            rows=rows,
            coupled=coupled,
            classes=classes,
            elements=elements,
            distribution=distribution,
            distribution_with=distribution_with,
            labels=labels,
            weights=weights,
            divergence=divergence,
            estimates=estimates,
            draws=draws,
            needs_gradient=needs_gradient,
            elementwise=elementwise,
            classwise=classwise,
            config=config,
            defaults=defaults,
        )
        setattr(function, _ATTRIBUTE, facts)
        return strict_options(function)

    return declare


def facts_of(fn: Any) -> Facts | None:
    """The facts of a penalty; None for any other function.

    Of a `functools.partial` that fixes options they are those of the penalty with these options as defaults; one that
    fixes an input has none.

    >>> import functools
    >>> import penalties as pn
    >>> facts_of(pn.l2).separable(), facts_of(functools.partial(pn.l2, center="mean")).separable()
    (True, False)
    >>> facts_of(abs) is None
    True
    """
    if isinstance(fn, functools.partial):
        fixed = cast("functools.partial[Any]", fn)
        facts = facts_of(fixed.func)
        if facts is None or fixed.args or not fixed.keywords.keys() <= facts.defaults.keys():
            return None
        return dataclasses.replace(facts, defaults=MappingProxyType(facts.options(fixed.keywords)))
    facts = getattr(fn, _ATTRIBUTE, None)
    if not isinstance(facts, Facts):
        return None
    # functools.wraps copies attributes: somebody's wrapper around a penalty is not that penalty.
    return facts if fn is facts.function or getattr(fn, "__wrapped__", None) is facts.function else None


def strict_options(fn: Callable[P, R]) -> Callable[P, R]:
    """Make an option that `fn` does not have an `OptionError` that names the nearest one; Python has a TypeError."""
    name = fn.__name__
    parameters = inspect.signature(fn).parameters
    known = frozenset(parameters)
    options = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for given in kwargs:
            if given not in known:
                raise unknown_option(name, given, kwargs[given], options)
        return fn(*args, **kwargs)

    return call
