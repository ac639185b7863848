"""The checks for authors of terms: each passes what is right and can fail, and says why."""

import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.pipeline.catalogue import BUILT_IN
from penalties.testing import Check, Verdict, check_term
from tests.cases import EPSILON, TOKEN_MASK, log_softmax
from tests.libraries import JAX, LIBRARIES, NUMPY, TORCH

needs_torch = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
needs_jax = pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")

RNG = np.random.default_rng(5)
X = RNG.normal(size=(4, 3))
Y = RNG.normal(size=(4, 3))
LOGPROBS = log_softmax(X)
OTHER = log_softmax(Y)
TOKENS = -np.abs(RNG.normal(size=(2, 4))) - 0.1
REFERENCE = -np.abs(RNG.normal(size=(2, 4))) - 0.1


def result(verdict: Verdict, name: str) -> Check:
    (found,) = [check for check in verdict.checks if check.name == name]
    return found


def failure(name: str, term: Any, inputs: Any, **options: Any) -> str:
    """The detail of the one check that fails."""
    verdict = check_term(term, inputs, raises=False, **{"edges": (), "compile": False, **options})
    assert verdict.failed == (name,), str(verdict)
    assert not verdict.ok
    return result(verdict, name).detail


def status(name: str, term: Any, inputs: Any, **options: Any) -> tuple[str, str]:
    """The status and detail of a check, where none fails."""
    found = result(check_term(term, inputs, **{"edges": (), "compile": False, **options}), name)
    return found.status, found.detail


# Terms that can be imported, as an author's would be.


def squares(x):
    return (x**2).sum()


def hinge(x):
    return (x * (x > 0)).sum()


def own_gradient(x):
    return pn.Evaluation((x**2).sum(), gradient={"x": 2 * x})


def wrong_gradient(x):
    return pn.Evaluation((x**2).sum(), gradient={"x": 3 * x})


def cubes(z):
    return (z**3).sum(-1)


def running(x, state=None):
    total = (x**2).sum() + (0.0 if state is None else state["total"])
    return pn.Evaluation(total, state={"total": total, "calls": 1 if state is None else state["calls"] + 1})


def remembers_an_object(x, state=None):
    return pn.Evaluation((x**2).sum(), state={"seen": {1, 2}})


def forgets(x, state=None):
    return pn.Evaluation((x**2).sum())


def changes_its_state(x, state=None):
    seen = [] if state is None else state
    seen.append(1.0)
    return pn.Evaluation((x**2).sum() * len(seen), state=seen)


def trusts_a_tuple_type(x, state=None):
    doubled = isinstance(state, Count)
    return pn.Evaluation((x**2).sum() * (2 if doubled else 1), state=Count(1))


class Count(NamedTuple):
    count: int


# Everything that ships passes.

INPUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    **{name: ({"x": X}, {}) for name in ("l1", "l2", "elastic_net", "smooth_l1")},
    **{name: ({"p": LOGPROBS, "q": OTHER}, {}) for name in ("kl_divergence", "js_divergence")},
    "entropy": ({"p": LOGPROBS}, {}),
    "consistency": ({"a": X, "b": Y}, {}),
    "orthogonality": ({"x": X}, {}),
    "gradient_penalty": ({"fn": cubes, "x": X[:3]}, {}),
    "interpolated_gradient_penalty": ({"fn": cubes, "x": X[:3], "reference": Y[:3]}, {"seed": EPSILON}),
    "output_magnitude": ({"y": X}, {}),
    "kl_estimate": ({"logprobs": TOKENS, "reference": REFERENCE, "mask": TOKEN_MASK}, {}),
    "entropy_estimate": ({"logprobs": TOKENS}, {}),
}


