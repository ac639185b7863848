"""Gradients of each term at a representation inside a model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties import telemetry
from penalties.telemetry.sink import MetricsSink
from tests.libraries import DEVICE, JAX, LIBRARIES, TORCH, close

needs_torch = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
needs_jax = pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")


def spread(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape)


def network() -> tuple[torch.nn.Module, torch.nn.Module, Any]:
    torch.manual_seed(0)
    trunk = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh()).double().to(DEVICE)
    head = torch.nn.Linear(8, 3).double().to(DEVICE)
    return trunk, head, torch.randn(6, 4, dtype=torch.float64, device=DEVICE)


@needs_torch
class TestTrack:
    TERMS = (
        pn.Term(pn.l2, 0.1, inputs="hidden"),
        pn.Term(pn.entropy, 0.5, inputs="logits", options={"logits": True}),
        pn.Term(pn.l1, 0.01, inputs="params"),
    )

    def outputs(self, **options: Any) -> tuple[pn.LossOutput, Any, list[torch.nn.Parameter], Any]:
        trunk, head, x = network()
        hidden = trunk(x)
        logits = head(hidden)
        parameters = [*trunk.parameters(), *head.parameters()]
        pipeline = pn.Pipeline(self.TERMS, **options)
        return pipeline(hidden=hidden, logits=logits, params=parameters), hidden, parameters, logits

    def plain(self, loss: Any = None) -> list[Any]:
        out, _, parameters, logits = self.outputs()
        (out.total if loss is None else out.total + loss(logits)).backward()
        return [parameter.grad for parameter in parameters]

    @pytest.mark.parametrize("cosines", [True, False])
    def test_at_a_representation(self, cosines: bool) -> None:
        out, hidden, parameters, _ = self.outputs()
        expected = [torch.autograd.grad(out[name].value, hidden, retain_graph=True)[0] for name in ("l2", "entropy")]
        tracked = pn.gradients.track(out, at=hidden, cosines=cosines, backward=True)
        for name, gradient in zip(("l2", "entropy"), expected, strict=True):
            torch.testing.assert_close(tracked[name].grad_norm, gradient.norm())
        assert tracked["l1"].grad_norm is None
        assert "does not depend on the shared tensor" in str(tracked["l1"].grad_error)
        torch.testing.assert_close(tracked.total_grad_norm, (0.1 * expected[0] + 0.5 * expected[1]).norm())
        if cosines:
            cosine = torch.nn.functional.cosine_similarity(expected[0].flatten(), expected[1].flatten(), dim=0)
            torch.testing.assert_close(tracked.cosines[0, 1], cosine)
        else:
            assert tracked.cosines is None
        for parameter, plain in zip(parameters, self.plain(), strict=True):
            torch.testing.assert_close(parameter.grad, plain)

    def test_with_respect_to_parameters(self) -> None:
        out, _, parameters, _ = self.outputs()
        expected = torch.autograd.grad(out["entropy"].value, parameters, retain_graph=True, allow_unused=True)
        tracked = pn.gradients.track(out, wrt=iter(parameters), backward=True)
        torch.testing.assert_close(tracked["entropy"].grad_norm, torch.cat([g.flatten() for g in expected]).norm())
        for parameter, plain in zip(parameters, self.plain(), strict=True):
            torch.testing.assert_close(parameter.grad, plain)

    def test_a_sparse_embedding(self) -> None:
        table = torch.nn.Embedding(3, 2, sparse=True, device=DEVICE)
        hidden = table(torch.tensor([0, 1, 1], device=DEVICE))
        out = pn.Pipeline(["l1", "l2"])(hidden)
        out = pn.gradients.track(out, wrt=table.weight)
        rows = table.weight.detach()[[0, 1]] * torch.tensor([[2.0], [4.0]], device=DEVICE)
        assert float(out["l2"].grad_norm) == pytest.approx(rows.norm().item())

    def test_several_representations(self) -> None:
        out, hidden, _, logits = self.outputs()
        tracked = pn.gradients.track(out, at=(hidden, logits))
        assert tracked["entropy"].grad_norm > pn.gradients.track(out, at=hidden)["entropy"].grad_norm

    def test_a_base_loss_from_outside(self) -> None:
        out, hidden, parameters, logits = self.outputs()
        tracked = pn.gradients.track(out, at=hidden, base=logits.square().mean(), backward=True)
        assert tracked.names == ("base_loss", "l2", "entropy", "l1")
        assert tracked["base_loss"].grad_norm > 0
        torch.testing.assert_close(tracked.total, out.total + logits.square().mean())
        for parameter, plain in zip(parameters, self.plain(lambda logits: logits.square().mean()), strict=True):
            torch.testing.assert_close(parameter.grad, plain)

    def test_the_base_loss_of_the_pipeline(self) -> None:
        out, hidden, _, logits = self.outputs(base=pn.Term(lambda logits: logits.mean(), name="mean"))
        with pytest.raises(pn.OptionError, match="the pipeline has its own base loss"):
            pn.gradients.track(out, at=hidden, base=logits.mean())
        assert pn.gradients.track(out, at=hidden)["base_loss"].grad_norm > 0

    def test_backward_is_left_to_the_caller(self) -> None:
        out, hidden, parameters, _ = self.outputs()
        tracked = pn.gradients.track(out, at=hidden)
        assert all(parameter.grad is None for parameter in parameters)
        tracked.total.backward()
        assert all(parameter.grad is not None for parameter in parameters)

    def test_skipped_terms_stay_skipped(self) -> None:
        trunk, _, x = network()
        hidden = trunk(x)
        pipeline = pn.Pipeline(["l2", pn.Term(lambda x: 1 / 0, name="bad", on_error="skip")])
        tracked = pn.gradients.track(pipeline(hidden), at=hidden)
        assert tracked["bad"].error is not None
        assert tracked["l2"].grad_norm > 0

    def test_nothing_at_the_tensor(self) -> None:
        out, _, _, _ = self.outputs()
        other = torch.ones(2, requires_grad=True, device=DEVICE)
        tracked = pn.gradients.track(out, at=other, cosines=False)
        assert tracked.total_grad_norm is None

    @pytest.mark.parametrize(
        ("arguments", "error", "message"),
        [
            ({}, pn.OptionError, "either at= a shared tensor, or wrt= parameters"),
            ({"at": torch.ones(1), "wrt": [torch.ones(1)]}, pn.OptionError, "either at="),
            ({"at": torch.ones(1)}, pn.GradientError, "no tensor of at requires grad"),
            ({"at": 3.0}, pn.BackendError, r"track: at is a float"),
        ],
    )
    def test_wrong(self, arguments: Any, error: type[Exception], message: str) -> None:
        out, *_ = self.outputs()
        with pytest.raises(error, match=message):
            pn.gradients.track(out, **arguments)

    def test_a_base_has_a_gradient_where_no_term_is_due(self) -> None:
        x = torch.ones(2, requires_grad=True)
        hidden = 2 * x
        out = pn.Pipeline([pn.Term("l1", inputs="hidden", every=3)])(hidden=hidden, step=1)
        out = pn.gradients.track(out, at=hidden, base=(hidden**2).sum())
        assert float(out.base.grad_norm) == pytest.approx(32**0.5)

    def test_without_a_graph(self) -> None:
        x = torch.ones(2, requires_grad=True)
        with torch.no_grad():
            out = pn.Pipeline(["l1"])(x)
        with pytest.raises(pn.GradientError, match="the total has no graph"):
            pn.gradients.track(out, at=x)

    def test_other_libraries(self, library: Any) -> None:
        if library is TORCH:
            pytest.skip("PyTorch has the graph")
        out = pn.Pipeline(["l1"])(library.array([1.0]))
        with pytest.raises(
            pn.BackendError,
            match="^track: needs the graph of PyTorch; in JAX use gradients.at_parameters.*calls the pipeline$",
        ):
            pn.gradients.track(out, at=library.array([1.0]))


@needs_jax
def test_jax_pulls_the_gradient_at_a_representation_back() -> None:
    import jax
    import jax.numpy as jnp

    def net(params: Any) -> Any:
        return jnp.tanh(params["w"] @ jnp.ones(3))

    params = {"w": JAX.array(spread(4, 3))}
    pipeline = pn.Pipeline([pn.Term(pn.l1, 0.5), pn.Term(pn.l2, 0.25)])
    hidden, pull = jax.vjp(net, params)
    out = pipeline.value_and_grad(hidden, cosines=True)
    (gradient,) = pull(out.gradient)
    expected = jax.grad(lambda p: pipeline.total(net(p)))(params)
    close(gradient["w"], expected["w"])


@needs_torch
class TestEvents:
    def test_norms_shares_and_cosines_reach_sinks_at_the_step_of_the_call(self, tmp_path: Path) -> None:
        trunk, head, x = network()
        pipeline = pn.Pipeline([pn.Term(pn.l2, 0.1, inputs="hidden"), pn.Term(pn.l1, inputs="logits")], name="main")
        logged: list[tuple[set[str], int]] = []

        class Numbers(MetricsSink):
            def log(self, metrics: Mapping[str, float], step: int | None) -> None:
                logged.append((set(metrics), step or 0))

        with Numbers("nowhere"), telemetry.JSONLines(tmp_path / "log.jsonl"):
            for step in (7, 8):
                hidden = trunk(x)
                out = pipeline(hidden=hidden, logits=head(hidden), step=step)
                out = pn.gradients.track(out, at=hidden, base=head(hidden).square().mean() if step == 8 else None)
        (values, first), (norms, second), (_, third), (both, fourth) = logged
        assert (first, second, third, fourth) == (7, 7, 8, 8)
        assert "loss/l1" in values
        assert norms == {
            *(f"{kind}/{name}" for kind in ("grad_norm", "grad_share") for name in ("l1", "l2")),
            "grad_norm/total",
            "grad_cos/l2__l1",
        }
        # A base loss that the call did not know of changes total and shares.
        assert {"loss/base_loss", "loss/total", "loss/l1/share", "grad_share/base_loss"} <= both
        lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert [(line["event"], line["step"], line["pipeline"]) for line in lines] == [
            (event, step, "main") for step in (7, 8) for event in ("pipeline.stop", "gradients.stop")
        ]
        assert lines[1]["call"] == lines[0]["call"] != lines[2]["call"]
        assert lines[3]["loss_total"] == out.read().total

    def test_is_logged_in_a_line(self, caplog: pytest.LogCaptureFixture) -> None:
        handler_id = telemetry.attach_logger()
        caplog.set_level("INFO", "penalties")
        x = torch.ones(2, requires_grad=True)
        pn.gradients.track(pn.Pipeline(["l1"], name="main")(x, step=3), at=x)
        telemetry.detach(handler_id)
        line = caplog.messages[-1]
        assert line.startswith("gradients main stop: step=3 total=2.0000 regularizers=2.0000 grad_norm=1.4142 in ")
