"""Each term's own gradient, the inner products between them, and tracking that leaves the backward to the user."""

from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE, LIBRARIES, TORCH, close

needs_torch = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")

PIPELINE = pn.Pipeline(
    [pn.Term(pn.l1, weight=0.1), pn.Term(pn.l2, weight=3.0), pn.Term(lambda x: (x**3).sum(), name="own", weight=0.0)],
    base=pn.l2,
)
X = np.array([1.0, -2.0, 0.5])
GRADIENTS = {"base_loss": 2 * X, "l1": np.sign(X), "l2": 2 * X, "own": 3 * X**2}


class TestValueAndGrad:
    def test_kept_gradients_are_unscaled(self, autodiff: Any) -> None:
        out = PIPELINE.value_and_grad(autodiff.array(X), wrt="input", keep=True)
        for name, expected in GRADIENTS.items():
            close(autodiff.numpy(out[name].gradient), expected)
        close(autodiff.numpy(out.gradient), GRADIENTS["base_loss"] + 0.1 * GRADIENTS["l1"] + 3.0 * GRADIENTS["l2"])

    def test_gram_has_the_inner_products(self, autodiff: Any) -> None:
        out = PIPELINE.value_and_grad(autodiff.array(X), wrt="input", keep=True)
        stacked = np.stack(list(GRADIENTS.values()))
        close(autodiff.numpy(out.gram), stacked @ stacked.T)
        assert out.names == tuple(GRADIENTS)
        assert out.cosines is None

    def test_cosines_bring_the_gram_matrix_and_no_gradients(self, autodiff: Any) -> None:
        out = PIPELINE.value_and_grad(autodiff.array(X), wrt="input", cosines=True)
        gram, cosines = autodiff.numpy(out.gram), autodiff.numpy(out.cosines)
        lengths = np.sqrt(np.diagonal(gram))
        close(cosines, gram / np.outer(lengths, lengths))
        assert out["l1"].gradient is None

    # JAX adds up the products of a long row in one go: 2e-5 of equal ones is lost.
    @pytest.mark.parametrize(("size", "digits"), [(3, 1e-6), (90_000, 5e-5)])
    @pytest.mark.parametrize("scale", [1e30, 1e-19])
    def test_cosines_of_gradients_whose_products_are_out_of_range(
        self, library: Any, scale: float, size: int, digits: float
    ) -> None:
        def brings(gradient: Any) -> Any:
            return lambda x: pn.Evaluation(0 * x.sum(), gradient={"x": library.array(gradient, "float32")})

        ones, steps = np.ones(size), np.arange(size) / size
        gradients = {"ordinary": ones, "large": scale * steps, "other": -scale * ones, "opposite": steps / scale}
        terms = [pn.Term(brings(gradient), name=name) for name, gradient in gradients.items()]
        x = library.array(ones, "float32")
        out = pn.Pipeline(terms).value_and_grad(x, wrt="input", cosines=True)
        rows = np.stack(list(gradients.values()))
        lengths = np.sqrt((rows**2).sum(1))
        products = rows @ rows.T
        np.testing.assert_allclose(library.numpy(out.cosines), products / np.outer(lengths, lengths), rtol=digits)
        # NumPy's are float64; where float32 cannot hold them they are infinite, or 0.
        held = np.clip(library.numpy(out.gram), -1e38, 1e38)
        np.testing.assert_allclose(held, np.clip(products, -1e38, 1e38), rtol=digits, atol=2e-38)

    @pytest.mark.filterwarnings("error")
    def test_the_cosine_with_a_gradient_of_zero_is_nan(self, library: Any) -> None:
        term = pn.Term(lambda x: pn.Evaluation(0 * x.sum(), gradient={"x": 0 * x}), name="flat")
        out = pn.Pipeline([term]).value_and_grad(library.array(X), wrt="input", cosines=True)
        assert np.isnan(library.numpy(out.cosines)).all()
        assert library.numpy(out.gram).tolist() == [[0.0]]

    def test_in_the_structure_of_the_inputs(self, autodiff: Any) -> None:
        params = {"w": autodiff.array(X), "b": [autodiff.array(X[:2])]}
        pipeline = pn.Pipeline([pn.Term(pn.l2, inputs="params"), pn.Term(pn.l1, inputs="x")])
        out = pipeline.value_and_grad(params=params, x=autodiff.array(X), wrt=("params", "x"), keep=True)
        close(autodiff.numpy(out["l2"].gradient["params"]["b"][0]), 2 * X[:2])
        close(autodiff.numpy(out["l1"].gradient["x"]), np.sign(X))
        assert out["l1"].gradient["params"] == {"w": None, "b": [None]}

    def test_changing_the_sum_leaves_the_kept_one(self) -> None:
        out = pn.Pipeline(["l1"]).value_and_grad(torch.as_tensor(X, device=DEVICE), wrt="input", keep=True)
        out.gradient.zero_()
        assert out["l1"].gradient.tolist() == [1.0, -1.0, 1.0]

    def test_without_keep_there_is_none(self, autodiff: Any) -> None:
        out = PIPELINE.value_and_grad(autodiff.array(X), wrt="input")
        assert out.gram is None
        assert all(term.gradient is None for term in out.all)

    def test_a_gradient_that_a_term_returns_itself(self) -> None:
        def own(x: Any) -> pn.Evaluation:
            return pn.Evaluation(np.float64(x.sum()), gradient={"x": np.full_like(x, 5.0)})

        out = pn.Pipeline([pn.Term(own, weight=0.5)]).value_and_grad(X, keep=True)
        assert out["own"].gradient.tolist() == [5.0, 5.0, 5.0]
        assert out.gram.tolist() == [[75.0]]

    def test_outputs_survive_jit(self) -> None:
        jax = pytest.importorskip("jax")
        out = jax.jit(lambda x: PIPELINE.value_and_grad(x, wrt="input", keep=True))(jax.numpy.asarray(X))
        np.testing.assert_allclose(out["own"].gradient, GRADIENTS["own"], rtol=1e-6)
        assert out.gram.shape == (4, 4)

    def test_outputs_survive_torch_compile(self) -> None:
        compiled = torch.compile(
            lambda x: PIPELINE.value_and_grad(x, wrt="input", keep=True), fullgraph=True, backend="aot_eager"
        )
        out = compiled(torch.as_tensor(X, device=DEVICE))
        close(out["own"].gradient.cpu().numpy(), GRADIENTS["own"])


