"""Ablations, sweeps and grids: which runs there are, how they are trained, and what their differences show."""

from .effects import Ablation, Effect, analysed
from .outcomes import ALL, Outcome, Recorded, holds_ablation, recorded
from .running import ablate
from .variants import Variant, check_baseline, variants
from .words import headline, shown

__all__ = [
    "ALL",
    "Ablation",
    "Effect",
    "Outcome",
    "Recorded",
    "Variant",
    "ablate",
    "analysed",
    "check_baseline",
    "headline",
    "holds_ablation",
    "recorded",
    "shown",
    "variants",
]
