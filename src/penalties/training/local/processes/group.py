"""The processes that `torchrun` or `accelerate launch` started: orders of the first, answers, and tensors.

The first process is the leader. Orders and answers are objects and travel by gloo; tensors by what suits their device.
"""

import contextlib
import datetime
import importlib
import os
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ....errors import OptionError, PenaltiesError, said

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FailedError", "Group", "LostError", "current", "join"]

T = TypeVar("T")

_ANSWER: Final = datetime.timedelta(minutes=30)
"""How long a process may work on an order."""
_ORDER: Final = datetime.timedelta(days=7)
"""How long a process waits for an order: the leader may be busy with terms. If it ends, that is known at once."""
_GOODBYE: Final = 10.0
"""Seconds that the leader waits at its end for an operation that still runs."""
_BUCKET: Final = 2**24
"""Numbers that are sent at once."""


class FailedError(PenaltiesError):
    """An operation failed in one of the processes, and has no result in any."""


class LostError(PenaltiesError):
    """A process ended, or does not answer."""


_joined: Final[list["Group"]] = []


def join() -> "Group":
    """Meet the other processes that the environment names, unless that is done; each of them must call this."""
    try:
        if not _distributed().is_initialized():
            _distributed().init_process_group(timeout=_ANSWER)
        _joined.append(Group())
    except (ValueError, RuntimeError) as error:
        raise LostError(f"could not connect to the other processes: {said(error)}") from error
    return _joined[-1]


def current() -> "Group | None":
    """The processes that this one has met; None if it is alone."""
    return _joined[-1] if _joined else None


def _distributed() -> Any:
    return importlib.import_module("torch.distributed")