def converted(library: Any, given: dict[str, Any]) -> dict[str, Any]:
    return {key: library.array(value) if isinstance(value, np.ndarray) else value for key, value in given.items()}


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_ships_passes(autodiff: Any, name: str) -> None:
    inputs, options = INPUTS[name]
    names = {parameter: parameter for parameter in inputs}
    term = pn.Term(name, inputs=names, options=converted(autodiff, options))
    wrt = [key for key, value in inputs.items() if isinstance(value, np.ndarray) and key != "mask"]
    # The ratio of two probabilities overflows where they are e¹⁰⁰⁰⁰ apart; a drawn ε belongs to as many rows.
    left_out = {"kl_estimate": ["large"], "interpolated_gradient_penalty": ["one_row"]}.get(name, [])
    edges = [edge for edge in ("zeros", "tiny", "large", "one_row", "half") if edge not in left_out]
    if autodiff is JAX:  # every new shape and dtype is compiled, operation by operation
        edges = [edge for edge in edges if edge not in ("one_row", "half")]
    verdict = check_term(term, converted(autodiff, inputs), wrt=wrt, edges=edges)
    assert verdict.ok
    assert [check.status for check in verdict.checks] == ["passed"] * (len(edges) + 4) + ["skipped"]


@needs_torch
@pytest.mark.parametrize("wrap", [pn.EMA, pn.Normalized])
def test_wrappers_pass(wrap: Callable[..., pn.Term]) -> None:
    # The scale of Normalized is held constant, so differences of its value are not its gradient.
    wrt = () if wrap is pn.Normalized else None
    verdict = check_term(wrap(pn.Term(pn.l1)), torch.tensor(X), wrt=wrt)
    assert result(verdict, "state") == Check("state", "passed", "taken, returned, saved and loaded")


# Value.


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (lambda x: x**2, r"returned an array of shape \(4, 3\)"),
        (lambda x: float((x**2).sum()), "returned a plain number"),
        (lambda x: None, "returned None"),
        (lambda x: ((x**2).sum(), {"who": "me"}), "returned the metric who as a str"),
        (lambda x: {}["nothing"], "raised KeyError"),
        (lambda x: (x**2).sum() / 0.0, "it is inf at the given inputs"),
    ],
)
def test_a_wrong_value_fails_before_anything_else(library: Any, fn: Callable[..., Any], said: str) -> None:
    verdict = check_term(pn.Term(fn, name="term"), library.array(X), raises=False)
    value, others = verdict.checks
    assert value.name == "value"
    assert value.status == "failed"
    assert re.search(said, value.detail), value.detail
    assert others == Check("others", "skipped", "they need a value that is right")


def test_a_value_that_changes_fails(library: Any) -> None:
    draws = iter([1.0, 2.0])
    said = failure("value", pn.Term(lambda x: (x * 0.0).sum() + next(draws), name="noise"), library.array(X))
    assert said == "1, and 2 the second time; draw by a seed, keep nothing between calls"


@pytest.mark.parametrize("mutable", [NUMPY, TORCH], ids=lambda mutable: mutable.name)
def test_changing_an_input_in_place_fails_and_leaves_the_authors_alone(mutable: Any) -> None:
    def doubles(params):
        params[1].__imul__(2.0)
        return params[0].sum() + params[1].sum()

    given = [mutable.array(X), mutable.array(Y)]
    assert failure("value", doubles, given) == "it changes its input params[1] in place; make a new array"
    np.testing.assert_array_equal(mutable.numpy(given[1]), Y)


def test_metrics_are_counted() -> None:
    def two(x):
        return (x**2).sum(), {"size": x.size, "most": x.max()}

    assert status("value", two, np.ones(3)) == ("passed", "3, float64, the same twice, 2 metrics")
    assert status("value", lambda_named(lambda x: (x.sum(), {"n": 1})), np.ones(3))[1].endswith(", 1 metric")


def lambda_named(fn: Callable[..., Any], **arguments: Any) -> pn.Term:
    return pn.Term(fn, name="term", **arguments)


# Gradient.


def test_a_wrong_gradient_fails_with_the_element_and_both_numbers(library: Any) -> None:
    x = np.array([1.0, -2.0, 0.5])
    said = failure("gradient", wrong_gradient, library.array(x, "float64"))
    assert said.startswith("x[1]: gradient -6, finite difference -4; wrong in 4 of 4 places: 3 elements of x and")
    assert status("gradient", own_gradient, library.array(x))[0] == "passed"


