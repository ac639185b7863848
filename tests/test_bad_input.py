"""Every mistake is refused at once, by a message that says what was given, what was expected, and where."""

import inspect
import pickle
import re
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.functional.penalty import facts_of
from penalties.pipeline.catalogue import BUILT_IN
from tests.libraries import LIBRARIES, TORCH, call

X = np.ones((2, 3))

WORDS = [
    ("l1", {"reduction": "avg"}, 'l1: reduction="avg"; expected "sum", "mean" or "none"'),
    ("l1", {"reduction": None}, 'l1: reduction=None; expected "sum", "mean" or "none"'),
    ("l2", {"center": "median"}, 'l2: center="median"; expected None, "mean" or a finite number'),
    (
        "kl_divergence",
        {"direction": "backward"},
        'kl_divergence: direction="backward"; expected "forward" or "reverse"',
    ),
    ("entropy", {"mode": "maximize"}, 'entropy: mode="maximize"; expected "penalty" or "bonus"'),
    ("consistency", {"metric": "l2"}, 'consistency: metric="l2"; expected "mse", "l1", "cosine" or "kl"'),
    ("consistency", {"reduction": "max"}, 'consistency: reduction="max"; expected "sum", "mean" or "none"'),
    ("orthogonality", {"mode": "svd"}, 'orthogonality: mode="svd"; expected "soft", "hard" or "spectral"'),
    ("orthogonality", {"axis": "last"}, 'orthogonality: axis="last"; expected "rows", "sequence" or "vocabulary"'),
    ("orthogonality", {"reduction": "none"}, 'orthogonality: reduction="none"; expected "sum" or "mean"'),
    ("output_magnitude", {"reduction": "none"}, 'output_magnitude: reduction="none"; expected "mean" or "sum"'),
    ("kl_estimate", {"estimator": "k4"}, 'kl_estimate: estimator="k4"; expected "k1", "k2" or "k3"'),
    ("entropy_estimate", {"mode": "min"}, 'entropy_estimate: mode="min"; expected "penalty" or "bonus"'),
    ("entropy_estimate", {"reduction": "avg"}, 'entropy_estimate: reduction="avg"; expected "sum", "mean" or "none"'),
]
NUMBERS = [
    ("l2", {"clip": 0}, "l2: clip=0; expected None or a finite number above 0"),
    ("l2", {"clip": -1.0}, "l2: clip=-1.0; expected None or a finite number above 0"),
    ("l2", {"clip": np.inf}, "l2: clip=inf; expected None or a finite number above 0"),
    ("l2", {"center": np.nan}, 'l2: center=nan; expected None, "mean" or a finite number'),
    ("l2", {"clip": np.float32(0)}, "l2: clip=np.float32(0.0); expected None or a finite number above 0"),
    ("l2", {"center": np.float32(np.inf)}, 'l2: center=np.float32(inf); expected None, "mean" or a finite number'),
    ("l2", {"center": 10**400}, f'l2: center={10**400}; expected None, "mean" or a finite number'),
    (
        "entropy",
        {"temperature": np.float32(0)},
        "entropy: temperature=np.float32(0.0); expected a finite number above 0",
    ),
    ("l2", {"center": [1.0, 2.0]}, 'l2: center=[1.0, 2.0]; expected None, "mean" or a finite number'),
    ("l2", {"center": True}, 'l2: center=True; expected None, "mean" or a finite number'),
    ("elastic_net", {"l1_ratio": 1.5}, "elastic_net: l1_ratio=1.5; expected a number from 0 to 1"),
    ("elastic_net", {"l1_ratio": -0.1}, "elastic_net: l1_ratio=-0.1; expected a number from 0 to 1"),
    ("elastic_net", {"l1_ratio": "half"}, 'elastic_net: l1_ratio="half"; expected a number from 0 to 1'),
    ("smooth_l1", {"delta": 0.0}, "smooth_l1: delta=0.0; expected a finite number above 0"),
    ("kl_divergence", {"floor": 1.0}, "kl_divergence: floor=1.0; expected None or a finite log-probability, at most 0"),
    (
        "kl_divergence",
        {"floor": -np.inf},
        "kl_divergence: floor=-inf; expected None or a finite log-probability, at most 0",
    ),
    ("kl_divergence", {"symmetric": 1}, "kl_divergence: symmetric=1; expected True or False"),
    ("kl_divergence", {"logits": "yes"}, 'kl_divergence: logits="yes"; expected True or False'),
    ("js_divergence", {"base": 1}, "js_divergence: base=1; expected None or a finite number above 0, not 1"),
    (
        "js_divergence",
        {"base": 0.5, "sqrt": True},
        "js_divergence: base=0.5; expected None or a finite number above 1, with sqrt=True",
    ),
    ("js_divergence", {"sqrt": 1}, "js_divergence: sqrt=1; expected True or False"),
    ("js_divergence", {"temperature": 0}, "js_divergence: temperature=0; expected a finite number above 0"),
    ("kl_divergence", {"temperature": -1.0}, "kl_divergence: temperature=-1.0; expected a finite number above 0"),
    ("js_divergence", {"base": 0}, "js_divergence: base=0; expected None or a finite number above 0, not 1"),
    ("entropy", {"temperature": 0}, "entropy: temperature=0; expected a finite number above 0"),
    ("entropy", {"temperature": -1}, "entropy: temperature=-1; expected a finite number above 0"),
    ("entropy", {"normalize": None}, "entropy: normalize=None; expected True or False"),
    ("entropy", {"logits": 1, "temperature": 2}, "entropy: logits=1; expected True or False"),
    ("orthogonality", {"sample_size": 1}, "orthogonality: sample_size=1; expected a whole number of at least 2"),
    ("orthogonality", {"sample_size": 2.0}, "orthogonality: sample_size=2.0; expected a whole number of at least 2"),
    ("orthogonality", {"iterations": 0}, "orthogonality: iterations=0; expected a whole number of at least 1"),
    ("orthogonality", {"normalize": "no"}, 'orthogonality: normalize="no"; expected True or False'),
    ("output_magnitude", {"target": -1}, "output_magnitude: target=-1; expected a finite number of at least 0"),
    ("replace_nonfinite", {"nan": np.nan}, "replace_nonfinite: nan=nan; expected a number within ±3e38"),
    ("replace_nonfinite", {"inf": 0}, "replace_nonfinite: inf=0; expected a number above 0, at most 3e38"),
    ("replace_nonfinite", {"inf": 1e300}, "replace_nonfinite: inf=1e+300; expected a number above 0, at most 3e38"),
]
COMBINATIONS = [
    ({"mode": "soft", "exact": True}, 'exact=True; expected False: it belongs to mode="spectral", not mode="soft"'),
    ({"exact": 1}, "exact=1; expected True or False"),
    (
        {"mode": "hard", "iterations": 5},
        'iterations=5; expected the default, unless mode="spectral" and exact=False',
    ),
    ({"mode": "spectral", "exact": True, "iterations": 5}, "iterations=5; expected the default"),
    ({"mode": "spectral", "reduction": "mean"}, 'reduction="mean"; expected "sum": mode="spectral" is one number'),
    ({"mode": "spectral", "sample_size": 2}, 'sample_size=2; expected None: mode="spectral" needs every row'),
]
PAIRED = {
    name: tuple(inspect.signature(fn).parameters)[:2]
    for name, fn in BUILT_IN.items()
    if (facts := facts_of(fn)) and [getattr(part, "dtype", None) for part in facts.example()] == [np.float64] * 2
}
"""The penalties of two arrays, by what they call them."""


