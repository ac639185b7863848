"""Providers: objects that make a reference for the data of a step."""

import contextlib
import dataclasses
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, cast, runtime_checkable

import numpy as np

from ...errors import InputError, OptionError
from ...functional.options import check_count, check_flag, check_number
from ..futures import failed, in_thread, mapped, resolved
from ..reading import replaced, tokens_of
from .asking import Arrays, requested
from .likeliest import requested_likeliest, sampler_of, split
from .logits import check_vocabulary, logits_of, narrowed, shared_outputs
from .memory import Memory, key_of

__all__ = ["Initial", "Perturbed", "Provider", "Teacher", "client", "initial", "perturbed"]


@runtime_checkable
class Provider(Protocol):
    """Makes a reference for the data of a step.

    >>> isinstance(initial(), Provider)
    True
    """

    def start(self, client: Any, data: Sequence[Any], *, step: Any) -> "Future[Arrays]":
        """Request one array per datum, without waiting; errors are raised by the future.

        If the provider's attribute `per_datum` is true, each is a single number. If its attribute `top_k` is a number,
        each is a pair of arrays (N, K): the likeliest tokens at each position, and their log-probabilities.
        """
        ...


def initial(*, top_k: int | None = None) -> "Initial":
    """Log-probabilities of the model before training, which a KL penalty or DPO compares with.

    With `top_k` they are those of its K likeliest tokens at each position, (N, K), rather than of the targets; terms
    read the current ones of the same tokens as `logprobs.<name>`.

    >>> initial(), initial(top_k=32)
    (initial(), initial(top_k=32))
    """
    return Initial(top_k=top_k)


def client(teacher: Any, cache: bool = False, *, top_k: int | None = None) -> "Teacher":
    """Log-probabilities of another client's model, requested at each step, or with `cache=True` once per datum.

    With `top_k` they are those of its K likeliest tokens at each position, as for `initial`.
    """
    return Teacher(teacher, cache, top_k=top_k)


def perturbed(token_dropout: float = 0.1, seed: int = 0, replacement: int = 0) -> "Perturbed":
    """Log-probabilities of the same targets after a perturbed input, which a consistency penalty compares with.

    Each token but the first is replaced by the token `replacement` with probability `token_dropout`. The draw depends
    on `seed` and the step, so that a repeated step draws the same; without a step every call draws the same.

    >>> perturbed(token_dropout=0.2)
    perturbed(token_dropout=0.2, seed=0, replacement=0)
    """
    return Perturbed(token_dropout, seed, replacement)


def _checked_top(owner: str, top_k: int | None) -> int | None:
    if top_k is not None:
        check_count(owner, "top_k", top_k, 1)
    return top_k


def _shaped(arrays: "Future[Arrays]", top_k: int | None) -> "Future[Any]":
    """What a cache has, as terms read it."""
    return arrays if top_k is None else mapped(arrays, lambda found: [split(array) for array in found])


