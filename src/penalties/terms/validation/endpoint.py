"""Requests to a service: bounded in time and size, repeated, limited in rate, and not made at all while it is down."""

import asyncio
import email.utils
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ...errors import PenaltiesError, ServiceError
from ...training.libraries import library
from .breaker import Breaker
from .contract import Result, read_results, request_body
from .loop import closes_at_exit

__all__ = ["Answers", "Endpoint", "Limits"]

_AGAIN: Final = frozenset((408, 425, 429, 500, 502, 503, 504))
"""Statuses after which another request may succeed."""


@dataclass(frozen=True)
class Limits:
    """How requests are made."""

    batch: int
    timeout: float
    attempts: int
    backoff: float
    rate: float | None
    connections: int
    failures: int
    reset: float
    size: int


@dataclass
class Answers:
    """What came of the items of one call."""

    results: list[Result | None]
    """None where there is none."""
    errors: list[PenaltiesError] = field(default_factory=list[PenaltiesError])
    retries: int = 0
    seconds: list[float] = field(default_factory=list[float])
    """Of each request that succeeded."""
    open: bool = False


class _Again(ServiceError):
    """A failure after which another request may succeed."""

    def __init__(self, message: str, after: float = 0.0) -> None:
        super().__init__(message)
        self.after = after
        """Seconds that the service asks to wait."""


