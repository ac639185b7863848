"""The adapters' gradients, as terms, and their errors."""

from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties.training import TensorData, adapters
from tests.libraries import JAX, TORCH, close
from tests.training.adapters.cases import NAMES, PAIRED, call, drawn, slope


class TestGradients:
    """The gradients are those of the values: central differences agree."""

    CASES = (
        ("l1", {}),
        ("l1", {"target": "probs", "reduction": "mean"}),
        ("l2", {"center": "mean", "clip": 0.9}),
        ("elastic_net", {"l1_ratio": 0.2}),
        ("entropy", {}),
        ("entropy", {"mode": "bonus", "reduction": "sum"}),
        ("kl", {}),
        ("kl", {"reduction": "sum"}),
        ("consistency", {}),
        ("consistency", {"metric": "l1"}),
        ("consistency", {"metric": "cosine"}),
        ("orthogonality", {}),
        ("orthogonality", {"mode": "hard", "normalize": False}),
        ("gradient_penalty", {}),
    )
    OF_TOKENS = (("kl", {"estimator": "k1"}), ("kl", {"estimator": "k2"}))
    OF_CANDIDATES = (
        ("entropy", {"temperature": 0.5}),
        ("entropy", {"normalize": True, "renormalize": False}),
        ("kl", {"direction": "reverse"}),
        ("kl", {"direction": "symmetric", "renormalize": False}),
        ("consistency", {"metric": "kl"}),
        ("orthogonality", {"axis": "vocabulary"}),
    )

    @pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])
    @pytest.mark.parametrize(
        ("candidates", "name", "options"),
        [(None, *case) for case in (*CASES, *OF_TOKENS)] + [(3, *case) for case in (*CASES, *OF_CANDIDATES)],
    )
    def test_finite_differences(self, candidates: int | None, name: str, options: Any, masked: bool) -> None:
        lengths = [2, 3, 1]
        arrays = [torch.tensor(array).requires_grad_() for array in drawn(lengths, candidates, 7)]
        others = [torch.tensor(array) for array in drawn(lengths, candidates, 8)]
        more = dict(options)
        if masked:
            more["mask"] = [np.array([1.0, 1.0]), np.array([0.0, 1.0, 1.0]), np.array([1.0])]
        value = lambda tensors: call(name, tensors, others, **more)[0]
        found = torch.autograd.grad(value(arrays), arrays)
        assert any((gradient != 0).any() for gradient in found)
        step = 1e-6
        for place, array in enumerate(arrays):
            for index in np.ndindex(*array.shape):
                ends = []
                for sign in (1, -1):
                    moved = [one.detach().clone() for one in arrays]
                    moved[place][index] += sign * step
                    ends.append(value(moved).item())
                assert found[place][index].item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=2e-6)

    @pytest.mark.parametrize("name", ["l2", "entropy", "kl", "consistency"])
    def test_jax_agrees(self, name: str) -> None:
        a, b = drawn([2, 3], 3, 7), drawn([2, 3], 3, 8)
        found = []
        for library in (TORCH, JAX):
            others = [library.array(array) for array in b]
            fn = lambda *arrays, others=others: call(name, list(arrays), others)[0]
            found.append(library.gradients(fn, *[library.array(array) for array in a]))
        for one, other in zip(*found, strict=True):
            close(one, other)

    def test_entropy_bonus_raises_the_entropy(self) -> None:
        x = torch.tensor([[0.7, 0.2, 0.1]]).log().requires_grad_()
        for mode, sign in (("bonus", 1), ("penalty", -1)):
            value, metrics = adapters.entropy([x], mode=mode)
            (gradient,) = torch.autograd.grad(value, [x])
            _, after = adapters.entropy([x.detach() - 0.1 * gradient])
            assert sign * (after["entropy"] - metrics["entropy"]) > 0

    def test_data_of_different_precision(self) -> None:
        x = [torch.full((2,), -1.0, dtype=kind, requires_grad=True) for kind in (torch.float16, torch.float32)]
        value, _ = adapters.l2(x)
        value.backward()
        assert (value.dtype, value.item()) == (torch.float32, 4.0)
        assert [one.grad.dtype for one in x if one.grad is not None] == [torch.float16, torch.float32]

    def test_half_precision_in_float32_out(self) -> None:
        x = torch.full((3,), -1.0, dtype=torch.bfloat16, requires_grad=True)
        value, _ = adapters.kl([x], [torch.full((3,), -2.0)])
        value.backward()
        assert value.dtype == torch.float32
        assert x.grad is not None
        assert x.grad.dtype == torch.bfloat16


