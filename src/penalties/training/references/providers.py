"""Providers: objects that make a reference for the data of a step."""

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
from ..futures import failed, in_thread, resolved
from ..reading import targets_of, tokens_of
from ..surrogates import forward_data
from .asking import Arrays, answered, sent, with_model_input
from .memory import Memory, key_of

__all__ = ["Initial", "Perturbed", "Provider", "Teacher", "client", "initial", "perturbed"]


@runtime_checkable
class Provider(Protocol):
    """Makes a reference for the data of a step.

    >>> isinstance(initial(), Provider)
    True
    """

    def start(self, client: Any, data: Sequence[Any], *, step: Any) -> "Future[Arrays]":
        """Ask for one array per datum, and do not wait for them; what goes wrong is in the future.

        Where the provider has a true attribute `per_datum`, they are one number each.
        """
        ...


def initial() -> "Initial":
    """Log-probabilities of the model before training: what a KL penalty or DPO compares with.

    >>> initial()
    initial()
    """
    return Initial()


def client(teacher: Any, cache: bool = False) -> "Teacher":
    """Log-probabilities of another client's model, asked for at each step, or once for each datum with `cache=True`."""
    return Teacher(teacher, cache)


def perturbed(token_dropout: float = 0.1, seed: int = 0, replacement: int = 0) -> "Perturbed":
    """Log-probabilities of the same targets after a perturbed input: what a consistency penalty compares with.

    Each token but the first is replaced by the token `replacement` with probability `token_dropout`. The draw is
    another at each step, and the same one whenever that step is repeated; without a step it is the same at each call.

    >>> perturbed(token_dropout=0.2)
    perturbed(token_dropout=0.2, seed=0, replacement=0)
    """
    return Perturbed(token_dropout, seed, replacement)


class Initial:
    """Makes log-probabilities of the model before training, once for each datum, by its content.

    With a client that can go back to its first state (`forward_initial`) they are right at any time. With any other
    the model is asked while it is untrained: at the first step, and before it by `prepare`, as often as you like. A
    datum that is new after the first step is an error, so that a trained model never passes for the first one. It
    belongs to one client. To go on with a run, `save` what it knows and `load` that into a new one.
    """

    def __init__(self) -> None:
        """Knows nothing yet."""
        self._memory = Memory()
        self._lock = threading.RLock()
        self._marks: set[object] = set()
        """One for each step that began."""
        self._started: weakref.WeakKeyDictionary[Future[Arrays], object] = weakref.WeakKeyDictionary()
        self._client: Callable[[], Any] | None = None

    def __repr__(self) -> str:
        """As it is made."""
        return "initial()"

    def __len__(self) -> int:
        """How many data it knows."""
        return len(self._memory)

    def start(self, client: Any, data: Sequence[Any], *, step: Any = None) -> "Future[Arrays]":
        """Ask for the log-probabilities of data at a step."""
        try:
            return self._asked(client, list(data), begins=True)
        except Exception as error:
            return failed(error)

    def undo(self, started: "Future[Arrays]") -> None:
        """Forget that a step began: it failed before it could train anything."""
        with self._lock:
            self._marks.discard(self._started.pop(started, None))

    def prepare(self, client: Any, data: Sequence[Any], timeout: float | None = None) -> None:
        """Ask for the log-probabilities of data before the first step, and wait until they are known."""
        self._asked(client, list(data), begins=False).result(timeout)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what it knows to a file (.npz), whole or not at all."""
        self._memory.save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Know what `save` wrote; the model counts as trained from then on."""
        self._memory.load("initial", path)
        self._marks.add("loaded")

    def _asked(self, client: Any, data: list[Any], *, begins: bool) -> "Future[Arrays]":
        self._check_client(client)
        keys = [key_of(place, datum) for place, datum in enumerate(data)]
        exact = callable(getattr(client, "forward_initial", None))
        mark = object()

        def send(places: list[int]) -> Callable[[], Arrays]:
            if places and self._marks and not exact:
                raise InputError(
                    f"initial: datum {places[0]}: is new after the first call, since when the model may have been "
                    "trained; call prepare(client, data) with all data before that one"
                )
            # Sent from here, not from a thread: it must come before whatever trains the model next.
            asked = sent("initial", client, forward_data([data[place] for place in places]), exact) if places else None
            if begins:
                self._marks.add(mark)
            return lambda: answered("initial", data, places, asked)

        # One at a time: a step must not begin between the look at the marks and the sending.
        with self._lock:
            asked = self._memory.ask(keys, send, lambda: self._marks.discard(mark))
            self._started[asked] = mark
        return asked

    def _check_client(self, client: Any) -> None:
        if self._client is None:
            try:
                self._client = weakref.ref(client)
            except TypeError:
                self._client = lambda: client
        elif self._client() is not client:
            raise InputError(
                "initial: was used with another client before, whose model may be another; make an initial() for each "
                "client, or, where it is the same model, save this one and load it into a new one"
            )


