"""What Optax lacks: decay by L1, proximal steps, and centralization along any axis.

Each is a `GradientTransformationExtraArgs` for `optax.chain`. Strengths are numbers, arrays or schedules: those of
Optax and those of `pn.schedules` alike. `mask` is a tree of booleans like the parameters, or a function of them that
returns one. For L2 alone, clipping, adaptive clipping and noise use what Optax has: `add_decayed_weights`,
`clip_by_global_norm`, `adaptive_grad_clip`, `add_noise`.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from ..errors import InputError
from ..telemetry.sink import library
from .strengths import Strength, strength, strengths
from .units import check_axis, remaining, within

if TYPE_CHECKING:
    from optax import GradientTransformationExtraArgs  # pyright: ignore[reportMissingTypeStubs]

__all__ = ["StepCount", "centralize", "decay", "proximal"]

Transform: TypeAlias = "GradientTransformationExtraArgs"


class StepCount(NamedTuple):
    """The state of a transform: the number of steps taken.

    >>> from penalties.integrations.optax import StepCount
    >>> StepCount(count=3).count
    3
    """

    count: Any


def decay(*, l1: Strength | None = None, l2: Strength | None = None, mask: Any = None) -> "Transform":
    """Add `l1·sign(w) + l2·w`, the slope of `l1·Σ|w| + ½·l2·Σw²`, to the updates; both are an elastic net.

    Where it stands in a chain says what it is: before `scale_by_adam` it is coupled, and goes through Adam's moments;
    after it, and before `scale_by_learning_rate`, it is decoupled, as in `adamw`. The sign of 0 is 0. `pn.l2` in the
    loss is `Σw²`: a term of weight 0.01 there is `l2=0.02` here.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> from penalties.integrations.optax import decay
    >>> optimizer = optax.chain(optax.scale_by_adam(), decay(l1=0.5, l2=0.25), optax.scale_by_learning_rate(0.5))
    >>> params = jnp.array([2.0, -1.0, 0.0])
    >>> updates, state = optimizer.update(jnp.zeros(3), optimizer.init(params), params)
    >>> (params + updates).tolist()
    [1.5, -0.625, 0.0]
    """
    given = strengths("decay", l1=l1, l2=l2)

    def change(update: Any, param: Any, now: Mapping[str, Any]) -> Any:
        import jax.numpy as jnp

        slope = now.get("l2", 0.0) * param + now.get("l1", 0.0) * jnp.sign(param)
        return (update + slope).astype(update.dtype)

    return _transform("decay", given, change, mask)


def proximal(
    learning_rate: Strength,
    *,
    l1: Strength | None = None,
    l2: Strength | None = None,
    group: Strength | None = None,
    axis: int = -1,
    mask: Any = None,
) -> "Transform":
    """The proximal operator of `lr·(l1·Σ|w| + group·Σ‖unit‖ + ½·l2·Σw²)` after the step: weights become exactly 0.

    It must be the last of a chain, with the learning rate of that chain. `l1` moves each weight towards 0 by `lr·l1`,
    and one that is nearer than that becomes 0; `group` does the same with the norm of each unit, a slice along `axis`;
    `l2` then divides by `1 + lr·l2`. The last axis of a Flax kernel, (inputs, outputs), is that of its outputs; in
    Equinox, (outputs, inputs), that is axis 0. Arrays of one axis have no units, and `group` leaves them alone. With an
    adaptive optimizer the threshold is not scaled as the updates are.

    >>> import jax.numpy as jnp
    >>> import optax
    >>> from penalties.integrations.optax import proximal
    >>> optimizer = optax.chain(optax.sgd(0.5), proximal(0.5, l1=1.0))
    >>> params = jnp.array([2.0, -0.25, -1.0])
    >>> updates, state = optimizer.update(jnp.zeros(3), optimizer.init(params), params)
    >>> optax.apply_updates(params, updates).tolist()
    [1.5, 0.0, -0.5]
    """
    check_axis("proximal", axis)
    given = strengths("proximal", l1=l1, l2=l2, group=group)
    rate = strength("proximal", "learning_rate", learning_rate)

    def change(update: Any, param: Any, now: Mapping[str, Any]) -> Any:
        import jax.numpy as jnp

        kept = jnp.promote_types(update.dtype, param.dtype)
        wide = jnp.promote_types(kept, jnp.float32)
        before = param.astype(wide)
        after = before + update.astype(wide)
        if "l1" in now:
            after = after * remaining(abs(after), now["learning_rate"] * now["l1"])
        if "group" in now and after.ndim > 1:
            squares = (abs(after) ** 2).sum(within("proximal", after.shape, axis), keepdims=True)
            after = after * remaining(squares**0.5, now["learning_rate"] * now["group"])
        if "l2" in now:
            after = after / (1 + now["learning_rate"] * now["l2"])
        # With fewer digits than the parameter has, an update could not take it to exactly 0.
        return (after - before).astype(kept)

    return _transform("proximal", {**given, "learning_rate": rate}, change, mask)


def centralize(*, axis: int = -1, mask: Any = None) -> "Transform":
    """Subtract from the gradient of each unit its mean, in arrays of two axes or more.

    A unit is a slice along `axis`: the last one for kernels of Flax, (inputs, outputs). `optax.centralize` takes the
    first, which is right for Equinox, (outputs, inputs).

    >>> import jax.numpy as jnp
    >>> from penalties.integrations.optax import centralize
    >>> gradient = jnp.array([[1.0, 2.0], [3.0, 6.0]])
    >>> transform = centralize()
    >>> updates, state = transform.update(gradient, transform.init(gradient), gradient)
    >>> updates.tolist()
    [[-1.0, -2.0], [1.0, 2.0]]
    """
    check_axis("centralize", axis)

    def change(update: Any, param: Any, now: Mapping[str, Any]) -> Any:
        if update.ndim < 2:
            return update
        return update - update.mean(within("centralize", update.shape, axis), keepdims=True)

    return _transform("centralize", {}, change, mask)


def _transform(
    name: str,
    strengths: Mapping[str, Callable[[Any], Any]],
    change: Callable[[Any, Any, Mapping[str, Any]], Any],
    mask: Any,
) -> "Transform":
    """A transform that changes each update, given its parameter and the strengths at this step."""
    optax = library(name, "optax", package="optax", extra="optax")
    import jax
    import jax.numpy as jnp

    def init(params: Any) -> StepCount:
        return StepCount(jnp.int32(0))

    def update(updates: Any, state: StepCount, params: Any = None, **_: Any) -> tuple[Any, StepCount]:
        if params is None:
            raise InputError(f"{name}: the parameters are missing; call update(updates, state, params)")
        now = {option: at(state.count) for option, at in strengths.items()}

        def changed(one: Any, param: Any) -> Any:
            return None if one is None else change(one, param, now)

        # Gradients of what is not trained are None, where parameters may have an array.
        changes = jax.tree.map(changed, updates, params, is_leaf=lambda leaf: leaf is None)
        return changes, StepCount(optax.safe_increment(state.count))

    made = optax.GradientTransformationExtraArgs(init, update)
    return made if mask is None else optax.masked(made, mask)
