"""What this process holds that could stay behind: descriptors, processes, threads, files in shared memory."""

import ctypes
import gc
import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "MARK",
    "Held",
    "Use",
    "back_to",
    "command",
    "gone",
    "held",
    "keep_no_free_memory",
    "mapped",
    "mark",
    "marked",
    "parent",
    "resident",
    "settled",
    "use",
    "workers",
]

MARK = "PENALTIES_TEST_MARK"
_SHARED = Path("/dev/shm")
_MARGIN = 64 << 20
"""Bytes by which the memory of this process may vary: libraries and allocators keep some."""


@dataclass(frozen=True)
class Held:
    """What is held at one moment."""

    descriptors: Counter[str]
    """How many of each kind."""
    processes: frozenset[int]
    """Those that this process started, and theirs, orphans included; Python's tracker of resources left out."""
    threads: Counter[str]
    files: frozenset[str]
    """Folders that executors of this process have in shared memory."""

    def beyond(self, before: "Held") -> dict[str, object]:
        """What there is more of than there was."""
        more: dict[str, object] = {
            "descriptors": dict(self.descriptors - before.descriptors)
            if self.descriptors.total() > before.descriptors.total()
            else {},
            "processes": {pid: command(pid) for pid in self.processes - before.processes},
            "threads": dict(self.threads - before.threads),
            "files": sorted(self.files - before.files),
        }
        return {what: found for what, found in more.items() if found}


@dataclass(frozen=True)
class Use:
    """How much is held at one moment."""

    processes: int
    descriptors: int
    threads: int
    files: int
    """In shared memory, named or not."""
    memory: int
    """Bytes of the caller's."""

    def beyond(self, before: "Use") -> dict[str, int]:
        """What there is more of than there was."""
        more = {
            "processes": self.processes - before.processes,
            "descriptors": self.descriptors - before.descriptors,
            "threads": self.threads - before.threads,
            "shared memory": self.files - before.files,
            "bytes": self.memory - before.memory - _MARGIN,
        }
        return {what: count for what, count in more.items() if count > 0}


def use() -> Use:
    """How much this process holds now."""
    kinds = _descriptors()
    shared = sum(kind.startswith(str(_SHARED)) for kind in kinds)
    return Use(
        len(marked(os.environ[MARK])) - 1,
        len(kinds) - shared,
        threading.active_count(),
        shared + len(_files()),
        resident(os.getpid()),
    )


def keep_no_free_memory() -> None:
    """Give large arrays back to the system as they are freed: else the allocator keeps up to 250 MB of them."""
    threshold = -3
    getattr(ctypes.CDLL(None), "mallopt", int)(threshold, 1 << 20)


def settled(before: Use, seconds: float = 20.0) -> dict[str, int]:
    """Wait until no more is used than before; returns what is, if that does not come to pass."""
    end = time.monotonic() + seconds
    while more := use().beyond(before):
        gc.collect()
        # Free memory that the allocator keeps is not lost.
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
        if time.monotonic() > end:
            return more
        time.sleep(0.02)
    return {}


def mark() -> str:
    """Make what this process will hold known as its own: others run on the same machine."""
    token = secrets.token_hex(8)
    os.environ[MARK] = token
    return token


def held() -> Held:
    """What this process holds now."""
    return Held(
        Counter(_descriptors()),
        marked(os.environ[MARK]) - {os.getpid()},
        Counter(thread.name for thread in threading.enumerate()),
        _files(),
    )


def back_to(before: Held, seconds: float = 20.0) -> dict[str, object]:
    """Wait until no more is held than before; gives what is, if that does not come to pass."""
    end = time.monotonic() + seconds
    while True:
        gc.collect()
        more = held().beyond(before)
        if not more or time.monotonic() > end:
            return more
        time.sleep(0.05)


def marked(token: str, *, trackers: bool = False) -> frozenset[int]:
    """The processes that were started with this mark in their environment, without those that are dead."""
    found: set[int] = set()
    for entry in _processes():
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"{MARK}={token}".encode() not in environment:
            continue
        if trackers or "resource_tracker import main" not in command(int(entry.name)):
            found.add(int(entry.name))
    return frozenset(found)


def resident(pid: int) -> int:
    """Bytes of memory that a process has now; 0 where it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def command(pid: int) -> str:
    """How a process was called."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:300]
    except OSError:
        return ""


def parent(pid: int) -> int:
    """Who started a process, or has adopted it since."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


def gone(pids: Iterable[int], seconds: float = 20.0) -> bool:
    """Wait until none of these processes runs any more; False where one still does."""
    end = time.monotonic() + seconds
    # Those that are dead have no command, though nobody may have waited for them.
    while any(map(command, pids)):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def _processes() -> list[Path]:
    return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _descriptors() -> list[str]:
    kinds: list[str] = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:
            # The one that lists them.
            continue
        if target != f"/proc/{os.getpid()}/fd":
            kinds.append(target.split(":")[0])
    return kinds


def _files() -> frozenset[str]:
    return frozenset(name for name in os.listdir(_SHARED) if name.startswith(f"penalties-{os.getpid()}-"))


def workers() -> tuple[list[int], list[int]]:
    """The processes that evaluate terms, and the server that they come from."""
    every = marked(os.environ[MARK]) - {os.getpid()}
    server = [pid for pid in every if parent(pid) == os.getpid()]
    return [pid for pid in every if pid not in server], server


def mapped(pid: int) -> str:
    """The files that a process has in its memory."""
    try:
        return Path(f"/proc/{pid}/maps").read_text()
    except OSError:
        return ""