def test_numpy_without_an_own_gradient_is_skipped() -> None:
    said = "NumPy has none, and the term brings none of its own"
    assert status("gradient", squares, X) == ("skipped", said)
    assert status("edge zeros", squares, X, edges=["zeros"]) == ("passed", "value 0")


def test_a_constant_and_an_empty_wrt_are_skipped(autodiff: Any) -> None:
    constant = lambda_named(lambda x: float((x**2).sum()), differentiable=False)
    assert status("gradient", constant, autodiff.array(X), edges=["zeros"])[1].startswith("differentiable=False")
    assert status("gradient", squares, autodiff.array(X), wrt=()) == ("skipped", "wrt names no input")


def test_no_path_to_the_input_fails(autodiff: Any) -> None:
    stop = {"torch": lambda x: x.detach(), "jax": jax.lax.stop_gradient}[autodiff.name]
    said = failure("gradient", lambda_named(lambda x: (stop(x) ** 2).sum()), autodiff.array(X))
    assert said.startswith("there is none: its value does not depend on x by operations that")


def test_no_floats_at_all_fails(autodiff: Any) -> None:
    tokens = lambda_named(lambda tokens: (1.0 * tokens).sum())
    said = failure("gradient", tokens, autodiff.array([1, 2], "int32"), edges=["zeros"])
    assert said == "no input holds floats; set differentiable=False to count it as a constant"


@needs_torch
def test_an_input_that_is_cut_off_fails_until_it_is_left_out() -> None:
    term = lambda_named(lambda student, teacher: ((student - teacher.detach()) ** 2).sum())
    inputs = {"student": torch.tensor(X), "teacher": torch.tensor(Y)}
    said = failure("gradient", term, inputs)
    assert "no gradient, finite difference" in said
    assert 'it is cut off from the value: if you mean that, leave "teacher" out of wrt' in said
    assert status("gradient", term, inputs, wrt="student", edges=["zeros"], compile=True)[0] == "passed"
    inputs["student"].requires_grad_()
    assert "elements of student and" in status("gradient", term, inputs)[1]
    both = check_term(term, {"student": torch.tensor(X), "teacher": torch.tensor(Y)}, edges=["zeros"], raises=False)
    assert both.failed == ("gradient",)


def test_a_kink_is_named_and_can_be_accepted(autodiff: Any) -> None:
    x = autodiff.array([1.0, 0.0, -1.0])
    said = failure("gradient", hinge, x)
    assert said.startswith("x[1]: gradient 0, finite difference 0.5 (a kink: slope 0 on the left and 1 on the right)")
    assert "; 2 at kinks, between the slopes of both sides" in status("gradient", hinge, x, kinks=True)[1]
    outside = lambda_named(lambda x: pn.Evaluation(hinge(x), gradient={"x": 0 * x + 5.0}))
    assert "; wrong in 4 of 4 places" in failure("gradient", outside, x, kinks=True)


def test_a_smaller_step_stays_on_one_side(autodiff: Any) -> None:
    x = autodiff.array([3e-6, 1.0])
    assert "(a kink: slope" in failure("gradient", "l1", x)
    assert status("gradient", "l1", x, step=1e-7)[0] == "passed"


def test_the_tolerance_can_be_widened() -> None:
    sloppy = lambda_named(lambda x: pn.Evaluation((x**2).sum(), gradient={"x": 2.002 * x}))
    assert failure("gradient", sloppy, X)
    assert status("gradient", sloppy, X, tolerance=1e-2)[0] == "passed"


def test_the_random_direction_sees_what_the_sample_misses() -> None:
    def nearly(x):
        slope = 2 * x
        slope[-1] = 0.0
        return pn.Evaluation((x**2).sum(), gradient={"x": slope})

    said = failure("gradient", nearly, np.linspace(0.5, 1.0, 400))
    assert said.startswith("a random direction: gradient")
    assert "wrong in 1 of 31 places: 30 elements of x and a random direction, float64" in said


