"""The score function: unbiased for each baseline, checked against the sum over all outcomes."""

import math
from typing import Any

import numpy as np
import pytest

import penalties as pn
from tests.libraries import LIBRARIES, TORCH, close

from .functions import lookup

LOGITS = np.array([0.2, -0.5, 0.9])
REWARDS = [6.0, 9.0, 3.0]


def of_samples(f: Any) -> Any:
    return f


def probabilities() -> Any:
    weights = np.exp(LOGITS)
    return weights / weights.sum()


def exact_gradient() -> Any:
    """∇ Σ p(k) f(k) at the logits of a categorical distribution."""
    p = probabilities()
    return p * (np.array(REWARDS) - (p * REWARDS).sum())


def estimates(baseline: str, steps: int, samples: int) -> Any:
    torch = pytest.importorskip("torch")
    term = pn.Term(lookup, options={"table": REWARDS})
    pipeline = pn.Pipeline([pn.ScoreFunction(term, logprobs="logprobs", baseline=baseline)])
    rng = np.random.default_rng(0)
    logits = torch.tensor(LOGITS, requires_grad=True)
    state, found = None, []
    for _ in range(steps):
        drawn = rng.choice(3, samples, p=probabilities())
        out = pipeline(samples=drawn, logprobs=logits.log_softmax(-1)[torch.from_numpy(drawn)], state=state)
        state = out.state
        found.append(torch.autograd.grad(out.total, logits)[0].numpy())
    return np.stack(found)


@pytest.mark.skipif(TORCH not in LIBRARIES, reason="needs PyTorch")
class TestEstimate:
    @pytest.mark.parametrize("baseline", ["none", "mean", "leave_one_out"])
    def test_mean_is_the_exact_gradient(self, baseline: str) -> None:
        found = estimates(baseline, 1500, 4)
        error = found.std(axis=0, ddof=1) / math.sqrt(len(found))
        assert (abs(found.mean(axis=0) - exact_gradient()) < 4 * error).all()

    def test_baselines_lower_the_variance(self) -> None:
        spread = {baseline: estimates(baseline, 600, 8).var(axis=0).sum() for baseline in ("none", "leave_one_out")}
        assert spread["leave_one_out"] < 0.9 * spread["none"]


def call(library: Any, f: Any, shape: Any = None, *, state: Any = None, mask: Any = None, **options: Any) -> Any:
    """The output of a call whose log-probabilities have this shape."""
    term = pn.ScoreFunction(
        pn.Term(of_samples), logprobs="lp", mask=None if mask is None else "mask", **{"baseline": "none", **options}
    )
    inputs = {"f": library.array(f), "lp": library.array(np.zeros(shape or np.shape(f)))}
    if mask is not None:
        inputs["mask"] = library.array(mask)
    return pn.Pipeline([term]).value_and_grad(**inputs, wrt="lp", state=state)


