"""Logits that need never exist in a pipeline: the numbers of the array that they stand for, and never that array."""

from typing import Any

import jax
import pytest
import torch
from torch.overrides import TorchFunctionMode

import penalties as pn
from penalties.arrays import Logits
from penalties.backends import owner
from penalties.functional import blocks
from penalties.pipeline.inputs import CallInputs
from tests.heads import arrays, head, learned, mask_of, tensors, use_small_blocks
from tests.libraries import DEVICE, JAX, LIBRARIES, TORCH, close

OPTIONS = {"logits": True}
PIPELINE = pn.Pipeline(
    [
        pn.Term(pn.kl_divergence, weight=0.3, inputs=("student", "teacher"), options=OPTIONS),
        pn.Term(pn.js_divergence, weight=0.5, inputs={"p": "student", "q": "teacher", "mask": "kept"}, options=OPTIONS),
        pn.Term(pn.entropy, weight=0.2, inputs="student", options={**OPTIONS, "reduction": "sum", "normalize": True}),
        pn.Term(pn.entropy, name="masked", inputs={"p": "student", "mask": "kept"}, options={"temperature": 2.0}),
        pn.Term(
            pn.kl_divergence,
            name="floor",
            weight=2.0,
            inputs=("teacher", "student"),
            options={**OPTIONS, "floor": -2.0},
        ),
    ]
)
QUICK: Any = {"fullgraph": True, "backend": "eager"}
on_torch = pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_blocks(monkeypatch)


