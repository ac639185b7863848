"""Terms as bytes, pickled once: a weight that a schedule changes every step does not change them."""

import hashlib
import threading
from collections import OrderedDict
from typing import Any, Final, NamedTuple

from ..errors import PenaltiesError, TermError, said
from ..pipeline.term import Term
from .capturing import captures
from .portable import CapturedError, function_bytes

__all__ = ["Function", "Functions"]

_KEPT: Final = 256


class Function(NamedTuple):
    """A term without its weight, as a worker loads it."""

    digest: str
    """Names the bytes: a worker that has loaded them once keeps the term."""
    body: bytes


class Functions:
    """The functions that were pickled last."""

    def __init__(self) -> None:
        """None yet."""
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, ...], tuple[Function, Any]] = OrderedDict()

    def of(self, term: Term) -> Function:
        """The bytes of a term."""
        # Terms that differ in weight alone share these. Kept below: an id names an object only while that is alive.
        parts = (term.fn, term.options, term.inputs, term.call)
        identity = tuple(map(id, parts))
        with self._lock:
            if identity in self._known:
                self._known.move_to_end(identity)
                return self._known[identity][0]
        try:
            body = function_bytes(term.with_weight(1.0))
        except CapturedError as error:
            raise captures(term.name, str(error)) from None
        except PenaltiesError:
            raise
        except Exception as error:
            raise TermError(
                term.name,
                f"cannot be sent to another process: {said(error)}; create what it holds inside the function, "
                "or once per process in a module",
            ) from error
        function = Function(hashlib.sha256(body).hexdigest(), body)
        with self._lock:
            self._known[identity] = (function, parts)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return function
