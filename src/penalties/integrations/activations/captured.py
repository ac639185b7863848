"""What a capture saw: activations by name."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ... import trees
from ...errors import InputError, OptionError, did_you_mean
from ...pipeline.table import table
from ..matching import Pattern

__all__ = ["Captured"]


class Captured(Mapping[str, Any]):
    """Activations by the name of the module that returned them: what `capture` returns, and an input of terms.

    A module that was called once has its output here, as it returned it; one that was called several times has a list
    of its outputs, in order. Modules that were not called are not there.
    """

    model: Any
    """The model to call. On Flax NNX call this one, which records; elsewhere it is the model itself."""

    def __init__(self, model: Any, names: Iterable[str], read: Callable[[str, Any], Any], advice: str = "") -> None:
        """Start empty; `read` checks a recorded call and returns its output; `advice` ends errors."""
        self.model = model
        self.calls: dict[str, list[Any]] = {name: [] for name in names}
        self._read = read
        self._advice = advice
        self._seen: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        """The output of a module, or the list of its outputs if it was called several times."""
        calls = self.calls.get(name, [])
        if not calls:
            if name in self.calls:
                raise InputError(f'capture: "{name}" was not called since the last clear{self._advice}')
            raise InputError(f'capture: "{name}" is not captured{did_you_mean(name, self)}')
        outputs = [self._read(name, call) for call in calls]
        return outputs[0] if len(outputs) == 1 else sorted(outputs, key=_device)

    def __iter__(self) -> Iterator[str]:
        """The names of the modules that were called, in the order of the model."""
        return iter([name for name, calls in self.calls.items() if calls])

    def __len__(self) -> int:
        """How many modules were called."""
        return sum(map(bool, self.calls.values()))

    def __repr__(self) -> str:
        """A table of names, calls and shapes."""
        lines: list[list[str]] = []
        for name in self:
            shapes = dict.fromkeys(str(tuple(array.shape)) for array in trees.arrays(self[name]))
            lines.append([name, str(len(self.calls[name])), ", ".join(shapes)])
        rows = table(["module", "calls", "shapes"], lines, indent="  ") if lines else []
        return "\n".join([f"Captured, {len(self)} of {len(self.calls)} modules", *rows])

    def clear(self) -> None:
        """Forget what was captured so far, as between the steps of a loop inside one `with` block."""
        self._seen.update(self)
        for calls in self.calls.values():
            calls.clear()

    def mark(self) -> Mapping[str, int]:
        """How much was captured so far, for `rewind`."""
        return {name: len(calls) for name, calls in self.calls.items()}

    def rewind(self, mark: Mapping[str, int]) -> None:
        """Forget what was captured since."""
        self._seen.update(self)
        for name, calls in self.calls.items():
            del calls[mark[name] :]

    def check(self, patterns: Iterable[tuple[Pattern, Sequence[str]]]) -> None:
        """Raise where no module of a pattern was ever called, or where an output cannot be used."""
        for pattern, names in patterns:
            if not any(name in self._seen or self.calls.get(name) for name in names):
                raise OptionError(
                    "capture", "names", pattern, f"modules that are called inside the block{self._advice}"
                )
        for name in self:
            _ = self[name]


def _device(output: Any) -> int:
    """The number of the device that an output is on: replicas of a model run in threads, in no order."""
    device = getattr(next(trees.arrays(output), None), "device", None)
    index = getattr(device, "index", None)
    return index if isinstance(index, int) else -1
