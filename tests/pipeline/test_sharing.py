"""Penalties over the same logits share one log_softmax, and have the numbers of each by itself."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.backends import owner
from tests.libraries import JAX, LIBRARIES, TORCH, close

LOGITS = {"logits": True}
BOTH = ("student", "teacher")
MASKED = {"p": "student", "q": "teacher", "mask": "kept"}
PIPELINE = pn.Pipeline(
    [
        pn.Term(pn.kl_divergence, weight=0.3, inputs=BOTH, options=LOGITS),
        pn.Term(pn.kl_divergence, name="floor", weight=0.7, inputs=BOTH, options={**LOGITS, "floor": -3.0}),
        pn.Term(pn.js_divergence, weight=0.5, inputs=BOTH[::-1], options={**LOGITS, "sqrt": True}),
        pn.Term(pn.entropy, weight=0.2, inputs="student", options={**LOGITS, "normalize": True, "mode": "bonus"}),
        pn.Term(pn.kl_divergence, name="same", inputs=("student", "student"), options=LOGITS),
        pn.Term(pn.js_divergence, name="warm", weight=2.0, inputs=BOTH, options={"temperature": 2.0}),
        pn.Term(pn.entropy, name="warm entropy", inputs="student", options={"temperature": 2.0, "reduction": "sum"}),
        pn.Term(pn.js_divergence, name="masked", inputs=MASKED, options=LOGITS),
        pn.Term(pn.entropy, name="masked entropy", inputs={"p": "student", "mask": "kept"}, options=LOGITS),
    ]
)


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENALTIES_KERNELS", "off")


def inputs_of(library: Any, dtype: str = "float64") -> dict[str, Any]:
    rng = np.random.default_rng(0)
    student, teacher = rng.normal(size=(2, 3, 2, 5)) * 3
    student[0, 0, 1] = teacher[0, 0, 1] = -np.inf
    kept = np.array([[1.0, 0.0], [0.5, 1.0], [2.0, 1.0]])
    made = {"student": student, "teacher": teacher}
    return {name: library.array(x, dtype) for name, x in made.items()} | {"kept": library.array(kept)}


def groups(plan: Any) -> list[list[str]]:
    return [[job.term.name for job in group.jobs] for group in plan]


def by_itself(term: pn.Term) -> pn.Pipeline:
    return pn.Pipeline([term])


def test_who_shares(autodiff: Any) -> None:
    plan = PIPELINE.plan(**inputs_of(autodiff), wrt=BOTH)
    assert groups(plan) == [
        ["kl_divergence", "floor", "js_divergence", "entropy", "same"],
        ["warm", "warm entropy"],
        ["masked", "masked entropy"],
    ]
    assert plan.groups[0].reason == "one log_softmax of student and teacher for all of them"


def test_values_are_those_of_each_by_itself(library: Any) -> None:
    given = inputs_of(library)
    pipeline = PIPELINE if library is not JAX else pn.Pipeline(PIPELINE.terms[3:5])
    out = pipeline(**given)
    for term in pipeline:
        close(library.numpy(out[term.name].value), library.numpy(by_itself(term)(**given)[term.name].value))


@pytest.mark.parametrize("hold", [False, True])
def test_gradients_and_norms_are_those_of_each_by_itself(autodiff: Any, hold: bool) -> None:
    given = inputs_of(autodiff)
    # JAX compiles every operation of every term.
    pipeline = PIPELINE if autodiff is TORCH else pn.Pipeline([PIPELINE["kl_divergence"], *PIPELINE.terms[3:5]])
    out = pipeline.value_and_grad(**given, wrt=BOTH, keep=hold, cosines=hold)
    total = dict.fromkeys(BOTH, 0.0)
    for term in pipeline:
        alone = by_itself(term).value_and_grad(**given, wrt=BOTH, keep=True)[term.name]
        found = out[term.name]
        close(autodiff.numpy(found.value), autodiff.numpy(alone.value))
        close(autodiff.numpy(found.grad_norm), autodiff.numpy(alone.grad_norm))
        assert found.grad_norms.keys() == alone.grad_norms.keys()
        for name in BOTH:
            slope = alone.gradient[name]
            if hold and slope is not None:
                close(autodiff.numpy(found.gradient[name]), autodiff.numpy(slope))
            assert hold or found.gradient is None
            total[name] = total[name] + term.weight * (0.0 if slope is None else autodiff.numpy(slope))
    for name in BOTH:
        close(autodiff.numpy(out.gradient[name]), total[name])
    flat = np.concatenate([total[name].reshape(-1) for name in BOTH])
    close(autodiff.numpy(out.total_grad_norm), np.sqrt((flat**2).sum()))
    if hold:
        close(np.diagonal(autodiff.numpy(out.cosines))[:2], np.ones(2))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
def test_half_precision(dtype: str) -> None:
    autodiff = TORCH
    given = inputs_of(autodiff, dtype)
    terms = [term for term in PIPELINE if term.name in ("kl_divergence", "entropy")]
    out = pn.Pipeline(terms).value_and_grad(**given, wrt="student", keep=True)
    for term in terms:
        alone = by_itself(term).value_and_grad(**given, wrt="student", keep=True)[term.name]
        close(autodiff.numpy(out[term.name].value), autodiff.numpy(alone.value), "float32")
        found, right = out[term.name].gradient["student"], alone.gradient["student"]
        assert found.dtype == right.dtype
        np.testing.assert_allclose(autodiff.numpy(found), autodiff.numpy(right), rtol=1e-2, atol=1e-6)
    assert out.gradient["student"].dtype == given["student"].dtype


def test_what_is_in_padding_reaches_nothing(autodiff: Any) -> None:
    given = inputs_of(autodiff)
    broken = autodiff.numpy(given["student"]).copy()
    broken[0, 1] = np.nan
    given["student"] = autodiff.array(broken)
    terms = [term for term in PIPELINE if term.name.startswith("masked")]
    out = pn.Pipeline(terms).value_and_grad(**given, wrt=BOTH)
    assert np.isfinite(autodiff.numpy(out.total)).all()
    gradient = autodiff.numpy(out.gradient["student"])
    assert np.isfinite(gradient).all()
    assert not gradient[0, 1].any()


def test_one_log_softmax_for_each_array(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = inputs_of(library)
    ops: Any = owner(given["student"])
    taken: list[int] = []
    plain = ops.log_softmax
    monkeypatch.setattr(ops, "log_softmax", lambda x: (taken.append(1), plain(x))[1])
    pipeline = pn.Pipeline(PIPELINE.terms[:5])
    pipeline(**given)
    assert len(taken) == 2
    if library.differentiates:
        pipeline.value_and_grad(**given, wrt="student")
        assert len(taken) == 4


def test_a_term_that_reads_no_target_says_so(autodiff: Any) -> None:
    given = inputs_of(autodiff)
    terms = [*PIPELINE.terms[:2], pn.Term(pn.entropy, name="theirs", inputs="teacher", options=LOGITS)]
    out = pn.Pipeline(terms).value_and_grad(**given, wrt="student")
    assert out["theirs"].grad_error == "it does not read student"
    assert out["theirs"].grad_norm is None


@pytest.mark.parametrize(
    "changes",
    [
        {"runs": "thread"},
        {"on_error": "skip"},
        {"chunk": 2},
        {"differentiable": False},
        {"options": {"logits": False}},
        {"options": {**LOGITS, "mask": np.ones((3, 2))}},
        {"inputs": {"p": "student", "mask": "teacher"}},
        {"inputs": {"p": "student", "mask": "narrow"}},
        {"inputs": "text"},
    ],
)
def test_who_does_not_share(changes: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    given = {name: torch.tensor(rng.normal(size=(3, 2, 5))) for name in BOTH}
    pipeline = pn.Pipeline([PIPELINE.terms[0], PIPELINE["entropy"].replace(name="own", **changes)])
    plan = pipeline.plan(**given, narrow=torch.ones(2), text="text", wrt="student")
    assert groups(plan) == [["kl_divergence"], ["own"]]


def test_a_distribution_that_is_an_option_is_not_taken_for_logprobs() -> None:
    given = inputs_of(TORCH)
    teacher = given.pop("teacher")
    fixed = pn.Term(pn.kl_divergence, inputs={"q": "student"}, options={**LOGITS, "p": teacher})
    out = pn.Pipeline([fixed, PIPELINE["entropy"]])(**given)
    expected = pn.kl_divergence(teacher, given["student"], logits=True)
    torch.testing.assert_close(out["kl_divergence"].value, expected)


def test_a_temperature_that_a_partial_fixes_counts_once(autodiff: Any) -> None:
    given = inputs_of(autodiff)
    fixed = pn.Term(functools.partial(pn.entropy, temperature=2.0), name="fixed", inputs="student")
    own = pn.Term(pn.entropy, name="own", inputs="student", options={"temperature": 2.0})
    pipeline = pn.Pipeline([fixed, own])
    assert groups(pipeline.plan(**given, wrt="student")) == [["fixed", "own"]]
    out = pipeline.value_and_grad(**given, wrt="student")
    close(autodiff.numpy(out["fixed"].value), autodiff.numpy(out["own"].value))
    close(autodiff.numpy(out["fixed"].grad_norm), autodiff.numpy(out["own"].grad_norm))


def test_a_row_whose_target_does_not_count_reaches_nothing() -> None:
    term = pn.Term(pn.cross_entropy, inputs=("student", "labels"), options=LOGITS)
    summed = term.replace(name="summed", options={**LOGITS, "reduction": "sum"})
    student = TORCH.array(np.random.default_rng(1).normal(size=(3, 5)))
    student[1] = np.nan
    out = pn.Pipeline([term, summed]).value_and_grad(student=student, labels=torch.tensor([1, -100, 2]), wrt="student")
    assert torch.isfinite(out.gradient["student"]).all()


def test_an_array_inside_a_target_is_no_whole_distribution() -> None:
    heads = {"student": torch.randn(3, 4), "teacher": torch.randn(3, 4)}
    terms = [term.replace(inputs=("heads.student", "heads.teacher")) for term in PIPELINE.terms[:2]]
    assert len(pn.Pipeline(terms).plan(heads=heads, wrt="heads")) == 2


def test_a_gradient_that_the_call_does_not_take_stays_on_the_graph() -> None:
    given = {name: torch.randn(3, 4, requires_grad=True) for name in BOTH}
    pipeline = pn.Pipeline(PIPELINE.terms[:2])
    assert len(pipeline.plan(**given, wrt="student")) == 2
    assert len(pipeline.plan(**given)) == 1


def test_a_learned_weight_has_its_gradient() -> None:
    given = {name: torch.randn(3, 4, dtype=torch.float64) for name in BOTH}
    weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    pipeline = pn.Pipeline([PIPELINE.terms[0].with_weight(weight), PIPELINE.terms[1]])
    out = pipeline.value_and_grad(**given, wrt="student")
    out.total.backward()
    torch.testing.assert_close(weight.grad, out["kl_divergence"].value.to(weight))


@pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
def test_the_total_is_on_the_graph_and_values_too() -> None:
    given = {name: x.requires_grad_(name in BOTH) for name, x in inputs_of(TORCH).items()}
    out = PIPELINE(**given)
    out["kl_divergence"].value.backward(retain_graph=True)
    slope = given["student"].grad.clone()
    leaf = given["student"].detach().requires_grad_()
    by_itself(PIPELINE.terms[0])(**{**given, "student": leaf}).total.backward()
    torch.testing.assert_close(slope, leaf.grad / 0.3)
    given["student"].grad = None
    out.total.backward()
    torch.testing.assert_close(given["student"].grad, PIPELINE.value_and_grad(**given).gradient["student"])


@pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")
def test_a_traced_call_is_left_to_its_compiler() -> None:
    given = inputs_of(JAX)
    found: list[int] = []

    def total(student: Any) -> Any:
        found.append(len(PIPELINE.plan(**{**given, "student": student}, wrt="student")))
        return PIPELINE.total(**{**given, "student": student})

    slope = jax.grad(total)(given["student"])
    assert found == [len(PIPELINE)]
    right = PIPELINE.value_and_grad(**given, wrt="student").gradient["student"]
    close(JAX.numpy(slope), JAX.numpy(right))


def test_an_error_names_the_term(library: Any) -> None:
    given = inputs_of(library, "float32")
    terms = [term.replace(options={"temperature": 1e-300}) for term in PIPELINE.terms[5:7]]
    with pytest.raises(pn.TermError, match="warm: raised OptionError.*temperature=1e-300"):
        pn.Pipeline(terms)(**given)
    with pn.Executor() as executor, pytest.raises(pn.TermError, match="warm: raised OptionError"):
        executor.run(pn.Pipeline(terms), given)


def test_in_an_executor(autodiff: Any) -> None:
    given = inputs_of(autodiff)
    with pn.Executor() as executor:
        out = executor.run(PIPELINE, given, wrt=BOTH)
    right = PIPELINE.value_and_grad(**given, wrt=BOTH)
    for name in BOTH:
        close(autodiff.numpy(out.gradient[name]), autodiff.numpy(right.gradient[name]))