class Endpoint:
    """One service, with its connections, its breaker and its rate, in one process and on one event loop."""

    def __init__(self, url: str, shown: str, headers: Mapping[str, str], limits: Limits) -> None:
        """Nothing is connected yet."""
        httpx = library("validation over HTTP", "httpx", extra="validation")
        self._tenacity = library("validation over HTTP", "tenacity", extra="validation")
        self._httpx = httpx
        self._url, self._shown, self._limits = url, shown, limits
        # Answers are not decompressed: a few kilobytes of them could be gigabytes.
        sent = {**headers, "Accept-Encoding": "identity", "Content-Type": "application/json"}
        self._client: Any = httpx.AsyncClient(
            headers=sent,
            timeout=limits.timeout,
            limits=httpx.Limits(max_connections=limits.connections, max_keepalive_connections=limits.connections),
            follow_redirects=False,
            trust_env=False,
        )
        # At exit the loop closes them itself, before it ends.
        weakref.finalize(self, closes_at_exit(self._client.aclose)).atexit = False
        self._breaker = Breaker(limits.failures, limits.reset)
        self._limiter: Any = None
        if limits.rate is not None:
            aiolimiter = library("validation over HTTP", "aiolimiter", extra="validation")
            burst = max(1.0, limits.rate)
            self._limiter = aiolimiter.AsyncLimiter(burst, burst / limits.rate)
        self._free = asyncio.Semaphore(limits.connections)

    async def ask(self, items: Sequence[Any], *, slopes: bool) -> Answers:
        """Send all items, in batches that travel at once; what fails is in `errors`."""
        answers = Answers([None] * len(items))
        deadline = time.monotonic() + self._limits.timeout
        # All of them before the first is sent: an item that JSON cannot hold is the caller's failure.
        batches: list[tuple[int, Sequence[Any], bytes]] = []
        for start in range(0, len(items), self._limits.batch):
            part = items[start : start + self._limits.batch]
            batches.append((start, part, request_body(part, slopes=slopes)))
        await asyncio.gather(*(self._batch(*batch, deadline, answers, slopes=slopes) for batch in batches))
        answers.open = self._breaker.is_open
        return answers

    async def _batch(
        self, start: int, items: Sequence[Any], body: bytes, deadline: float, into: Answers, *, slopes: bool
    ) -> None:
        why = ""

        async def attempt() -> list[Result]:
            nonlocal why
            try:
                return await self._request(body, items, into, slopes=slopes)
            except ServiceError as error:
                why = f"; before that, {error}"
                raise

        def stops(state: Any) -> bool:
            """Whether there is no use in another attempt: there were enough, or its time will be over."""
            return state.attempt_number >= self._limits.attempts or time.monotonic() + state.upcoming_sleep >= deadline

        def count(_: Any) -> None:
            into.retries += 1

        retrying = self._tenacity.AsyncRetrying(
            retry=self._tenacity.retry_if_exception_type(_Again),
            wait=self._wait,
            stop=stops,
            before_sleep=count,
            sleep=asyncio.sleep,
            reraise=True,
        )
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                into.results[start : start + len(items)] = await retrying(attempt)
        except TimeoutError:
            late = ServiceError(f"{self._shown}: no answer within {self._limits.timeout:g} s{why}")
            into.errors.append(late)
        except ServiceError as error:
            into.errors.append(ServiceError(f"{self._shown}: {error}"))

    def _wait(self, state: Any) -> float:
        """Twice as long each time, by a random part of it, and at least as long as the service asks."""
        drawn = self._tenacity.wait_random_exponential(multiplier=self._limits.backoff, max=self._limits.timeout)(state)
        return max(drawn, state.outcome.exception().after)

    async def _request(self, body: bytes, items: Sequence[Any], into: Answers, *, slopes: bool) -> list[Result]:
        """One request, if the breaker lets it through."""
        async with self._free:
            waits = self._breaker.waits(time.monotonic())
            if waits > 0:
                raise ServiceError(
                    f"not asked, after {self._limits.failures} failures in a row or more; asked again in {waits:.3g} s"
                )
            if self._limiter is not None:
                try:
                    await self._limiter.acquire()
                except BaseException:
                    self._breaker.given_up()
                    raise
            began = time.monotonic()
            try:
                found = read_results(await self._post(body), items, slopes=slopes)
            except BaseException:
                # Cancelled too: a service that lets the time pass has failed.
                self._breaker.failed(time.monotonic())
                raise
            self._breaker.succeeded()
            into.seconds.append(time.monotonic() - began)
            return found

    async def _post(self, body: bytes) -> bytes:
        """The body of an answer of status 200. Nothing that the service says is in an error: it may repeat a secret."""
        httpx = self._httpx
        try:
            async with self._client.stream("POST", self._url, content=body) as response:
                self._check(response)
                return await self._read(response)
        except httpx.TimeoutException:
            raise _Again("it did not answer in time") from None
        except httpx.ConnectError as error:
            raise _Again(f"it could not be reached ({error}): check the address, and that it runs") from None
        except httpx.RequestError:
            raise _Again("it closed the connection before its answer was complete, or broke the protocol") from None

    def _check(self, response: Any) -> None:
        status = response.status_code
        if status in _AGAIN:
            after = _retry_after(response.headers.get("Retry-After"))
            asks = f", and asks to wait {after:.3g} s" if after else ""
            raise _Again(f"it answered with status {status}{asks}", after)
        if 300 <= status < 400:
            raise ServiceError(f"it answered with status {status}, a redirect, which is not followed: give its target")
        if status != 200:
            raise ServiceError(f"it answered with status {status}; expected 200: check the address and the headers")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise ServiceError("its answer is compressed, although the request does not allow that")

    async def _read(self, response: Any) -> bytes:
        most = self._limits.size
        too_large = ServiceError(f"its answer has more than {most} bytes: raise max_bytes=, or send smaller batches")
        length = response.headers.get("Content-Length", "0")
        if length.isdecimal() and int(length[:20]) > most:
            raise too_large
        body = bytearray()
        async for chunk in response.aiter_raw():
            body += chunk
            if len(body) > most:
                raise too_large
        return bytes(body)


def _retry_after(header: str | None) -> float:
    """Seconds, from a number or a date; 0 for anything else."""
    if header is None:
        return 0.0
    try:
        if header.isdecimal():
            return float(header)
        return max(0.0, email.utils.parsedate_to_datetime(header).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
