"""A term that is computed once for each content of its inputs, and read from a folder after that."""

import inspect
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any, Final, cast

from ... import trees
from ...errors import MissingLibraryError, OptionError, PenaltiesError, TermError
from ...functional.options import check_count
from ..catalogue import path_of
from ..evaluate import called
from ..evaluation import Evaluation
from ..inputs import CallInputs
from ..kinds import is_mapping, is_row
from ..saving import pack_state, unpack_state
from ..targets import is_followed
from ..term import Term
from .content import ContentError, digest_of
from .store import Store
from .wrapper import Wrapper, around, check_term, detached

__all__ = ["Cached", "Remembered"]

_FORMAT: Final = 1
"""A part of every key: another form of entries is another cache."""


class Remembered(Wrapper):
    """A term with its results on disk."""

    kind = "cached"
    title = "Cached"

    def __init__(self, term: Term, folder: str, max_bytes: int = 2**30, version: str = "") -> None:
        """Check what can be known before a call."""
        if not isinstance(cast("object", folder), str | os.PathLike) or not os.fspath(folder):
            raise OptionError(self.title, "folder", folder, "the path of a folder")
        check_count(self.title, "max_bytes", max_bytes, 1)
        if not isinstance(cast("object", version), str):
            raise OptionError(self.title, "version", version, "a string")
        if term.takes_state:
            expected = "a term without state, which would be missing from a cached result"
            raise OptionError(self.title, "term", term, expected)
        path = path_of(term.fn) or term.path
        if path is None:
            expected = (
                "a function that can be imported by its path, which is part of the key: define it in a module, or make "
                'an object in one and pass its path, Term("my_module:judge")'
            )
            raise OptionError(self.title, "term", term, expected)
        source = _source(term.fn, path)
        if not source and not version:
            expected = "a version=, or a function from a module file: a change to its code would go unnoticed"
            raise OptionError(self.title, "term", term, expected)
        self.path: str = path
        self.source: str = source
        super().__init__(term, folder=os.fspath(folder), max_bytes=int(max_bytes), version=version)
        self.store: Store = Store(folder, int(max_bytes))

    @property
    def label(self) -> str:
        """With the folder alone."""
        return f"{self.title}({self.term.name}, folder={self.settings['folder']!r})"

    def __eq__(self, other: object) -> bool:
        """Equal where the settings and the inner terms are."""
        return isinstance(other, Remembered) and self.settings == other.settings and self.term == other.term

    def __hash__(self) -> int:
        """By the inner term."""
        return super().__hash__()

    def evaluated(self, given: dict[str, Any], step: Any, state: Any) -> Evaluation:
        """What is in the folder for these inputs, or what the term returns, which then is."""
        read = {name: given[name] for name in self.term.inputs.values()}
        self._check(read)
        read = detached(read)
        key = self._key(read, step)
        found = self._found(key, read)
        if found is None:
            return self._computed(key, read, step)
        metrics = {**found["metrics"], "cached": 1}
        return Evaluation(found["value"], found["gradient"], metrics)

    def _check(self, read: Mapping[str, Any]) -> None:
        for name, nest in read.items():
            arrays = list(trees.arrays(nest))
            if self.term.differentiable and any(map(is_followed, arrays)):
                raise TermError(
                    self.term.name,
                    f'is cached, and its input "{name}" requires a gradient, which a result on disk does not have; '
                    "expected data: detach the input, set differentiable=False to count the term as a constant, or "
                    "do not cache it",
                )

    def _key(self, read: Mapping[str, Any], step: Any) -> str:
        # A term that draws, or that takes the step, is another function at each.
        moment = None if step is None or not (self.term.takes_step or self.term.seed is not None) else int(step)
        known = (_FORMAT, self.settings["version"], self.path, self.source, moment)
        parts = {parameter: read[name] for parameter, name in self.term.inputs.items()}
        digests: list[str] = []
        for what, content in (("its options", dict(self.term.options)), ("what it reads", parts)):
            try:
                digests.append(digest_of(content))
            except ContentError as error:
                raise TermError(self.term.name, f"cannot be cached: {what}: {error}") from error
        return digest_of((known, digests))

    def _found(self, key: str, read: Mapping[str, Any]) -> dict[str, Any] | None:
        content = self.store.get(key)
        if content is None:
            return None
        try:
            return unpack_state(content, key, device=_device(read))
        except MissingLibraryError:
            raise
        except PenaltiesError:
            # Written by a program whose checksums are right and whose content is not ours.
            self.store.remove(key)
            return None

    def _computed(self, key: str, read: dict[str, Any], step: Any) -> Evaluation:
        value, metrics, gradient = _parts(self.term.name, called(self.term, CallInputs.of(read), step)[1])
        if self.term.differentiable and is_followed(value):
            message = "is cached, and its value depends on a tensor that requires a gradient; expected data alone"
            raise TermError(self.term.name, message)
        try:
            content = pack_state({"value": value, "metrics": dict(metrics), "gradient": gradient})
        except TermError as error:
            raise TermError(self.term.name, f"cannot be cached: its result {error.message}") from error
        try:
            kept = self.store.put(key, content)
            problem = f"it takes {len(content)} bytes, more than max_bytes={self.store.max_bytes}"
        except OSError as error:
            kept, problem = False, str(error)
        if not kept:
            message = f"{self.term.name}: a result could not be cached in {self.store.folder}: {problem}"
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return Evaluation(value, gradient, {**metrics, "cached": 0})


