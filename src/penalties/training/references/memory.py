"""Log-probabilities that are requested once, keyed by the content of their datum."""

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Final

import numpy as np

from ...errors import InputError, said
from ...files import replaced
from ..futures import in_thread, resolved
from ..reading import targets_of, tokens_of
from .asking import Arrays

__all__ = ["Memory", "key_of"]

_VERSION: Final = 1


def key_of(index: int, datum: Any) -> bytes:
    """A digest of what a datum's log-probabilities depend on: its tokens and its targets."""
    tokens = tokens_of(index, datum)
    targets = targets_of(index, datum).astype(np.int64)
    digest = hashlib.blake2b(digest_size=16)
    digest.update(np.asarray([tokens.size, *targets.shape], np.int64).tobytes())
    digest.update(tokens.tobytes())
    digest.update(np.ascontiguousarray(targets).tobytes())
    return digest.digest()


class Memory:
    """A cache of log-probabilities; each is requested once, even by concurrent callers."""

    def __init__(self) -> None:
        """Start empty."""
        self._kept: dict[bytes, np.ndarray[Any, Any]] = {}
        self._coming: dict[bytes, Future[None]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of data in the cache."""
        return len(self._kept)

    def ask(
        self,
        keys: Sequence[bytes],
        send: Callable[[list[int]], Callable[[], Arrays]],
        lost: Callable[[], None] = lambda: None,
    ) -> "Future[Arrays]":
        """The arrays at these keys. `send` gets the indices of new ones, and returns a function that waits for them.

        `lost` is called if the wait fails; the keys can then be requested again.
        """
        mine: Future[None] = Future()
        with self._lock:
            first = {key: index for index, key in reversed(list(enumerate(keys)))}
            new = [key for key in first if key not in self._kept and key not in self._coming]
            others = {id(later): later for key in keys if (later := self._coming.get(key)) is not None}
            # Claimed at once, so that no other caller requests them too.
            self._coming |= dict.fromkeys(new, mine)
        new.sort(key=lambda key: first[key])
        try:
            answer = send([first[key] for key in new])
        except BaseException as error:
            self._release(new, mine, error)
            raise
        if not new and not others:
            return resolved(self._copies(keys))

        def work() -> Arrays:
            if new:
                try:
                    arrays = answer()
                except BaseException as error:
                    lost()
                    self._release(new, mine, error)
                    raise
                with self._lock:
                    self._kept |= dict(zip(new, arrays, strict=True))
                    for key in new:
                        del self._coming[key]
                mine.set_result(None)
            for other in others.values():
                other.result()
            return self._copies(keys)

        return in_thread(work)

    def _release(self, new: Sequence[bytes], mine: "Future[None]", error: BaseException) -> None:
        with self._lock:
            for key in new:
                del self._coming[key]
        mine.set_exception(error)

    def _copies(self, keys: Sequence[bytes]) -> Arrays:
        with self._lock:
            # Copies: the caller may write to them.
            return [self._kept[key].copy() for key in keys]

    def checksum(self, count: int) -> str:
        """A digest of the first so many data of the cache, which stay the first ones as it grows."""
        digest = hashlib.blake2b(digest_size=16)
        with self._lock:
            kept = list(self._kept.items())[:count]
        for key, array in kept:
            digest.update(key + np.asarray((len(kept), *array.shape), np.int64).tobytes())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache to a file, atomically."""
        with self._lock:
            kept = dict(self._kept)
        shapes = [array.shape for array in kept.values()]
        with replaced(path) as part, part.open("wb") as file:
            np.savez(
                file,
                version=np.int64(_VERSION),
                keys=np.frombuffer(b"".join(kept), np.uint8).reshape(-1, 16),
                # A width of 0 stands for an array of one axis.
                shapes=np.asarray([(*shape, 0)[:2] for shape in shapes], np.int64).reshape(-1, 2),
                values=np.concatenate([np.zeros(0, np.float32), *[array.reshape(-1) for array in kept.values()]]),
            )

    def load(self, name: str, path: str | os.PathLike[str], top_k: int | None = None) -> None:
        """Add the contents of a file that `save` wrote, of a provider with the same `top_k`."""
        read: dict[bytes, np.ndarray[Any, Any]] = {}
        try:
            with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                version = int(file["version"])
                keys, shapes, values = file["keys"], file["shapes"].tolist(), file["values"]
            start = 0
            for key, (length, width) in zip(keys, shapes, strict=True):
                end = start + length * (width or 1)
                read[key.tobytes()] = values[start:end].reshape((length, width) if width else (length,))
                start = end
        except Exception as error:
            raise InputError(f"{name}: {path} was not written by save ({said(error)})") from error
        if version != _VERSION:
            raise InputError(f"{name}: {path} has version {version}; expected {_VERSION}")
        if top_k is not None and any(width != 2 * top_k for _, width in shapes):
            raise InputError(f"{name}: {path} was not saved with top_k={top_k}; expected a file that was")
        with self._lock:
            self._kept |= read
