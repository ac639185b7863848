"""The gradient that reaches the model through a client."""

import asyncio
import os
import time
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

import penalties as pn
from penalties.training import forward_backward_custom, forward_backward_custom_async
from tests.training.clients import RemoteClient, batch
from tests.training.custom_loss.cases import SERVERS, assert_trained_alike, pairwise, squared


class TestTheGradient:
    @pytest.mark.parametrize(("server", "averages"), SERVERS)
    @pytest.mark.parametrize("loss", [squared, pairwise, lambda d, lp: (10 * squared(d, lp)[0], {})])
    def test_is_that_of_autograd(self, server: str, averages: bool, loss: Any) -> None:
        client, data = RemoteClient(averages), batch(3, 5, 1, 4)
        forward_backward_custom(client, data, loss, server=server).result(60)
        assert_trained_alike(client, data, lambda lp: loss(data, lp)[0])

    @pytest.mark.parametrize(("server", "averages"), SERVERS)
    @pytest.mark.parametrize("tracked", [False, True])
    def test_has_the_regularizers_in_it(self, server: str, averages: bool, tracked: bool) -> None:
        client, data = RemoteClient(averages), batch(3, 5, 2)

        def steep(logprobs: Any) -> Tensor:
            return sum((one**3).sum() for one in logprobs)

        def ends(flat_logprobs: Any, lengths: Any) -> Tensor:
            return torch.stack([one[-1] for one in flat_logprobs.split(lengths)]).square().mean()

        terms = [pn.Term("l2", 0.3, inputs="logprobs"), pn.Term(steep, 0.01), pn.Term(ends, 0.5, runs="thread")]
        result = forward_backward_custom(
            client, data, squared, regularizers=terms, server=server, track_grad_norms=tracked
        ).result(60)

        def whole(logprobs: list[Tensor]) -> Tensor:
            l2 = sum((one**2).sum() for one in logprobs)
            last = torch.stack([one[-1] for one in logprobs]).square().mean()
            return squared(data, logprobs)[0] + 0.3 * l2 + 0.01 * steep(logprobs) + 0.5 * last

        assert_trained_alike(client, data, whole)
        assert (result.custom_loss["l2"].grad_norm is not None) is tracked
        if tracked:
            flat = torch.cat([client.model.logprobs(one).detach() for one in data])
            assert float(result.custom_loss["l2"].grad_norm) == pytest.approx(float(2 * flat.norm()), rel=1e-4)
            assert result.metrics["steep_grad_norm"] > 0

    def test_is_zero_where_nothing_depends_on_a_datum(self) -> None:
        client, data = RemoteClient(), batch(3, 2)
        forward_backward_custom(client, data, lambda d, lp: (lp[0].sum(), {})).result(60)
        assert client.sent[0][1].loss_fn_inputs["weights"].tolist() == [0.0, 0.0]
        # One that reads of the model and has none at all would train nothing, and nobody would know.
        for lost in (lambda d, lp: torch.tensor(3.0), lambda d, lp: squared(d, lp)[0].detach()):
            with pytest.raises(pn.GradientError, match="base_loss: its value has no gradient"):
                forward_backward_custom(client, data, lost)
        meant = pn.Term(lambda logprobs: logprobs[0].sum(), name="told", differentiable=False)
        forward_backward_custom(client, data, None, regularizers=[meant]).result(60)
        assert client.sent[1][0].loss_fn_inputs["weights"].tolist() == [0.0, 0.0, 0.0]
        rests = pn.Term("l2", inputs="logprobs", every=10)
        forward_backward_custom(client, data, None, regularizers=[rests], step=1).result(60)
        assert len(client.sent) == 3

    @pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
    def test_is_taken_whatever_mode_the_caller_is_in(self, mode: Any) -> None:
        client, data = RemoteClient(), batch(3, 2)
        with mode():
            forward_backward_custom(client, data, squared).result(60)
        assert_trained_alike(client, data, lambda lp: squared(data, lp)[0])

    def test_counts_once_if_a_function_runs_a_backward_itself(self) -> None:
        def eager(logprobs: Any) -> Any:
            value = sum((one**2).sum() for one in logprobs)
            value.backward(retain_graph=True)
            return value

        client, data = RemoteClient(), batch(3, 2)
        forward_backward_custom(client, data, None, regularizers=[eager]).result(60)
        assert_trained_alike(client, data, lambda lp: sum((one**2).sum() for one in lp))

    def test_is_zero_where_terms_read_nothing_of_the_model(self) -> None:
        client, data = RemoteClient(), batch(3, 2)
        client.delay = lambda: time.sleep(0.05)
        terms = [pn.Term(lambda data: torch.tensor(float(len(data))), name="count", inputs="data")]
        out = forward_backward_custom(client, data, None, regularizers=terms, track_grad_norms=True).result(60)
        assert out.metrics["count"] == 2.0
        assert client.sent[0][1].loss_fn_inputs["weights"].tolist() == [0.0, 0.0]

    @pytest.mark.parametrize("asynchronous", [False, True])
    def test_cosines_between_terms(self, asynchronous: bool) -> None:
        def opposed(data: Any, logprobs: Any) -> Any:
            return -3 * squared(data, logprobs)[0]

        given: dict[str, Any] = {"regularizers": [opposed], "cosines": True}
        if asynchronous:
            call = forward_backward_custom_async(RemoteClient(), batch(3, 2), squared, **given)
            out = asyncio.run(call).result(60)
        else:
            out = forward_backward_custom(RemoteClient(), batch(3, 2), squared, **given).result(60)
        np.testing.assert_allclose(out.custom_loss.cosines, [[1, -1], [-1, 1]], atol=1e-6)
        assert forward_backward_custom(RemoteClient(), batch(3, 2), squared).result(60).custom_loss.cosines is None

    def test_accumulates_over_calls(self) -> None:
        client, data = RemoteClient(), batch(3, 2)
        for _ in range(2):
            forward_backward_custom(client, data, squared).result(60)
        assert_trained_alike(client, data, lambda lp: 2 * squared(data, lp)[0])

    def test_over_candidates(self) -> None:
        client, data = RemoteClient(), batch(3, 4, candidates=3)

        def loss(data: Any, logprobs: Any) -> Tensor:
            assert [one.shape for one in logprobs] == [(3, 3), (4, 3)]
            return sum((one.exp() * one).sum() for one in logprobs)

        def whole(logprobs: list[Tensor]) -> Tensor:
            return loss(data, logprobs) + pn.entropy(torch.cat(logprobs), logits=True)

        # A penalty of one input is of the log-probabilities, unless it says of what else.
        forward_backward_custom(client, data, loss, regularizers=["entropy"]).result(60)
        assert_trained_alike(client, data, whole)

    @pytest.mark.slow
    def test_in_a_process(self) -> None:
        client, data = RemoteClient(), batch(3, 5)

        def away(data: Any, logprobs: Any) -> Any:
            return sum((one**2).sum() for one in logprobs), {"process": float(os.getpid())}

        with pn.Executor(max_workers=1) as executor:
            term = pn.Term(away, 0.5, runs="process")
            for _ in range(2):
                out = forward_backward_custom(
                    client, data, squared, regularizers=[term], executor=executor, track_grad_norms=True
                ).result(60)
        assert out.metrics["away/process"] != os.getpid()
        assert_trained_alike(
            client, data, lambda lp: 2 * (squared(data, lp)[0] + 0.5 * sum((one**2).sum() for one in lp))
        )

    @settings(max_examples=40, deadline=None)
    @given(
        lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
        powers=st.lists(st.floats(0.5, 3.0), min_size=1, max_size=3),
        weight=st.floats(0.0, 10.0),
        which=st.sampled_from(SERVERS),
    )
    def test_of_any_loss(self, lengths: list[int], powers: list[float], weight: float, which: Any) -> None:
        server, averages = which
        client, data = RemoteClient(averages), batch(*lengths)

        def loss(data: Any, logprobs: Any) -> Any:
            parts = [((-one) ** power).mean() for one in logprobs for power in powers]
            return torch.stack(parts).prod().sin() + torch.stack(parts).sum()

        term = pn.Term("smooth_l1", weight, inputs="flat_logprobs")
        forward_backward_custom(client, data, loss, regularizers=[term], server=server).result(60)
        assert_trained_alike(client, data, lambda lp: loss(data, lp) + weight * pn.smooth_l1(torch.cat(lp)), rtol=1e-4)