def test_a_step_that_leaves_the_domain_fails(autodiff: Any) -> None:
    root = {"torch": torch.sqrt, "jax": jnp.sqrt}[autodiff.name]
    said = failure("gradient", lambda_named(lambda x: root(x).sum()), autodiff.array([1e-7]))
    assert "finite difference nan" in said


@needs_torch
def test_a_term_that_computes_in_float32_gets_a_longer_step() -> None:
    single = lambda_named(lambda x: (x.float() ** 2).sum())
    assert status("gradient", single, torch.tensor(X)) == (
        "passed",
        "12 elements of x and a random direction, float32",
    )
    matrix = torch.tensor(Y.T, dtype=torch.float32)
    captures = lambda_named(lambda x: ((x @ matrix) ** 2).sum())
    said = status("gradient", captures, torch.tensor(X, dtype=torch.float32))[1]
    assert "random direction, float32; float64 is no good to it: term: raised RuntimeError" in said


@needs_torch
def test_a_backward_that_raises_fails() -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sum()

        @staticmethod
        def backward(ctx, upstream):
            raise ZeroDivisionError("by nothing")

    said = failure("gradient", lambda_named(lambda x: Broken.apply(x)), torch.tensor(X))
    assert said == "term: its gradient raised ZeroDivisionError: by nothing"


def test_infinite_and_missing_elements_are_left_alone(autodiff: Any) -> None:
    p = np.log(np.array([[0.5, 0.5, 1.0], [0.2, 0.8, 1.0]]))
    p[:, 2] = -np.inf
    inputs = {"p": autodiff.array(p), "q": autodiff.array(np.log(np.full((2, 3), 1 / 3)))}
    assert status("gradient", "kl_divergence", inputs)[1].startswith("10 elements of p, q")
    assert status("gradient", "l1", autodiff.array(np.zeros((0, 3))))[1].startswith("0 elements")
    assert status("gradient", "l1", autodiff.array(2.0))[1].startswith("1 element of x and")
    said = failure("gradient", wrong_gradient, autodiff.array(2.0))
    assert said.startswith("x: gradient 6, finite difference 4")


# Inputs.


class Layer(NamedTuple):
    weight: Any
    bias: Any


@dataclass
class Batch:
    logits: Any


def test_nests_keep_their_structure(autodiff: Any) -> None:
    if autodiff is JAX:
        jax.tree_util.register_dataclass(Registered, data_fields=["table", "nothing"], meta_fields=[])
    nest = {
        "layer": Layer(autodiff.array(X), [autodiff.array(Y[0]), None]),
        "steps": autodiff.array([1, 2], "int32"),
        **({"more": Registered(autodiff.array(Y), None)} if autodiff is JAX else {}),
    }

    def size(params):
        extra = (params["more"].table ** 2).sum() if "more" in params else 0.0
        layer = params["layer"]
        return (layer.weight**2).sum() + 2 * (layer.bias[0] ** 2).sum() + extra + 0.0 * params["steps"].sum()

    count = 27 if autodiff is JAX else 15
    assert status("gradient", size, {"params": nest}, edges=["zeros", "one_row", "half"])[1].startswith(str(count))

    def one_wrong(params):
        first, second = params
        return pn.Evaluation((first**2).sum() + second.sum(), gradient={"params": [2 * first, 0 * second]})

    said = failure("gradient", one_wrong, [autodiff.array(X), autodiff.array(Y)])
    assert re.match(r"params\[1\]\[\d, \d\]: gradient 0, finite difference 1; wrong in 13 of 25 places", said), said


@dataclass
class Registered:
    table: Any
    nothing: Any


@needs_torch
def test_inputs_are_found_as_a_pipeline_finds_them() -> None:
    model = torch.nn.Linear(3, 2)
    assert status("gradient", "l1", model.parameters())[1].startswith("8 elements of x")
    term = pn.Term(pn.l2, inputs="batch.logits")
    inputs = {"batch": Batch(torch.tensor(X)), "unused": object()}
    for wrt in (None, "batch", ["batch.logits"]):
        assert "elements of batch.logits" in status("gradient", term, inputs, wrt=wrt)[1]


