"""The term: the mean penalty that a service assigns to samples."""

import os
import threading
import urllib.parse
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, Final, Literal, cast

import numpy as np

from ...arrays import is_array
from ...errors import OptionError, ShapeError
from ...functional.options import POSITIVE, check_choice, check_count, check_flag, check_number
from ...pipeline.evaluation import Evaluation
from ...pipeline.kinds import is_mapping
from ..sampled import check_unread, score_gradient
from .contract import plain
from .endpoint import Answers, Endpoint, Limits
from .loop import submit

__all__ = ["Validation"]

_NAME: Final = "Validation"
_GRADIENTS: Final = ("none", "score", "straight-through")


class Validation:
    """The mean penalty of samples, by a service that validates them over HTTP.

    A call reads `samples`, a list of what JSON can hold or an array with a row for each, and posts them in batches as
    `{"items": […]}`; the service answers `{"results": [{"penalty": 0.0}, …]}`, as the contract says. Each number is
    checked, and whatever else comes back, too much, too late or not at all, is a `ServiceError`.

    The service is not differentiable, and `gradient` says what trains:

    - "none": nothing; the term is a constant, with `differentiable=False`.
    - "score": the log-probabilities of samples that were drawn from the model, `logprobs`, a number or an array of
      tokens for each. The gradient is that of the expected penalty, unbiased.
    - "straight-through": an array. The service also answers the derivative at what was sent, `"slope"`, which is passed
      on to `samples`, or to `relaxed`, an array of the same shape of which the samples are a rounded form.

    `logprobs` and `relaxed` are inputs that have to be named: `inputs={"samples": "answers", "logprobs": "logprobs"}`.
    Metrics: `validated` and `failed`, how many samples have an answer and have none; `valid`, the share of the former
    without a penalty; `latency_ms` of a request that succeeded, on average; `retries`; `open`, whether the service is
    left alone.

    - `endpoint`: the address, http or https. A redirect is an error.
    - `baseline`: whether the mean of the other samples is subtracted, which lowers the variance of "score".
    - `headers`: sent with each request. They are in no error and no repr.
    - `batch`: samples in one request; `connections`: requests at once.
    - `timeout`: seconds for a whole call, with all attempts and waiting.
    - `attempts`: for each batch, after failures that may pass. Between them it waits `backoff` seconds on average,
      twice as long each time, or as long as the service asks.
    - `rate`: requests a second, in bursts of as many; None does not limit them.
    - `failures`: so many in a row, and the service is left alone for `reset` seconds; then one request tries.
    - `max_bytes`: of one answer.
    - `partial`: whether samples without an answer are left out, as long as any has one, instead of an error.

    >>> from penalties.terms.validation import Validation
    >>> Validation("https://validator.example/v1", gradient="score", headers={"Authorization": "Bearer secret"})
    Validation('https://validator.example/v1', gradient='score')
    """

    name = "validation"

    def __init__(
        self,
        endpoint: str,
        *,
        gradient: Literal["none", "score", "straight-through"] = "none",
        baseline: bool = True,
        headers: Mapping[str, str] | None = None,
        batch: int = 64,
        connections: int = 4,
        timeout: float = 30.0,
        attempts: int = 4,
        backoff: float = 0.2,
        rate: float | None = None,
        failures: int = 5,
        reset: float = 30.0,
        max_bytes: int = 10_000_000,
        partial: bool = False,
    ) -> None:
        """Check the options; nothing is sent yet."""
        self._url, self._shown = _checked_url(endpoint)
        check_choice(_NAME, "gradient", gradient, _GRADIENTS)
        self._gradient = gradient
        check_flag(_NAME, "baseline", baseline)
        check_flag(_NAME, "partial", partial)
        self._baseline, self._partial = bool(baseline), bool(partial)
        self._headers = _checked_headers(headers)
        counts = {"batch": batch, "connections": connections, "attempts": attempts, "failures": failures}
        for option, value in {**counts, "max_bytes": max_bytes}.items():
            check_count(_NAME, option, value, 1)
        if rate is not None:
            rate = check_number(_NAME, "rate", rate, "None, or requests a second, above 0", low=POSITIVE)
        self._limits = Limits(
            **counts,
            size=max_bytes,
            rate=rate,
            timeout=check_number(_NAME, "timeout", timeout, "seconds above 0", low=POSITIVE),
            backoff=check_number(_NAME, "backoff", backoff, "seconds, at least 0", low=0.0),
            reset=check_number(_NAME, "reset", reset, "seconds, at least 0", low=0.0),
        )
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.Lock()
        self._opened: Endpoint | None = None
        self._process = os.getpid()

    def __call__(self, samples: Any, logprobs: Any = None, relaxed: Any = None) -> Evaluation:
        """Send the samples, and wait for what the service says about them."""
        return self.submit(samples, logprobs, relaxed).result()

    def submit(self, samples: Any, logprobs: Any = None, relaxed: Any = None) -> "Future[Evaluation]":
        """The same without waiting: a function for `Term(validation.submit, runs="async")`."""
        return submit(self._evaluate(samples, logprobs, relaxed))

    def __repr__(self) -> str:
        """Its address and its gradient."""
        return f"Validation({self._shown!r}, gradient={self._gradient!r})"

    def __getstate__(self) -> dict[str, Any]:
        """What it was made of: each process has its own connections, breaker and rate."""
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_opened", "_process")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """The same, not connected."""
        self.__dict__.update(state)
        self._forget()

    async def _evaluate(self, samples: Any, logprobs: Any, relaxed: Any) -> Evaluation:
        check_unread(_NAME, self._gradient, logprobs=logprobs, relaxed=relaxed)
        items = plain(samples)
        if not items:
            raise ShapeError(f"{_NAME}: there are no samples; expected at least one")
        slopes = self._gradient == "straight-through"
        if slopes:
            _check_relaxed(samples, relaxed)
        answers = await self._endpoint().ask(items, slopes=slopes)
        known = [result is not None for result in answers.results]
        if answers.errors and not (self._partial and any(known)):
            raise answers.errors[0]
        found = np.array([np.nan if result is None else result.penalty for result in answers.results])
        gradient: dict[str, Any] | None = None
        if self._gradient == "score":
            texts = all(isinstance(item, str) for item in items)
            at = score_gradient(_NAME, found, logprobs, baseline=self._baseline, discrete=texts, known=known)
            gradient = {"logprobs": at}
        elif slopes:
            at = np.zeros(np.shape(items))
            for number, result in enumerate(answers.results):
                if result is not None:
                    at[number] = cast("Any", result.slope) / sum(known)
            gradient = {"samples" if relaxed is None else "relaxed": at}
        return Evaluation(float(np.nanmean(found)), gradient, _metrics(found, answers))

    def _endpoint(self) -> Endpoint:
        """What is open in this process; called on its event loop alone."""
        with self._lock:
            if self._opened is None or self._process != os.getpid():
                self._opened = Endpoint(self._url, self._shown, self._headers, self._limits)
                self._process = os.getpid()
            return self._opened


def _metrics(penalties: "np.ndarray[Any, Any]", answers: Answers) -> dict[str, Any]:
    failed = int(np.isnan(penalties).sum())
    return {
        "validated": len(penalties) - failed,
        "failed": failed,
        "valid": float((penalties[~np.isnan(penalties)] == 0).mean()),
        "latency_ms": 1000 * float(np.mean(answers.seconds)),
        "retries": answers.retries,
        "open": answers.open,
    }


def _check_relaxed(samples: Any, relaxed: Any) -> None:
    target, name = (samples, "samples") if relaxed is None else (relaxed, "relaxed")
    if not is_array(target) or not len(target.shape):
        expected = "an array with a row for each sample, to which the slopes are passed on"
        raise OptionError(_NAME, name, type(target).__name__, expected)
    if relaxed is not None and tuple(relaxed.shape) != np.shape(plain(samples)):
        raise ShapeError(
            f"{_NAME}: relaxed has shape {tuple(relaxed.shape)} and samples {np.shape(plain(samples))}; "
            "expected equal shapes (nothing is broadcast)"
        )


def _checked_url(endpoint: Any) -> tuple[str, str]:
    """The address, and as much of it as errors may show."""
    expected = 'an address such as "https://validator.example/v1", without a user or a password: use headers='
    if not isinstance(endpoint, str):
        raise OptionError(_NAME, "endpoint", type(endpoint).__name__, expected)
    try:
        parts = urllib.parse.urlsplit(endpoint)
        port = "" if parts.port is None else f":{parts.port}"
    except ValueError:
        raise OptionError(_NAME, "endpoint", "…", expected) from None
    # Nothing else is shown of an address that is not one: a password may be anywhere in it.
    written = endpoint.isprintable() and " " not in endpoint
    if not written or parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise OptionError(_NAME, "endpoint", "…", expected)
    return endpoint, f"{parts.scheme}://{parts.hostname}{port}{parts.path}"


def _checked_headers(headers: Any) -> dict[str, str]:
    """Headers that may be sent; the error does not show what is in one."""
    if headers is None:
        return {}
    if not is_mapping(headers) or not all(isinstance(name, str) for name in headers):
        raise OptionError(_NAME, "headers", type(headers).__name__, "a mapping from names to strings")
    for name, value in headers.items():
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise OptionError(_NAME, f"headers[{name!r}]", "…", "a string of printable ASCII characters, on one line")
        if not name.replace("-", "").replace("_", "").isalnum() or not name.isascii():
            raise OptionError(_NAME, "headers", name, "names of letters, digits and hyphens")
    return dict(cast("Mapping[str, str]", headers))
