"""The process of a worker: `python -m penalties.app.parallel.worker` trains the runs that it receives.

It reads a line of JSON for each order, and answers in the same way. When its orders end, so does the process, at once:
then whoever gave them was killed, and the run can be resumed from its last checkpoint.
"""

import contextlib
import json
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final, TextIO

from ...errors import said
from ..console import filtered
from ..privacy import hide
from ..runs.disk import RunError
from ..runs.lock import HeldError
from ..runs.run import Run

__all__ = ["STOP", "end_group", "main", "train_folder"]

STOP: Final = "stop"
"""The order to finish the step and save a checkpoint."""

_HELD: Final = 10.0
"""Seconds in which the workers of a command that was killed have ended."""


def main() -> None:
    """Obey orders until there are no more."""
    # Whatever a term prints goes where errors go: answers have their own stream.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    orders: queue.SimpleQueue[str] = queue.SimpleQueue()
    training = False

    def stop(number: int, frame: FrameType | None) -> None:
        # Between two runs there is nothing to stop, and an answer may be half written.
        if training:
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, stop)
    threading.Thread(target=_read, args=(sys.stdin, orders), daemon=True).start()
    with filtered():
        while True:
            folder = orders.get()
            training = True
            answer = train_folder(folder, _HELD)
            training = False
            answers.write(f"{json.dumps(answer)}\n")
            answers.flush()


def _read(given: TextIO, orders: "queue.SimpleQueue[str]") -> None:
    for line in given:
        order = json.loads(line)
        if order == STOP:
            # Python runs the handler in the main thread, whichever thread raises.
            signal.raise_signal(signal.SIGINT)
        else:
            orders.put(order)
    end_group(os.getpid())


def end_group(leader: int) -> None:
    """Kill a process that leads a group, with the processes that its terms run in; without groups, it alone."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
    elif leader == os.getpid():
        os._exit(0)


def train_folder(folder: str, patience: float = 0.0) -> dict[str, Any]:
    """Train the run of a folder by its own config, from its last checkpoint; returns what a `Failure` has.

    An earlier process that was lost may hold the lock of the run for some seconds.
    """
    from ..commands.train import own_config
    from ..train import Interrupted, train

    end = time.monotonic() + patience
    while True:
        try:
            run = Run(Path(folder))
            train(own_config(run, ()), run.folder, resume=True)
        except (Interrupted, KeyboardInterrupt) as error:
            return {"message": said(error), "interrupted": True}
        except HeldError as error:
            if time.monotonic() > end:
                return {"message": str(error), "status": error.status}
            time.sleep(0.2)
        except RunError as error:
            return {"message": hide(str(error)), "status": error.status}
        except Exception as error:
            return {"message": hide(said(error))}
        else:
            return {}


if __name__ == "__main__":
    main()
