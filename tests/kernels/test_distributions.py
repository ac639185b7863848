"""Kernels for distributions: their numbers are those of the penalties, for every option, shape and edge."""

from typing import Any

import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE

from .cases import INF, NAN, PAIR, TERMS, TIGHT, assert_same, both, drawn, pipeline

# The interpreter computes with NumPy, which warns where hardware does not.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

# The interpreter takes its time: on a CPU most dtypes of most shapes wait for the slow tests.
CASES = [
    pytest.param(shape, dtype, marks=() if dtype == torch.float32 or shape == (1, 2, 1000) else pytest.mark.slow)
    for shape in [(1, 1), (7, 3), (0, 5), (1, 2, 1000), (2, 2500), (5,)]
    for dtype in TIGHT
]


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize(("shape", "dtype"), CASES, ids=str)
def test_values_gradients_and_norms(
    shape: tuple[int, ...], dtype: torch.dtype, logits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    student, teacher = (drawn(*shape, dtype=dtype, logits=logits, seed=seed) for seed in (1, 2))
    fused, plain = both(pipeline(logits=logits), "student", monkeypatch, student=student, teacher=teacher)
    assert_same(fused, plain, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 7])
def test_a_real_vocabulary(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = (drawn(rows, 128256, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
    terms = pipeline("kl", "js", "entropy", logits=True)
    assert_same(*both(terms, "student", monkeypatch, student=student, teacher=teacher), torch.bfloat16, 2e-5)


@pytest.mark.parametrize("name", [term.name for term in TERMS])
@pytest.mark.parametrize("logits", [True, False])
def test_each_by_itself(name: str, logits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = (drawn(4, 20, logits=logits, seed=seed) for seed in (3, 4))
    assert_same(*both(pipeline(name, logits=logits), "student", monkeypatch, student=student, teacher=teacher))


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_temperatures(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = drawn(4, 20, seed=5), drawn(4, 20, seed=6)
    terms = pipeline(temperature=temperature)
    assert_same(*both(terms, "student", monkeypatch, student=student, teacher=teacher))


@pytest.mark.parametrize("wrt", ["teacher", PAIR])
def test_gradients_at_the_teacher(wrt: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = drawn(1, 2, 20, seed=7), drawn(1, 2, 20, seed=8)
    terms = pipeline("kl", "reverse", "distill", "symmetric", "js", "bits", logits=True)
    assert_same(*both(terms, wrt, monkeypatch, student=student, teacher=teacher))
    if wrt == PAIR:
        assert_same(*both(pipeline(logits=True), wrt, monkeypatch, student=student, teacher=teacher))


@pytest.mark.parametrize(
    ("kind", "reduction"), [("flags", "sum"), ("flags", "mean"), ("numbers", "mean"), ("nothing", "mean")]
)
def test_masks(kind: str, reduction: str, monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = drawn(2, 2, 20, seed=9), drawn(2, 2, 20, seed=10)
    numbers = torch.rand(2, 2, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    shown = {"flags": numbers > 0.4, "numbers": numbers * (numbers > 0.4), "nothing": numbers > 2}[kind]
    # What is hidden must not reach anything.
    student[shown == 0] = NAN
    teacher[shown == 0] = INF
    terms = pipeline(mask="shown", reduction=reduction, logits=True)
    assert_same(*both(terms, PAIR, monkeypatch, student=student, teacher=teacher, shown=shown))


def test_a_row_may_count_for_one_term_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = drawn(4, 20, seed=11), drawn(4, 20, seed=12)
    teacher[1] = NAN
    shown = torch.tensor([True, False, True, True], device=DEVICE)
    masked = [term.replace(inputs={**term.inputs, "mask": "shown"}) for term in pipeline("kl", "js", logits=True)]
    terms = pn.Pipeline([*masked, *pipeline("entropy", logits=True)])
    assert len(terms.plan(student=student, teacher=teacher, shown=shown, wrt="student")) == 1
    fused, plain = both(terms, "student", monkeypatch, student=student, teacher=teacher, shown=shown)
    assert torch.isfinite(fused.gradient["student"]).all()
    assert_same(fused, plain)


@pytest.mark.parametrize("logits", [True, False])
def test_an_infinite_divergence_of_a_row_that_counts_for_another_term(
    logits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    student, teacher = drawn(3, 20, seed=1), drawn(3, 20, seed=2)
    teacher[1, 4] = -INF
    student, teacher = (x if logits else x.log_softmax(-1) for x in (student, teacher))
    shown = torch.tensor([True, False, True], device=DEVICE)
    terms = pn.Pipeline([*pipeline("kl", mask="shown", logits=logits), *pipeline("js", logits=logits)])
    fused, plain = both(terms, "student", monkeypatch, student=student, teacher=teacher, shown=shown)
    assert torch.isfinite(fused.gradient["student"]).all()
    assert_same(fused, plain)


@pytest.mark.parametrize("masked", [True, False])
def test_a_weight_of_zero_has_a_norm(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"student": drawn(4, 20, seed=11), "teacher": drawn(4, 20, seed=12)}
    terms = pipeline("kl", "js", "entropy", mask="shown" if masked else None, logits=True)
    terms = pn.Pipeline([term.with_weight(0.0) for term in terms if term.name != "entropy"] + [terms["entropy"]])
    if masked:
        inputs["shown"] = torch.tensor([True, False, True, True], device=DEVICE)
    assert_same(*both(terms, PAIR, monkeypatch, **inputs))


def test_the_norm_beside_terms_that_read_no_target_is_from_before_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = (10 * drawn(2, 33, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
    terms = pipeline("reverse", "entropy", "bonus", logits=True)
    assert [len(group.jobs) for group in terms.plan(student=student, teacher=teacher, wrt="teacher")] == [1, 2]
    found = terms.value_and_grad(student=student, teacher=teacher, wrt="teacher").total_grad_norm
    monkeypatch.setenv("PENALTIES_KERNELS", "off")
    right = terms.value_and_grad(student=student.double(), teacher=teacher.double(), wrt="teacher").total_grad_norm
    # The gradient as it is written is 5e-3 off.
    torch.testing.assert_close(found.double(), right, rtol=2e-4, atol=0.0)


def test_one_tensor_under_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    x = drawn(4, 20, seed=11)
    other = pn.Term(pn.entropy, name="other", weight=0.7, inputs="teacher", options={"logits": True})
    terms = pn.Pipeline([*pipeline("kl", "js", "entropy", logits=True), other])
    assert_same(*both(terms, PAIR, monkeypatch, student=x, teacher=x))


class TestTargets:
    """Whatever gradients are taken at, they are those of the functions, by a kernel or not."""

    def same(self, monkeypatch: pytest.MonkeyPatch, terms: Any, wrt: Any, **inputs: Any) -> None:
        fused = pn.Pipeline(terms).value_and_grad(wrt=wrt, **inputs)
        monkeypatch.setenv("PENALTIES_KERNELS", "off")
        plain = pn.Pipeline(terms).value_and_grad(wrt=wrt, **inputs)
        torch.testing.assert_close(fused.gradient, plain.gradient, rtol=1e-4, atol=1e-7)
        assert [list(term.grad_norms) for term in fused] == [list(term.grad_norms) for term in plain]

    def test_one_input_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        twice = pn.Term(pn.kl_divergence, inputs=("student", "student"), options={"logits": True})
        terms = [twice, *pipeline("entropy", logits=True)]
        self.same(monkeypatch, terms, "student", student=drawn(4, 20))

    def test_an_alias_that_no_gradient_is_taken_at(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = drawn(4, 20)
        entropy = pn.Term(pn.entropy, name="entropy", inputs="logits", options={"logits": True})
        terms = [entropy, *pipeline("kl", logits=True)]
        self.same(monkeypatch, terms, "logits", logits=x, student=x, teacher=drawn(4, 20, seed=2))

    def test_a_part_of_a_target(self, monkeypatch: pytest.MonkeyPatch) -> None:
        term = pn.Term(pn.kl_divergence, inputs=("student", "out.logits"), options={"logits": True})
        inputs = {"student": drawn(4, 20), "out": {"logits": drawn(4, 20, seed=2)}}
        self.same(monkeypatch, [term], ("student", "out"), **inputs)

    def test_a_mask(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terms = pipeline("kl", mask="shown", logits=True)
        inputs = {"student": drawn(4, 20), "teacher": drawn(4, 20, seed=2), "shown": drawn(4).abs()}
        self.same(monkeypatch, list(terms), ("student", "shown"), **inputs)


def test_a_small_divergence_of_large_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    student = drawn(3, 1000, seed=1) + 100
    teacher = student + 1e-2 * drawn(3, 1000, seed=2)
    fused, plain = both(pipeline("kl", logits=True), "student", monkeypatch, student=student, teacher=teacher)
    assert float(fused["kl"].value) == pytest.approx(float(plain["kl"].value), rel=0.1)


def test_evaluation_before_training() -> None:
    student, teacher = drawn(5, 20, seed=1), drawn(5, 20, seed=2)
    terms = pipeline("kl", logits=True)
    with torch.inference_mode():
        terms(student=student, teacher=teacher)
    terms(student=student.requires_grad_(), teacher=teacher).total.backward()
    assert student.grad is not None


def test_a_scaled_loss_at_float16(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = (drawn(3, 2000, dtype=torch.float16, seed=seed) for seed in (1, 2))
    leaf = student.clone().requires_grad_()
    terms = pn.Pipeline([pn.Term(pn.kl_divergence, weight=1e-4, inputs=PAIR, options={"logits": True})])
    out = terms.value_and_grad(student=leaf, teacher=teacher)
    assert out.gradient["student"].dtype == torch.float16
    (out.total * 65536).backward()
    monkeypatch.setenv("PENALTIES_KERNELS", "off")
    expected = terms.value_and_grad(student=student.double(), teacher=teacher.double(), wrt="student")
    scale = float(expected.gradient["student"].abs().max())
    torch.testing.assert_close(leaf.grad.double() / 65536, expected.gradient["student"], rtol=2e-3, atol=1e-5 * scale)


def test_tensors_of_other_classes_are_left_to_the_functions() -> None:
    class Wrapped(torch.Tensor):
        pass

    x = drawn(4, 5)
    (group,) = pipeline("entropy").plan(student=x.as_subclass(Wrapped), wrt="student")
    assert "no kernel for a Wrapped" in group.reason
    (group,) = pipeline("entropy", mask="shown").plan(student=x, shown=x[:, 0].as_subclass(Wrapped), wrt="student")
    assert "its mask is not a plain tensor" in group.reason


@pytest.mark.parametrize("name", ["kl", "reverse", "symmetric"])
def test_a_divergence_of_nothing_is_nan_and_not_infinite(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of logits that are NaN, or nothing but −inf, whatever else is there."""
    for where in PAIR:
        inputs = {one: drawn(3, 40, seed=seed) for seed, one in enumerate(PAIR)}
        inputs[where][0] = -INF
        inputs[where][1, :3] = torch.tensor([NAN, -INF, -INF])
        row = pipeline(name, logits=True, reduction="sum")
        for index in (0, 1):
            fused, plain = both(row, "student", monkeypatch, **{one: x[index : index + 1] for one, x in inputs.items()})
            assert fused[name].value.isnan()
            assert plain[name].value.isnan()


@pytest.mark.parametrize("logits", [True, False])
@pytest.mark.parametrize("where", ["student", "teacher", "both"])
def test_probabilities_of_zero(where: str, logits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = drawn(3, 40, seed=13), drawn(3, 40, seed=14)
    for name, x in (("student", student), ("teacher", teacher)):
        if where in (name, "both"):
            x[:, 5:9] = -INF
    student, teacher = (x if logits else x.log_softmax(-1) for x in (student, teacher))
    finite = {"student": ("kl", "js", "bits", "entropy", "bonus"), "teacher": ("reverse", "distill", "js", "entropy")}
    names = finite.get(where, tuple(term.name for term in TERMS))
    fused, plain = both(pipeline(*names, logits=logits), "student", monkeypatch, student=student, teacher=teacher)
    assert torch.isfinite(fused.gradient["student"]).all()
    assert_same(fused, plain)
    infinite = {"student": "reverse", "teacher": "kl"}.get(where)
    if infinite is not None:
        fused, plain = both(pipeline(infinite, logits=logits), "student", monkeypatch, student=student, teacher=teacher)
        assert float(fused[infinite].value) == float(plain[infinite].value) == INF


def test_a_masked_class_of_the_student_may_be_zero_for_the_teacher(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = drawn(3, 5000, seed=15), drawn(3, 5000, seed=16)
    student[:, :4000] = -1e4
    teacher[:, :4000] = -INF
    fused, plain = both(
        pipeline("kl", "js", "entropy", logits=True), "student", monkeypatch, student=student, teacher=teacher
    )
    assert_same(fused, plain)


@pytest.mark.parametrize("element", [NAN, INF])
@pytest.mark.parametrize("where", PAIR)
def test_what_is_not_finite_shows(element: float, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"student": drawn(3, 40, seed=17), "teacher": drawn(3, 40, seed=18)}
    inputs[where][1, 7] = element
    fused, plain = both(pipeline("kl", "reverse", "js", logits=True), "student", monkeypatch, **inputs)
    for one, other in zip(fused, plain, strict=True):
        assert torch.isnan(other.value)
        assert torch.isnan(one.value)
    assert torch.isnan(fused.gradient["student"][1]).any()
    assert torch.isfinite(fused.gradient["student"][[0, 2]]).all()


@pytest.mark.parametrize("name", ["kl", "js"])
def test_a_log_probability_that_is_nan_shows_in_the_gradient_of_the_other(name: str) -> None:
    student, teacher = (drawn(2, 40, logits=False, seed=seed) for seed in (1, 2))
    teacher[1, 7] = NAN
    gradient = pipeline(name).value_and_grad(student=student, teacher=teacher, wrt="student").gradient["student"]
    assert torch.isnan(gradient[1, 7])
    assert torch.isfinite(gradient[0]).all()


def test_a_row_of_nothing_but_zeros_is_not_a_distribution() -> None:
    student = drawn(2, 10)
    student[0] = -INF
    out = pipeline("entropy", logits=True).value_and_grad(student=student, wrt="student")
    assert torch.isnan(out["entropy"].value)


def test_large_logits_keep_their_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    student, teacher = drawn(3, 100, seed=19) + 1000, drawn(3, 100, seed=20) - 1000
    fused, plain = both(pipeline(logits=True), "student", monkeypatch, student=student, teacher=teacher)
    # A logit of 1000 is known to 6e-5.
    assert_same(fused, plain, tolerance=2e-4, tight=2e-4)


@pytest.mark.parametrize("layout", ["transposed", "sliced", "shifted", "expanded"])
def test_tensors_that_are_not_contiguous(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = drawn(6, 33, seed=21)
    student = {
        "transposed": lambda: drawn(33, 6, seed=22).T,
        "sliced": lambda: drawn(6, 70, seed=22)[:, 2:35],
        "shifted": lambda: drawn(6 * 33 + 1, seed=22)[1:].view(6, 33),
        "expanded": lambda: drawn(1, 33, seed=22).expand(6, 33),
    }[layout]()
    assert_same(*both(pipeline(logits=True), "student", monkeypatch, student=student, teacher=teacher))


def test_a_row_that_begins_beyond_what_an_int_can_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third one: of 2³¹ elements only the rows take memory."""
    apart = 2**30 + 16

    def spread(x: torch.Tensor) -> torch.Tensor:
        room = torch.empty(2 * apart + 16, dtype=x.dtype, device=DEVICE)
        return room.as_strided(x.shape, (apart, 1)).copy_(x)

    student, teacher = (drawn(3, 16, dtype=torch.bfloat16, seed=seed) for seed in (1, 2))
    inputs = {"student": spread(student), "teacher": spread(teacher), "labels": torch.tensor([3, 0, 15], device=DEVICE)}
    labels = pn.Term(pn.cross_entropy, name="nll", inputs=("student", "labels"), options={"logits": True})
    terms = pn.Pipeline([*pipeline("kl", "reverse", "js", "entropy", logits=True), labels])
    assert_same(*both(terms, PAIR, monkeypatch, **inputs), torch.bfloat16)


@pytest.mark.skipif(DEVICE != "cuda", reason="needs a GPU")
class TestOnAGpu:
    def test_more_elements_than_an_int_can_count(self) -> None:
        student = torch.zeros(2**31 // 128256 + 2, 128256, dtype=torch.bfloat16, device=DEVICE)
        student[-1, 0] = 5.0
        out = pipeline("entropy", logits=True).value_and_grad(student=student, wrt="student")
        (last,) = torch.autograd.grad(
            pn.entropy(tail := student[-1:].double().requires_grad_(), logits=True) * 0.2 / len(student), tail
        )
        torch.testing.assert_close(out.gradient["student"][-1:].double(), last, rtol=1e-2, atol=1e-12)

    def test_captured_as_a_graph(self) -> None:
        student, teacher = drawn(64, 1000, seed=1), drawn(64, 1000, seed=2)
        terms = pipeline(logits=True)
        terms.value_and_grad(student=student, teacher=teacher, wrt="student")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = terms.value_and_grad(student=student, teacher=teacher, wrt="student")
        student.copy_(drawn(64, 1000, seed=3))
        graph.replay()
        expected = terms.value_and_grad(student=student, teacher=teacher, wrt="student")
        torch.testing.assert_close(out.gradient, expected.gradient)
        torch.testing.assert_close(out.total, expected.total)

    @pytest.mark.slow
    def test_under_the_real_compiler_and_autocast(self) -> None:
        student, teacher = drawn(64, 1000, seed=1).requires_grad_(), drawn(64, 1000, seed=2)
        terms = pipeline(logits=True)
        compiled = torch.compile(lambda a, b: terms(student=a, teacher=b).total, fullgraph=True)
        for enabled in (False, True):
            with torch.autocast("cuda", dtype=torch.bfloat16, enabled=enabled):
                found = torch.autograd.grad(compiled(student, teacher), student)
                expected = torch.autograd.grad(terms(student=student, teacher=teacher).total, student)
            torch.testing.assert_close(found, expected)

    @pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
    def test_on_a_device_that_is_not_the_current_one(self) -> None:
        student, teacher = drawn(7, 1000, seed=1), drawn(7, 1000, seed=2)
        terms = pipeline(logits=True)
        expected = terms.value_and_grad(student=student, teacher=teacher, wrt="student")
        there = {"student": student.to("cuda:1"), "teacher": teacher.to("cuda:1")}
        out = terms.value_and_grad(**there, wrt="student")
        torch.testing.assert_close(out.gradient["student"].cpu(), expected.gradient["student"].cpu())
        leaf = there["student"].requires_grad_()
        (found,) = torch.autograd.grad(terms(**there).total, leaf)
        torch.testing.assert_close(found.cpu(), expected.gradient["student"].cpu())
        norms = pn.Pipeline([pn.Term(pn.l1), pn.Term(pn.l2)])
        torch.testing.assert_close(
            norms.value_and_grad(leaf).gradient.cpu(), norms.value_and_grad(student.requires_grad_()).gradient.cpu()
        )
