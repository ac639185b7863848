"""Explanations during training."""

import math
import statistics
from collections import deque

from ..functional.options import check_count, check_number
from ..telemetry import events
from .explanation import CONFLICT, DOMINANCE, EXPLOSION, Explanation, check_thresholds, explain
from .output import LossOutput

__all__ = ["Monitor"]


class Monitor:
    """Explains outputs during training: at regular intervals, and when the loss jumps.

    When it explains, it returns the explanation and emits `monitor.explain`, for sinks to record. A jump is a loss of
    more than `jump` times the median of the last `window` losses. To see one it reads the total at every step, which
    waits for the device; `jump=None` looks every `every` steps only.

    >>> import numpy as np
    >>> import penalties as pn
    >>> pipeline, monitor = pn.Pipeline(["l1"]), pn.Monitor(every=100)
    >>> seen = [step for step in range(300) if monitor(pipeline(np.array([1.0 + 9 * (step == 150)])), step)]
    >>> seen
    [0, 100, 150, 200]
    """

    def __init__(
        self,
        every: int = 100,
        *,
        jump: float | None = 2.0,
        window: int = 50,
        dominance: float = DOMINANCE,
        conflict: float = CONFLICT,
        explosion: float = EXPLOSION,
    ) -> None:
        """Check the arguments; `dominance`, `conflict` and `explosion` are those of `explain`."""
        check_count("Monitor", "every", every, 1)
        check_count("Monitor", "window", window, 2)
        if jump is not None:
            jump = check_number("Monitor", "jump", jump, "None or a number above 1", low=1.0)
        self._thresholds = {"dominance": dominance, "conflict": conflict, "explosion": explosion}
        check_thresholds("Monitor", **self._thresholds)
        self.every = every
        self.jump = jump
        self.losses: deque[float] = deque(maxlen=window)

    def __call__(self, out: LossOutput, step: int) -> Explanation | None:
        """Look at the output of one step; return the explanation, where it was time for one."""
        reason = "every" if step % self.every == 0 else None
        if self.jump is not None:
            total = out.read().total
            if reason is None and self._jumped(total):
                reason = "jump"
            if math.isfinite(total):
                self.losses.append(total)
        if reason is None:
            return None
        explanation = explain(out, **self._thresholds)
        if events.handlers:
            events.emit("monitor.explain", {}, {"step": step, "reason": reason, "explanation": explanation})
        return explanation

    def _jumped(self, total: float) -> bool:
        if not math.isfinite(total):
            return True
        if len(self.losses) < 2 or self.jump is None:
            return False
        # Relative to the magnitude, since a loss may be negative.
        middle = statistics.median(self.losses)
        return total - middle > (self.jump - 1.0) * abs(middle)
