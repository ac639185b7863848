"""Terms that couple all data of a batch."""

import time
from pathlib import Path
from typing import Any

import torch


def spread(hidden: Any) -> Any:
    """How much hidden states differ from their mean over the batch."""
    return ((hidden - hidden.mean(0)) ** 2).mean().sqrt()


def apart(logprobs: Any, teacher: Any) -> Any:
    """How much data differ in their distance from a teacher."""
    means = torch.stack([(one - other).mean() for one, other in zip(logprobs, teacher, strict=True)])
    return means.var(correction=0)


def pausing(logprobs: Any, step: int) -> Any:
    """A term that once gives somebody the time to do something in the fifth step."""
    there = Path("paused")
    if step == 4 and not there.exists():
        there.touch()
        time.sleep(2.0)
    return logprobs[0].mean() ** 2
