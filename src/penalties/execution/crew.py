"""Workers with a line to each: a request is written to its worker, and read by who waits, without a thread in between.

Pebble starts, watches, kills and replaces the processes; each runs one endless task there. Through Pebble's own queue a
call takes 0.26 ms more: two threads of the caller, an acknowledgement, and a lock for which every idle worker wakes.
"""

import contextlib
import os
import select
import signal
import threading
import time
from collections import OrderedDict, deque
from concurrent.futures import CancelledError
from concurrent.futures import TimeoutError as NotYet
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final

from ..errors import MissingLibraryError
from .worker import LOADED, Reply, Request, answer, begin
from .workers import WorkerContext

__all__ = ["Crew", "Promise"]

_LOOK: Final = 0.05
"""Seconds between looks at whether there are new workers, or somebody else reads."""

_DYING: Final = 5.0
"""Seconds in which a worker that was killed is gone."""


class _Seat:
    """A worker, what it is doing, and the terms that it has."""

    def __init__(self, process: Any, line: Any) -> None:
        self.process = process
        self.line = line
        self.descriptor: int = line.fileno()
        self.promise: Promise | None = None
        self.doomed: bool = False
        """To be killed: it gets nothing more to do."""
        self.ready: Any = select.poll()
        """Whether there is anything to read; the line's own way takes ten times as long."""
        self.ready.register(self.descriptor, select.POLLIN)
        self.terms: OrderedDict[int, None] = OrderedDict()
        self.open: Any = threading.Lock()
        """Held while it is read from or closed: a number that was closed may be another's the moment after."""


class Promise:
    """A reply that is to come."""

    def __init__(self, crew: "Crew", request: Request) -> None:
        """Not sent yet."""
        self.crew = crew
        self.request = request
        self.seat: _Seat | None = None
        self.reply: Reply | None = None
        self.error: BaseException | None = None
        # Released when it is kept, or when who waits for it is to read for all.
        self.turn: Any = threading.Lock()
        self.turn.acquire()

    def done(self) -> bool:
        """Whether it was kept or broken."""
        return self.reply is not None or self.error is not None

    def running(self) -> bool:
        """Whether a worker is at it."""
        return self.seat is not None and not self.done()

    def cancel(self) -> None:
        """Never begin, or kill the worker, which is gone then."""
        self.crew.cancel(self)

    def result(self, timeout: float) -> Reply:
        """The reply; `TimeoutError` where that takes longer, and Pebble's `ProcessExpired` where the worker died."""
        end = time.monotonic() + timeout
        while not self.done():
            left = end - time.monotonic()
            if left <= 0:
                raise NotYet
            self.crew.wait(self, left)
        if self.error is not None:
            raise self.error
        assert self.reply is not None, "done"
        return self.reply

    def finish(self, reply: Reply | None, error: BaseException | None = None) -> None:
        """Keep it or break it, whichever comes first, and tell who waits."""
        if not self.done():
            self.reply, self.error = reply, error
        self.wake()

    def wake(self) -> None:
        """Let who waits look."""
        with contextlib.suppress(RuntimeError):
            self.turn.release()


