"""A worker process that has connected to the caller."""

import os
import socket
import time
from typing import Final

from ..messages import Answer, send_slot
from ..slots import Slot

__all__ = ["NO_ANSWER", "Connected", "GoneError", "exists"]

NO_ANSWER: Final = "its worker sent an invalid answer"

_SENDING: Final = 5.0
"""Seconds in which a few bytes are sent."""


class GoneError(Exception):
    """The worker is of no use any more; the message says why, if that is known."""


class Connected:
    """The caller's end of the connection to a worker."""

    def __init__(self, connection: socket.socket, number: int, pid: int) -> None:
        """Nothing has been sent yet."""
        self.number = number
        self.pid = pid
        self._connection = connection
        # Not from 0: arbitrary bytes must not look like an answer.
        self._first: int = int.from_bytes(os.urandom(6)) + 1
        self._task: int = self._first
        self._received = b""

    def send(self, slot: Slot) -> None:
        """A task is in the slot."""
        self._task += 1
        self.offer(slot)

    def offer(self, slot: Slot) -> None:
        """The slot is for the result of the last task."""
        try:
            self._connection.settimeout(_SENDING)
            send_slot(self._connection, self._task, slot)
        except OSError as error:
            raise GoneError from error

    def answer(self, seconds: float) -> Answer | None:
        """The next answer to the last task; None where none comes in time."""
        end = time.monotonic() + seconds
        while True:
            while len(self._received) >= Answer.SIZE:
                answer = self._next()
                # Another one to an earlier task answers nothing.
                if answer.task == self._task:
                    return answer
            left = end - time.monotonic()
            # Looked at once more when the time is over: this thread may have been held up, and the answer be there.
            self._connection.settimeout(max(left, 0.0))
            try:
                received = self._connection.recv(16 * Answer.SIZE)
            except (TimeoutError, BlockingIOError):
                if left <= 0:
                    return None
                continue
            except OSError as error:
                raise GoneError from error
            if not received:
                raise GoneError
            self._received += received

    def _next(self) -> Answer:
        data, self._received = self._received[: Answer.SIZE], self._received[Answer.SIZE :]
        try:
            answer = Answer.of(data)
        except ValueError:
            answer = None
        if answer is None or not self._first < answer.task <= self._task:
            raise GoneError(NO_ANSWER)
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def exists(pid: int) -> bool:
    """Whether there is such a process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
