"""What references remember, in the run's folder: the model as it was before training is asked only once."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..training.references import Initial, Provider, Teacher
from .disk import writing

__all__ = ["References"]


class _KeptTeacher(Teacher):
    """A teacher whose answers are kept from one process to the next."""

    def __len__(self) -> int:
        assert self._memory is not None, "made with cache=True"
        return len(self._memory)

    def save(self, path: Path) -> None:
        assert self._memory is not None, "made with cache=True"
        self._memory.save(path)

    def load(self, path: Path) -> None:
        assert self._memory is not None, "made with cache=True"
        self._memory.load("client", path)


class References:
    """The providers of a run, by name, and the files of those that remember."""

    def __init__(self, providers: Mapping[str, Provider], folder: Path) -> None:
        """Know what earlier processes wrote down."""
        self.providers: dict[str, Any] = {name: _kept(one) for name, one in providers.items()}
        self._files = {name: folder / f"{name}.npz" for name, one in self.providers.items() if hasattr(one, "save")}
        self._known = dict.fromkeys(self._files, 0)
        for name, path in self._files.items():
            if path.is_file():
                self.providers[name].load(path)
                self._known[name] = len(self.providers[name])

    def save(self) -> None:
        """Write down what is new."""
        for name, path in self._files.items():
            provider = self.providers[name]
            if len(provider) > self._known[name]:
                known = len(provider)
                with writing(path):
                    provider.save(path)
                self._known[name] = known

    def prepare(self, client: Any, batches: Callable[[], Iterable[list[Any]]], say: Callable[[str], None]) -> None:
        """Ask for all data now where that cannot be done later: a server trains the only model that it has."""
        if callable(getattr(client, "forward_initial", None)):
            return
        for name, provider in self.providers.items():
            # One that was read from a file has been asked for everything.
            if isinstance(provider, Initial) and not self._known[name]:
                for data in batches():
                    provider.prepare(client, data)
                    say(f"asking the model before training: {len(provider)} examples")
        self.save()

    def arrays(self, client: Any, data: list[Any], step: int) -> dict[str, Any]:
        """The references of some data, made now."""
        started = {name: provider.start(client, data, step=step) for name, provider in self.providers.items()}
        return {name: future.result() for name, future in started.items()}


def _kept(provider: Any) -> Any:
    if type(provider) is Teacher and "cache=True" in repr(provider):
        return _KeptTeacher(provider.teacher, cache=True)
    return provider