def inputs(name: str, x: Any = X) -> tuple[Any, ...]:
    return (x, x) if name in PAIRED else (x,)


@pytest.mark.parametrize(("name", "options", "message"), WORDS + NUMBERS, ids=[row[2] for row in WORDS + NUMBERS])
def test_a_value_that_is_not_allowed(library: Any, name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(pn.OptionError, match=f"^{re.escape(message)}$") as caught:
        call(library, name, *inputs(name), **options)
    error = caught.value
    assert isinstance(error, ValueError)
    assert error.function == name
    assert error.option in options
    assert error.value is options[error.option]
    assert error.expected in message


@pytest.mark.parametrize(("options", "message"), COMBINATIONS)
def test_options_that_do_not_go_together(library: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(pn.OptionError, match=re.escape(f"orthogonality: {message}")):
        call(library, "orthogonality", X, **options)


def test_an_unknown_option_names_the_nearest(library: Any) -> None:
    with pytest.raises(pn.OptionError) as caught:
        call(library, "l1", X, reducton="mean")
    assert str(caught.value) == ('l1: reducton="mean"; expected the option reduction; did you mean reduction?')
    with pytest.raises(pn.OptionError) as caught:
        call(library, "l2", X, **{"lambda": 0.1})
    assert str(caught.value) == (
        "l2: lambda=0.1; expected one of the options reduction, center, clip: "
        "strength is a factor, 0.1 * l2(…), or the weight of a term"
    )
    with pytest.raises(pn.OptionError, match="renormalize: axis=0; expected no option$"):
        call(library, "renormalize", X, axis=0)


@pytest.mark.parametrize("name", PAIRED)
def test_shapes_that_differ(library: Any, name: str) -> None:
    first, second = PAIRED[name]
    message = (
        f"{name}: {first} has shape (2, 3) and {second} has shape (2, 1); expected equal shapes (nothing is broadcast)"
    )
    with pytest.raises(pn.ShapeError, match=f"^{re.escape(message)}$"):
        call(library, name, X, np.ones((2, 1)))


def test_shapes_that_differ_for_the_interpolated_penalty(autodiff: Any) -> None:
    with pytest.raises(pn.ShapeError, match=re.escape("x has shape (2, 3) and reference has shape (3,)")):
        pn.interpolated_gradient_penalty(lambda z: z.sum(), autodiff.array(X), autodiff.array(np.ones(3)))


@pytest.mark.parametrize("name", ["kl_divergence", "js_divergence", "entropy", "renormalize", "valid_logprobs"])
def test_a_scalar_has_no_last_axis(library: Any, name: str) -> None:
    with pytest.raises(pn.ShapeError, match=f"^{name}: .* is a scalar; expected log-probabilities over the last axis$"):
        call(library, name, *inputs(name, 1.0))


def test_other_functions_that_need_an_axis(library: Any) -> None:
    with pytest.raises(pn.ShapeError, match="^orthogonality: x is a scalar; expected at least one axis$"):
        call(library, "orthogonality", 1.0)
    with pytest.raises(pn.ShapeError, match='^consistency: a is a scalar; metric="kl" needs a last axis$'):
        call(library, "consistency", 1.0, 1.0, metric="kl")
    with pytest.raises(pn.ShapeError, match="^consistency: a is a scalar; a mask needs a last axis$"):
        call(library, "consistency", 1.0, 1.0, mask=np.array(1.0))


@pytest.mark.parametrize("name", ["kl_divergence", "js_divergence", "entropy", "consistency"])
def test_a_mask_of_another_shape(library: Any, name: str) -> None:
    message = rf"^{name}: mask has shape \(2, 3\); expected \(2,\), the shape of [ap] without its last axis$"
    with pytest.raises(pn.ShapeError, match=message):
        call(library, name, *inputs(name), mask=X)


def test_a_mask_of_another_shape_for_estimators(library: Any) -> None:
    message = re.escape("logprobs has shape (2, 3) and mask has shape (2,); expected equal shapes")
    for name in ("kl_estimate", "entropy_estimate"):
        with pytest.raises(pn.ShapeError, match=message):
            call(library, name, *inputs(name), mask=np.ones(2))


NO_ARRAYS = [
    ([1.0, 2.0], "l1: x[0] is a float; expected a NumPy array, a torch.Tensor or a jax.Array"),
    (3, "l1: x is a int; expected a NumPy array, a torch.Tensor or a jax.Array"),
    ("abc", "l1: x is a str; expected a NumPy array, a torch.Tensor or a jax.Array"),
    ({"a": {"b": object()}}, "l1: x['a']['b'] is a object; expected a NumPy array, a torch.Tensor or a jax.Array"),
    ([], "l1: x is a list without arrays; expected at least one array"),
    ({}, "l1: x is a dict without arrays; expected at least one array"),
    ([None, ()], "l1: x is a list without arrays; expected at least one array"),
    (None, "l1: x is a NoneType without arrays; expected at least one array"),
]


@pytest.mark.parametrize(("x", "message"), NO_ARRAYS, ids=[row[1] for row in NO_ARRAYS])
def test_what_is_no_array_or_nest(x: Any, message: str) -> None:
    with pytest.raises(pn.BackendError, match=f"^{re.escape(message)}$") as caught:
        pn.l1(x)
    assert isinstance(caught.value, TypeError)


def test_a_number_among_arrays(library: Any) -> None:
    with pytest.raises(pn.BackendError, match=re.escape("l2: x['b'][1] is a float; expected")):
        pn.l2({"a": library.array(X), "b": [library.array(X), 0.5]})
    with pytest.raises(pn.BackendError, match="^kl_divergence: q is a list; expected a NumPy array"):
        pn.kl_divergence(library.array(X), [library.array(X)])


def test_none_instead_of_an_array(library: Any) -> None:
    x = library.array(X)
    for name, (_, second) in PAIRED.items():
        with pytest.raises(pn.BackendError, match=f"^{name}: {second} is a NoneType; expected a NumPy array"):
            getattr(pn, name)(x, None)
    with pytest.raises(pn.BackendError, match="^entropy: p is a NoneType; expected"):
        pn.entropy(None, mask=x)
    with pytest.raises(pn.BackendError, match="^entropy_estimate: logprobs is a NoneType without arrays"):
        pn.entropy_estimate(None, mask=x)
    with pytest.raises(pn.BackendError, match="^interpolated_gradient_penalty: reference is a NoneType; expected"):
        pn.interpolated_gradient_penalty(lambda z: z.sum(), x, None)


def test_a_module_is_advised_to_pass_its_parameters() -> None:
    with pytest.raises(
        pn.BackendError, match=r"^l1: x is a Linear; expected .*; for a module pass module.parameters\(\)$"
    ):
        pn.l1(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("dtype", ["complex64", "str", "object"])
def test_masks_that_are_no_numbers(dtype: str) -> None:
    with pytest.raises(pn.BackendError, match="has dtype .*; expected real numbers"):
        pn.entropy(X, mask=np.array([1, 0]).astype(dtype))


OTHERS = [(a, b) for a in LIBRARIES for b in LIBRARIES if a is not b]


@pytest.mark.parametrize(("one", "other"), OTHERS, ids=lambda library: library.name)
def test_two_libraries_in_one_call(one: Any, other: Any) -> None:
    x, y = one.array(X), other.array(X)
    both = f"is a {one.errors} array and {{}} is a {other.errors} array; expected one library in a call"
    for name, (first, second) in PAIRED.items():
        with pytest.raises(pn.BackendError, match=f"{name}: {first} {both.format(second)}"):
            getattr(pn, name)(x, y)
    with pytest.raises(pn.BackendError, match=re.escape(f"l1: x[0] {both.format('x[1]')}")):
        pn.l1([x, y])
    with pytest.raises(pn.BackendError, match=f"entropy: p {both.format('mask')}"):
        pn.entropy(x, mask=y[0])
    with pytest.raises(pn.BackendError, match=f"kl_estimate: logprobs {both.format('reference')}"):
        pn.kl_estimate([x], [y])


def test_paired_nests_that_differ(library: Any) -> None:
    x = library.array(X)
    with pytest.raises(pn.ShapeError, match=r"logprobs has an array at \[1\] and reference has none there"):
        pn.kl_estimate([x, x], [x])
    with pytest.raises(pn.ShapeError, match=re.escape("logprobs[1] has shape (2, 3) and reference[1] has shape (3,)")):
        pn.kl_estimate([x, x], [x, library.array(np.ones(3))])
    with pytest.raises(pn.ShapeError, match=re.escape("logprobs has an array at ['a'] and reference has none there")):
        pn.kl_estimate({"a": x}, {"b": x})
    with pytest.raises(pn.ShapeError, match=re.escape("reference has an array at [1] and logprobs has none there")):
        pn.kl_estimate([x, None], (x, x))
    with pytest.raises(pn.ShapeError, match=re.escape("logprobs has an array at [0][0] and reference has none there")):
        pn.kl_estimate([[x], x], [x, [x]])


def test_paired_nests_pair_by_key_and_position(library: Any) -> None:
    one, two = library.array([-1.0]), library.array([-2.0, -3.0])
    for other in ({"a": one, "b": [two, one]}, {"b": [two, one], "a": one}):
        assert library.numpy(pn.kl_estimate({"a": one, "b": (two, one)}, other, reduction="sum")) == 0
    assert library.numpy(pn.kl_estimate([one, two], (one, two), mask=[one, two])) == 0


def test_numbers_that_are_not_real(library: Any) -> None:
    z = library.array(X, "complex64")
    for name in ("l1", "orthogonality"):
        with pytest.raises(pn.BackendError, match=f"^{name}: an? .* has dtype .*complex64; expected real numbers$"):
            getattr(pn, name)(z)


def test_numpy_arrays_of_objects() -> None:
    with pytest.raises(pn.BackendError, match="has dtype object; expected real numbers"):
        pn.l1(np.array([None, 1], dtype=object))


@pytest.mark.parametrize("name", ["l1", "entropy", "orthogonality", "kl_divergence"])
@pytest.mark.parametrize("kind", [np.ma.masked_array, np.matrix])
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_arrays_whose_operations_are_others(name: str, kind: Any) -> None:
    """A mean of a masked array would be its sum by the number of all elements."""
    arguments = [kind(X)] * (2 if name == "kl_divergence" else 1)
    with pytest.raises(pn.BackendError, match=rf"{name}: an array is a {kind(X).__class__.__name__}; .*np\.asarray"):
        getattr(pn, name)(*arguments)


def test_numpy_has_no_gradients() -> None:
    for fn in (pn.gradient_penalty, pn.with_gradient_penalty):
        with pytest.raises(pn.BackendError, match="has no gradients; pass a torch.Tensor or a jax.Array$"):
            fn(lambda z: z.sum(), X)
    for seed in (0, np.random.default_rng(0), np.array([0.5, 0.5])):
        with pytest.raises(pn.BackendError, match="^interpolated_gradient_penalty: NumPy has no gradients"):
            pn.interpolated_gradient_penalty(lambda z: z.sum(), X, X, seed=seed)


@pytest.mark.parametrize(
    ("fn", "error", "message"),
    [
        (lambda z: 1.0, pn.BackendError, "fn returned a float; expected a {} array"),
        (lambda z: (z, z), pn.BackendError, "fn returned a tuple; expected a {} array"),
        (
            lambda z: z,
            pn.ShapeError,
            r"fn returned shape \(2, 3\) for x of shape \(2, 3\); expected \(\) or \(2,\) or \(2, 1\)",
        ),
        (lambda z: z.sum(0), pn.ShapeError, r"fn returned shape \(3,\) for x of shape \(2, 3\)"),
    ],
)
def test_functions_that_return_the_wrong_thing(autodiff: Any, fn: Any, error: type[Exception], message: str) -> None:
    for call_it in (pn.gradient_penalty, pn.with_gradient_penalty):
        with pytest.raises(error, match=message.format(autodiff.errors)):
            call_it(fn, autodiff.array(X))


def test_the_function_comes_before_the_array(autodiff: Any) -> None:
    for call_it in (pn.gradient_penalty, pn.with_gradient_penalty):
        with pytest.raises(pn.OptionError, match=f"{call_it.__name__}: fn=.*; expected a function, followed"):
            call_it(autodiff.array(X), autodiff.array(X))


def test_one_sample_gives_one_number(autodiff: Any) -> None:
    x = autodiff.array(np.ones(3))
    assert pn.gradient_penalty(lambda z: z.sum().reshape(1), x).shape == ()
    with pytest.raises(pn.ShapeError, match=r"fn returned shape \(3,\) for x of shape \(3,\); expected \(\) or \(1,\)"):
        pn.gradient_penalty(lambda z: z * z, x)


def test_gradients_need_floats(autodiff: Any) -> None:
    with pytest.raises(
        pn.BackendError, match="gradient_penalty: x has dtype .*int32; expected floats, to take a gradient"
    ):
        pn.gradient_penalty(lambda z: (1.0 * z).sum(), autodiff.array(X, "int32"))
    with pytest.raises(pn.BackendError, match="interpolated_gradient_penalty: x has dtype .*int32; expected floats"):
        pn.interpolated_gradient_penalty(lambda z: (1.0 * z).sum(), *[autodiff.array(X, "int32")] * 2)


def test_a_negative_target_norm(autodiff: Any) -> None:
    for name, arguments in (
        ("gradient_penalty", 1),
        ("with_gradient_penalty", 1),
        ("interpolated_gradient_penalty", 2),
    ):
        with pytest.raises(pn.OptionError, match=f"^{name}: target_norm=-1; expected a finite number of at least 0$"):
            getattr(pn, name)(lambda z: z.sum(), *[autodiff.array(X)] * arguments, target_norm=-1)


@pytest.mark.parametrize("cut", [lambda z: z.detach().sum(), lambda z: (0 * z.detach() + 1).sum().requires_grad_()])
def test_a_function_that_torch_cannot_differentiate(cut: Any) -> None:
    with pytest.raises(pn.GradientError, match="^gradient_penalty: the output of fn does not depend on x") as caught:
        pn.gradient_penalty(cut, TORCH.array(X))
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("seed", [-1, 1.5, True, "random", None])
def test_what_is_no_seed(library: Any, seed: Any) -> None:
    message = f"a whole number of at least 0, a.*(Generator|key), or the drawn {library.errors} array$"
    for options in ({"sample_size": 2}, {"sample_size": 9}, {}):
        with pytest.raises(pn.OptionError, match=message):
            call(library, "orthogonality", np.ones((4, 2)), seed=seed, **options)


def test_draws_of_the_wrong_number(library: Any) -> None:
    message = re.escape("orthogonality: seed has shape (3,); expected (2,), one row number per sampled row")
    with pytest.raises(pn.ShapeError, match=message):
        call(library, "orthogonality", np.ones((4, 2)), sample_size=2, seed=np.arange(3))
    with pytest.raises(
        pn.BackendError, match="seed has dtype .*float64; expected ints, one row number per sampled row"
    ):
        call(library, "orthogonality", np.ones((4, 2)), sample_size=2, seed=np.ones(2))
    if library.differentiates:
        x = library.array(X)
        with pytest.raises(pn.ShapeError, match=re.escape("seed has shape (3,); expected (2,), one number per sample")):
            pn.interpolated_gradient_penalty(lambda z: z.sum(-1), x, x, seed=library.array(np.ones(3)))
        with pytest.raises(pn.BackendError, match="seed has dtype .*int32; expected floats, one number per sample"):
            pn.interpolated_gradient_penalty(lambda z: z.sum(-1), x, x, seed=library.array(np.ones(2), "int32"))


def test_whole_numbers_of_any_kind_are_seeds(library: Any) -> None:
    x = np.random.default_rng(17).normal(size=(6, 3))
    plain = library.numpy(call(library, "orthogonality", x, sample_size=3, seed=3))
    for kind in (np.int64, np.uint8):
        assert library.numpy(call(library, "orthogonality", x, sample_size=3, seed=kind(3))) == plain


def test_errors_survive_pickling() -> None:
    for error in (
        pn.OptionError("l1", "reduction", "avg", '"sum"'),
        pn.NonFiniteError("nan", "validate: nan"),
        pn.NonFiniteError("inf", "the value is inf", "l1"),
        pn.NonFiniteError("nan", "datum 0: the gradient of the loss is nan", "l1", "gradient"),
        pn.ShapeError("l1: x"),
    ):
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


def test_every_error_has_one_parent() -> None:
    for name in pn.__all__:
        if name.endswith("Error"):
            assert issubclass(getattr(pn, name), pn.PenaltiesError)
