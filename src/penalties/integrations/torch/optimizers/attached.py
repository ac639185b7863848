"""How a transform attaches to an optimizer: which step it is, which parameters it changes, and how it comes off."""

import inspect
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from ....errors import GradientError, OptionError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer

__all__ = ["Attached", "Parameters", "Step", "attach"]

Parameters: TypeAlias = Iterable[Any] | Mapping[str, Any]
"""Some of an optimizer's parameters: any iterable, or a mapping from their names."""

# The names in use at each optimizer, as long as it exists.
_NAMES: Final[weakref.WeakKeyDictionary[Any, set[str]]] = weakref.WeakKeyDictionary()


class Step(NamedTuple):
    """One step of an optimizer, as a transform sees it."""

    name: str
    optimizer: "Optimizer"
    groups: "list[tuple[dict[str, Any], list[Tensor]]]"
    """The optimizer's groups, each with those of its parameters that have a gradient and are to change."""
    number: int
    """The number of steps before this one."""
    scale: Any
    """What gradients are multiplied by: 1, except where a loss scaler leaves it to the optimizer to divide."""

    def rate(self, group: Mapping[str, Any]) -> Any:
        """The learning rate of a group, which must have one."""
        if group.get("lr") is None:
            raise OptionError(
                self.name,
                "lr",
                None,
                f"a learning rate in each parameter group: {type(self.optimizer).__name__} has groups without one; use "
                "decay(decoupled=False), or add the penalty to the loss",
            )
        return group["lr"]

    @property
    def gradients(self) -> "Iterator[tuple[dict[str, Any], Tensor, Tensor]]":
        """Each parameter with its group and its gradient, which must be dense."""
        import torch

        for group, parameters in self.groups:
            for parameter in parameters:
                gradient = cast("Tensor", parameter.grad)
                if gradient.layout != torch.strided:
                    raise GradientError(
                        f"{self.name}: a parameter of shape {tuple(parameter.shape)} has a sparse gradient; expected a "
                        "dense one: leave the parameter out by parameters=, or use decay(decoupled=True) or proximal, "
                        "which change weights and not gradients"
                    )
                yield group, parameter, gradient