@needs_torch
def test_what_is_no_array_is_handed_on(autodiff: Any) -> None:
    def scaled(data, logprobs):
        return (logprobs * len(data)).sum()

    verdict = check_term(scaled, {"data": ["a", "b", "c", "d"], "logprobs": autodiff.array(X)}, edges=["one_row"])
    assert result(verdict, "edge one_row").detail == f"value {X[:1].sum():.6g}, gradient finite"
    assert result(verdict, "compile").status == "passed"
    table = lambda_named(lambda x, table: (x * float(table.sum())).sum())
    said = status("gradient", table, {"table": np.ones(4), "x": autodiff.array(X)})[1]
    assert said.startswith("12 elements of x and")
    counted = lambda_named(lambda data: float(len(data)), differentiable=False)
    assert status("compile", counted, {"data": ["a"]}, compile=True) == ("skipped", "NumPy has no compiler")
    assert status("edge one_row", counted, {"data": ["a"]}, edges=["one_row"]) == ("skipped", "no input has rows")


def test_a_term_that_needs_the_step_gets_one(autodiff: Any) -> None:
    late = lambda_named(lambda x, step: (x**2).sum() * (1 + step))
    assert check_term(late, autodiff.array(X), edges=())


# Edges.


def test_a_gradient_that_is_no_number_at_zero_fails(autodiff: Any) -> None:
    length = lambda_named(lambda x: ((x**2).sum()) ** 0.5)
    said = failure("edge zeros", length, autodiff.array(X), edges=["zeros", "large"])
    assert said.startswith("the gradient at x has")
    assert said.endswith("the value is 0")


def test_overflow_in_half_precision_fails(library: Any) -> None:
    x = library.array(np.full(4, 300.0))
    assert failure("edge half", squares, x, edges=["half", "one_row"]) == "the value is inf"
    assert check_term("l2", x, edges=["half"], compile=False)


def test_overflow_of_large_values_fails(autodiff: Any) -> None:
    exp = {"torch": torch.exp, "jax": jnp.exp}[autodiff.name]
    assert failure("edge large", lambda_named(lambda x: exp(x).sum()), autodiff.array(X), edges=["large", "tiny"])
    assert status("edge large", squares, autodiff.array([0.0]), edges=["large"])[1] == "value 1e+08, gradient finite"


def test_a_clear_refusal_passes_and_an_accident_fails(library: Any) -> None:
    def refuses(x):
        if x.shape[0] == 1:
            raise pn.ShapeError("refuses: needs two rows")
        return (x**2).sum()

    said = "refused: refuses: raised ShapeError: refuses: needs two rows"
    assert status("edge one_row", refuses, library.array(X), edges=["one_row"]) == ("passed", said)
    accident = lambda_named(lambda x: (x[1] ** 2).sum())
    if library is not JAX:  # which clamps an index
        assert "raised IndexError" in failure("edge one_row", accident, library.array(X), edges=["one_row"])


def test_own_edges_lie_over_the_inputs(library: Any) -> None:
    term = pn.Term(pn.kl_estimate, inputs={"logprobs": "logprobs", "reference": "reference", "mask": "mask"})
    inputs = {key: library.array(value) for key, value in INPUTS["kl_estimate"][0].items()}
    edges = {"all masked": {"mask": library.array(np.zeros((2, 4)))}, "zeros": None}
    verdict = check_term(term, inputs, wrt="logprobs", edges=edges, compile=False)
    assert [check.name for check in verdict.checks[2:4]] == ["edge all masked", "edge zeros"]
    assert result(verdict, "edge all masked").detail.startswith("value 0")
    own = {"nan": library.array([np.nan])}
    assert failure("edge nan", "l1", library.array([1.0]), edges=own) == "the value is nan"


def test_own_gradients_are_looked_at_in_numpy_too() -> None:
    inverse = lambda_named(lambda x: pn.Evaluation((x**0).sum(), gradient={"x": 0.0 / x}))
    assert failure("edge zeros", inverse, X, edges=["zeros"]).startswith("the gradient at x has nan")


# Pickling.


class Weighted:
    def __init__(self, power: float) -> None:
        self.power = power

    def __call__(self, x):
        return (x**self.power).sum()