@needs_torch
class TestElsewhere:
    def test_an_executor_keeps_them_too(self) -> None:
        x = torch.as_tensor(X, device=DEVICE)
        pipeline = PIPELINE.replace("l2", pn.Term(pn.l2, weight=3.0, runs="thread"))
        with pn.Executor(max_workers=1) as executor:
            out = executor.run(pipeline, x, wrt="input", keep=True)
        for name, expected in GRADIENTS.items():
            close(out[name].gradient.cpu().numpy(), expected)
        assert out.gram.shape == (4, 4)


@needs_torch
class TestTrack:
    def network(self) -> tuple[torch.nn.Linear, torch.Tensor, pn.LossOutput]:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 2, dtype=torch.float64).to(DEVICE)
        hidden = layer(torch.ones(4, 3, dtype=torch.float64, device=DEVICE))
        return layer, hidden, pn.Pipeline([pn.Term(pn.l1, weight=0.1), pn.Term(pn.l2)])(hidden)

    def test_no_backward_unless_requested(self) -> None:
        layer, hidden, out = self.network()
        tracked = pn.gradients.track(out, at=hidden)
        assert layer.weight.grad is None
        tracked.total.backward()
        expected, layer.weight.grad = layer.weight.grad, None
        _, hidden, out = self.network()
        layer, hidden, out = self.network()
        pn.gradients.track(out, at=hidden, backward=True)
        torch.testing.assert_close(layer.weight.grad, expected)

    def test_a_loss_scale_and_accumulation_are_the_users_own(self) -> None:
        layer, hidden, out = self.network()
        (out.total * 65536 / 4).backward()
        expected = layer.weight.grad
        layer, hidden, out = self.network()
        tracked = pn.gradients.track(out, at=hidden)
        (tracked.total * 65536 / 4).backward()
        torch.testing.assert_close(layer.weight.grad, expected)

    def test_kept_in_the_form_of_what_was_given(self) -> None:
        layer, hidden, out = self.network()
        at = pn.gradients.track(out, at=hidden, keep=True, cosines=False)
        torch.testing.assert_close(at["l1"].gradient, hidden.detach().sign())
        assert at.gram.shape == (2, 2)
        assert at.cosines is None
        wrt = pn.gradients.track(out, wrt=dict(layer.named_parameters()), keep=True)
        (expected,) = torch.autograd.grad(out["l2"].value, layer.bias)
        torch.testing.assert_close(wrt["l2"].gradient["bias"], expected)
