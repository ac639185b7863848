"""Terms as bytes, made once: a weight that a schedule changes every step does not make another."""

import itertools
import threading
from collections import OrderedDict
from typing import Any, Final

from ..errors import PenaltiesError, TermError, said
from ..pipeline.term import Term
from .capturing import captures
from .portable import CapturedError, function_bytes

__all__ = ["Bodies"]

_KEPT: Final = 256
"""Terms that are kept as bytes."""

_keys: Final = itertools.count(1)


class Bodies:
    """What terms are to a worker: everything but the weight, with a number that names it."""

    def __init__(self) -> None:
        """None yet."""
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[int, ...], tuple[int, bytes, Any]] = OrderedDict()

    def of(self, term: Term) -> tuple[int, bytes]:
        """The number and the bytes of a term."""
        # Other weights share these objects; kept alive below, so that their addresses stay theirs.
        parts = (term.fn, term.options, term.inputs, term.call)
        identity = tuple(map(id, parts))
        with self._lock:
            if identity in self._known:
                self._known.move_to_end(identity)
                key, body, _ = self._known[identity]
                return key, body
        try:
            body = function_bytes(term.with_weight(1.0))
        except CapturedError as error:
            raise captures(term.name, str(error)) from None
        except PenaltiesError:
            raise
        except Exception as error:
            raise TermError(
                term.name,
                f"cannot be sent to another process: {said(error)}; make what it holds inside the "
                "function, or once for each process in a module",
            ) from error
        with self._lock:
            key = next(_keys)
            self._known[identity] = (key, body, parts)
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return key, body
