"""A terminal, and records for a display."""

import io
from typing import Any


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return "utf-8"


def step(number: int, value: float = 2.0, **terms: Any) -> dict[str, Any]:
    """The record of a step, counted from 0 here."""
    kl = {"value": value / 2, "weight": 0.5, "contribution": value / 4, "grad_norm": 0.25, "custom": {}}
    kl |= {"grad_norm_weighted": 0.125, **terms}
    return {
        "kind": "step",
        "step": number + 1,
        "seconds": 0.05,
        "tokens": 100,
        "learning_rate": 0.1,
        "loss": {
            "loss_total": 1.25 * value,
            "base_loss": {"value": value, "grad_norm": 1.0, "custom": {}},
            "regularizers": {"kl": kl},
            "regularizer_total": value / 4,
            "total_grad_norm": 1.1,
        },
    }


def event(kind: str, message: str = "something", number: int = 4) -> dict[str, Any]:
    return {"kind": "event", "step": number, "event": kind, "message": message}


def evaluation(number: int) -> dict[str, Any]:
    return {**step(number), "kind": "eval", "step": number}


def skipped() -> dict[str, Any]:
    return {"value": None, "weight": 0.5, "contribution": None, "grad_norm": None, "custom": {}, "error": "late"}
