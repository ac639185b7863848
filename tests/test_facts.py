"""What penalties declare about themselves is true of them."""

import functools
import inspect
import re
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties import functional
from penalties.functional.penalty import Elementwise, Facts, facts_of
from tests.cases import declared
from tests.libraries import TORCH

PENALTIES = {name: facts for name in functional.__all__ if (facts := facts_of(getattr(functional, name)))}
ROWS = [name for name, facts in PENALTIES.items() if facts.rows]


def as_tensors(arguments: tuple[Any, ...]) -> list[Any]:
    return [
        TORCH.array(part, "float64" if part.dtype.kind == "f" else "int64") if isinstance(part, np.ndarray) else part
        for part in arguments
    ]


def test_helpers_have_no_facts() -> None:
    assert set(functional.__all__) - set(PENALTIES) == {
        *("renormalize", "replace_nonfinite", "safe_log", "target_logprobs", "valid_logprobs", "validate"),
        "with_gradient_penalty",
    }


@pytest.mark.parametrize("name", PENALTIES)
def test_every_penalty_runs_on_its_example(name: str) -> None:
    value = getattr(pn, name)(*as_tensors(PENALTIES[name].example()))
    assert value.shape == ()
    assert np.isfinite(value.item())
    assert value.item() != 0


@pytest.mark.parametrize("reduction", ["sum", "mean"])
@pytest.mark.parametrize("name", ROWS)
def test_a_penalty_over_rows_is_the_sum_or_mean_of_its_rows(name: str, reduction: str) -> None:
    facts, function = PENALTIES[name], getattr(pn, name)
    assert facts.separable({"reduction": reduction})
    arrays = facts.example()
    rows = [function(*row, reduction=reduction) for row in zip(*[np.split(x, 2) for x in arrays], strict=True)]
    whole = function(*arrays, reduction=reduction)
    assert whole == pytest.approx(getattr(np, reduction)(rows), rel=1e-12)


@pytest.mark.parametrize("name", PENALTIES)
def test_labels_are_the_inputs_that_are_whole_numbers(name: str) -> None:
    facts = PENALTIES[name]
    parameters = inspect.signature(facts.function).parameters
    example = dict(zip(parameters, facts.example(), strict=False))
    whole = [key for key, part in example.items() if isinstance(part, np.ndarray) and part.dtype.kind == "i"]
    assert whole == list(facts.labels)


def test_a_declared_example_with_labels_is_a_case() -> None:
    case = declared("cross_entropy", PENALTIES["cross_entropy"])
    assert [x.dtype.kind for x in case.make(np.random.default_rng(0))] == ["f"]
    assert list(case.options) == ["targets"]
    assert np.isfinite(case.on(TORCH)(*as_tensors(tuple(case.make(np.random.default_rng(0))))).item())


def test_options_that_couple_rows_are_known() -> None:
    l2 = PENALTIES["l2"]
    assert l2.separable({"center": 0.5})
    assert not l2.separable({"center": "mean"})
    assert not l2.separable({"reduction": "none"})
    assert not PENALTIES["entropy"].separable({"mask": np.ones(2)})
    assert not PENALTIES["orthogonality"].separable()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("l1", {}),
        ("l2", {}),
        ("elastic_net", {}),
        ("elastic_net", {"l1_ratio": 0.2}),
        ("smooth_l1", {}),
        ("smooth_l1", {"delta": 0.6}),
    ],
)
def test_closed_forms_are_value_and_gradient(name: str, options: dict[str, Any]) -> None:
    import torch

    form = PENALTIES[name].closed_form(options)
    assert form is not None
    x = torch.tensor([[0.3, -1.2, 0.0], [1.9, 0.6, -0.6]], dtype=torch.float64, requires_grad=True)
    value = getattr(pn, name)(x, **options)
    (gradient,) = torch.autograd.grad(value, x)
    array = x.detach().numpy()
    s = np.sign(array) if form.delta == 0 else np.clip(array / form.delta, -1, 1)
    closed = form.bent * (s * array - form.delta / 2 * s * s) + form.straight / 2 * array * array
    assert value.item() == pytest.approx(closed.sum(), rel=1e-12)
    np.testing.assert_allclose(gradient.numpy(), form.bent * s + form.straight * array, rtol=1e-12)


@pytest.mark.parametrize("options", [{"clip": 1.0}, {"center": 0.5}, {"center": "mean"}])
def test_a_clipped_or_centered_norm_has_no_closed_form(options: dict[str, Any]) -> None:
    assert PENALTIES["l2"].closed_form(options) is None


def test_a_partial_that_fixes_options_has_the_facts_with_these_options() -> None:
    fixed = facts_of(functools.partial(pn.elastic_net, l1_ratio=0.0, reduction="mean"))
    assert isinstance(fixed, Facts)
    assert fixed.closed_form() == Elementwise(0.0, 2.0)
    assert fixed.options()["reduction"] == "mean"


def test_a_partial_that_fixes_an_input_and_a_wrapper_have_no_facts() -> None:
    @functools.wraps(pn.l1)
    def doubled(x: Any) -> Any:
        return 2 * pn.l1(x) ** 2

    assert facts_of(doubled) is None
    assert facts_of(functools.partial(pn.kl_divergence, np.zeros(2))) is None
    assert facts_of(functools.partial(pn.kl_divergence, q=np.zeros(2))) is None
    assert facts_of(lambda x: x) is None


@pytest.mark.parametrize("name", functional.__all__)
def test_a_docstring_says_what_every_parameter_is(name: str) -> None:
    """An editor's hover is enough to call it: a list has every parameter by name."""
    function = getattr(functional, name)
    listed = re.findall(r"^ *- ((?:`\w+`(?:, )?)+): ", inspect.getdoc(function) or "", re.MULTILINE)
    assert re.findall(r"\w+", " ".join(listed)) == list(inspect.signature(function).parameters)


def test_a_row_is_a_vector_of_the_last_axis_or_an_element() -> None:
    vectors = {name for name, facts in PENALTIES.items() if facts.over_vectors()}
    assert vectors == {"kl_divergence", "js_divergence", "entropy", "cross_entropy"}
    consistency = PENALTIES["consistency"]
    metrics = ("mse", "l1", "cosine", "kl")
    assert [consistency.over_vectors({"metric": one}) for one in metrics] == [False, False, True, True]
