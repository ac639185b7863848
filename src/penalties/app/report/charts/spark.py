"""A small line in a table or a tile."""

import numpy as np

from ..runlog import Series

__all__ = ["spark"]

_POINTS = 40


def spark(series: Series, low: float, high: float | None = None) -> str:
    """A history as a line without axes, from `low` to `high`, by default its highest point; with a line at 0 inside."""
    if len(series) < 2:
        return ""
    cuts = np.array_split(series.values, min(len(series), _POINTS))
    means = np.array([float(part.mean()) for part in cuts])
    top = max(float(means.max()), low) if high is None else high
    width = (top - low) or 1.0
    across = np.linspace(0, 200, len(means))
    heights = 98 - 96 * (means - low) / width
    points = " ".join(f"{x:.0f},{y:.0f}" for x, y in zip(across, heights, strict=True))
    zero = f'<path class="zero" d="M0 {98 + 96 * low / width:.0f}h200"/>' if low < 0 else ""
    return (
        '<svg class="spark" viewBox="0 0 200 100" preserveAspectRatio="none" aria-hidden="true" focusable="false">'
        f'{zero}<polyline points="{points}"/></svg>'
    )
