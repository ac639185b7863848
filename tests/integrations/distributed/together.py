"""Runs a function in two processes that know of each other, by gloo."""

import gc
import multiprocessing
import os
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from penalties import trees

RANKS = 2


def _main(rank: int, port: int, fn: Callable[..., Any], arguments: tuple[Any, ...], pipe: Connection) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", rank=rank, world_size=RANKS)
        # As NumPy's arrays: tensors would travel by a file of this process, which is about to end.
        pipe.send((True, trees.map_arrays(lambda x: x.detach().numpy(), fn(rank, *arguments))))
    except BaseException:
        pipe.send((False, traceback.format_exc()))
    finally:
        if dist.is_initialized():
            # DDP is in a cycle with its process group.
            gc.collect()
            dist.destroy_process_group()


def together(fn: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What `fn(rank, *arguments)` returns in each process; an error of either is raised here."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(RANKS)]
    processes = [
        context.Process(target=_main, args=(rank, port, fn, arguments, sending))
        for rank, (_, sending) in enumerate(pipes)
    ]
    for process in processes:
        process.start()
    results: list[Any] = []
    try:
        for receiving, _ in pipes:
            assert receiving.poll(120), "no answer in two minutes"
            well, result = receiving.recv()
            assert well, result
            results.append(trees.map_arrays(torch.as_tensor, result))
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    return results
