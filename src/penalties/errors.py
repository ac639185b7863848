"""The errors this library raises; every one derives from `PenaltiesError`."""

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

__all__ = [
    "FIRST_ORDER",
    "BackendError",
    "CheckError",
    "GradientError",
    "InputError",
    "MissingLibraryError",
    "NonFiniteError",
    "OptionError",
    "PenaltiesError",
    "ServiceError",
    "ShapeError",
    "TermError",
    "TermTimeoutError",
    "WorkerLostError",
    "did_you_mean",
    "not_whole",
    "said",
    "unknown_term",
]


FIRST_ORDER: Final = (
    "second derivatives are unavailable: this value came with its gradient, from value_and_grad, a kernel, blocks over "
    "Logits, or a term that ran elsewhere or returned its own. Call the pipeline itself with terms that run inline, "
    "set PENALTIES_KERNELS=off, or pass logits.materialize()"
)


class PenaltiesError(Exception):
    """The parent of every error that this library raises on purpose.

    >>> import numpy as np
    >>> import penalties as pn
    >>> try:
    ...     pn.l1(np.ones(3), reduction="avg")
    ... except pn.PenaltiesError as error:
    ...     print(error)
    l1: reduction="avg"; expected "sum", "mean" or "none"
    """


class OptionError(PenaltiesError, ValueError):
    """An option that does not exist, or a value it cannot take.

    The message names the function, the option, the value and what is allowed; the parts are attributes too.

    >>> import numpy as np
    >>> import penalties as pn
    >>> try:
    ...     pn.smooth_l1(np.ones(3), delta=-1)
    ... except pn.OptionError as error:
    ...     print(error.option, error.value, error.expected, sep=" | ")
    delta | -1 | a finite number above 0
    """

    def __init__(self, function: str, option: str, value: object, expected: str) -> None:
        """Keep the parts, and say them in one line."""
        self.function = function
        self.option = option
        self.value = value
        self.expected = expected
        shown = f'"{value}"' if isinstance(value, str) else repr(value)
        super().__init__(f"{function}: {option}={shown}; expected {expected}")

    def __reduce__(self) -> tuple[type["OptionError"], tuple[str, str, object, str]]:
        """Pickle by the parts, so that the error survives a trip between processes."""
        return type(self), (self.function, self.option, self.value, self.expected)


class ShapeError(PenaltiesError, ValueError):
    """Shapes that do not fit: paired inputs that differ, a mask of the wrong shape, a rank that is too small.

    >>> import numpy as np
    >>> import penalties as pn
    >>> try:
    ...     pn.consistency(np.ones((2, 3)), np.ones((2, 1)))
    ... except pn.ShapeError as error:
    ...     print(error)
    consistency: a has shape (2, 3) and b has shape (2, 1); expected equal shapes (nothing is broadcast)
    """


class BackendError(PenaltiesError, TypeError):
    """Something that is not an array, arrays of two libraries in one call, or a dtype that has no meaning here.

    >>> import numpy as np
    >>> import penalties as pn
    >>> try:
    ...     pn.l1([1.0, 2.0])
    ... except pn.BackendError as error:
    ...     print(error)
    l1: x[0] is a float; expected a NumPy array, a torch.Tensor or a jax.Array
    """


class GradientError(PenaltiesError, RuntimeError):
    """A gradient was requested, but there is none: no differentiable path leads to the input.

    >>> import penalties as pn
    >>> issubclass(pn.GradientError, RuntimeError)
    True
    """


class InputError(PenaltiesError, KeyError):
    """An input that a term reads and the call does not have, or a name that the pipeline does not have.

    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(pn.l1, inputs="weights.first")])
    >>> try:
    ...     pipeline.remove("l2")
    ... except pn.InputError as error:
    ...     print(error)
    remove: no term is named "l2"; expected one of: "l1"
    """

    def __str__(self) -> str:
        """The message as it is: a KeyError would show it in quotation marks."""
        return str(self.args[0])


class TermError(PenaltiesError, RuntimeError):
    """A term failed, or returned something that is not a value; `term` is its name, and the cause is chained.

    >>> import numpy as np
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Term(lambda x: abs(x), name="magnitude")])
    >>> try:
    ...     pipeline(np.ones(3))
    ... except pn.TermError as error:
    ...     print(error)
    magnitude: returned an array of shape (3,); expected a scalar (0-d) array: reduce it, for example by its sum
    """

    def __init__(self, term: str, message: str, phase: str = "value") -> None:
        """Store the name of the term, and whether its value or its gradient failed."""
        self.term = term
        self.message = message
        self.phase = phase
        self.output: Any = None
        """The output of the other terms, where an executor ran them: a `LossOutput` without this one."""
        super().__init__(f"{term}: {message}")

    def __reduce__(self) -> tuple[type["TermError"], tuple[str, str, str]]:
        """Pickle by the parts, so that the error survives a trip between processes."""
        return type(self), (self.term, self.message, self.phase)


