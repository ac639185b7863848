"""TensorBoard: a scalar per metric and step."""

import importlib
import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from .sink import MetricsSink, library

__all__ = ["TensorBoard"]

_FLUSH: Final = 10
"""Seconds between flushes to the event file."""


class TensorBoard(MetricsSink):
    """Write the metrics of every stop to a folder that TensorBoard shows.

    PyTorch's own writer is used where PyTorch and TensorBoard are installed, and tensorboardX otherwise. Tags are
    grouped as `loss/l1`, `grad_norm/l1`, `weight/l1`.

    A resumed run passes its first step as `purge_step`: TensorBoard then hides what was written earlier for that step
    and later ones.

    >>> import tempfile
    >>> from penalties.telemetry import TensorBoard, attach, detach
    >>> sink = TensorBoard(tempfile.mkdtemp())
    >>> handler_id = attach(sink)  # here the training runs
    >>> detach(handler_id)
    True
    >>> sink.close()
    """

    def __init__(self, log_dir: str | os.PathLike[str], *, purge_step: int | None = None) -> None:
        """Open an event file in the folder, which is created if it does not exist."""
        super().__init__(os.fspath(log_dir))
        self._writer = _writer()(log_dir=os.fspath(log_dir), purge_step=purge_step, flush_secs=_FLUSH)

    def log(self, metrics: Mapping[str, float], step: int | None) -> None:
        """Write a scalar per metric."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)

    def flush(self) -> None:
        """Write pending scalars to the disk."""
        self._writer.flush()

    def close(self) -> None:
        """Write pending scalars and close the file."""
        if not self.closed:
            super().close()
            self._writer.close()


def _writer() -> Any:
    # Checked first: PyTorch takes seconds to import, and its writer needs TensorBoard.
    if find_spec("tensorboard") is not None:
        try:
            return importlib.import_module("torch.utils.tensorboard").SummaryWriter
        except ImportError:
            pass
    return library("TensorBoard", "tensorboardX", package="tensorboardX", extra="tensorboard").SummaryWriter