class Equal(Weighted):
    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None


class Forgetful(Weighted):
    def __reduce__(self):
        return Forgetful, (1.0,)


class Broken(Weighted):
    def __reduce__(self):
        return Broken, ("nothing",)


class Stubborn(Weighted):
    def __reduce__(self):
        raise TypeError("cannot pickle a lock")


@pytest.mark.parametrize("runs", ["inline", "thread", "process", "ray"])
def test_what_cannot_be_imported_travels_by_value_where_it_has_to(runs: Any) -> None:
    term = lambda_named(lambda x: (x**2).sum(), runs=runs)
    assert status("pickling", term, X)[0] == ("passed" if runs in ("process", "ray") else "note")


@pytest.mark.parametrize("runs", ["inline", "process"])
def test_what_cannot_travel_fails_only_where_it_has_to(runs: Any) -> None:
    term = pn.Term(Stubborn(2.0), runs=runs)
    if runs == "process":
        said = failure("pickling", term, X)
        assert said == 'it does not pickle, and runs="process" needs it; TypeError: cannot pickle a lock'
    else:
        assert status("pickling", term, X)[0] == "note"


def test_objects_are_judged_by_what_comes_back() -> None:
    x = np.array([2.0, 3.0])
    assert status("pickling", Weighted(2.0), x) == ("passed", "equal, with the same value")
    assert status("pickling", Equal(2.0), x)[0] == "note"
    assert failure("pickling", Forgetful(2.0), x) == "it comes back with the value 5 instead of 13"
    assert failure("pickling", Broken(2.0), x).startswith("it comes back broken: Broken: raised")


# Compilation.


def test_a_branch_on_values_cannot_be_traced(autodiff: Any) -> None:
    def branches(x):
        return (x**2).sum() if x.sum() > 0 else abs(x).sum()

    name = {"torch": "torch.compile", "jax": "jax.jit"}[autodiff.name]
    assert failure("compile", branches, autodiff.array(X), compile=True).startswith(f"{name} cannot trace it: ")
    assert status("compile", branches, autodiff.array(X)) == ("skipped", "compile=False")
    elsewhere = pn.Term(branches, runs="thread")
    assert status("compile", elsewhere, autodiff.array(X), compile=True)[0] == "skipped"


@needs_torch
def test_another_value_or_gradient_when_compiled_fails() -> None:
    def factor() -> float:
        return 2.0 if torch.compiler.is_compiling() else 1.0

    x = torch.tensor([1.0, 2.0])
    value = lambda_named(lambda x: factor() * (x**2).sum())
    assert failure("compile", value, x, compile=True) == "torch.compile gives another value: 10 instead of 5"
    slope = lambda_named(lambda x: (x.detach() ** 2).sum() + factor() * (x - x.detach()).sum())
    said = "torch.compile gives another gradient at x: 2 instead of 1"
    assert failure("compile", slope, x, wrt="x", tolerance=1e3, compile=True) == said


@needs_jax
def test_a_constant_is_compiled_without_a_gradient() -> None:
    constant = lambda_named(lambda x: (x**2).sum(), differentiable=False)
    assert status("compile", constant, jnp.asarray(X), compile=True) == ("passed", "jax.jit: the same value")


@needs_torch
def test_settings_for_training_do_not_matter_to_the_compiled_value() -> None:
    term = pn.Term(squares, weight=0.0, enabled=False, every=7, on_error="skip")
    assert status("compile", term, torch.tensor(X), compile=True)[0] == "passed"


@needs_torch
def test_a_long_message_is_cut() -> None:
    def raises(x):
        if torch.compiler.is_compiling():
            raise RuntimeError("long " * 200)
        return (x**2).sum()

    said = failure("compile", raises, torch.tensor(X), compile=True)
    assert len(said) < 300


# State.


def test_state_is_taken_returned_and_saved(library: Any) -> None:
    assert status("state", running, library.array(X)) == ("passed", "taken, returned, saved and loaded")
    assert status("state", squares, library.array(X)) == ("skipped", "it takes none")