class TermTimeoutError(TermError, TimeoutError):
    """A term ran past its timeout; `abandoned` says that it could not be stopped and is still running.

    >>> import penalties as pn
    >>> error = pn.TermTimeoutError("topology", "took more than 2 s", abandoned=True)
    >>> isinstance(error, TimeoutError), error.term, error.abandoned
    (True, 'topology', True)
    """

    def __init__(self, term: str, message: str, phase: str = "value", *, abandoned: bool = False) -> None:
        """Store also whether the term is still running."""
        super().__init__(term, message, phase)
        self.abandoned = abandoned

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by the parts, so that the error survives a trip between processes."""
        return _late, (self.term, self.message, self.phase, self.abandoned)


def _late(term: str, message: str, phase: str, abandoned: bool) -> TermTimeoutError:
    return TermTimeoutError(term, message, phase, abandoned=abandoned)


class WorkerLostError(TermError):
    """The worker that a term ran on is gone: it crashed, was killed, or left the cluster.

    >>> import penalties as pn
    >>> issubclass(pn.WorkerLostError, pn.TermError)
    True
    """


class MissingLibraryError(PenaltiesError, ImportError):
    """A feature needs a library that is not installed; the message says what to run.

    >>> import penalties as pn
    >>> print(pn.MissingLibraryError("JSON lines to Mars", "marslink", extra="mars"))
    JSON lines to Mars needs marslink: pip install "penalties[mars]"
    """

    def __init__(self, what: str, package: str, extra: str | None = None) -> None:
        """Keep the parts, and say them in one line."""
        self.what = what
        self.package = package
        self.extra = extra
        install = package if extra is None else f'"penalties[{extra}]"'
        super().__init__(f"{what} needs {package}: pip install {install}")

    def __reduce__(self) -> tuple[type["MissingLibraryError"], tuple[str, str, str | None]]:
        """Pickle by the parts, so that the error survives a trip between processes."""
        return type(self), (self.what, self.package, self.extra)


class ServiceError(PenaltiesError, RuntimeError):
    """A database or a service that a term asks could not be reached, was late, or answered something else than agreed.

    The message names it without its password, and says what to do.

    >>> import penalties as pn
    >>> from penalties.terms.knowledge import Database, Table
    >>> base = Database("sqlite:///no/such/file.db", {"capital of": Table("capitals", "city", "country")})
    >>> try:
    ...     base.objects("capital of", ["Paris"])
    ... except pn.ServiceError as error:
    ...     print(error)
    the database sqlite:///no/such/file.db: there is no such file; check the path, which is relative to this process
    """


class NonFiniteError(PenaltiesError, ValueError):
    """NaN or infinity where finite numbers were expected; `kind` says which.

    >>> import numpy as np
    >>> import penalties as pn
    >>> try:
    ...     pn.validate(np.array([1.0, np.inf, np.nan]))
    ... except pn.NonFiniteError as error:
    ...     print(error.kind)
    nan
    """

    def __init__(self, kind: str, message: str, term: str | None = None, phase: str = "value") -> None:
        """Store the kind, the message, the name of the term if it is known, and the phase.

        The phase is "gradient" where it is the gradient of a term or of the loss, and "value" for any other number.
        """
        self.kind = kind
        self.message = message
        self.term = term
        self.phase = phase
        self.output: Any = None
        """The output of the other terms, as in `TermError`."""
        super().__init__(message if term is None else f"{term}: {message}")

    @classmethod
    def of(cls, number: float, message: str, term: str | None = None, phase: str = "value") -> "NonFiniteError":
        """The error for a number that is NaN or infinite."""
        return cls("nan" if math.isnan(number) else "inf", message, term, phase)

    def __reduce__(self) -> tuple[type["NonFiniteError"], tuple[str, str, str | None, str]]:
        """Pickle by the parts, so that the error survives a trip between processes."""
        return type(self), (self.kind, self.message, self.term, self.phase)


class CheckError(PenaltiesError, ValueError):
    """A call was given inputs that probably train something other than was meant; `findings` has a line for each.

    `with pn.debug():` and `out.check()` raise it.

    >>> import penalties as pn
    >>> error = pn.CheckError(['no term reads the input "mask"', 'the input "x" contains NaN'])
    >>> print(error)
    no term reads the input "mask"
    the input "x" contains NaN
    """

    def __init__(self, findings: Sequence[str]) -> None:
        """Keep the lines, and say them all."""
        self.findings: list[str] = list(findings)
        super().__init__("\n".join(self.findings))

    def __reduce__(self) -> tuple[type["CheckError"], tuple[list[str]]]:
        """Pickle by the findings."""
        return type(self), (self.findings,)


def said(error: BaseException) -> str:
    """The class and the message of an exception, or the class alone where making the message fails."""
    try:
        message = str(error)
    except Exception:
        return type(error).__name__
    return f"{type(error).__name__}: {message}"


def not_whole(function: str, name: str, x: Any) -> BackendError:
    """The error for an array that should hold indices, and holds something else."""
    return BackendError(f"{function}: {name} has dtype {x.dtype}; expected whole numbers, the indices of classes")


def unknown_term(where: str, name: object, known: Sequence[str]) -> InputError:
    """The error for the name of a term that is not there."""
    there = ", ".join(f'"{term}"' for term in known) or "no term"
    prefix = f"{where}: " if where else ""
    return InputError(f'{prefix}no term is named "{name}"; expected one of: {there}{did_you_mean(name, known)}')


def did_you_mean(word: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The end of a message about a word that is not known: the nearest one that is, or nothing.

    - `cutoff`: how alike they have to be, from 0 to 1.

    >>> did_you_mean("reducton", ["reduction", "clip"])
    '; did you mean reduction?'
    """
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""