class TestAsTerms:
    INPUTS = ("logprobs", "reference", "pair", "mask")

    def inputs(self) -> dict[str, Any]:
        made: dict[str, Any] = {
            name: [torch.tensor(array) for array in drawn([3, 2], seed=seed)]
            for seed, name in enumerate(self.INPUTS[:3])
        }
        return {**made, "mask": [torch.tensor([False, True, True]), torch.tensor([True, True])]}

    def test_inputs_by_name(self) -> None:
        pipeline = pn.Pipeline([pn.Term(getattr(adapters, name)) for name in NAMES])
        inputs = self.inputs()
        given = {name: inputs[name] for name in ("logprobs", "pair")}
        out = pipeline.replace("kl", pn.Term(adapters.kl, inputs=("logprobs", "pair")))(**given)
        assert list(pipeline.names) == NAMES
        assert all(isinstance(value, float) for value in out.metrics().values())

    def test_a_named_reference_and_the_mask(self) -> None:
        term = pn.Term(adapters.kl, 0.1, inputs={"logprobs": "logprobs", "reference": "initial", "mask": "mask"})
        inputs = self.inputs()
        inputs["initial"] = inputs.pop("reference")
        out = pn.Pipeline([term]).value_and_grad(**inputs, wrt="logprobs")
        expected, _ = adapters.kl(inputs["logprobs"], inputs["initial"], inputs["mask"])
        close(out["kl"].value.item(), expected.item())
        assert out.gradient["logprobs"][0][0] == 0

    def test_a_norm_of_a_reference(self) -> None:
        out = pn.Pipeline([pn.Term(adapters.l1, inputs="reference")])(reference=self.inputs()["reference"])
        close(out["l1"].value.item(), adapters.l1(self.inputs()["reference"])[0].item())

    def test_a_reference_as_an_option_may_be_of_numpy(self) -> None:
        reference = drawn([3, 2], seed=1)
        out = pn.Pipeline([pn.Term(adapters.kl, options={"reference": reference})])(logprobs=self.inputs()["logprobs"])
        close(out["kl"].value.item(), adapters.kl(self.inputs()["logprobs"], reference)[0].item())

    @pytest.mark.parametrize("name", NAMES)
    def test_by_path_and_back(self, name: str) -> None:
        config: list[dict[str, Any]] = [{"fn": f"penalties.training.adapters:{name}", "weight": 0.5}]
        pipeline = pn.Pipeline.from_config(config)
        assert pipeline[name].fn is getattr(adapters, name)
        again = pn.Pipeline.from_config(pn.Pipeline([pn.Term(getattr(adapters, name), 0.5)]).to_config())
        assert again[name].fn is getattr(adapters, name)

    def test_unknown_options_raise_when_the_term_is_created(self) -> None:
        with pytest.raises(pn.OptionError, match="did you mean estimator?"):
            pn.Term(adapters.kl, options={"estimater": "k2"})

    @pytest.mark.parametrize("name", ["orthogonality", "gradient_penalty"])
    def test_draws_are_others_at_each_step_and_datum(self, name: str) -> None:
        generator = np.random.default_rng(0)
        x = [torch.tensor(generator.normal(size=(6, 4))) for _ in range(2)]
        y = [torch.tensor(generator.normal(size=(6, 4))) for _ in range(2)]
        options = {"sample_size": 3} if name == "orthogonality" else {"fn": slope}
        inputs = {"logprobs": "logprobs"} | ({"reference": "reference"} if name == "gradient_penalty" else {})
        pipeline = pn.Pipeline([pn.Term(getattr(adapters, name), inputs=inputs, options=options)])
        values = [pipeline(logprobs=x, reference=y, step=step)[name].value.item() for step in (0, 1, 0)]
        assert values[0] == values[2] != values[1]
        same = pipeline(logprobs=[x[0], x[0]], reference=[y[0], y[0]])
        metrics = same.metrics()
        assert metrics[f"{name}/{name}_max"] != metrics[f"{name}/{name}_min"]

    def test_a_generator_is_drawn_from(self) -> None:
        x = [torch.tensor(drawn([6], 4)[0])]
        seeds = [torch.Generator().manual_seed(1) for _ in range(2)]
        values = [adapters.orthogonality(x, sample_size=3, seed=seed)[0].item() for seed in seeds]
        assert values[0] == values[1]


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("kl", {"direction": "reverse"}),
            ("kl", {"renormalize": True}),
            ("entropy", {"temperature": 0.5}),
            ("entropy", {"normalize": False}),
            ("entropy", {"renormalize": True}),
            ("consistency", {"metric": "kl"}),
        ],
    )
    def test_sampled_tokens_are_no_distribution(self, name: str, options: Any) -> None:
        a = drawn([2, 3])
        with pytest.raises(pn.OptionError, match=f"{name}: .* needs full distributions"):
            call(name, a, a, **options)

    def test_candidates_are_no_sample(self) -> None:
        a = drawn([2, 3], 3)
        with pytest.raises(pn.OptionError, match=r'kl: estimator="k3"; .* needs one sampled token'):
            adapters.kl(a, a, estimator="k3")

    @pytest.mark.parametrize("name", PAIRED)
    def test_shapes_name_the_datum_and_both(self, name: str) -> None:
        message = rf"{name}: datum 1: logprobs has shape \(3,\) and {PAIRED[name]} has shape \(2,\)"
        with pytest.raises(pn.ShapeError, match=message):
            call(name, drawn([2, 3]), drawn([2, 2]))
        with pytest.raises(pn.ShapeError, match=rf"{name}: logprobs has 2 data and {PAIRED[name]} has 1"):
            call(name, drawn([2, 3]), drawn([2]))
        with pytest.raises(pn.InputError, match=f"{name}: datum 1: {PAIRED[name]}"):
            call(name, drawn([2, 3]), [drawn([2])[0], None])

    @pytest.mark.parametrize("name", NAMES)
    def test_rejects_what_is_not_a_batch(self, name: str) -> None:
        one = drawn([2])
        with pytest.raises(pn.InputError, match=f"{name}: logprobs is empty"):
            call(name, [], [])
        with pytest.raises(pn.BackendError, match=f"{name}: logprobs is a str"):
            call(name, "logprobs", one)
        with pytest.raises(pn.BackendError, match=f"{name}: logprobs is a NoneType"):
            call(name, None, one)
        with pytest.raises(pn.BackendError, match=rf"{name}: logprobs\[0\] is a float"):
            call(name, [1.0], one)
        with pytest.raises(pn.InputError, match=f"{name}: datum 0: logprobs is missing"):
            call(name, [None], one)
        with pytest.raises(pn.BackendError, match=rf"{name}: logprobs\[1\] is a str"):
            call(name, [one[0], "no"], [*one, *one])

    @pytest.mark.parametrize("name", NAMES)
    def test_tokens_or_candidates(self, name: str) -> None:
        mixed = [*drawn([2]), *drawn([2], 3)]
        with pytest.raises(
            pn.ShapeError, match=rf"{name}: datum 1: logprobs has shape \(2, 3\) and that of datum 0 \(2,"
        ):
            call(name, mixed, mixed)
        cube = [np.zeros((2, 2, 2))]
        with pytest.raises(
            pn.ShapeError, match=rf"{name}: datum 0: logprobs has shape \(2, 2, 2\); expected \(N,\) or"
        ):
            call(name, cube, cube)

    @pytest.mark.parametrize("name", ["entropy", "kl", "consistency"])
    def test_as_many_candidates_everywhere(self, name: str) -> None:
        mixed = [*drawn([2], 2), *drawn([2], 3)]
        with pytest.raises(pn.ShapeError, match="datum 1: .* with the same K"):
            call(name, mixed, mixed)

    @pytest.mark.parametrize("name", NAMES)
    def test_masks_that_do_not_fit(self, name: str) -> None:
        a = drawn([2, 3])
        with pytest.raises(
            pn.ShapeError, match=rf"{name}: datum 1: logprobs has shape \(3,\) and mask has shape \(2,\)"
        ):
            call(name, a, a, mask=[np.ones(2), np.ones(2)])
        b = drawn([2, 3], 3)
        with pytest.raises(pn.ShapeError, match=f"{name}: datum 1: .* the same kind in all data"):
            call(name, b, b, mask=[np.ones(2), np.ones((3, 3))])

    @pytest.mark.parametrize("name", NAMES)
    def test_reductions(self, name: str) -> None:
        a = drawn([2])
        with pytest.raises(pn.OptionError, match=f'{name}: reduction="none"; expected "sum" or "mean"'):
            call(name, a, a, reduction="none")

    @pytest.mark.parametrize(
        ("name", "candidates", "options"),
        [
            ("l1", None, {"target": "logits"}),
            ("l2", None, {"center": "median"}),
            ("l2", None, {"clip": -1}),
            ("elastic_net", None, {"l1_ratio": 2}),
            ("entropy", None, {"mode": "maximize"}),
            ("entropy", 2, {"temperature": 0}),
            ("entropy", 2, {"normalize": "yes"}),
            ("entropy", 2, {"renormalize": "yes"}),
            ("kl", None, {"estimator": "k4"}),
            ("kl", 2, {"direction": "backward"}),
            ("consistency", None, {"metric": "l3"}),
            ("consistency", 2, {"renormalize": True}),
            ("orthogonality", 2, {"mode": "firm"}),
            ("orthogonality", 2, {"seed": -1, "sample_size": 2}),
            ("gradient_penalty", None, {"fn": 3}),
            ("gradient_penalty", None, {"fn": "nowhere:nothing"}),
            ("gradient_penalty", None, {"target_norm": -1}),
            ("l1", None, {"lambda": 0.1}),
        ],
    )
    def test_options(self, name: str, candidates: int | None, options: Any) -> None:
        a = [torch.tensor(array) for array in drawn([2, 3], candidates)]
        with pytest.raises(pn.OptionError):
            call(name, a, a, **options)

    def test_two_libraries(self) -> None:
        x, y = [TORCH.array([-1.0])], [JAX.array([-1.0])]
        with pytest.raises(pn.BackendError, match="PyTorch array and reference.0. is a JAX array"):
            adapters.kl(x, y)

    def test_arrays_that_travel_are_read(self) -> None:
        value, _ = adapters.kl([torch.tensor([-1.0])], [TensorData([-1.0])])
        assert value.item() == 0.0

    def test_data_without_tokens_count_nothing(self) -> None:
        empty = [np.zeros(0), np.zeros(0)]
        value, metrics = adapters.kl(empty, empty)
        assert (float(value), list(metrics)) == (0.0, ["kl"])
