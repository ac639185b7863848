"""`train_step` on two processes: norms, and wrappers that it refuses."""

from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import penalties as pn

from .test_distributed import STEP, data, network
from .together import RANKS, together

pytestmark = pytest.mark.slow


def measured(rank: int, wrapped: bool, name: str, base: Any) -> dict[str, Any]:
    model: Any = network()
    if wrapped:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = pn.train_step(model, base, STEP, optimizer, norms_at=name)
    x, y = (part.chunk(RANKS)[rank] for part in data()) if wrapped else data()
    metrics = step(x, y)
    return {"metrics": metrics, "cosines": step.output.cosines}


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", ["prediction", "params"])
def test_norms_and_cosines_are_those_of_one_process_that_sees_all_data(name: str, reduction: str) -> None:
    base = torch.nn.MSELoss(reduction=reduction)
    expected = measured(0, False, name, base)
    assert "size_grad_norm" in expected["metrics"]
    for found in together(measured, True, name, base):
        assert found["metrics"] == pytest.approx(expected["metrics"])
        torch.testing.assert_close(found["cosines"], expected["cosines"], equal_nan=True)


def of_old(rank: int, whole: bool) -> str:
    model: Any = network()
    if whole:
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    else:
        model[0] = FullyShardedDataParallel(model[0], device_id=torch.device("cpu"))
    step = pn.train_step(model, torch.nn.functional.mse_loss, STEP, torch.optim.SGD(model.parameters(), lr=0.05))
    try:
        step(*data())
    except pn.OptionError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.filterwarnings("ignore:.*FSDP")
def test_fsdp1_raises(whole: bool) -> None:
    for message in together(of_old, whole):
        assert 'the model="FullyShardedDataParallel"; expected fully_shard(model)' in message


def in_tensor_parallel(rank: int, by_fsdp: bool) -> tuple[dict[str, float], str]:
    torch.manual_seed(0)
    model: Any = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()
    if rank >= 0:
        mesh = init_device_mesh("cpu", (1, RANKS), mesh_dim_names=("data", "tensor"))
        parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        if by_fsdp:
            fully_shard(model, mesh=mesh["data"])
    step = pn.train_step(model, torch.nn.functional.mse_loss, STEP, torch.optim.SGD(model.parameters(), lr=0.05))
    try:
        return [step(*data()) for _ in range(3)][-1], ""
    except pn.OptionError as error:
        return {}, str(error)


def test_processes_that_share_a_batch_have_the_numbers_of_one_or_raise() -> None:
    expected, _ = in_tensor_parallel(-1, by_fsdp=False)
    for metrics, _ in together(in_tensor_parallel, False):
        assert metrics == pytest.approx(expected)
    for _, message in together(in_tensor_parallel, True):
        assert 'the model="FSDP2 with tensor parallelism"; expected FSDP2 alone' in message