class Initial:
    """Log-probabilities of the model before training, requested once per datum, by its content.

    A client with `forward_initial` can compute them at any time. Any other client must do so while its model is still
    untrained: at the first step, and before that by `prepare`, as often as needed. A new datum after the first step is
    an error, so that a trained model is never taken for the initial one. An instance belongs to one client. To resume a
    run, `save` its cache and `load` that into a new instance.
    """

    def __init__(self, *, top_k: int | None = None) -> None:
        """Start with an empty cache."""
        self.top_k: int | None = _checked_top("initial", top_k)
        """How many tokens it has at each position; None for the targets."""
        self._sampler: Any = None
        """Of a server's model before training, where `top_k` asks for it."""
        self._memory = Memory()
        self._lock = threading.RLock()
        self._steps = 0
        """How many have started."""
        self._started: weakref.WeakSet[Future[Any]] = weakref.WeakSet()
        """The requests of those that can still be undone."""
        self._client: Callable[[], Any] | None = None

    def __repr__(self) -> str:
        """The call that makes it."""
        return "initial()" if self.top_k is None else f"initial(top_k={self.top_k})"

    def __len__(self) -> int:
        """The number of data in the cache."""
        return len(self._memory)

    def start(self, client: Any, data: Sequence[Any], *, step: Any = None) -> "Future[Any]":
        """Request the log-probabilities of the data of a step."""
        try:
            return self._asked(client, list(data), begins=True)
        except Exception as error:
            return failed(error)

    def logits(self, client: Any, data: Sequence[Any], *, lazy: bool = False) -> "Future[Any]":
        """Request the logits of the model before training, for a term that reads `<reference>.logits`."""
        return logits_of("initial", client, data, lazy=lazy, initial=True)

    def undo(self, started: "Future[Any]") -> None:
        """Forget a step that failed before it trained anything."""
        with self._lock:
            if started in self._started:
                self._started.discard(started)
                self._steps -= 1

    def prepare(self, client: Any, data: Sequence[Any], timeout: float | None = None) -> None:
        """Request the log-probabilities of data before the first step, and wait for them."""
        self._asked(client, list(data), begins=False).result(timeout)

    def checksum(self, count: int) -> str:
        """A digest of the first so many data of the cache, to tell whether a file that was saved has changed."""
        return self._memory.checksum(count)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache to a file (.npz), atomically."""
        self._memory.save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load a saved cache; from then on the model counts as trained."""
        self._memory.load("initial", path, self.top_k)
        self._steps += 1

    def _asked(self, client: Any, data: list[Any], *, begins: bool) -> "Future[Any]":
        self._check_client(client)
        keys = [key_of(index, datum) for index, datum in enumerate(data)]
        here = callable(getattr(client, "forward_initial", None))
        # A sampler keeps the weights that it was made with.
        exact = here or self._sampler is not None

        def send(indices: list[int]) -> Callable[[], Arrays]:
            if not indices:
                return list
            if self._steps and not exact:
                raise InputError(
                    f"initial: datum {indices[0]}: is new, but the model may have been trained since the first call; "
                    "call prepare(client, data) with all data before the first call"
                )
            # Sent from this thread: it must come before whatever trains the model next.
            if self.top_k is None:
                return requested("initial", client, data, indices, first=here)
            if not here and self._sampler is None:
                self._sampler = sampler_of("initial", client)
            source = client if here else self._sampler
            return requested_likeliest("initial", source, data, indices, self.top_k, first=here)

        def lost() -> None:
            with self._lock:
                self.undo(future)

        # One at a time: a step must not begin between the check and the request.
        with self._lock:
            future = _shaped(self._memory.ask(keys, send, lost), self.top_k)
            if begins:
                self._steps += 1
                self._started.add(future)
        return future

    def _check_client(self, client: Any) -> None:
        if self._client is None:
            try:
                self._client = weakref.ref(client)
            except TypeError:
                self._client = lambda: client
        elif self._client() is not client:
            raise InputError(
                "initial: was used with another client before; make an initial() per client, or, if the model is the "
                "same, save this one and load it into a new one"
            )