class Group:
    """All processes, seen from one of them."""

    def __init__(self) -> None:
        """Open a channel for orders and one for answers."""
        self._dist = _distributed()
        self.rank: int = self._dist.get_rank()
        self.size: int = self._dist.get_world_size()
        self._orders: Any = self._dist.new_group(backend="gloo", timeout=_ORDER)
        self._answers: Any = self._dist.new_group(backend="gloo", timeout=_ANSWER)
        # Clients have a thread each; an operation needs all processes until it is done.
        self._lock = threading.Lock()
        self._lost = False
        self._told = False
        """Whether the others know that the operation failed."""

    @property
    def leads(self) -> bool:
        """Whether this process is the one that runs the program."""
        return self.rank == 0

    def device(self, given: Any) -> Any:
        """The device of this process: its own GPU, unless the given device is the CPU."""
        torch: Any = importlib.import_module("torch")
        if str(given) == "cpu" or (given is None and not torch.cuda.is_available()):
            return given
        if given is not None and torch.device(given).index is not None:
            expected = f'"cuda", "cpu" or None with {self.size} processes: each takes its own GPU'
            raise OptionError("LocalTrainingClient", "device", str(given), expected)
        here, there = int(os.environ.get("LOCAL_RANK", self.rank)), torch.cuda.device_count()
        if here >= there:
            raise PenaltiesError(f"there are more processes than GPUs ({there}) on a machine; start one per GPU")
        return f"cuda:{here}"

    # Orders and answers.

    @contextlib.contextmanager
    def ordering(self, orders: Sequence[Any]) -> Generator[None]:
        """The leader's side of an operation: an order for each process, and then no other operation meanwhile."""
        with self._lock:
            if self._lost:
                raise LostError(f"one of the {self.size} processes is gone")
            with self._reaching():
                self._dist.scatter_object_list([None], list(orders), group=self._orders)
            self._told = False
            try:
                yield
            except FailedError:
                # Every process raises it.
                raise
            except BaseException:
                # Unless the others have heard of it, they are in the middle of the operation.
                self._lost = self._lost or not self._told
                raise

    def next_order(self) -> Any:
        """The next order of the leader; None is the end."""
        found: list[Any] = [None]
        with self._reaching():
            self._dist.scatter_object_list(found, None, group=self._orders)
        return found[0]

    def end(self) -> None:
        """Leave; the leader lets the others end, which are on their own if an operation still runs."""
        torch: Any = importlib.import_module("torch")
        _joined.remove(self)
        if not self._lock.acquire(timeout=_GOODBYE):
            return
        with contextlib.suppress(RuntimeError):
            if self.leads and not self._lost:
                self._dist.scatter_object_list([None], [None] * self.size, group=self._orders)
            # Threads of gloo end with the last reference; left to the end of the interpreter, they may crash it. NCCL
            # would wait for processes that are gone.
            self._orders = self._answers = None
            if not (self._lost and torch.cuda.is_initialized()):
                self._dist.destroy_process_group()
        self._lock.release()

    def agreed(self, work: Callable[[], T], note: Callable[[], Any] = lambda: None) -> tuple[T, list[Any]]:
        """The result of `work`, once every process has one of its own, and a note of each.

        If one of them fails, all of them raise: the leader its own error, or a `FailedError` that says which it was.
        """
        result: T | None = None
        failure: Exception | None = None
        try:
            result = work()
            mine = (None, note())
        except Exception as error:
            failure, mine = error, (said(error), None)
        found: list[Any] = [None] * self.size
        with self._reaching():
            self._dist.all_gather_object(found, mine, group=self._answers)
        self._told = any(message is not None for message, _ in found)
        if failure is not None and self.leads:
            raise failure
        for rank, (message, _) in enumerate(found):
            if message is not None:
                raise FailedError(f"process {rank} of {self.size}: {message}") from failure
        return cast("T", result), [one for _, one in found]

    def collected(self, one: Any) -> list[Any] | None:
        """The object of each process, at the leader; None at the others."""
        found: list[Any] | None = [None] * self.size if self.leads else None
        with self._reaching():
            self._dist.gather_object(one, found, group=self._answers)
        return found

    @contextlib.contextmanager
    def in_turn(self) -> Generator[Callable[[], None]]:
        """The processes of a machine one after another, each until it calls what this yields, or fails."""
        torch: Any = importlib.import_module("torch")
        # A launcher that does not say which are on this machine has all of them take turns.
        here, count = (os.environ.get(name) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
        here, count = (self.rank, self.size) if here is None or count is None else (int(here), int(count))
        following = here + 1 < count
        turn, told = torch.zeros(1), False

        def done() -> None:
            nonlocal told
            if following and not told:
                told = True
                with self._reaching():
                    self._dist.send(turn, self.rank + 1, group=self._answers)

        if here > 0:
            with self._reaching():
                self._dist.recv(turn, self.rank - 1, group=self._answers)
        try:
            yield done
        finally:
            done()

    # Tensors.

    def gathered(self, mine: "Tensor", counts: Sequence[int]) -> "Tensor":
        """At the leader the rows of all processes, of which there are so many; at the others their own."""
        torch: Any = importlib.import_module("torch")
        mine = mine.detach()[: counts[self.rank]].contiguous()
        with self._reaching():
            if not self.leads:
                if len(mine):
                    self._dist.send(mine, 0)
                return mine
            others = [mine.new_empty((count, *mine.shape[1:])) for count in counts[1:]]
            for rank, rows in enumerate(others, 1):
                if len(rows):
                    self._dist.recv(rows, rank)
        return torch.cat([mine, *others])

    def scattered(self, rows: "Tensor | None", counts: Sequence[int], like: "Tensor") -> "Tensor":
        """The reverse: each process gets its own of the leader's rows; what it has more in `like` is zero."""
        found = like.new_zeros(like.shape)
        mine = found[: counts[self.rank]]
        with self._reaching():
            if self.leads:
                own, *others = cast("Any", rows).split(list(counts))
                mine.copy_(own)
                for rank, part in enumerate(others, 1):
                    if len(part):
                        self._dist.send(part.contiguous(), rank)
            elif len(mine):
                self._dist.recv(mine, 0)
        return found

    def summed(self, tensors: "Sequence[Tensor]") -> None:
        """Add the tensors of all processes up, at the leader, in place; those of the others are then of no use."""
        self._in_buckets(tensors, lambda flat: self._dist.reduce(flat, 0))

    def published(self, tensors: "Sequence[Tensor]") -> None:
        """Overwrite the tensors of every process with the leader's."""
        self._in_buckets(tensors, lambda flat: self._dist.broadcast(flat, 0))

    def _in_buckets(self, tensors: "Sequence[Tensor]", send: "Callable[[Tensor], Any]") -> None:
        """Many small tensors as a few large ones."""
        torch: Any = importlib.import_module("torch")
        with torch.no_grad(), self._reaching():
            for bucket in _buckets(tensors):
                flat = torch.cat([one.reshape(-1) for one in bucket])
                send(flat)
                for one, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                    one.copy_(part.view_as(one))

    @contextlib.contextmanager
    def _reaching(self) -> Generator[None]:
        """Errors of the connection, as what they mean here."""
        try:
            yield
        except RuntimeError as error:
            self._lost = True
            if isinstance(error, importlib.import_module("torch").OutOfMemoryError):
                # Of this process, which leaves the others waiting.
                raise
            reason = said(error).splitlines()[0]
            raise LostError(f"one of the {self.size} processes ended or does not answer: {reason}") from error


def _buckets(tensors: "Sequence[Tensor]") -> "Iterator[list[Tensor]]":
    """The tensors in order, those of one dtype together until they are large."""
    bucket: list[Tensor] = []
    for one in tensors:
        if bucket and (bucket[0].dtype != one.dtype or sum(part.numel() for part in bucket) + one.numel() > _BUCKET):
            yield bucket
            bucket = []
        bucket.append(one)
    if bucket:
        yield bucket
