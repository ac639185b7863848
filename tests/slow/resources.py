"""What this process holds that could stay behind: descriptors, processes, threads, files in shared memory."""

import gc
import os
import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MARK", "Held", "back_to", "command", "held", "mapped", "mark", "marked", "parent", "resident", "workers"]

MARK = "PENALTIES_TEST_MARK"
_SHARED = Path("/dev/shm")


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
        if trackers or "resource_tracker" not in command(int(entry.name)):
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
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:100]
    except OSError:
        return ""


def parent(pid: int) -> int:
    """Who started a process, or has adopted it since."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:
        return 0


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