class TestFormula:
    def test_without_a_baseline(self, library: Any) -> None:
        out = call(library, [1.0, 4.0, -2.0])
        close(out.read().total, 1.0)
        close(library.numpy(out.gradient["lp"]), np.array([1.0, 4.0, -2.0]) / 3)
        metrics = out["of_samples"].metrics
        close(library.numpy(metrics["variance"]), 9.0)
        close(library.numpy(metrics["advantage"]), math.sqrt(7.0))

    def test_leaving_one_out(self, library: Any) -> None:
        out = call(library, [1.0, 4.0, -2.0], baseline="leave_one_out")
        close(library.numpy(out.gradient["lp"]), np.array([0.0, 4.5, -4.5]) / 3)

    def test_running_mean_of_earlier_calls(self, library: Any) -> None:
        first = call(library, [1.0, 3.0], baseline="mean", decay=0.5)
        second = call(library, [5.0, 7.0], baseline="mean", decay=0.5, state=first.state)
        third = call(library, [0.0, 0.0], baseline="mean", decay=0.5, state=second.state)
        close(library.numpy(first.gradient["lp"]), [0.5, 1.5])
        close(library.numpy(second.gradient["lp"]), [1.5, 2.5])
        close(library.numpy(third.gradient["lp"]), [-2.0, -2.0])

    def test_tokens_of_a_sample_are_added_and_a_mask_leaves_some_out(self, library: Any) -> None:
        mask = [[1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
        out = call(library, [2.0, 4.0], (2, 3), mask=mask)
        close(library.numpy(out.gradient["lp"]), [[1.0, 1.0, 0.0], [0.0, 2.0, 2.0]])

    def test_list_has_an_array_for_each_sample(self, library: Any) -> None:
        term = pn.ScoreFunction(pn.Term(of_samples), logprobs="lp", mask="mask", baseline="none")
        lp = [library.array([0.0, 0.0]), library.array([0.0])]
        mask = [library.array([0.0, 1.0]), library.array([1.0])]
        out = pn.Pipeline([term]).value_and_grad(f=[2.0, 4.0], lp=lp, mask=mask, wrt="lp")
        close(library.numpy(out.gradient["lp"][0]), [0.0, 1.0])
        close(library.numpy(out.gradient["lp"][1]), [2.0])

    def test_function_is_a_penalty_without_a_reduction(self, library: Any) -> None:
        term = pn.Term("l1", options={"reduction": "none"})
        pipeline = pn.Pipeline([pn.ScoreFunction(term, logprobs="lp", baseline="none")])
        out = pipeline.value_and_grad(x=library.array([1.0, -3.0]), lp=library.array([0.0, 0.0]), wrt="lp")
        close(library.numpy(out.gradient["lp"]), [0.5, 1.5])

    def test_metrics_and_state_of_the_function(self, library: Any) -> None:
        def judge(f: Any, state: Any) -> Any:
            return pn.Evaluation(f, metrics={"judged": 2.0}, state=(state or 0) + 1)

        pipeline = pn.Pipeline([pn.ScoreFunction(pn.Term(judge), logprobs="lp", baseline="none")])
        x = library.array([1.0, 2.0])
        first = pipeline.value_and_grad(f=x, lp=x, wrt="lp")
        out = pipeline.value_and_grad(f=x, lp=x, wrt="lp", state=first.state)
        assert out["judge"].metrics["judged"] == 2.0
        assert out.state["judge"]["inner"] == 2

    def test_inside_a_running_scale(self, library: Any) -> None:
        term = pn.Normalized(pn.ScoreFunction(pn.Term(of_samples), logprobs="lp", baseline="none"))
        x = library.array([1.0, 3.0])
        out = pn.Pipeline([term]).value_and_grad(f=x, lp=x, wrt="lp")
        close(library.numpy(out.gradient["lp"]), [0.25, 0.75])


def test_inside_jit() -> None:
    jax = pytest.importorskip("jax")
    pipeline = pn.Pipeline([pn.ScoreFunction(pn.Term(of_samples), logprobs="lp")])

    @jax.jit
    def gradient(f: Any, lp: Any, state: Any) -> Any:
        out = pipeline.value_and_grad(f=f, lp=lp, wrt="lp", state=state)
        return out.gradient["lp"], out.state

    f = jax.numpy.array([1.0, 3.0])
    first, state = gradient(f, f, None)
    second, _ = gradient(f, f, state)
    close(np.asarray(first), [0.5, 1.5])
    close(np.asarray(second), [-0.5, 0.5])


class TestWrong:
    @pytest.mark.parametrize(
        ("f", "shape", "options", "message"),
        [
            (1.0, (1,), {}, r"shape \(\); expected one value per sample: do not reduce it"),
            ([1.0], None, {"baseline": "leave_one_out"}, 'has 1 sample; expected 2 or more for baseline="leave_one'),
            ([1.0, 2.0], (3, 2), {}, r"values of shape \(2,\) for log-probabilities of shape \(3, 2\)"),
            ([1.0], (1, 2), {"mask": [1.0]}, r"its mask is of shape \(1,\); expected a .* array of shape \(1, 2\)"),
        ],
    )
    def test_call(self, library: Any, f: Any, shape: Any, options: Any, message: str) -> None:
        with pytest.raises(pn.TermError, match=message):
            call(library, f, shape, **options)

    @pytest.mark.parametrize(
        ("f", "lp", "message"),
        [
            (["a", "b"], np.zeros(2), "returned a list; expected an array, or a list of numbers, with one per sample"),
            ([1.0, 2.0], [np.zeros(2)], "for 1 arrays of log-probabilities, one per sample"),
            ([1.0, 2.0], "text", "its logprobs are a str; expected an array of floats"),
            ([1.0, 2.0], np.zeros(2, int), "its logprobs are an array of int64; expected an array of floats"),
        ],
    )
    def test_inputs(self, f: Any, lp: Any, message: str) -> None:
        with pytest.raises(pn.TermError, match=message):
            pn.Pipeline([pn.ScoreFunction(pn.Term(of_samples), logprobs="lp")])(f=f, lp=lp)

    def test_stateful_function_that_returns_none(self) -> None:
        def forgetful(f: Any, state: Any) -> Any:
            return f

        with pytest.raises(pn.TermError, match="takes state and returned an? ndarray; expected Evaluation"):
            pn.Pipeline([pn.ScoreFunction(pn.Term(forgetful), logprobs="lp")])(f=np.ones(2), lp=np.ones(2))

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"logprobs": ""}, 'logprobs=""; expected the name of an input'),
            ({"logprobs": "lp", "mask": 3}, "mask=3; expected the name of an input"),
            ({"logprobs": "lp", "baseline": "best"}, 'baseline="best"; expected "mean", "leave_one_out" or "none"'),
            ({"logprobs": "lp", "decay": 1.0}, "decay=1.0; expected a number from 0 to below 1"),
        ],
    )
    def test_options(self, arguments: Any, message: str) -> None:
        with pytest.raises(pn.OptionError, match=f"ScoreFunction: {message}"):
            pn.ScoreFunction(pn.Term(of_samples), **arguments)

    def test_function_of_any_number_of_arguments(self) -> None:
        term = pn.Term(lambda *xs: xs, name="all", inputs=("a", "b"))
        with pytest.raises(pn.OptionError, match="a function whose parameters have names"):
            pn.ScoreFunction(term, logprobs="lp")