class Crew:
    """So many workers."""

    def __init__(self, count: int, threads: int) -> None:
        """Start them, each with so many threads of native libraries."""
        try:
            import pebble
        except ImportError as error:
            raise MissingLibraryError('a term with runs="process"', "pebble", extra="process") from error
        self._expired: Any = pebble.ProcessExpired
        self._lock = threading.Lock()
        self._reading = threading.Lock()
        self._seats: dict[int, _Seat] = {}
        self._idle: list[_Seat] = []
        self._queue: deque[Promise] = deque()
        self._waiting: list[Promise] = []
        self._poll: Any = select.poll()
        self._helper: threading.Thread | None = None
        self._ended: BaseException | None = None
        self._context = WorkerContext(self._add)
        self._pool: Any = pebble.ProcessPool(count, initializer=begin, initargs=(threads,), context=self._context)
        for _ in range(count):
            self._open()

    # Workers come and go.

    def _open(self) -> None:
        """One more endless task; whichever worker has none takes it."""
        try:
            self._pool.schedule(answer).add_done_callback(self._over)
        except RuntimeError as error:
            self._end(BrokenProcessPool(str(error)))

    def _over(self, future: Any) -> None:
        """An endless task ended: its worker died, which its line says too, or the pool broke."""
        error = None if future.cancelled() else future.exception()
        if isinstance(error, BrokenProcessPool):
            self._end(error)

    def _add(self, process: Any, line: Any) -> None:
        """A worker was started. It may be sent something already."""
        seat = _Seat(process, line)
        with self._lock:
            self._seats[seat.descriptor] = seat
            self._poll.register(seat.descriptor, select.POLLIN)
            promise = self._next(seat)
        self._send(seat, promise)

    def _lose(self, seat: _Seat) -> None:
        """A worker is not there any more."""
        with self._lock:
            if self._seats.get(seat.descriptor) is not seat:
                return
            del self._seats[seat.descriptor]
            self._poll.unregister(seat.descriptor)
            if seat in self._idle:
                self._idle.remove(seat)
            promise, seat.promise = seat.promise, None
        with seat.open:
            seat.line.close()
        seat.process.join(_DYING)
        if self._ended is None:
            # Not when Pebble says so: of one that ends with status 0 it says nothing.
            self._open()
        if promise is not None:
            code, pid = seat.process.exitcode or 0, seat.process.pid
            promise.finish(None, self._expired("Abnormal termination", code=code, pid=pid))

    # Requests go out.

    def schedule(self, request: Request) -> Promise:
        """Send it to a free worker, or keep it until one is free."""
        promise = Promise(self, request)
        with self._lock:
            if self._ended is not None:
                raise RuntimeError(str(self._ended))
            seat = self._idle.pop() if self._idle else None
            if seat is None:
                self._queue.append(promise)
                if self._helper is None:
                    # Somebody has to hand them out, whether or not the caller waits.
                    self._helper = threading.Thread(target=self._help, name="penalties-crew", daemon=True)
                    self._helper.start()
                return promise
            seat.promise, promise.seat = promise, seat
        self._send(seat, promise)
        return promise

    def _next(self, seat: _Seat) -> Promise | None:
        """What the seat does next, with the lock held."""
        promise = self._queue.popleft() if self._queue else None
        seat.promise = promise
        if promise is None:
            # The last that worked comes first: its caches are warm.
            self._idle.append(seat)
        else:
            promise.seat = seat
        return promise

    def _send(self, seat: _Seat, promise: Promise | None) -> None:
        if promise is None:
            return
        request = promise.request
        if request.key in seat.terms:
            seat.terms.move_to_end(request.key)
            request = request._replace(body=None)
        else:
            # The worker keeps as many, in the same order.
            seat.terms[request.key] = None
            if len(seat.terms) > LOADED:
                seat.terms.popitem(last=False)
        try:
            seat.line.send(request)
        except OSError:
            self._lose(seat)

    def cancel(self, promise: Promise) -> None:
        """Never begin, or kill the worker."""
        with self._lock:
            if promise.done():
                return
            seat = promise.seat
            if seat is None:
                self._queue.remove(promise)
            else:
                seat.promise, seat.doomed = None, True
        if seat is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(seat.process.pid, signal.SIGKILL)
            self._lose(seat)
        promise.finish(None, CancelledError())

    # Replies come in.

    def wait(self, promise: Promise, timeout: float) -> None:
        """Until the promise is kept, or for a while: who comes first reads for everybody."""
        if self._reading.acquire(blocking=False):
            try:
                self._read(timeout)
            finally:
                self._reading.release()
                self._hand_over(promise)
            return
        with self._lock:
            self._waiting.append(promise)
        try:
            promise.turn.acquire(timeout=min(timeout, _LOOK))
        finally:
            with self._lock:
                self._waiting.remove(promise)

    def _hand_over(self, promise: Promise | None) -> None:
        """Let another who waits read on."""
        if self._waiting:
            with self._lock:
                others = [other for other in self._waiting if other is not promise]
            for other in others[:1]:
                other.wake()

    def _help(self) -> None:
        """Read, and so hand out what is queued, as long as there is anything."""
        while True:
            with self._lock:
                if not self._queue or self._ended is not None:
                    self._helper = None
                    break
            with self._reading:
                self._read(_LOOK)
        self._hand_over(None)

    def _read(self, timeout: float) -> None:
        """Take the replies that are there, or wait for one."""
        for descriptor, _ in self._poll.poll(1000 * min(timeout, _LOOK)):
            seat = self._seats.get(descriptor)
            if seat is None:
                continue
            try:
                with seat.open:
                    # Asked again: a worker that was lost meanwhile may have left its number to another.
                    if seat.line.closed or not seat.ready.poll(0):
                        continue
                    reply = seat.line.recv()
            except (EOFError, OSError):
                self._lose(seat)
                continue
            with self._lock:
                if seat.doomed:
                    # Its task was cancelled in between.
                    continue
                promise = seat.promise
                if promise is not None and not reply.known:
                    seat.terms.pop(promise.request.key, None)
                again = promise is not None and not reply.known and not reply.data
                following = promise if again else self._next(seat)
            self._send(seat, following)
            if again:
                # Sent once more, with the term: the worker had let go of it.
                continue
            if promise is not None:
                promise.finish(reply)

    # The end.

    def _end(self, error: BaseException) -> None:
        with self._lock:
            if self._ended is not None:
                return
            self._ended = error
            promises = [*[seat.promise for seat in self._seats.values()], *self._queue]
            self._queue.clear()
        for promise in promises:
            if promise is not None:
                promise.finish(None, error)

    def stop(self) -> None:
        """Kill the workers, and wait until they are gone."""
        self._end(BrokenProcessPool("its workers were stopped"))
        self._pool.stop()
        self._context.kill()
        self._pool.join()
        with self._lock:
            seats = list(self._seats.values())
            self._seats.clear()
        for seat in seats:
            with seat.open:
                seat.line.close()
        self._context.stop()
