"""What Z3 may leave a term with: no answer, or the answer that there is none."""

from collections.abc import Sequence

from ...errors import PenaltiesError

__all__ = ["ContradictionError", "UndecidedError"]


class UndecidedError(PenaltiesError, RuntimeError):
    """Z3 could not decide the rules of a row, mostly for lack of time: they are neither satisfied nor violated.

    >>> print(UndecidedError(2, "timeout", 0.5))
    hard_rules: Z3 could not decide row 2 within 0.5 s (timeout); give it more seconds, or simpler rules
    """

    def __init__(self, row: int, reason: str, seconds: float) -> None:
        """Keep the parts, and say them in one line."""
        self.row: int = row
        self.reason = reason
        self.seconds = seconds
        super().__init__(
            f"hard_rules: Z3 could not decide row {row} within {seconds:g} s ({reason}); "
            "give it more seconds, or simpler rules"
        )

    def __reduce__(self) -> tuple[type["UndecidedError"], tuple[int, str, float]]:
        """Pickle by the parts, so that the error survives a trip between processes."""
        return type(self), (self.row, self.reason, self.seconds)


class ContradictionError(PenaltiesError, ValueError):
    """No decisions at all satisfy the rules of a row; `core` names rules that exclude one another.

    >>> print(ContradictionError(0, ["small", "large"]))
    hard_rules: no decisions satisfy the rules of row 0, of which these exclude one another: small, large
    """

    def __init__(self, row: int, core: Sequence[str]) -> None:
        """Keep the parts, and say them in one line."""
        self.row: int = row
        self.core: tuple[str, ...] = tuple(core)
        super().__init__(
            f"hard_rules: no decisions satisfy the rules of row {row}, of which these exclude one another: "
            + ", ".join(core)
        )

    def __reduce__(self) -> tuple[type["ContradictionError"], tuple[int, tuple[str, ...]]]:
        """Pickle by the parts, so that the error survives a trip between processes."""
        return type(self), (self.row, self.core)
