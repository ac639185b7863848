"""Fairness between groups, as differentiable terms with their evidence in the metrics. They need no further library.

- `demographic_parity`: predictions are as often positive in each group.
- `equal_opportunity`, `equalized_odds`: the same among rows of label 1, and among rows of either label.
- `calibration`: predictions mean what they say in each group.
"""

from .calibration import calibration
from .parity import demographic_parity, equal_opportunity, equalized_odds

__all__ = ["calibration", "demographic_parity", "equal_opportunity", "equalized_odds"]