class Teacher:
    """Log-probabilities from the forward of another client.

    With `cache=True` each datum is requested once. To resume a run, `save` the cache and `load` it into a new instance.
    """

    def __init__(self, teacher: Any, cache: bool = False, *, top_k: int | None = None) -> None:
        """Use a client with a method `forward`; for `top_k` it may be a sampling client."""
        self.top_k: int | None = _checked_top("client", top_k)
        """How many tokens it has at each position; None for the targets."""
        method = "forward" if top_k is None or not hasattr(teacher, "sample") else "sample"
        if not callable(getattr(teacher, method, None)):
            raise OptionError("client", "teacher", teacher, "a client, with a method forward")
        check_flag("client", "cache", cache)
        self._sampler: Any = None
        self.teacher = teacher
        self.cache: bool = bool(cache)
        """Whether answers are cached."""
        self._memory = Memory()
        self._checked: Any = None

    def __len__(self) -> int:
        """The number of data in the cache."""
        return len(self._memory)

    def __repr__(self) -> str:
        """The call that makes it."""
        cached = ", cache=True" if self.cache else ""
        top = "" if self.top_k is None else f", top_k={self.top_k}"
        return f"client({type(self.teacher).__name__}{cached}{top})"

    def start(self, client: Any, data: Sequence[Any], *, step: Any = None) -> "Future[Any]":
        """Request the log-probabilities from the teacher."""
        listed = list(data)
        try:
            self._check(client)
        except InputError as error:
            return failed(error)

        def send(indices: Sequence[int]) -> Callable[[], Arrays]:
            # Sent by the waiting thread: a teacher may block already while it accepts the data.
            return lambda: self._requested(listed, indices)()

        if not self.cache:
            return _shaped(in_thread(send(range(len(listed)))), self.top_k) if listed else resolved([])
        try:
            keys = [key_of(index, datum) for index, datum in enumerate(listed)]
            return _shaped(self._memory.ask(keys, send), self.top_k)
        except Exception as error:
            return failed(error)

    def _requested(self, data: Sequence[Any], indices: Sequence[int]) -> Callable[[], Arrays]:
        if self.top_k is None:
            return requested("client", self.teacher, data, indices)
        if self._sampler is None or not self.cache:
            # Without a cache it may be in training itself.
            self._sampler = sampler_of("client", self.teacher)
        return requested_likeliest("client", self._sampler, data, indices, self.top_k)

    def logits(self, client: Any, data: Sequence[Any], *, lazy: bool = False) -> "Future[Any]":
        """Request the logits of the teacher, for a term that reads `<reference>.logits`."""
        self._check(client)
        logits = logits_of("client", self.teacher, data, lazy=lazy)
        width = shared_outputs(client, self.teacher)
        return mapped(logits, lambda found: narrowed(found, width))

    def _check(self, client: Any) -> None:
        """Check once that both have the same tokens, where both are in this process and have a tokenizer."""
        both = (client, self.teacher)
        if self._checked is client or not all(hasattr(one, "forward_with_graph") for one in both):
            return
        # A model in a folder may have none.
        with contextlib.suppress(OSError, ValueError):
            check_vocabulary(*(one.tokenizer for one in both), name=str(self.teacher.model_id))
        self._checked = client

    def checksum(self, count: int) -> str:
        """A digest of the first so many data of the cache, to tell whether a file that was saved has changed."""
        return self._memory.checksum(count)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the cache to a file (.npz), atomically; it is empty without `cache=True`."""
        self._memory.save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Load a saved cache."""
        if not self.cache:
            raise OptionError("client", "cache", False, "True: there is no cache to load into")
        self._memory.load("client", path, self.top_k)


@dataclasses.dataclass(frozen=True)
class Perturbed:
    """Log-probabilities of the same targets after a perturbed input."""

    token_dropout: float = 0.1
    seed: int = 0
    replacement: int = 0

    def __post_init__(self) -> None:
        """Check the options."""
        chance = self.token_dropout
        check_number("perturbed", "token_dropout", chance, "a probability, from 0 to 1", low=0, high=1)
        check_count("perturbed", "seed", self.seed, 0)
        check_count("perturbed", "replacement", self.replacement, 0)

    def __repr__(self) -> str:
        """The call that makes it."""
        return f"perturbed(token_dropout={self.token_dropout}, seed={self.seed}, replacement={self.replacement})"

    def start(self, client: Any, data: Sequence[Any], *, step: Any = None) -> "Future[Arrays]":
        """Request the same targets after perturbed inputs from the same client."""
        if not data:
            return resolved([])
        try:
            changed = [self._changed(index, datum, step) for index, datum in enumerate(data)]
            return in_thread(requested("perturbed", client, changed, range(len(changed))))
        except Exception as error:
            return failed(error)

    def _changed(self, index: int, datum: Any, step: Any) -> Any:
        tokens = tokens_of(index, datum)
        source = [int(self.seed), 0 if step is None else (int(step) + 1) % 2**63, index]
        drop = np.random.default_rng(source).random(tokens.size) < self.token_dropout
        drop[:1] = False
        tokens = np.where(drop, self.replacement, tokens)
        kind = cast("Any", type(datum.model_input))
        return replaced(datum, model_input=kind.from_ints(tokens.tolist()))