class Attached:
    """A transform that is attached to an optimizer: what `decay`, `proximal` and the others return.

    It works until `remove()` is called, or to the end of a `with` block.

    >>> import torch
    >>> from penalties.integrations.torch import decay
    >>> weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
    >>> weight.grad = torch.zeros(2)
    >>> optimizer = torch.optim.SGD([weight], lr=0.1)
    >>> with decay(optimizer, l2=0.5) as attached:
    ...     optimizer.step()
    ...     attached
    Attached('decay', steps=1)
    >>> optimizer.step()
    >>> [round(one, 4) for one in weight.tolist()]
    [0.95, -0.95]
    """

    name: Final[str]

    def __init__(
        self,
        name: str,
        optimizer: "Optimizer",
        parameters: "Mapping[int, Tensor] | None",
        apply: Callable[[Step], None],
        *,
        after: bool,
    ) -> None:
        """Register the hook: before the step, as soon as its gradient is known, or after it."""
        self.name = name
        # Weakly: an optimizer keeps its hooks, so this would otherwise be a cycle.
        self._optimizer = weakref.ref(optimizer)
        self._parameters = parameters
        self._apply = apply
        self._key = f"penalties.{name}.steps"
        register = optimizer.register_step_post_hook if after else optimizer.register_step_pre_hook
        try:
            self._handle = register(cast("Any", self._after if after else self._before))
        except AttributeError:
            # A wrapper that is a torch.optim.Optimizer by its class alone, such as that of Accelerate.
            expected = "an optimizer with hooks; this one wraps another: attach to that, optimizer.optimizer"
            raise OptionError(name, "optimizer", type(optimizer).__name__, expected) from None

    @property
    def steps(self) -> int:
        """The number of steps taken, which is the number of the next one. It is saved with the optimizer's groups."""
        optimizer = self._optimizer()
        return 0 if optimizer is None else optimizer.param_groups[0].get(self._key, 0)

    def remove(self) -> None:
        """Take the transform off the optimizer, and forget its count. A second time this does nothing."""
        self._handle.remove()
        optimizer = self._optimizer()
        if optimizer is not None:
            _NAMES.get(optimizer, set()).discard(self.name)
            optimizer.param_groups[0].pop(self._key, None)

    def __enter__(self) -> "Attached":
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def __repr__(self) -> str:
        return f"Attached({self.name!r}, steps={self.steps})"

    def _before(self, optimizer: "Optimizer", args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _inside_a_step(optimizer):
            return None
        # The optimizer itself is the first of the arguments.
        closure = args[1] if len(args) > 1 else kwargs.get("closure")
        if closure is None:
            self._run(optimizer)
            return None
        evaluated = False

        def closure_with_transform() -> Any:
            # A closure computes the gradients of the step: there is nothing to change before.
            nonlocal evaluated
            if evaluated:
                raise GradientError(
                    f"{self.name}: {type(optimizer).__name__} evaluates its closure several times a step; expected "
                    "once: add the penalty to the loss instead, or use proximal, which runs after the step"
                )
            evaluated = True
            loss = closure()
            self._run(optimizer)
            return loss

        if len(args) > 1:
            return (args[0], closure_with_transform, *args[2:]), kwargs
        return args, {**kwargs, "closure": closure_with_transform}

    def _after(self, optimizer: "Optimizer", args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not _inside_a_step(optimizer):
            self._run(optimizer)

    def _run(self, optimizer: "Optimizer") -> None:
        import torch

        # With these two attributes a loss scaler leaves it to a fused optimizer to unscale gradients, and to skip the
        # step where they overflowed.
        overflow, scale = getattr(optimizer, "found_inf", None), getattr(optimizer, "grad_scale", None)
        if overflow is not None and overflow.item():
            return
        if self._parameters is not None and not any(
            id(one) in self._parameters for group in optimizer.param_groups for one in group["params"]
        ):
            raise OptionError(
                self.name,
                "parameters",
                f"{len(self._parameters)} parameters",
                "parameters of this optimizer, but all of them were replaced since; attach again",
            )
        groups = [(group, [*filter(self._changes, group["params"])]) for group in optimizer.param_groups]
        with torch.no_grad():
            self._apply(Step(self.name, optimizer, groups, self.steps, 1.0 if scale is None else scale.item()))
        optimizer.param_groups[0][self._key] = self.steps + 1

    def _changes(self, parameter: "Tensor") -> bool:
        return parameter.grad is not None and (self._parameters is None or id(parameter) in self._parameters)


def _inside_a_step(optimizer: "Optimizer") -> bool:
    """Whether the step that called a hook was called by another of the same optimizer.

    PyTorch runs hooks in the `step` of each class, so where one calls that of its base they run in both. The stack
    tells, and unlike a flag it is right after a step that raised.
    """
    import torch

    frame = None if torch.compiler.is_compiling() else inspect.currentframe()
    # From here to the hook, and to the step that called it.
    for _ in range(2):
        frame = frame and frame.f_back
    if frame is None:
        return False
    step, frame = frame.f_code, frame.f_back
    while frame is not None:
        if frame.f_code is step and any(value is optimizer for value in frame.f_locals.values()):
            return True
        frame = frame.f_back
    return False


def attach(
    name: str,
    optimizer: "Optimizer",
    parameters: Parameters | None,
    apply: Callable[[Step], None],
    *,
    after: bool = False,
) -> Attached:
    """Attach a transform under a name that is free, for these parameters of the optimizer or for all."""
    import torch

    if not isinstance(cast("object", optimizer), torch.optim.Optimizer):
        raise OptionError(name, "optimizer", type(optimizer).__name__, "a torch.optim.Optimizer")
    if not isinstance(cast("object", name), str) or not name:
        raise OptionError("attach", "name", name, "a name that is not empty")
    names = _NAMES.setdefault(optimizer, set())
    if name in names:
        raise OptionError(
            name, "name", name, "one that is not attached to this optimizer yet: remove that first, or choose another"
        )
    attached = Attached(name, optimizer, _found(name, optimizer, parameters), apply, after=after)
    names.add(name)
    return attached


def _found(name: str, optimizer: "Optimizer", parameters: Parameters | None) -> "dict[int, Tensor] | None":
    """The parameters by identity; None stands for all that the optimizer has now or later."""
    import torch

    if parameters is None:
        return None
    if isinstance(parameters, torch.Tensor):
        raise OptionError(name, "parameters", "a tensor", "an iterable or a mapping of parameters: put it into a list")
    given: list[object] = [*(parameters.values() if isinstance(parameters, Mapping) else parameters)]
    held = {id(one) for group in optimizer.param_groups for one in group["params"]}
    for one in given:
        if not isinstance(one, torch.Tensor):
            given_one = one if isinstance(one, str) else f"an iterable of {type(one).__name__}"
            raise OptionError(
                name,
                "parameters",
                given_one,
                "parameters; pn.select finds them by name, and dict(model.named_parameters()) is a mapping of all",
            )
        if id(one) not in held:
            raise OptionError(name, "parameters", f"one of shape {tuple(one.shape)}", "parameters of this optimizer")
    if not given:
        raise OptionError(name, "parameters", given, "at least one parameter, or None for all")
    return {id(one): cast("Tensor", one) for one in given}