@on_torch
class TestInAPipeline:
    @pytest.mark.parametrize("leading", [(1,), (5,), (2, 3)])
    @pytest.mark.parametrize("both", [False, True])
    @pytest.mark.parametrize("cap", [None, 3.0])
    def test_numbers_are_those_of_the_array(self, leading: tuple[int, ...], both: bool, cap: float | None) -> None:
        student, teacher = head(leading, cap=cap), head(leading, bias=False, cap=None, seed=1)
        leaves = [*learned(student), *(learned(teacher) if both else [])]
        given = {"student": student, "teacher": teacher, "kept": mask_of(leading)}
        if not both:
            given["teacher"] = teacher.materialize()
        assert len(PIPELINE.plan(**given)) == 1
        out = PIPELINE.value_and_grad(**given)
        whole = {name: x.materialize() if isinstance(x, Logits) else x for name, x in given.items()}
        right = PIPELINE(**whole)
        slopes = torch.autograd.grad(right.total, leaves)
        torch.testing.assert_close(out.total, right.total)
        for term in PIPELINE:
            torch.testing.assert_close(out[term.name].value, right[term.name].value)
        found = [
            slope
            for name in out.gradient
            for slope in (out.gradient[name].hidden, out.gradient[name].weight, out.gradient[name].bias)
        ]
        for one, slope in zip([x for x in found if x is not None], slopes, strict=True):
            torch.testing.assert_close(one, slope)
        flat = torch.cat([slope.reshape(-1) for slope in slopes])
        torch.testing.assert_close(out.total_grad_norm, flat.norm())

    def test_the_total_of_a_call_is_differentiable(self) -> None:
        student, teacher = head((5,)), head((5,), seed=1)
        leaves = learned(student)
        kept = mask_of((5,))
        loss = PIPELINE(student=student, teacher=teacher, kept=kept).total * 3 + student.hidden.sum()
        found = torch.autograd.grad(loss, leaves)
        whole = {"student": student.materialize(), "teacher": teacher.materialize(), "kept": kept}
        right = torch.autograd.grad(PIPELINE(**whole).total * 3 + student.hidden.sum(), leaves)
        for one, slope in zip(found, right, strict=True):
            torch.testing.assert_close(one, slope)

    def test_a_teacher_of_another_size(self) -> None:
        """Of other hidden size, with a layer of its own; only the number of classes is the same."""
        student, kept = head((5,)), mask_of((5,))
        teacher = Logits(*tensors((5, 9), (7, 9), seed=1))
        leaves = learned(student)
        assert len(PIPELINE.plan(student=student, teacher=teacher, kept=kept)) == 1
        found = torch.autograd.grad(PIPELINE(student=student, teacher=teacher, kept=kept).total, leaves)
        whole = PIPELINE(student=student.materialize(), teacher=teacher.materialize(), kept=kept)
        for one, slope in zip(found, torch.autograd.grad(whole.total, leaves), strict=True):
            torch.testing.assert_close(one, slope)

    @pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
    def test_under_autocast(self, stored: torch.dtype) -> None:
        """The products are those of autocast, and gradients have the dtype of what they are taken at."""
        student = head((6,), bias=False, dtype=torch.float32)
        student = Logits(student.hidden.to(stored), student.weight, None, 3.0)
        teacher, kept = head((6,), bias=False, dtype=torch.float32, seed=1), mask_of((6,))
        leaves = learned(student, ("hidden", "weight"))
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            found = PIPELINE(student=student, teacher=teacher, kept=kept)
            whole = PIPELINE(student=student.materialize(), teacher=teacher.materialize(), kept=kept)
        torch.testing.assert_close(found.total, whole.total, rtol=2e-2, atol=0.0)
        slopes = torch.autograd.grad(whole.total, leaves)
        for leaf, one, slope in zip(leaves, torch.autograd.grad(found.total, leaves), slopes, strict=True):
            assert one.dtype == leaf.dtype
            assert float((one - slope).float().norm() / slope.float().norm()) < 0.05

    def test_finite_differences(self) -> None:
        teacher, kept = head((3,), seed=1), mask_of((3,))

        def total(hidden: Any, weight: Any, bias: Any) -> Any:
            student = Logits(hidden, weight, bias, 3.0)
            return PIPELINE(student=student, teacher=teacher, kept=kept).total

        assert torch.autograd.gradcheck(total, learned(head((3,))))

    @pytest.mark.parametrize("masked", [False, True])
    def test_cross_entropy_beside_divergences(self, masked: bool) -> None:
        student, teacher, kept = head((6,)), head((6,), seed=1), mask_of((6,))
        leaves = learned(student)
        targets = torch.tensor([0, 6, -100, 3, 3, 1], device=DEVICE)
        mask = {"mask": "kept"} if masked else {}
        loss = pn.Term(pn.cross_entropy, inputs={"p": "student", "targets": "labels", **mask}, options=OPTIONS)
        pipeline = pn.Pipeline(PIPELINE.terms, base=loss)
        given = {"student": student, "teacher": teacher, "kept": kept, "labels": targets}
        assert len(pipeline.plan(**given)) == 1
        found = pipeline(**given)
        right = pipeline(**{**given, "student": student.materialize(), "teacher": teacher.materialize()})
        torch.testing.assert_close(found.base.value.detach(), right.base.value.detach())
        slopes = [torch.autograd.grad(out.total, leaves) for out in (found, right)]
        for one, slope in zip(*slopes, strict=True):
            torch.testing.assert_close(one, slope)

    def test_a_frozen_head_has_no_product_of_its_own(self) -> None:
        student = head((6,))
        learned(student, ("hidden",))
        products: list[tuple[int, ...]] = []

        class Watch(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                if func in (torch.Tensor.matmul, torch.Tensor.__matmul__, torch.Tensor.addmm_):
                    products.append(tuple(result.shape))
                return result

        with Watch():
            out = PIPELINE.value_and_grad(student=student, teacher=head((6,), seed=1), kept=mask_of((6,)))
        assert (7, 4) not in products
        assert (2, 4) in products
        assert out.gradient["student"].weight is None

    def test_no_tensor_has_the_size_of_the_logits(self) -> None:
        rows, classes = 40, 50
        hidden, weight, teacher = tensors((rows, 4), (classes, 4), (rows, 4), dtype=torch.float32)
        student = Logits(hidden.requires_grad_(), weight.requires_grad_())
        largest: list[int] = [0]

        class Watch(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                if isinstance(result, torch.Tensor):
                    largest[0] = max(largest[0], result.numel())
                return result

        def note(tensor: torch.Tensor) -> torch.Tensor:
            largest[0] = max(largest[0], tensor.numel())
            return tensor

        given = {"student": student, "teacher": Logits(teacher, weight.detach()), "kept": mask_of((rows,))}
        with Watch(), torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            PIPELINE(**given).total.backward()
            PIPELINE.value_and_grad(**given)
            pn.entropy(student, logits=True).backward()
        assert largest[0] == classes * 4

    def test_the_sum_over_blocks_is_the_only_wide_array_of_the_layer(self) -> None:
        hidden, weight, teacher = tensors((8, 4), (50, 4), (8, 50), dtype=torch.bfloat16)
        student = Logits(hidden.requires_grad_(), weight.requires_grad_())
        wide: dict[int, Any] = {}

        class Watch(TorchFunctionMode):
            def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                if isinstance(result, torch.Tensor) and (result.shape, result.dtype) == (weight.shape, torch.float32):
                    # Held, so that no address is used twice.
                    wide[result.data_ptr()] = result
                return result

        with Watch():
            pn.Pipeline([PIPELINE["kl_divergence"]])(student=student, teacher=teacher)
        assert len(wide) == 1

    @pytest.mark.parametrize(("count", "size"), [(250, 84), (100, 100), (101, 52), (1, 2), (0, 2)])
    def test_blocks_are_about_equal(self, count: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """At most 100 rows here, in even numbers; none is left with a few."""
        hidden, weight = tensors((count, 4), (10, 4))
        ops = owner(hidden)
        assert ops is not None
        monkeypatch.setattr(ops, "block", lambda _: 1000)
        assert blocks.block_rows(ops, Logits(hidden, weight)) == size

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_lower_precision(self, dtype: torch.dtype) -> None:
        student, teacher = head((6,), dtype=dtype), head((6,), dtype=dtype, seed=1)
        leaves = learned(student)
        given = {"student": student, "teacher": teacher, "kept": mask_of((6,))}
        out = PIPELINE.value_and_grad(**given)
        wide = {
            name: Logits(*(x.detach().double().requires_grad_() for x in (one.hidden, one.weight, one.bias)), 3.0)
            for name, one in (("student", student), ("teacher", teacher))
        }
        right = PIPELINE.value_and_grad(**wide, kept=given["kept"], wrt="student", keep=True)
        tolerance = {torch.float32: 1e-5, torch.bfloat16: 0.1, torch.float16: 1e-2}[dtype]
        for part, leaf in zip(("hidden", "weight", "bias"), leaves, strict=True):
            found = getattr(out.gradient["student"], part)
            assert found.dtype == leaf.dtype
            exact = getattr(right.gradient["student"], part)
            assert float((found.double() - exact).norm() / exact.norm()) < tolerance

    def test_small_gradients_of_float16_survive(self) -> None:
        student = head((6,), dtype=torch.float16)
        learned(student)
        tiny = pn.Pipeline([pn.Term(pn.entropy, weight=1e-9, inputs="student", options=OPTIONS)])
        loss = tiny(student=student).total * 2.0**24
        (found,) = torch.autograd.grad(loss, [student.weight])
        plain = pn.Pipeline([pn.Term(pn.entropy, weight=1e-9 * 2.0**24, inputs="student", options=OPTIONS)])
        (right,) = torch.autograd.grad(plain(student=student).total, [student.weight])
        torch.testing.assert_close(found, right, rtol=1e-2, atol=1e-5)

    def test_sums_over_rows_stay_in_range_at_float16(self) -> None:
        hidden = torch.full((200, 2), 1000.0, dtype=torch.float16)
        weight = torch.zeros(2, 2, dtype=torch.float16, requires_grad=True)
        targets = torch.zeros(len(hidden), dtype=torch.long)
        pipeline = pn.Pipeline([pn.Term(pn.cross_entropy, inputs=("logits", "targets"), options={"logits": True})])
        pipeline(logits=Logits(hidden, weight), targets=targets).total.backward()
        torch.testing.assert_close(weight.grad, torch.tensor([[-500.0] * 2, [500.0] * 2], dtype=torch.float16))

    def test_what_is_in_padding_reaches_nothing(self) -> None:
        student = head((6,))
        student.hidden[0] = float("nan")
        learned(student)
        terms = [PIPELINE["js_divergence"], PIPELINE["masked"]]
        out = pn.Pipeline(terms).value_and_grad(student=student, teacher=head((6,), seed=1), kept=mask_of((6,)))
        assert torch.isfinite(out.total)
        assert not out.gradient["student"].hidden[0].any()
        assert out.gradient["student"].weight.isfinite().all()
        (direct,) = torch.autograd.grad(pn.entropy(student, logits=True, mask=mask_of((6,))), [student.weight])
        assert direct.isfinite().all()
        nothing = pn.Pipeline(terms)(student=student, teacher=head((6,), seed=1), kept=torch.zeros(6))
        assert float(nothing.total.detach()) == 0.0

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_what_is_at_a_target_that_does_not_count_reaches_nothing(self, reduction: str) -> None:
        student, targets = head((6,)), torch.tensor([-100, 1, 2, 3, -100, 5], device=DEVICE)
        student.hidden[[0, 4]] = float("nan")
        learned(student)
        term = pn.Term(pn.cross_entropy, inputs=("student", "targets"), options={**OPTIONS, "reduction": reduction})
        gradient = pn.Pipeline([term]).value_and_grad(student=student, targets=targets).gradient["student"]
        assert gradient.hidden.isfinite().all()
        assert gradient.weight.isfinite().all()
        value = pn.cross_entropy(student, targets, logits=True, reduction=reduction)
        (direct,) = torch.autograd.grad(value, [student.weight])
        torch.testing.assert_close(direct, gradient.weight)

    def test_gradients_by_name_and_in_place(self) -> None:
        student = head((5,))
        leaves = learned(student)
        given = {"student": student, "teacher": head((5,), seed=1), "kept": mask_of((5,))}
        right = PIPELINE.value_and_grad(**given).gradient["student"]
        names = ("student.hidden", "student.weight", "student.bias")
        assert len(PIPELINE.plan(**given, wrt=names)) == 1
        out = PIPELINE.value_and_grad(**given, wrt=names)
        torch.testing.assert_close(
            out.gradient, dict(zip(names, (right.hidden, right.weight, right.bias), strict=True))
        )
        alone = PIPELINE.value_and_grad(**given, wrt="student.hidden")
        torch.testing.assert_close(alone.gradient["student.hidden"], right.hidden)
        alone.total.backward()
        torch.testing.assert_close(student.weight.grad, right.weight)
        for leaf in leaves:
            leaf.grad = None
        PIPELINE.value_and_grad(**given, accumulate=True)
        torch.testing.assert_close([leaf.grad for leaf in leaves], [right.hidden, right.weight, right.bias])

    def test_norms_are_exact_or_not_there(self) -> None:
        student = head((5,))
        learned(student)
        given = {"student": student, "teacher": head((5,), seed=1), "kept": mask_of((5,))}
        out = PIPELINE.value_and_grad(**given)
        assert all(term.grad_norm is None and "keep=True" in str(term.grad_error) for term in out)
        kept = PIPELINE.value_and_grad(**given, keep=True)
        torch.testing.assert_close(kept.total_grad_norm, out.total_grad_norm)
        whole = student.materialize()
        term = PIPELINE["entropy"]
        slope = torch.autograd.grad(pn.Pipeline([term])(student=whole)["entropy"].value, learned(student))
        torch.testing.assert_close(kept["entropy"].grad_norm, torch.cat([x.reshape(-1) for x in slope]).norm())

    def test_a_term_that_reads_no_target_says_so(self) -> None:
        student = head((5,))
        learned(student)
        theirs = pn.Term(pn.entropy, name="theirs", inputs="teacher", options=OPTIONS)
        out = pn.Pipeline([PIPELINE["entropy"], theirs]).value_and_grad(student=student, teacher=head((5,), seed=1))
        assert out["theirs"].grad_error == "it does not read student"

    def test_differentiating_one_term_raises(self) -> None:
        student = head((5,))
        learned(student)
        out = PIPELINE(student=student, teacher=head((5,), seed=1), kept=mask_of((5,)))
        for value in (out["entropy"].value, out.regularizer_total):
            with pytest.raises(pn.GradientError, match="differentiate out.total"):
                value.backward(retain_graph=True)
        out.total.backward()

    def test_without_gradients_there_is_none(self) -> None:
        student = head((5,))
        learned(student)
        given = {"student": student, "teacher": head((5,), seed=1), "kept": mask_of((5,))}
        with torch.no_grad():
            out = PIPELINE(**given)
        assert not out.total.requires_grad
        torch.testing.assert_close(out.total, PIPELINE(**given).total.detach())

    def test_your_own_function_gets_the_array_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made: list[Any] = []
        plain = Logits.materialize
        monkeypatch.setattr(Logits, "materialize", lambda self: made.append(plain(self)) or made[-1])
        student = head((5,))
        leaves = learned(student)
        own = [pn.Term(lambda student, n=n: (student**n).mean(), name=f"own {n}") for n in (2, 3)]
        pipeline = pn.Pipeline(own)
        plan = pipeline.plan(student=student)
        assert [group.reason for group in plan] == [
            "by itself: your own function; computed with the array of student"
        ] * 2
        out = pipeline(student=student)
        assert len(made) == 1
        found = torch.autograd.grad(out.total, leaves)
        taken = pipeline.value_and_grad(student=student).gradient["student"]
        torch.testing.assert_close(list(found), [taken.hidden, taken.weight, taken.bias])

    def test_inside_a_nest_they_are_arrays(self) -> None:
        student = head((5,))
        learned(student)
        own = pn.Term(lambda outs: outs["a"][0].square().sum(), name="own", weight=2.0)
        pipeline = pn.Pipeline([pn.Term(pn.l2, inputs="outs"), own])
        assert all("with the array of outs" in group.reason for group in pipeline.plan(outs={"a": [student]}))
        out = pipeline.value_and_grad(outs={"a": [student]})
        squares = student.materialize().square().sum()
        torch.testing.assert_close(out["l2"].value, squares.detach())
        torch.testing.assert_close(out["own"].value, squares.detach())
        (slope,) = torch.autograd.grad(3 * squares, [student.weight])
        torch.testing.assert_close(out.gradient["outs"]["a"][0].weight, slope)

    def test_arrays_are_not_those_of_logits_that_are_gone(self) -> None:
        inputs = CallInputs.of({})
        for seed in range(4):
            torch.testing.assert_close(inputs.materialized(head((2,), seed=seed)), head((2,), seed=seed).materialize())

    @pytest.mark.parametrize("keep", [False, True])
    def test_blocks_take_the_place_of_chunks(self, keep: bool) -> None:
        student = head((5,))
        learned(student)
        terms = [PIPELINE["entropy"], pn.Term(pn.l2, inputs="student", options={"reduction": "mean"})]
        chunked = pn.Pipeline([term.replace(chunk=3) for term in terms])
        plan = chunked.plan(student=student)
        assert [group.reason.endswith("in place of chunk=") for group in plan] == [True, False]
        found, right = (one.value_and_grad(student=student, keep=keep) for one in (chunked, pn.Pipeline(terms)))
        torch.testing.assert_close(found.total, right.total)
        torch.testing.assert_close(found.gradient["student"].weight, right.gradient["student"].weight)

    @pytest.mark.parametrize(
        ("kept", "message"),
        [
            (torch.ones(5, 1), r"mask has shape \(5, 1\); expected \(5,\)"),
            (torch.ones(5, 7), r"mask has shape \(5, 7\); expected \(5,\)"),
            (head((5,)), "mask is a Logits; expected a NumPy array"),
        ],
        ids=["column", "matrix", "logits"],
    )
    def test_a_mask_that_does_not_fit(self, kept: Any, message: str) -> None:
        with pytest.raises(pn.TermError, match=f"masked: raised .*{message}"):
            pn.Pipeline([PIPELINE["masked"]])(student=head((5,)), kept=kept)

    def test_second_derivatives_need_the_array(self) -> None:
        student = head((5,))
        leaves = learned(student)
        total = pn.Pipeline([PIPELINE["entropy"]])(student=student).total
        slopes = torch.autograd.grad(total, leaves, create_graph=True)
        with pytest.raises(pn.GradientError, match=r"blocks over Logits, .* logits.materialize\(\)"):
            slopes[0].square().sum().backward()

    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"runs": "thread"}, 'runs="thread"'),
            ({"compile": True}, "a graph of torch.compile; computed in blocks of rows"),
            (
                {"compile": True, "fn": lambda x: x.sum(), "inputs": "student", "options": {}},
                "a graph of torch.compile; computed with the array of student",
            ),
            ({"on_error": "skip"}, "it may be skipped"),
            ({"weight": torch.tensor(0.5)}, "its weight is an array"),
            ({"options": {**OPTIONS, "mask": torch.ones(5)}}, "another of its arrays is an option"),
            ({"differentiable": False}, "no penalty on distributions that has a gradient"),
            ({"inputs": {"p": "student", "mask": "student.hidden"}}, "its mask has another shape, or requires"),
            ({"inputs": ("student", "narrow"), "fn": pn.kl_divergence}, "its inputs differ in shape"),
        ],
    )
    def test_why_a_term_is_by_itself(self, changes: dict[str, Any], reason: str) -> None:
        student = head((5,))
        learned(student)
        pipeline = pn.Pipeline([PIPELINE["entropy"].replace(options=OPTIONS).replace(**changes)])
        (group,) = pipeline.plan(student=student, narrow=torch.zeros(4, 7))
        assert reason in group.reason

    def test_a_learned_weight(self) -> None:
        student = head((5,))
        learned(student)
        weight = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        out = pn.Pipeline([PIPELINE["entropy"].with_weight(weight)])(student=student)
        out.total.backward()
        torch.testing.assert_close(weight.grad, out["entropy"].value.detach())

    @pytest.mark.parametrize("runs", ["inline", "thread"])
    def test_in_an_executor(self, runs: Any) -> None:
        student = head((5,))
        learned(student)
        given = {"student": student, "teacher": head((5,), seed=1), "kept": mask_of((5,))}
        pipeline = pn.Pipeline([term.replace(runs=runs) for term in PIPELINE])
        with pn.Executor() as executor:
            out = executor.run(pipeline, given, wrt="student")
        right = PIPELINE.value_and_grad(**given, wrt="student")
        torch.testing.assert_close(out.total, right.total)
        torch.testing.assert_close(out.gradient["student"].weight, right.gradient["student"].weight)

    @pytest.mark.slow
    def test_in_a_process(self) -> None:
        student = head((5,))
        learned(student)
        pipeline = pn.Pipeline([PIPELINE["entropy"].replace(runs="process")])
        with pn.Executor() as executor:
            out = executor.run(pipeline, {"student": student}, wrt="student")
        right = pn.Pipeline([PIPELINE["entropy"]]).value_and_grad(student=student)
        torch.testing.assert_close(out.gradient["student"].weight, right.gradient["student"].weight)

    def test_inside_a_transform(self) -> None:
        hidden, weight, bias = learned(head((4,)))
        pipeline = pn.Pipeline([PIPELINE["entropy"]])

        def total(hidden: Any) -> Any:
            return pipeline(student=Logits(hidden, weight.detach(), bias.detach())).total

        found = torch.func.grad(total)(hidden.detach())
        right = pipeline.value_and_grad(student=Logits(hidden, weight.detach(), bias.detach())).gradient["student"]
        torch.testing.assert_close(found, right.hidden)

    def test_means_over_the_same_targets_that_ignore_others(self) -> None:
        student = head((6,))
        leaves = learned(student)
        given = {"student": student, "labels": torch.tensor([0, 6, 2, 3, 0, 1], device=DEVICE)}
        term = pn.Term(pn.cross_entropy, inputs={"p": "student", "targets": "labels"}, options=OPTIONS)
        other = term.replace(name="other", weight=3.0, options={**OPTIONS, "ignore_index": 0})
        pipeline = pn.Pipeline([term, other])
        assert len(pipeline.plan(**given)) == 1
        outs = pipeline(**given), pipeline(**{**given, "student": student.materialize()})
        found, right = ([*[one.value.detach() for one in out], *torch.autograd.grad(out.total, leaves)] for out in outs)
        torch.testing.assert_close(found, right)

    def test_the_gradient_at_a_nest_around_them(self) -> None:
        student = head((5,))
        learned(student)
        pipeline = pn.Pipeline([PIPELINE["entropy"].replace(inputs="outs.student")])
        outs = {"student": student, "other": tensors((2,))[0].requires_grad_()}
        (group,) = pipeline.plan(outs=outs, wrt="outs")
        assert "an input that contains outs.student" in group.reason
        found = pipeline.value_and_grad(outs=outs, wrt="outs").gradient["outs"]["student"]
        right = pn.Pipeline([PIPELINE["entropy"]]).value_and_grad(student=student).gradient["student"]
        torch.testing.assert_close(found.weight, right.weight)

    def test_masked_means_keep_their_digits(self) -> None:
        student, kept = head((6,)), torch.tensor([1, 1, 1, 0, 1, 1], device=DEVICE).float() / 3
        found = pn.Pipeline([PIPELINE["masked"]])(student=student, kept=kept).total
        right = pn.entropy(student.materialize(), mask=kept.double(), temperature=2.0)
        torch.testing.assert_close(found, right, rtol=1e-14, atol=0)

    def test_inside_a_graph(self) -> None:
        student = head((5,))
        pipeline = pn.Pipeline([PIPELINE["entropy"]])
        total = torch.compile(lambda hidden: pipeline.total(student=student.with_hidden(hidden)), **QUICK)
        torch.testing.assert_close(total(student.hidden), pipeline.total(student=student))


@pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")
def test_on_jax() -> None:
    hidden, weight, other = map(jax.numpy.asarray, arrays((5, 4), (7, 4), (5, 7)))
    pipeline = pn.Pipeline(PIPELINE.terms[:1])
    (group,) = pipeline.plan(student=Logits(hidden, weight), teacher=other, wrt="student")
    assert "computed in blocks of rows" in group.reason

    @jax.jit
    def lazily(hidden: Any) -> Any:
        return pipeline.value_and_grad(student=Logits(hidden, weight), teacher=other, wrt="student").gradient

    def plainly(hidden: Any, weight: Any) -> Any:
        return pipeline.total(student=hidden @ weight.T, teacher=other)

    right = jax.jit(jax.grad(plainly, argnums=(0, 1)))(hidden, weight)
    found = lazily(hidden)["student"]
    close(JAX.numpy(found.hidden), JAX.numpy(right[0]))
    close(JAX.numpy(found.weight), JAX.numpy(right[1]))