@pytest.mark.parametrize(
    ("term", "said"),
    [
        (remembers_an_object, "holds a set; to be saved, state is arrays, numbers"),
        (forgets, "it takes state and returns none"),
        (changes_its_state, "the same state gives two values"),
        (trusts_a_tuple_type, "saved and loaded it gives"),
    ],
)
def test_state_that_does_not_work_fails(term: Callable[..., Any], said: str) -> None:
    assert said in failure("state", term, X)


def test_state_is_not_saved_without_safetensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    found, said = status("state", running, X)
    assert found == "passed"
    assert said.startswith("taken and returned; not saved: saving the state of terms needs safetensors")


# The verdict, and what the call refuses.


def test_a_failure_raises_with_the_table() -> None:
    with pytest.raises(AssertionError) as raised:
        check_term(wrong_gradient, np.array([1.0]), edges=(), compile=False)
    lines = str(raised.value).splitlines()
    assert lines[0] == "wrong_gradient: failed: gradient"
    assert lines[1].split() == ["check", "status", "detail"]
    assert [line.split()[0] for line in lines[2:]] == ["value", "gradient", "pickling", "compile", "state"]
    assert not check_term(wrong_gradient, np.array([1.0]), edges=(), raises=False)


def test_a_verdict_does_not_change() -> None:
    verdict = check_term("l1", X)
    with pytest.raises(AttributeError):
        verdict.term = "l2"
    assert replace(verdict, checks=()).ok


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"step": 0.0}, "check_term: step=0.0; expected a finite number above 0, or None"),
        ({"tolerance": -1}, "check_term: tolerance=-1; expected"),
        ({"kinks": 1}, "check_term: kinks=1; expected True or False"),
        ({"compile": "yes"}, 'check_term: compile="yes"; expected True or False'),
        ({"raises": None}, "check_term: raises=None; expected True or False"),
        (
            {"edges": ["zero"]},
            'check_term: edges="zero"; expected zeros, tiny, large, one_row, half, or {name: inputs}',
        ),
        ({"edges": "zeros"}, 'check_term: edges="zeros"; expected names of edges'),
        ({"edges": 3}, "check_term: edges=3; expected names of edges"),
        ({"wrt": 3}, "check_term: wrt=3; expected a name or names of inputs, or None"),
        ({"wrt": "n"}, 'check_term: wrt="n"; expected inputs that hold arrays of floats: x'),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], said: str) -> None:
    term = lambda_named(lambda x, n: (x**n).sum())
    with pytest.raises(pn.OptionError) as raised:
        check_term(term, {"x": X, "n": np.array(2)}, **options)
    assert str(raised.value).startswith(said)


def test_inputs_that_are_missing_are_refused() -> None:
    with pytest.raises(pn.InputError, match='kl_divergence: no input is named "q"; given: "p"'):
        check_term("kl_divergence", {"p": X})
    with pytest.raises(pn.InputError, match="check_term: kl_divergence needs p, q; pass a mapping"):
        check_term("kl_divergence", X)
    with pytest.raises(pn.InputError, match='check_term: wrt names "y", which the term does not read; it reads x'):
        check_term("l1", X, wrt="y")
    with pytest.raises(pn.InputError, match="check_term: one needs no input"):
        check_term(pn.Term(lambda: 1.0, name="one", differentiable=False), X)
    with pytest.raises(pn.OptionError, match="expected .*l1"):
        check_term("l3", X)


def test_an_async_term_is_refused() -> None:
    async def later(x):
        return (x**2).sum()

    with pytest.raises(pn.OptionError, match="expected a term that is no async def: check what it awaits"):
        check_term(later, X)


def test_numpy_is_enough() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['jax'] = None\n"
        "import numpy as np, penalties as pn\n"
        "term = pn.Term(lambda x: pn.Evaluation((x[0]**2).sum(), gradient={'x': [2 * x[0]]}), name='term')\n"
        "print(pn.testing.check_term(term, [np.ones(3)]).ok, pn.testing.check_term('l1', np.ones((2, 2))).ok)"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "True True", done.stderr