class Teacher:
    """Makes log-probabilities by the forward of another client.

    With `cache=True` each datum is asked for once. To go on with a run, `save` what it knows and `load` that into a new
    one.
    """

    def __init__(self, teacher: Any, cache: bool = False) -> None:
        """Of a client with the method `forward`."""
        if not callable(getattr(teacher, "forward", None)):
            raise OptionError("client", "teacher", teacher, "a client, with a method forward")
        check_flag("client", "cache", cache)
        self.teacher = teacher
        self.cache: bool = bool(cache)
        """Whether it remembers."""
        self._memory = Memory()

    def __len__(self) -> int:
        """How many data it knows."""
        return len(self._memory)

    def __repr__(self) -> str:
        """As it is made."""
        cached = ", cache=True" if self.cache else ""
        return f"client({type(self.teacher).__name__}{cached})"

    def start(self, client: Any, data: Sequence[Any], *, step: Any = None) -> "Future[Arrays]":
        """Ask the teacher."""
        listed = list(data)

        def send(places: Sequence[int]) -> Callable[[], Arrays]:
            def answer() -> Arrays:
                asked = sent("client", self.teacher, forward_data([listed[place] for place in places]), False)
                return answered("client", listed, places, asked)

            # As a whole in the thread that waits: a teacher may take its time already to take the data.
            return answer

        try:
            for place, datum in enumerate(listed):
                targets_of(place, datum)
            if self.cache:
                return self._memory.ask([key_of(place, datum) for place, datum in enumerate(listed)], send)
        except Exception as error:
            return failed(error)
        return in_thread(send(range(len(listed)))) if listed else resolved([])

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write what it knows to a file (.npz), whole or not at all; nothing without `cache=True`."""
        self._memory.save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Know what `save` wrote."""
        if not self.cache:
            raise OptionError("client", "cache", False, "True: one that remembers nothing has nothing to load")
        self._memory.load("client", path)


@dataclasses.dataclass(frozen=True)
class Perturbed:
    """Makes log-probabilities of the same targets after other tokens."""

    token_dropout: float = 0.1
    seed: int = 0
    replacement: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be drawn with."""
        chance = self.token_dropout
        check_number("perturbed", "token_dropout", chance, "a probability, from 0 to 1", low=0, high=1)
        check_count("perturbed", "seed", self.seed, 0)
        check_count("perturbed", "replacement", self.replacement, 0)

    def __repr__(self) -> str:
        """As it is made."""
        return f"perturbed(token_dropout={self.token_dropout}, seed={self.seed}, replacement={self.replacement})"

    def start(self, client: Any, data: Sequence[Any], *, step: Any = None) -> "Future[Arrays]":
        """Ask the same client for the same targets after perturbed inputs."""
        listed = list(data)
        if not listed:
            return resolved([])
        try:
            for place, datum in enumerate(listed):
                targets_of(place, datum)
            changed = [self._changed(place, datum, step) for place, datum in enumerate(listed)]
            asked = sent("perturbed", client, forward_data(changed), False)
        except Exception as error:
            return failed(error)
        return in_thread(lambda: answered("perturbed", listed, range(len(listed)), asked))

    def _changed(self, place: int, datum: Any, step: Any) -> Any:
        try:
            tokens = tokens_of(place, datum)
        except ValueError as error:
            raise InputError(f"perturbed: datum {place}: its model_input is not of tokens alone ({error})") from error
        source = [int(self.seed), 0 if step is None else (int(step) + 1) % 2**63, place]
        replaced = np.random.default_rng(source).random(tokens.size) < self.token_dropout
        replaced[:1] = False
        tokens = np.where(replaced, self.replacement, tokens)
        kind = cast("Any", type(datum.model_input))
        return with_model_input(datum, kind.from_ints(tokens.tolist()))
