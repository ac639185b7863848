"""Penalties as regularizers of Keras: of weights, and of what layers return."""

import contextlib
import functools
import sys
import warnings
from collections.abc import Callable, Mapping
from typing import Any, cast

from ...backends import owner
from ...errors import OptionError
from ...functional.options import check_choice
from ...pipeline import Pipeline, Term, schedules
from ...pipeline.announcing import unannounced
from ...pipeline.catalogue import BUILT_IN, path_of
from ...pipeline.kinds import compiling, is_mapping
from ...pipeline.schedules import Schedule
from ...pipeline.scope import scope_of
from ...pipeline.term import Scope, weight_at
from .libraries import keras_for

__all__ = ["ActivityPenalty", "Penalty", "regularizer_classes"]


class Penalty:
    """A penalty of weights, as a `keras.Regularizer`: what a layer is given as `kernel_regularizer`, and the like.

        keras.layers.Dense(32, kernel_regularizer=Penalty("l1", weight=1e-3))

    It adds `weight · fn(x)` to the loss. `fn` is a function of one array: a penalty of this library or its name, your
    own, or a dotted path, `"package.module:function"`. `weight` is a number, or a schedule that `PenaltiesCallback`
    moves from step to step. `options` go to the function. `name` is the one in logs, the function's by default;
    regularizers with one name are one term.

    It is saved with the model, and loaded where `Penalty` was imported before. Your own function is found again
    by the name under which `keras.saving.register_keras_serializable` knows it.
    """

    # Keras passes no state but that of layers through a compiled step. A regularizer with variables is therefore a
    # layer as well, inside the one that it regularizes.

    term: Term
    scheduled: Any
    """The variable that holds the weight, where that is a schedule; else None."""
    summed: Any
    """The variable that adds up the value and the weighted one, where a callback watches."""
    watched: Any
    """A weak reference to a trainable variable of the model that a callback watches; None where none does."""
    moved: bool
    """Whether a callback moves the weight, or a warning has said that none does."""

    def __init__(
        self,
        fn: Callable[..., Any] | str,
        weight: float | Schedule | Mapping[str, Any] = 1.0,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """Check everything at once."""
        self._begin(_term(type(self).__name__, fn, weight, name, options))

    def _begin(self, term: Term) -> None:
        kind = type(self).__name__
        keras = keras_for(kind)
        parent: Any = super()
        parent.__init__(name=term.name)
        this = cast("Any", self)
        self.term = term
        self.watched = None
        variable = functools.partial(
            this.add_weight,
            dtype="float64" if keras.config.floatx() == "float64" else "float32",
            trainable=False,
            autocast=False,
        )
        self.summed = variable(name="summed", shape=(2,), initializer="zeros")
        self.scheduled = None
        if callable(term.weight):
            first = keras.initializers.Constant(float(weight_at(term, 0)))
            self.scheduled = variable(name="weight", shape=(), initializer=first)
        this.built = True
        # The schedule stays with the term: what a call multiplies by is the variable.
        self._pipeline = Pipeline([term.with_weight(1.0)])
        self.moved = False

    def __call__(self, x: Any) -> Any:
        """`weight · fn(x)`, as a 0-d array."""
        keras: Any = sys.modules["keras"]
        array = x.value if isinstance(x, keras.Variable) else x
        counted, returned = self._factors(x, array)
        name, weight = self.term.name, self.term.weight
        if self.scheduled is not None:
            weight = self.scheduled.value
            self._check_moved(array)
        with contextlib.nullcontext() if compiling() else unannounced():
            out = self._pipeline(array, weights={name: weight})
        if self.watched is not None:
            both = keras.ops.stop_gradient(keras.ops.stack([out[name].value, out.total])) * counted
            self.summed.assign_add(keras.ops.where(self._trains(), both, 0.0))
        return out.total * returned

    def _factors(self, x: Any, array: Any) -> tuple[float, float]:
        """Factors from the function's value to that of the term, and to what is returned to Keras."""
        return 1.0, 1.0

    def _trains(self) -> Any:
        """Whether this call is of a training step: evaluations and predictions are not added up."""
        if _on_torch():
            return sys.modules["torch"].is_grad_enabled()
        variable = self.watched()
        return variable is not None and _differentiated(variable.value) > 0

    def _check_moved(self, array: Any) -> None:
        """Warn where a training step runs, and nothing moves the weight."""
        if not _on_torch():
            _differentiated(array, self.warn_unmoved)
        elif sys.modules["torch"].is_grad_enabled():
            self.warn_unmoved()

    def warn_unmoved(self) -> None:
        """Warn, once, where the weight is a schedule that no callback moves."""
        if self.scheduled is not None and not self.moved:
            self.moved = True
            warnings.warn(
                f"{self.term.name}: its weight is a schedule, and nothing moves it; pass "
                "callbacks=[PenaltiesCallback()] to fit and evaluate",
                stacklevel=3,
            )

    def move(self, weight: float) -> None:
        """Set the weight of the next steps, where it is a schedule."""
        if self.scheduled is not None:
            self.scheduled.assign(weight)
            self.moved = True

    @property
    def weights(self) -> list[Any]:
        """None: as those of random seeds, the variables are not among the weights of the layer around it."""
        return []

    def save_own_variables(self, store: Any) -> None:
        """Save nothing: the weight follows from the optimizer's number of steps."""

    def load_own_variables(self, store: Any) -> None:
        """Load nothing."""

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this regularizer again; raises where the function has no name that Keras knows."""
        term = self.term
        config = {"fn": _name_of(term), "weight": _saved_weight(term), "name": term.name}
        return {**config, "options": dict(term.options)} if term.options else config

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any:
        """The regularizer of a configuration; from files come built-in penalties and registered functions alone."""
        arguments = dict(config)
        fn = arguments.pop("fn", None)
        if fn not in BUILT_IN:
            registered = sys.modules["keras"].saving.get_registered_object(fn)
            if registered is None:
                expected = "a penalty of this library, or a function under the name that Keras has registered for it"
                raise OptionError(cls.__name__, "fn", fn, f"{expected}: import the module that registers it first")
            fn = registered
        return cls(fn, **arguments)


class ActivityPenalty(Penalty):
    """A penalty of what a layer returns, as a `keras.Regularizer`: its `activity_regularizer`.

        keras.layers.Dense(32, activity_regularizer=ActivityPenalty("l1", weight=1e-3))

    Keras divides what an activity regularizer returns by the size of the batch. A sum over the batch thereby becomes
    one per example, as with those of Keras. A mean would be divided once more, and is not: it counts as it is, whatever
    the size of the batch. Which of the two a penalty is follows from its `reduction`; for your own function,
    `scope` says it: "mean" or "sum". The other arguments are those of `Penalty`.
    """

    def __init__(
        self,
        fn: Callable[..., Any] | str,
        weight: float | Schedule | Mapping[str, Any] = 1.0,
        name: str | None = None,
        options: Mapping[str, Any] | None = None,
        scope: Scope | None = None,
    ) -> None:
        """Check everything at once."""
        kind = type(self).__name__
        if scope is not None:
            check_choice(kind, "scope", scope, ("mean", "sum"))
        term = _term(kind, fn, weight, name, options, scope)
        found = scope_of(term.replace(inputs="activity"))
        if found is None:
            expected = '"mean" or "sum": the function does not say whether it is a mean or a sum over the batch'
            raise OptionError(term.name, "scope", None, expected)
        self._begin(term)
        self._mean = found == "mean"

    def _factors(self, x: Any, array: Any) -> tuple[float, float]:
        if x is not array:
            expected = "what a layer returns: ActivityPenalty is an activity_regularizer; for weights use Penalty"
            raise OptionError(self.term.name, "x", x.path, expected)
        rows = max(array.shape[0], 1) if array.ndim else 1
        return (1.0, float(rows)) if self._mean else (1.0 / rows, 1.0)

    def get_config(self) -> dict[str, Any]:
        """The arguments that make this regularizer again; raises where the function has no name that Keras knows."""
        config = super().get_config()
        return config if self.term.scope is None else {**config, "scope": self.term.scope}


def _term(
    kind: str,
    fn: Callable[..., Any] | str,
    weight: Any,
    name: str | None,
    options: Mapping[str, Any] | None,
    scope: Scope | None = None,
) -> Term:
    """The term of a regularizer: of one input, with a weight that can be saved."""
    if is_mapping(weight):
        weight = schedules.from_config(weight)
    if owner(weight) is not None:
        raise OptionError(kind, "weight", weight, "a number, or a schedule, which a callback moves")
    term = Term(fn, weight, name, options=options, scope=scope)
    if len(term.inputs) != 1:
        given = ", ".join(term.inputs) or "none"
        raise OptionError(kind, "fn", term.name, f"a function of one array; this one has these inputs: {given}")
    if term.needs_step or term.takes_state or term.asynchronous:
        raise OptionError(kind, "fn", term.name, "a function without step or state, and not an async one")
    return term


def _on_torch() -> bool:
    return sys.modules["keras"].config.backend() == "torch"


def _differentiated(x: Any, noticed: Callable[[], object] = lambda: None) -> Any:
    """In JAX, 1 where a gradient with respect to `x` is taken, which is noticed as it is traced; elsewhere 0."""
    jax: Any = sys.modules["jax"]

    def elsewhere(_: Any) -> Any:
        return jax.numpy.zeros(())

    def rule(primals: Any, tangents: Any) -> Any:
        noticed()
        return jax.numpy.ones(()), jax.numpy.zeros(())

    function = jax.custom_jvp(elsewhere)
    function.defjvp(rule)
    return function(x)


def _name_of(term: Term) -> str:
    """The name under which Keras finds the function again."""
    path = path_of(term.fn)
    if path in BUILT_IN:
        return path
    saving: Any = sys.modules["keras"].saving
    registered: str = saving.get_registered_name(term.fn)
    if saving.get_registered_object(registered) is not term.fn:
        expected = "a function that Keras can find again: decorate it with keras.saving.register_keras_serializable()"
        raise OptionError(term.name, "fn", term.fn, expected)
    return registered


def _saved_weight(term: Term) -> Any:
    if not callable(term.weight):
        return term.weight
    try:
        return schedules.to_config(term.weight)
    except OptionError as error:
        raise OptionError(term.name, "weight", term.weight, error.expected) from None


@functools.cache
def regularizer_classes() -> dict[str, Any]:
    """The classes by name as Keras needs them; made here, since they derive from its own."""
    keras = keras_for("Penalty")
    register = keras.saving.register_keras_serializable(package="penalties")
    return {
        kind.__name__: register(
            type(
                kind.__name__,
                (kind, keras.Layer, keras.Regularizer),
                {"__module__": __package__, "__doc__": kind.__doc__},
            )
        )
        for kind in (Penalty, ActivityPenalty)
    }
