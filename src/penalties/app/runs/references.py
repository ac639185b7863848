"""What references remember, in the run's folder: the model as it was before training is asked only once."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...training.references import Initial, Provider, Teacher
from .disk import RunError, writing

__all__ = ["References"]


class References:
    """The providers of a run, by name, and the files of those that remember."""

    def __init__(self, providers: Mapping[str, Provider], folder: Path) -> None:
        """Know what earlier processes wrote down."""
        self.providers: dict[str, Any] = dict(providers)
        self._files = {name: folder / f"{name}.npz" for name, one in providers.items() if _remembers(one)}
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

    def prepare(
        self, client: Any, batches: Callable[[], Iterable[list[Any]]], say: Callable[[str], None], *, trained: bool
    ) -> None:
        """Ask for all data now where that cannot be done later: a server trains the only model that it has.

        Where it is `trained` already, everything must be known.
        """
        if callable(getattr(client, "forward_initial", None)):
            return
        for name, provider in self.providers.items():
            if not isinstance(provider, Initial):
                continue
            if trained and not self._known[name]:
                raise RunError(
                    f"{self._files[name]} is not there, and the model as it was before training is gone; bring the "
                    "file back, or begin again in another folder"
                )
            try:
                for data in batches():
                    provider.prepare(client, data)
                    say(f"asking the model before training: {len(provider)} examples")
            except InputError as error:
                if not self._known[name]:
                    raise
                raise RunError(
                    f"references.{name}: the model before training was asked for the data of fewer steps, and is "
                    "gone; leave train.steps as it was, or begin again in another folder",
                    2,
                ) from error
        self.save()

    def arrays(self, client: Any, data: list[Any], step: int) -> dict[str, Any]:
        """The references of some data, made now."""
        started = {name: provider.start(client, data, step=step) for name, provider in self.providers.items()}
        return {name: future.result() for name, future in started.items()}


def _remembers(provider: Any) -> bool:
    return isinstance(provider, Initial) or (isinstance(provider, Teacher) and provider.cache)
