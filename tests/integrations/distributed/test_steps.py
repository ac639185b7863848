"""`train_step` on two processes: norms, and wrappers that it refuses."""

from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FullyShardedDataParallel
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
