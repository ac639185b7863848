"""Which terms are evaluated together, and that a kernel's numbers are those of the terms' own functions."""

import gc
import weakref
from typing import Any

import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE

LARGE = 400_000
NORMS = pn.Pipeline(
    [
        pn.Term(pn.l1, weight=0.1),
        pn.Term(pn.l2, weight=0.01),
        pn.Term(pn.elastic_net, weight=0.3, options={"l1_ratio": 0.3, "reduction": "mean"}),
        pn.Term(pn.smooth_l1, weight=2.0, options={"delta": 0.5}),
        pn.Term(pn.smooth_l1, name="wide", weight=0.5, options={"delta": 2.0, "reduction": "mean"}),
    ]
)

on_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="the kernel is for a CPU")


def large(dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    return torch.randn(LARGE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def reasons(plan: Any) -> dict[str, str]:
    return {job.term.name: group.reason for group in plan for job in group.jobs}


@on_cpu
class TestKernel:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_numbers_are_those_of_the_functions(self, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
        x = large(dtype)
        x[::7] = 0.0
        assert len(NORMS.plan(x, wrt="input")) == 1
        fused = NORMS.value_and_grad(x, wrt="input")
        monkeypatch.setenv("PENALTIES_KERNELS", "off")
        assert len(NORMS.plan(x, wrt="input")) == len(NORMS)
        plain = NORMS.value_and_grad(x, wrt="input")
        tight = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(fused.total, plain.total, **tight)
        torch.testing.assert_close(fused.gradient, plain.gradient, **tight)
        torch.testing.assert_close(fused.total_grad_norm, plain.total_grad_norm, **tight)
        for one, other in zip(fused, plain, strict=True):
            torch.testing.assert_close(one.value, other.value, **tight)
            torch.testing.assert_close(one.grad_norm, other.grad_norm, **tight)

    def test_the_total_is_on_the_graph_of_the_input(self) -> None:
        x = large().requires_grad_()
        out = NORMS.value_and_grad(x)
        (3 * out.total).backward()
        torch.testing.assert_close(x.grad, 3 * out.gradient)

    def test_beside_own_functions_and_other_inputs(self) -> None:
        own = pn.Term(lambda x, y: (x * y).sum(), name="own", weight=0.5)
        pipeline = pn.Pipeline([own, *NORMS]).replace("l2", pn.Term(pn.l2, weight=0.01, inputs="y"))
        x, y = large(seed=1), large(seed=2)
        assert [[job.term.name for job in group.jobs] for group in pipeline.plan(x=x, y=y, wrt=("x", "y"))] == [
            ["own"],
            ["l1", "elastic_net", "smooth_l1", "wide"],
            ["l2"],
        ]
        out = pipeline.value_and_grad(x=x, y=y, wrt=("x", "y"))
        assert tuple(out.terms) == pipeline.names
        assert list(out["l1"].grad_norms) == ["x"]
        leaves = [x.clone().requires_grad_(), y.clone().requires_grad_()]
        expected = torch.autograd.grad(pipeline.total(x=leaves[0], y=leaves[1]), leaves)
        torch.testing.assert_close(out.gradient["x"], expected[0])
        torch.testing.assert_close(out.gradient["y"], expected[1])

    @pytest.mark.parametrize("element", [float("inf"), float("-inf"), float("nan")])
    def test_what_is_not_finite_is_where_autograd_has_it(self, element: float, monkeypatch: pytest.MonkeyPatch) -> None:
        x = large()
        x[5] = element
        fused = NORMS.value_and_grad(x, wrt="input")
        monkeypatch.setenv("PENALTIES_KERNELS", "off")
        plain = NORMS.value_and_grad(x, wrt="input")
        torch.testing.assert_close(fused.gradient, plain.gradient, equal_nan=True)
        for one, other in zip(fused, plain, strict=True):
            torch.testing.assert_close(one.value, other.value, equal_nan=True)

    def test_arrays_that_are_not_contiguous(self) -> None:
        x = large().reshape(400, 1000).T
        out = NORMS.value_and_grad(x, wrt="input")
        leaf = x.clone().requires_grad_()
        (expected,) = torch.autograd.grad(NORMS.total(leaf), leaf)
        torch.testing.assert_close(out.gradient, expected)

    def test_events_of_each_term(self) -> None:
        heard: list[str] = []
        handler = pn.telemetry.attach(lambda event, _, metadata: heard.append(metadata["name"]), ["term.stop"])
        try:
            NORMS.value_and_grad(large(), wrt="input")
        finally:
            pn.telemetry.detach(handler)
        assert heard == list(NORMS.names)


class TestReasons:
    @on_cpu
    def test_why_a_term_is_by_itself(self) -> None:
        x = large()
        pipeline = pn.Pipeline(
            [
                pn.Term(lambda x: x.sum(), name="own"),
                pn.Term(pn.l2, options={"center": "mean"}),
                pn.Term(pn.l1, runs="thread"),
                pn.Term(pn.smooth_l1, weight=torch.tensor(0.5)),
                pn.Term(pn.elastic_net, inputs="few"),
            ]
        )
        found = reasons(pipeline.plan(x=x, few=x[:10], wrt=("x", "few")))
        assert "own function" in found["own"]
        assert "these options" in found["l2"]
        assert "thread" in found["l1"]
        assert "weight is an array" in found["smooth_l1"]
        assert "10 elements" in found["elastic_net"]

    @on_cpu
    def test_gradients_that_are_kept_unfuse(self) -> None:
        plan = NORMS.plan(large(), wrt="input", keep=True)
        assert len(plan) == len(NORMS)
        assert all("kept" in reason for reason in reasons(plan).values())

    def test_a_nest_is_not_a_single_array(self) -> None:
        (reason,) = reasons(pn.Pipeline(["l1"]).plan([torch.ones(3), torch.ones(2)], wrt="input")).values()
        assert "no kernel for a nest on cpu" in reason

    def test_shown_as_a_table(self) -> None:
        shown = repr(pn.Pipeline(["l1", "l2"]).plan(torch.ones(3), wrt="input"))
        assert shown.splitlines()[0] == "Plan, 2 groups"
        assert "l1" in shown.splitlines()[2]

    def test_without_gradients_it_is_that_of_a_plain_call(self) -> None:
        (reason,) = reasons(pn.Pipeline(["l1"]).plan(torch.ones(3))).values()
        assert "no gradients" in reason


class TestReuse:
    """A plan is made once for inputs of one kind; whatever else changes, the numbers are those of a new pipeline."""

    TERMS = (
        pn.Term(pn.kl_divergence, weight=0.3, inputs=("student", "teacher"), options={"logits": True}),
        pn.Term(pn.entropy, weight=0.2, inputs="student", options={"logits": True}),
        pn.Term(pn.l2, weight=0.1, inputs="student"),
        pn.Term(pn.l1, weight=0.1, inputs="teacher", every=2),
    )

    def inputs(self, seed: int, **changes: Any) -> dict[str, Any]:
        student, teacher = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(seed)).to(DEVICE).unbind()
        return {"student": student.requires_grad_(), "teacher": teacher, "step": 0, **changes}

    def test_calls_of_every_kind_in_turn(self) -> None:
        pipeline = pn.Pipeline(self.TERMS)
        weight = torch.tensor(0.7, device=DEVICE)
        changes: list[dict[str, Any]] = [
            {},
            {"step": 1},
            {"weights": {"entropy": weight}},
            {"weights": {"entropy": 0.0}},
            {"teacher": torch.zeros(3, 5, device=DEVICE, requires_grad=True)},
            {"wrt": ("student", "teacher")},
            {"wrt": "teacher"},
            {"cosines": True, "wrt": ("student", "teacher")},
            {
                "student": torch.ones(2, 5, device=DEVICE, requires_grad=True),
                "teacher": torch.zeros(2, 5, device=DEVICE),
            },
        ]
        for seed, change in enumerate([*changes, *changes]):
            given = self.inputs(seed, **change)
            found, new = pipeline.value_and_grad(**given), pn.Pipeline(self.TERMS).value_and_grad(**given)
            assert found == new
            plain = {key: x for key, x in given.items() if key not in ("wrt", "cosines")}
            assert pipeline(**plain) == pn.Pipeline(self.TERMS)(**plain)

    def test_switched_off_in_between(self, monkeypatch: pytest.MonkeyPatch) -> None:
        x = large(torch.float32)
        pipeline = pn.Pipeline(NORMS.terms)
        first = pipeline.value_and_grad(x, wrt="input")
        monkeypatch.setenv("PENALTIES_KERNELS", "off")
        assert len({term.duration for term in pipeline.value_and_grad(x, wrt="input")}) > 1
        monkeypatch.delenv("PENALTIES_KERNELS")
        assert pipeline.value_and_grad(x, wrt="input") == first

    def test_keeps_no_inputs(self) -> None:
        pipeline = pn.Pipeline(self.TERMS)
        given = self.inputs(0)
        seen = [weakref.ref(given[name]) for name in ("student", "teacher")]
        pipeline.value_and_grad(**given)
        del given
        gc.collect()
        assert [one() for one in seen] == [None, None]

    def test_shapes_that_do_not_come_back(self) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l2)])
        for size in range(1, 200):
            assert float(pipeline(torch.ones(size, device=DEVICE)).total) == size


@on_cpu
def test_a_call_without_gradients_says_that_a_kernel_is_missing_too() -> None:
    term = pn.Term(pn.kl_divergence, inputs=("student", "teacher"), options={"logits": True})
    (group,) = pn.Pipeline([term]).plan(student=torch.zeros(2, 3), teacher=torch.zeros(2, 3))
    assert group.reason == "by itself: no kernel for cpu tensors, and no gradients are requested"
