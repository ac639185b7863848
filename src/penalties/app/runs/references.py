"""Cached references in the run's folder: the model before training is evaluated only once per datum."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...training.references import Initial, Provider, Teacher
from .disk import RunError, writing

__all__ = ["References"]


class References:
    """The providers of a run, by name, and the files of those that cache."""

    def __init__(self, providers: Mapping[str, Provider], folder: Path) -> None:
        """Load what earlier processes saved."""
        self.providers: dict[str, Any] = dict(providers)
        self._files = {
            name: folder / f"{name}.npz"
            for name, one in providers.items()
            if isinstance(one, Initial) or (isinstance(one, Teacher) and one.cache)
        }
        self._known = dict.fromkeys(self._files, 0)
        for name, path in self._files.items():
            if path.is_file():
                self.providers[name].load(path)
                self._known[name] = len(self.providers[name])

    def save(self) -> None:
        """Save what is new."""
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
        """Evaluate all data now if that is impossible later: a server has only the model that it trains.

        If that is `trained` already, everything must be cached.
        """
        if callable(getattr(client, "forward_initial", None)):
            return
        for name, provider in self.providers.items():
            if not isinstance(provider, Initial):
                continue
            if trained and not self._known[name]:
                raise RunError(
                    f"{self._files[name]} is missing, and the model before training is gone; restore the file, "
                    "or start again in another folder"
                )
            try:
                for data in batches():
                    provider.prepare(client, data)
                    say(f"evaluating the model before training: {len(provider)} examples")
            except InputError as error:
                if not self._known[name]:
                    raise
                raise RunError(
                    f"references.{name}: the model before training was evaluated on the data of fewer steps, and is "
                    "gone; restore train.steps, or start again in another folder",
                    2,
                ) from error
        self.save()

    def arrays(self, client: Any, data: list[Any], step: int) -> dict[str, Any]:
        """The references of some data, computed now."""
        started = {name: provider.start(client, data, step=step) for name, provider in self.providers.items()}
        return {name: future.result() for name, future in started.items()}
