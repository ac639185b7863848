"""What a server does wrong, when a test says so."""

import threading
from dataclasses import dataclass
from typing import Literal

Does = Literal["status", "drop", "wait", "garble", "die"]


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    - `"status"`: the answer is `status` and nothing more.
    - `"drop"`: the connection is reset.
    - `"wait"`: the answer comes `seconds` late.
    - `"garble"`: the answer is 200 and no message.
    - `"die"`: the server goes, with every connection, and comes back `seconds` later; with `lost` it has forgotten
      everything.
    """

    on: str
    does: Does
    after: bool = False
    """Whether the request is carried out first, so that only its answer is lost."""
    times: int = 1
    status: int = 500
    seconds: float = 0.0
    lost: bool = False


class Faults:
    """Those that are still to come, by the operation they befall."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[Fault] = []

    def add(self, fault: Fault) -> None:
        with self._lock:
            self._waiting.extend([fault] * fault.times)

    def take(self, operation: str) -> Fault | None:
        """The next one for this operation, which is then spent."""
        with self._lock:
            for place, fault in enumerate(self._waiting):
                if fault.on == operation:
                    return self._waiting.pop(place)
        return None

    def clear(self) -> None:
        with self._lock:
            self._waiting.clear()

    def __len__(self) -> int:
        return len(self._waiting)
