"""The executor of a run, and the Ray cluster that its terms run on."""

import contextlib
import logging
from collections.abc import Generator
from typing import TYPE_CHECKING

from ...errors import said
from ...execution.executor import Executor
from ...execution.pools.ray_connection import library
from ..privacy import hide
from ..runs.disk import RunError
from .knocking import knock
from .streams import piped

if TYPE_CHECKING:
    from ..config import Config

__all__ = ["executing"]


@contextlib.contextmanager
def executing(config: "Config") -> Generator[Executor]:
    """The executor that a config asks for, connected to its cluster if a term runs there; closed at the end."""
    table = config.executor
    on_ray = not table.sequential and any(term.enabled and term.runs == "ray" for term in config.term)
    with contextlib.ExitStack() as ending:
        if table.ray_address is not None and on_ray:
            ending.enter_context(_connected(table.ray_address))
        elsewhere = any(term.enabled and term.runs == "process" for term in config.term)
        streams = ending.enter_context(piped()) if elsewhere and not table.sequential else None
        executor = Executor(table.workers, table.timeout, table.sequential, streams=streams)
        ending.callback(executor.close)
        yield executor


@contextlib.contextmanager
def _connected(address: str) -> Generator[None]:
    """A connection to a cluster, which executors use because the process has it."""
    ray = library()
    if ray.is_initialized():
        message = "this process is connected to Ray already; remove executor.ray_address, or call ray.shutdown() first"
        raise RunError(message, 2)
    if ":" in address:
        # Ray itself would wait for minutes.
        knock(address if "://" in address else f"ray://{address}", "executor.ray_address")
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:
        reason = hide(said(error)).splitlines()[0]
        raise RunError(f"could not connect to Ray at {address}: {reason}; fix executor.ray_address", 2) from error
    try:
        yield
    finally:
        ray.shutdown()
