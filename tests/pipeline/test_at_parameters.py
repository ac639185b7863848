"""`gradients.at_parameters`: the norms of all terms at the same place, in JAX."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import penalties as pn
from penalties import telemetry
from tests.libraries import JAX, LIBRARIES, TORCH

pytestmark = pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")

PIPELINE = pn.Pipeline(
    [
        pn.Term(pn.l2, weight=0.5, name="size", inputs="hidden"),
        pn.Term(pn.l1, weight=0.1, name="sparsity", inputs="params"),
        pn.Term(lambda data: (data**2).sum(), name="constant"),
    ],
    base=pn.Term(lambda hidden: (hidden.sum(-1) ** 2).mean(), name="fit"),
)
RNG = np.random.default_rng(0)
DATA = jnp.asarray(RNG.normal(size=(5, 3)))
PARAMS = {"w": jnp.asarray(RNG.normal(size=(3, 2))), "b": jnp.asarray(RNG.normal(size=2))}


def called(params: Any, data: Any, **arguments: Any) -> pn.LossOutput:
    hidden = jnp.tanh(data @ params["w"] + params["b"])
    return PIPELINE(hidden=hidden, params=(params["w"], params["b"]), data=data, **arguments)


def length(tree: Any) -> float:
    return float(jnp.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(tree))))


@pytest.fixture(scope="module")
def exact() -> Any:
    """The gradient of each term, and that of the total, by JAX itself."""

    def values(params: Any) -> dict[str, Any]:
        out = called(params, DATA)
        return {"total": out.total, **{name: out[name].value for name in out.names}}

    return jax.jit(jax.jacrev(values))(PARAMS)


# Without jit every operation is compiled by itself.
@pytest.mark.parametrize("compiled", [pytest.param(False, marks=pytest.mark.slow), True])
def test_norms_are_those_of_each_term_at_the_parameters(exact: Any, compiled: bool):
    runs = []

    def fn(params: Any, data: Any) -> pn.LossOutput:
        runs.append(1)
        return called(params, data)

    def measured(params: Any, data: Any) -> pn.LossOutput:
        return pn.gradients.at_parameters(fn, params, data)

    out = (jax.jit(measured) if compiled else measured)(PARAMS, DATA)
    for name in ("base_loss", "size", "sparsity"):
        assert float(out[name].grad_norm) == pytest.approx(length(exact[name]), rel=1e-9)
    assert float(out.total_grad_norm) == pytest.approx(length(exact["total"]), rel=1e-9)
    for name in PARAMS:
        np.testing.assert_allclose(out.gradient[name], exact["total"][name], rtol=1e-9)
    assert float(out.total) == pytest.approx(float(called(PARAMS, DATA).total))
    assert len(runs) == 1


def test_cosines_and_kept_gradients_are_at_the_parameters_too(exact: Any):
    out = jax.jit(lambda params: pn.gradients.at_parameters(called, params, DATA, keep=True))(PARAMS)
    for name in PARAMS:
        np.testing.assert_allclose(out["size"].gradient[name], exact["size"][name], rtol=1e-9)
    inner = sum((exact["size"][name] * exact["sparsity"][name]).sum() for name in PARAMS)
    row, column = out.names.index("size"), out.names.index("sparsity")
    assert float(out.gram[row, column]) == pytest.approx(float(inner), rel=1e-9)
    expected = float(inner) / length(exact["size"]) / length(exact["sparsity"])
    assert float(out.cosines[row, column]) == pytest.approx(expected, rel=1e-9)
    assert pn.gradients.at_parameters(called, PARAMS, DATA, cosines=False).cosines is None


def test_a_term_that_does_not_depend_on_the_parameters_has_no_norm():
    out = pn.gradients.at_parameters(called, PARAMS, DATA)
    assert out["constant"].grad_norm is None
    reason = "its value does not depend on params by operations that JAX can differentiate"
    assert out["constant"].grad_error == reason


def test_weights_of_the_call_count():
    out = pn.gradients.at_parameters(lambda params: called(params, DATA, weights={"size": jnp.asarray(2.0)}), PARAMS)
    expected = jax.grad(lambda params: called(params, DATA, weights={"size": 2.0}).total)(PARAMS)
    np.testing.assert_allclose(out.gradient["w"], expected["w"], rtol=1e-9)


@pytest.mark.slow
def test_whole_numbers_among_the_parameters_have_no_gradient_and_half_precision_keeps_its_dtype():
    params = {"w": PARAMS["w"].astype("bfloat16"), "b": PARAMS["b"].astype("float32"), "steps": jnp.asarray(3)}
    out = pn.gradients.at_parameters(called, params, DATA.astype("float32"))
    assert out.gradient["steps"] is None
    assert (out.gradient["w"].dtype, out.gradient["b"].dtype) == (jnp.bfloat16, jnp.float32)


class TestEvents:
    def heard(self, call: Any) -> list[Any]:
        found: list[Any] = []
        handler = telemetry.attach(lambda *event: found.append(event))
        try:
            call()
        finally:
            telemetry.detach(handler)
        return found

    def test_a_call_emits_what_track_does(self, exact: Any):
        given: list[Any] = []

        def call() -> None:
            given.append(pn.gradients.at_parameters(lambda params: called(params, DATA, step=7), PARAMS))

        ((event, measured, metadata),) = self.heard(call)
        assert event == "gradients.stop"
        assert metadata["output"] is given[0]
        assert (metadata["pipeline"], metadata["step"]) == (PIPELINE.name, 7)
        assert float(measured["total_grad_norm"]) == pytest.approx(float(given[0].total_grad_norm))
        assert measured["duration"] > 0

    def test_a_sink_gets_the_norms(self, tmp_path: Path):
        with telemetry.JSONLines(tmp_path / "log.jsonl"):
            out = pn.gradients.at_parameters(lambda params: called(params, DATA, step=7), PARAMS)
        (line,) = [json.loads(text) for text in (tmp_path / "log.jsonl").read_text().splitlines()]
        assert line["step"] == 7
        assert str(float(out["size"].grad_norm))[:8] in json.dumps(line)

    def test_inside_a_transform_there_are_no_values_to_emit(self):
        jitted = jax.jit(lambda params: pn.gradients.at_parameters(called, params, DATA))
        assert self.heard(lambda: jitted(PARAMS)) == []

    def test_a_step_that_is_traced_is_not_told(self):
        stepped = jax.jit(lambda params, step: called(params, DATA, step=step))
        ((_, _, metadata),) = self.heard(lambda: pn.gradients.at_parameters(stepped, PARAMS, jnp.asarray(3)))
        assert metadata["step"] is None


def test_mistakes_are_errors_that_say_what_to_do():
    with pytest.raises(pn.BackendError, match=r"params are PyTorch arrays; .* gradients.track\(out, wrt=parameters\)"):
        pn.gradients.at_parameters(called, TORCH.array([1.0]))
    with pytest.raises(pn.OptionError, match="at_parameters: fn=.*; expected a function that returns"):
        pn.gradients.at_parameters(lambda params: params["w"].sum(), PARAMS)
    with pytest.raises(pn.BackendError, match=r"at_parameters: params\['w'\] is a str; expected"):
        pn.gradients.at_parameters(called, {"w": "text", "b": jnp.ones(2)})
    with pytest.raises(pn.GradientError, match="at_parameters: params has no floats"):
        pn.gradients.at_parameters(called, {"steps": jnp.asarray(3)})
    with pytest.raises(pn.GradientError, match="at_parameters: no term depends on params"):
        pn.gradients.at_parameters(lambda params: called(PARAMS, DATA), PARAMS)