def _parts(name: str, result: Any) -> tuple[Any, Mapping[str, Any], Any]:
    """The value, the metrics and the gradient that a function returned."""
    if isinstance(result, Evaluation):
        if result.state is not None:
            raise TermError(name, "is cached and returned state, which would be missing from a cached result")
        return result.value, result.metrics, None if result.gradient is None else dict(result.gradient)
    if is_row(result) and len(result) == 2 and is_mapping(result[1]):
        return result[0], result[1], None
    return result, {}, None


def _device(read: Mapping[str, Any]) -> Any:
    """Where an array that was read goes: beside the first tensor among the inputs."""
    torch = sys.modules.get("torch")
    arrays = trees.arrays(list(read.values())) if torch is not None else ()
    return next((array.device for array in arrays if torch is not None and isinstance(array, torch.Tensor)), None)


def _source(fn: Any, path: str) -> str:
    """A digest of the modules of a function: when their code changes, what it returned before is not found.

    That of an object has its options, and that of its class has its code.
    """
    from ... import __version__

    own = inspect.getmodule(inspect.unwrap(fn))
    named = sys.modules[path.partition(":")[0]] if ":" in path else own
    try:
        # A TypeError where there is none.
        sources = [inspect.getsource(cast("Any", module)) for module in (named, own)]
    except (OSError, TypeError):
        return ""
    # One of ours depends on others of ours.
    ours = __name__.partition(".")[0] in [module.__name__.partition(".")[0] for module in (named, own) if module]
    return digest_of((sources, __version__ if ours else None))


def Cached(term: Term, folder: str | os.PathLike[str], max_bytes: int = 2**30, version: str = "") -> Term:
    """The term, computed once for each content of its inputs, and read from a folder after that.

    It is for slow terms of data. An entry has the value, the metrics, and the gradient if the function returned one. It
    is found by the path of the function, the source of its module, its options, and the content of what it reads:
    dtype, shape and elements of arrays, strings, numbers, and nests of these. The folder may be used by several
    processes at once. Nothing in it is executed or unpickled when it is read; an entry that is damaged counts as
    missing, and is removed.

    Inputs must not require a gradient, unless the term has `differentiable=False`. The metric `cached` is 1 for a
    result that was read and 0 for one that was computed.

    - `folder`: where entries are; made when it is needed.
    - `max_bytes`: the most that they take together; the least recently used go first.
    - `version`: a part of the key. Change it when the function would return something else for a reason that its
      module does not show, such as another model behind it.

    >>> import tempfile
    >>> import numpy as np
    >>> import penalties as pn
    >>> pipeline = pn.Pipeline([pn.Cached(pn.Term(pn.l2), tempfile.mkdtemp())])
    >>> [pipeline(np.array([3.0, 4.0])).metrics()["l2/cached"] for _ in range(2)]
    [0.0, 1.0]
    """
    check_term("Cached", term)
    return around(Remembered, term, folder=folder, max_bytes=max_bytes, version=version)
