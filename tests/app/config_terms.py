"""Functions that configs of the tests name."""

from typing import Any


def steady(logprobs: Any, size: float = 1.0) -> Any:
    """How large they are."""
    return size * sum(one.abs().sum() for one in logprobs)


def loss(examples: Any, values: Any, scale: float = 1.0) -> Any:
    return -scale * sum(one.sum() for one in values)


def loss_by_name(logprobs: Any, mask: Any, scale: float = 1.0) -> Any:
    return -scale * sum((one * counts).sum() for one, counts in zip(logprobs, mask, strict=True))


def loss_of_reference(data: Any, logprobs: Any, initial: Any, scale: float = 1.0) -> Any:
    return scale * sum((one - other).sum() for one, other in zip(logprobs, initial, strict=True))


async def later(logprobs: Any) -> Any:
    return logprobs[0].sum()


def undocumented(logprobs: Any) -> Any:
    return logprobs[0].sum()


NUMBER = 5
