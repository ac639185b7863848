"""Cached references in the run's folder: the model before training is evaluated only once per datum."""

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from ...errors import InputError
from ...files import check_plain
from ...training.references import Initial, Provider, Teacher
from .disk import RunError, reason, writing

__all__ = ["References"]

_RESTORE: Final = "restore it, or remove it to have it computed again"


class References:
    """The providers of a run, by name, and the files of those that cache."""

    def __init__(
        self, providers: Mapping[str, Provider], folder: Path, checksums: Mapping[str, Any] | None = None
    ) -> None:
        """Load what earlier processes saved, which must be what it was at the checkpoint that has these checksums."""
        self.providers: dict[str, Any] = dict(providers)
        self._files = {
            name: folder / f"{name}.npz"
            for name, one in providers.items()
            if isinstance(one, Initial) or (isinstance(one, Teacher) and one.cache)
        }
        self._known = dict.fromkeys(self._files, 0)
        for name, path in self._files.items():
            if os.path.lexists(path):
                self._load(name, path, *(checksums or {}).get(name, (0, None)))

    def _load(self, name: str, path: Path, count: int, checksum: str | None) -> None:
        provider = self.providers[name]
        try:
            check_plain(path)
            provider.load(path)
        except (OSError, InputError) as error:
            raise RunError(f"{path} cannot be read ({reason(error)}); {_RESTORE}") from error
        if checksum is not None and (len(provider) < count or provider.checksum(count) != checksum):
            raise RunError(f"{path} is not the file that the run wrote; {_RESTORE}")
        self._known[name] = len(provider)

    def checksums(self) -> dict[str, tuple[int, str]]:
        """By name: how many data are saved, and their checksum."""
        return {name: (count, self.providers[name].checksum(count)) for name, count in self._known.items()}

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
