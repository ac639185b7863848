"""Losses that parts of a model compute on the way, by name."""

import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Self

from ..arrays import is_array
from ..errors import GradientError, InputError, OptionError, did_you_mean
from ..pipeline.kinds import compiling
from .recomputing import recomputing

__all__ = ["Collected", "auxiliary", "collect"]

# A plain list: torch.compile(fullgraph=True) does not trace a ContextVar.
_OPEN: Final[list["Collected"]] = []


class _Value(NamedTuple):
    """One call of `auxiliary`."""

    array: Any
    gradients: bool
    """Whether gradients were on there."""


class Collected(Mapping[str, Any]):
    """Values by name and call, `router.0`, `router.1`, …: what `collect` returns, and an input of terms.

    `collected["router"]` is the list of all values of that name.
    """

    def __init__(self) -> None:
        """Start empty; collecting begins with the block."""
        self.values_by_name: dict[str, list[_Value]] = {}
        self.thread: int | None = None
        self._gradients = True

    def __enter__(self) -> Self:
        """Collect from now on; an outer collection gets nothing until this one ends."""
        self._gradients = _gradients()
        self.thread = None if compiling() else threading.get_ident()
        _OPEN.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        """Collect no more."""
        _OPEN[:] = [other for other in _OPEN if other is not self]

    def __getitem__(self, name: str) -> Any:
        """A value by its qualified name, or the list of all values of a name."""
        if name in self.values_by_name:
            return [self._read(name, value) for value in self.values_by_name[name]]
        first, _, call = name.rpartition(".")
        values = self.values_by_name.get(first, [])
        if not call.isdigit() or int(call) >= len(values):
            there = ", ".join(f'"{known}"' for known in self) or "none"
            known = [*self, *self.values_by_name]
            raise InputError(f'collect: no value is named "{name}"; there are: {there}{did_you_mean(name, known)}')
        return self._read(name, values[int(call)])

    def _read(self, name: str, value: _Value) -> Any:
        if self._gradients and not value.gradients and hasattr(value.array, "requires_grad"):
            raise GradientError(
                f'collect: "{name}" was computed without a graph, so a term over it would train nothing. Checkpoint '
                "with use_reentrant=False; or enter collect() under torch.no_grad() too if no gradient is wanted"
            )
        return value.array

    def clear(self) -> None:
        """Forget what was collected so far, as between the steps of a loop inside one `with` block."""
        self.values_by_name.clear()

    def mark(self) -> Mapping[str, int]:
        """How much was collected so far, for `rewind`."""
        return {name: len(values) for name, values in self.values_by_name.items()}

    def rewind(self, mark: Mapping[str, int]) -> None:
        """Forget what was collected since."""
        kept = {name: values[: mark.get(name, 0)] for name, values in self.values_by_name.items()}
        self.values_by_name = {name: values for name, values in kept.items() if values}

    def __iter__(self) -> Iterator[str]:
        """The qualified names, by name in the order of the first calls."""
        return iter([f"{name}.{call}" for name, values in self.values_by_name.items() for call in range(len(values))])

    def __len__(self) -> int:
        """How many values."""
        return sum(map(len, self.values_by_name.values()))

    def __repr__(self) -> str:
        """How many values of each name."""
        counts = ", ".join(f"{name}: {len(values)}" for name, values in self.values_by_name.items())
        return f"Collected({counts})"


def collect() -> Collected:
    """A block around a forward that collects what modules pass to `auxiliary` in it.

    The result maps `router.0`, `router.1`, … to the values, one for each call, and `router` to the list of them. Blocks
    nest: the innermost one of this thread gets a value. Calls that recompute a checkpoint in the backward pass do not
    count. In JAX enter the block inside the function that is differentiated or compiled.

    >>> import torch
    >>> import penalties as pn
    >>> def router(x):
    ...     pn.auxiliary("router", x.square().mean())
    ...     return x
    >>> x = torch.ones(3, requires_grad=True)
    >>> with pn.collect() as losses:
    ...     y = router(router(x) + 1)
    >>> list(losses)
    ['router.0', 'router.1']
    >>> pipeline = pn.Pipeline([pn.Term(pn.precomputed, name="balance", weight=0.1, inputs="losses.router")])
    >>> pipeline(losses=losses).metrics()
    {'balance': 5.0, 'balance_weighted': 0.5, 'total': 0.5}
    """
    return Collected()


def auxiliary(name: str, value: Any) -> None:
    """Pass a loss, or any array, from inside a module to the `collect` block around the forward.

    Nothing is ever overwritten: each call of one name adds a value. Outside of a block it does nothing, so a model may
    always call it.

    >>> import numpy as np
    >>> import penalties as pn
    >>> with pn.collect() as losses:
    ...     pn.auxiliary("balance", np.array(2.0))
    >>> dict(losses)
    {'balance.0': array(2.)}
    """
    if not name or "." in name:
        raise OptionError("auxiliary", "name", name, "a name without dots: calls are numbered after a dot")
    if not is_array(value):
        raise OptionError("auxiliary", "value", value, "an array of NumPy, PyTorch or JAX")
    if not _OPEN or recomputing():
        return
    _innermost().values_by_name.setdefault(name, []).append(_Value(value, _gradients()))


def _innermost() -> Collected:
    """The last block of this thread; in a thread without one, such as that of a replica, the last of all."""
    if not compiling():
        here = threading.get_ident()
        for collected in reversed(_OPEN):
            if collected.thread == here:
                return collected
    return _OPEN[-1]


def _gradients() -> bool:
    torch = sys.modules.get("torch")
    return torch is None or torch.is_grad_enabled()
