"""Your own terms, for configs."""

import logging
import os
import random
import threading
import time
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import penalties as pn


def counting(logprobs: Any, state: Any = None) -> Any:
    """A term that remembers in NumPy what it has seen."""
    seen = np.zeros(1) if state is None else state["seen"]
    assert isinstance(seen, np.ndarray)
    value = (logprobs[0] ** 2).mean() / (1.0 + float(seen[0]))
    return pn.Evaluation(value, metrics={"seen": float(seen[0])}, state={"seen": seen + 1.0, "name": "counting"})


def failing(logprobs: Any, step: int) -> Any:
    """A term that fails at step 4."""
    if step == 4:
        raise RuntimeError("as the test wants it")
    return logprobs[0].mean() ** 2


def cranky(logprobs: Any, *, fail: bool = False, size: float = 1.0) -> Any:
    if fail:
        raise RuntimeError("as the test wants it")
    return size * logprobs[0].mean() ** 2


def huge(logprobs: Any) -> Any:
    return 1e6 * logprobs[0].mean() ** 2


def drawing(logprobs: Any) -> Any:
    """A term that draws from everything that one may draw from."""
    scale = torch.rand(()) + random.random() + float(np.random.random())  # noqa: NPY002 (it, too)
    return scale * logprobs[0].mean() ** 2


def somewhere(logprobs: Any) -> Any:
    """A term that says which process it runs in, and whether in its main thread."""
    main = threading.current_thread() is threading.main_thread()
    return logprobs[0].mean() ** 2, {"process": os.getpid(), "main": float(main)}


def slow(logprobs: Any) -> Any:
    time.sleep(0.2)
    return logprobs[0].mean() ** 2


def leaking(logprobs: Any) -> Any:
    """A term that repeats a key wherever it can, and fails."""
    key = os.environ["SCORER_API_KEY"]
    warnings.warn(f"sent with {key}", RuntimeWarning, stacklevel=1)
    print(f"sending {key}")
    raise RuntimeError(f"401 for {key}")


def leaking_in_many_ways(logprobs: Any) -> Any:
    """A term that repeats a key by all that a process prints with, in a process of its own."""
    key = os.environ["SCORER_API_KEY"]
    warnings.warn(f"warned of {key}", RuntimeWarning, stacklevel=1)
    logging.getLogger("scorer").warning("logged %s", key)
    os.write(1, f"wrote {key}\n".encode())
    print(f"sending {key}")

    def fail() -> None:
        raise RuntimeError(f"401 for {key}")

    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    return logprobs[0].mean()


def not_finite(logprobs: Any) -> Any:
    """A term that is not a number, from the first step on."""
    return logprobs[0].mean() * float("nan")


def steep(logprobs: Any) -> Any:
    """A term whose gradient is infinite."""
    return (0.0 * logprobs[0]).sqrt().sum()


def late(logprobs: Any, step: int) -> Any:
    """A term that is not a number at the third step."""
    return logprobs[0].mean() ** 2 * (float("nan") if step == 2 else 1.0)


def late_gradient(logprobs: Any, step: int) -> Any:
    """A term whose gradient is infinite at the third step."""
    return (0.0 * logprobs[0]).sqrt().sum() if step == 2 else logprobs[0].mean() ** 2


def failing_loss(data: Any, logprobs: Any) -> Any:
    raise RuntimeError("as the test wants it")


def lengths(samples: Sequence[Any]) -> dict[str, float]:
    """A metric over samples that returns several numbers."""
    return {"text": float(len(samples[0].text)), "completion": float(len(samples[0].completion))}


def failing_metric(samples: Sequence[Any]) -> float:
    raise ValueError("no such luck")


def wordy_metric(samples: Sequence[Any]) -> str:
    return "good"


def dying(logprobs: Any, step: int) -> Any:
    """A term that takes its process with it."""
    if step == 2:
        print("this is the end", flush=True)
        os._exit(3)
    return logprobs[0].mean() ** 2
