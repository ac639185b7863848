"""Terms that return what is no value, no number, or much of everything."""

import os
import resource
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

import penalties as pn

from .fault import PROCESS, brought, fault
from .raising import Unpicklable


@fault(pn.TermError, "returned")
def returns_string(x: Any) -> Any:
    return "0.5"


@fault(pn.TermError, "returned")
def returns_none(x: Any) -> Any:
    return None


@fault(pn.TermError, "returned")
def returns_list(x: Any) -> Any:
    return [x.sum()]


@fault(pn.TermError, "returned")
def returns_three(x: Any) -> Any:
    return x.sum(), {}, {}


@fault(pn.TermError, "returned an array of shape")
def returns_vector(x: Any) -> Any:
    return x * x


@fault(pn.TermError, "returned")
def returns_object(x: Any) -> Any:
    return Unpicklable("as a value")


@fault(pn.TermError, "returned")
def returns_generator(x: Any) -> Any:
    def parts() -> Iterator[Any]:
        yield x.sum()

    return parts()


@fault(pn.TermError, "returned a plain number")
def returns_number(x: Any) -> Any:
    return 0.5


@fault(pn.TermError, "returned a pair")
def returns_pair(x: Any) -> Any:
    return x.sum(), "metrics"


@fault(pn.TermError, "the metric note")
def returns_words_as_metrics(x: Any) -> Any:
    return x.sum(), {"note": "fine"}


@fault(pn.TermError, "a metric named")
def returns_nameless_metrics(x: Any) -> Any:
    return x.sum(), {3: 1.0}


@fault(pn.TermError, "the metric deep")
def returns_locks_as_metrics(x: Any) -> Any:
    return x.sum(), {"deep": threading.Lock()}


@fault(pn.TermError, "returned a gradient of shape")
def brings_another_shape(x: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": x[1:]})


@fault(pn.TermError, 'returned a gradient for "y"')
def brings_an_unknown_gradient(x: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"y": x})


@fault(pn.TermError, "returned a gradient")
def brings_no_array(x: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": ["steep", "shallow"]})


@fault(pn.TermError, "returned", where=("thread", "process"))
def returns_a_promise_of_garbage(x: Any) -> Any:
    async def later() -> str:
        return "0.5"

    return later()


@fault(pn.TermError, "cannot be sent", where=PROCESS)
def returns_a_lock_as_state(x: Any, state: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": 0 * x + 1}, state=threading.Lock())


class Sour:
    """Pickles, and cannot be made again."""

    def __reduce__(self) -> Any:
        return int, ("sour",)


class Deadly:
    """Ends the process that reads it."""

    def __reduce__(self) -> Any:
        return os._exit, (1,)


class Endless(dict[str, Any]):
    """Ends neither when it is packed nor when it is read."""

    def __reduce__(self) -> Any:
        return time.sleep, (60,)

    def items(self) -> Any:
        time.sleep(60)


@fault(pn.TermError, "its result cannot be sent", where=PROCESS)
def returns_deadly_state(x: Any, state: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": 0 * x + 1}, state={"deep": [Deadly()]})


@fault(pn.TermError, "its result cannot be sent", where=PROCESS)
def returns_endless_state(x: Any, state: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": 0 * x + 1}, state=Endless(a=1))


@fault(pn.TermError, "Recursion", where=PROCESS)
def returns_an_endless_nest(x: Any, state: Any) -> Any:
    nest: list[Any] = []
    for _ in range(100_000):
        nest = [nest]
    return pn.Evaluation(x.sum(), gradient={"x": 0 * x + 1}, state=nest)


# Without JAX: XLA ends its process where it cannot start a thread.
@fault(
    pn.TermError,
    "could not be evaluated in a worker",
    where=PROCESS,
    costs=0.4,
    ray=False,
    libraries=("numpy", "torch"),
)
def keeps_more_than_it_may(x: Any, state: Any) -> Any:
    kept = np.ones(8_000_000)
    with open("/proc/self/statm") as numbers:
        used = int(numbers.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (16 << 20), resource.RLIM_INFINITY))
    return pn.Evaluation(x.sum(), gradient={"x": 0 * x + 1}, state=kept)


@fault(pn.TermError, "cannot be sent", where=PROCESS)
def returns_sour_state(x: Any, state: Any) -> Any:
    return pn.Evaluation(x.sum(), gradient={"x": 0 * x + 1}, state=Sour())


@fault(pn.NonFiniteError, "nan")
def is_nan(x: Any) -> Any:
    return brought(x, (x * float("nan")).sum(), x * float("nan"))


@fault(pn.NonFiniteError, "inf")
def is_infinite(x: Any) -> Any:
    return brought(x, (x * x).sum() + float("inf"), 2 * x)


@fault(pn.NonFiniteError, "-inf")
def is_minus_infinity(x: Any) -> Any:
    return brought(x, (x * x).sum() * float("inf") * -1, x)


@fault(pn.TermError, "returned an array of shape", costs=0.1)
def returns_millions(x: Any) -> Any:
    return np.zeros(4_000_000) if isinstance(x, np.ndarray) else (x[:1] + 0 * x[:1]).repeat(4_000_000)


@fault(pn.TermError, "the metric all", costs=0.1)
def measures_millions(x: Any) -> Any:
    return x.sum(), {"all": np.zeros(4_000_000)}


@fault(None, state=True, costs=0.3)
def keeps_millions(x: Any, state: Any) -> Any:
    return brought(x, (x * x).sum(), 2 * x, state={"array": np.full(2_000_000, 0.5), "bytes": b"x" * 10_000_000})
