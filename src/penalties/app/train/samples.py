"""Samples at evaluations: what the model says to fixed prompts, and metrics of a task over generations.

They change nothing: neither the model nor the generator that checkpoints include.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ...errors import said
from ...pipeline.catalogue import find
from ..metrics import METRICS, Sample
from ..runs.disk import RunError
from ..trained.sampling import asked, continued

if TYPE_CHECKING:
    from ..config.tables import SamplesTable
    from ..data import Prompt
    from .clients import Backend

__all__ = ["Sampler"]


class Sampler:
    """Samples as `[samples]` asks for them."""

    def __init__(self, table: "SamplesTable", lines: "Sequence[tuple[Prompt, str]]", *, chat: bool) -> None:
        """Look the metrics up; `lines` are the prompts and completions that they are computed over.

        With `chat`, the prompts of the table are turns of a user.
        """
        self._chat = chat
        self._table = table
        self._lines = list(lines)
        self._metrics = {path: METRICS.get(path) or find(path) for path in table.metrics}
        if self._metrics and not self._lines:
            raise RunError(f"samples.metrics: none of the first {table.lines} held-out lines has a prompt", 2)

    def __bool__(self) -> bool:
        """Whether there is anything to sample."""
        return bool(self._table.prompts or self._metrics)

    def draw(self, backend: "Backend") -> dict[str, Any]:
        """The continuation of each prompt, and the value of each metric, as part of a record."""
        table = self._table
        fixed = [asked(prompt, chat=self._chat) for prompt in table.prompts]
        prompts = [*fixed, *(prompt for prompt, _ in self._lines)]
        drawn = continued(backend, prompts, max_tokens=table.max_tokens, temperature=table.temperature)
        texts = [text for (text,) in drawn]
        samples = [
            Sample(prompt, text, completion)
            for (prompt, completion), text in zip(self._lines, texts[len(fixed) :], strict=True)
        ]
        metrics: dict[str, float] = {}
        for path, metric in self._metrics.items():
            metrics |= _numbers(path, metric, samples)
        spoken = zip(table.prompts, texts[: len(fixed)], strict=True)
        return {"samples": [{"prompt": prompt, "text": text} for prompt, text in spoken], "metrics": metrics}


def _numbers(path: str, metric: Callable[..., Any], samples: Sequence[Sample]) -> dict[str, float]:
    """The value of a metric under its name; of one that returns several, each under `name/key`."""
    name = path.rpartition(":")[2]
    try:
        found = metric(samples)
        if not isinstance(found, Mapping):
            return {name: float(found)}
        several = cast("Mapping[Any, Any]", found)
        return {f"{name}/{key}": float(value) for key, value in several.items()}
    except Exception as error:
        raise RunError(
            f'samples.metrics: "{path}" failed: {said(error)}; expected a number, or a dict of them'
        ) from error
