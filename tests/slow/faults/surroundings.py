"""What can happen to a program around its terms, and who may fail of it."""

import contextlib
import os
import resource
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .. import resources


@dataclass(frozen=True)
class Surrounding:
    """Something that happens right before a run, and is over after it."""

    happen: Callable[[], contextlib.AbstractContextManager[None]]
    may_fail: tuple[str, ...] = ()
    """Where terms run that may fail of it, by an error of ours; all others are well."""

    @property
    def name(self) -> str:
        return self.happen.__name__


SURROUNDINGS: list[Surrounding] = []


def surrounding(*may_fail: str) -> Callable[[Callable[[], Iterator[None]]], None]:
    def put(happen: Callable[[], Iterator[None]]) -> None:
        SURROUNDINGS.append(Surrounding(contextlib.contextmanager(happen), may_fail))

    return put


def _signal(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _servers() -> list[int]:
    """The processes that workers are forked from."""
    workers, brokers = resources.workers()
    return list({parent for pid in workers if (parent := resources.parent(pid)) not in brokers and parent > 1})


def _workers() -> list[int]:
    workers, _ = resources.workers()
    servers = _servers()
    return [pid for pid in workers if pid not in servers]


def _brokers() -> list[int]:
    return resources.workers()[1]


@surrounding()
def workers_were_killed() -> Iterator[None]:
    _signal(_workers(), signal.SIGKILL)
    yield


@surrounding()
def a_worker_was_stopped() -> Iterator[None]:
    _signal(_workers()[:1], signal.SIGSTOP)
    yield


@surrounding("process")
def the_server_was_killed() -> Iterator[None]:
    workers = _workers()
    _signal(_servers(), signal.SIGKILL)
    # Its workers end, too, within this trial and not in the next.
    resources.gone(workers)
    yield


@surrounding()
def the_server_was_stopped_and_workers_killed() -> Iterator[None]:
    _signal(_servers(), signal.SIGSTOP)
    _signal(_workers(), signal.SIGKILL)
    yield


@surrounding()
def the_broker_was_stopped_and_workers_killed() -> Iterator[None]:
    _signal(_brokers(), signal.SIGSTOP)
    _signal(_workers(), signal.SIGKILL)
    yield


@surrounding("process")
def the_broker_was_killed() -> Iterator[None]:
    workers = _workers()
    _signal(_brokers(), signal.SIGKILL)
    yield
    # They end with it, each as soon as it notices: within this trial and not in the next.
    resources.gone(workers)


@surrounding("process")
def everything_was_killed() -> Iterator[None]:
    _signal([*_brokers(), *_servers(), *_workers()], signal.SIGKILL)
    yield


@surrounding("process")
def files_were_removed_and_workers_killed() -> Iterator[None]:
    for folder in Path("/dev/shm").glob(f"penalties-{os.getpid()}-*"):
        shutil.rmtree(folder)
    _signal(_workers(), signal.SIGKILL)
    yield


@surrounding("process", "async")
def no_descriptor_is_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
    filled: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                filled.append(os.open(os.devnull, os.O_RDONLY))
        yield
    finally:
        for file in filled:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@surrounding("process")
def no_shared_memory_is_left() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
