from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from penalties.training.local import forward
from penalties.training.local.forward import head_reads, pick
from tests.training.local.cases import WAIT, assert_close, data, logprobs, plain_logprobs, tiny


def drawn(dtype: Any = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = (5 * torch.randn(11, 30, generator=generator)).to(dtype).requires_grad_()
    targets = torch.randint(0, 30, (11, 4), generator=generator)
    # Some targets meet.
    targets[3] = 7
    return logits, targets, torch.randn(11, 4, generator=generator)


@pytest.mark.parametrize("piece", [1, 30, 90, 1 << 20])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_pick_is_log_softmax_and_gather(monkeypatch: pytest.MonkeyPatch, piece: int, dtype: Any) -> None:
    monkeypatch.setitem(forward._PIECE, "cpu", piece)
    logits, targets, upstream = drawn(dtype)
    found = pick(logits, targets)
    expected = logits.float().log_softmax(-1).gather(-1, targets)
    assert found.dtype is torch.float32
    assert_close(found, expected)
    (slope,) = torch.autograd.grad(found, logits, upstream)
    (right,) = torch.autograd.grad(expected, logits, upstream)
    assert slope.dtype is dtype
    torch.testing.assert_close(slope, right, rtol=0.01 if dtype is torch.bfloat16 else 1e-5, atol=1e-6)


def test_a_token_that_cannot_come_has_no_gradient() -> None:
    logits, targets, upstream = drawn()
    banned = logits.detach().clone()
    banned[:, 29] = -torch.inf
    banned.requires_grad_()
    targets = targets.clamp(max=28)
    found = pick(banned, targets)
    (slope,) = torch.autograd.grad(found, banned, upstream)
    assert found.isfinite().all()
    assert slope.isfinite().all()
    assert not slope[:, 29].any()


def test_pick_is_differentiated_once() -> None:
    logits, targets, upstream = drawn()
    (slope,) = torch.autograd.grad(pick(logits, targets), logits, upstream.requires_grad_(), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


def test_a_model_reads_as_before_once_it_was_packed() -> None:
    with tiny() as client:
        tokens = torch.tensor([[1, 2, 3]])
        with head_reads(client._model, lambda states: states[:, -1:]):
            assert client.model(input_ids=tokens).logits.shape == (1, 1, 257)
            with ThreadPoolExecutor() as others:
                found = others.submit(client.model, input_ids=tokens).result(WAIT)
            assert found.logits.shape == (1, 3, 257)
        assert client.model(input_ids=tokens).logits.shape == (1, 3, 257)
        with pytest.raises(ZeroDivisionError), head_reads(client._model, lambda states: states[:, -1:]):
            raise ZeroDivisionError
        assert client.model(input_ids=tokens).logits.shape == (1, 3, 257)


def test_pieces_change_nothing_but_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = data(9, 4)
    with tiny() as client:
        monkeypatch.setitem(forward._PIECE, "cpu", 600)
        assert_close(logprobs(client.forward(batch).result(WAIT)), [plain_logprobs(client, one) for one in batch])
