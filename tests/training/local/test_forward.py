from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from penalties.backends.torch import picking
from penalties.training.local.forward import head_reads
from tests.training.local.cases import WAIT, assert_close, data, logprobs, plain_logprobs, tiny


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
        monkeypatch.setitem(picking._PIECE, "cpu", 600)
        assert_close(logprobs(client.forward(batch).result(WAIT)), [plain_logprobs(client, one) for one in batch])
