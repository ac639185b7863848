"""Outputs: what they say, one transfer for all of it, and that nothing is lost on the way through JSON."""

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from tests.libraries import DEVICE, JAX, LIBRARIES, NUMPY, TORCH, close

PIPELINE = pn.Pipeline(
    [
        pn.Term(pn.l1, weight=0.5, inputs="x"),
        pn.Term(lambda x: (x.sum(), {"size": len(x), "any": True, "peak": x.max()}), name="metered", weight=2),
        pn.Term(lambda x: 1 / 0, name="bad", on_error="skip"),
    ],
    base=lambda x: (x.mean(), {"ppl": 2.0}),
)


def without_times(nested: dict[str, Any]) -> dict[str, Any]:
    if isinstance(nested, dict):
        return {key: without_times(value) for key, value in nested.items() if key != "duration"}
    return nested


class TestForms:
    def test_flat(self, library: Any) -> None:
        assert PIPELINE(x=library.array([1.0, 3.0])).metrics() == {
            "l1": 4.0,
            "l1_weighted": 2.0,
            "metered": 4.0,
            "metered_weighted": 8.0,
            "metered/size": 2.0,
            "metered/any": 1.0,
            "metered/peak": 3.0,
            "base_loss": 2.0,
            "base_loss/ppl": 2.0,
            "total": 12.0,
        }

    def test_every_number_is_a_float(self, library: Any) -> None:
        out = PIPELINE(x=library.array([1.0, 3.0]))
        for style in ("flat", "slash"):
            assert all(type(number) is float for number in out.metrics(style).values())

    def test_slash(self, library: Any) -> None:
        found = PIPELINE(x=library.array([1.0, 3.0])).metrics("slash")
        times = [key for key in found if key.startswith("time/")]
        assert times == ["time/base_loss", "time/l1", "time/metered"]
        assert {key: found[key] for key in found if key not in times} == {
            "loss/total": 12.0,
            "loss/base_loss": 2.0,
            "loss/base_loss/share": 2 / 12,
            "metrics/base_loss/ppl": 2.0,
            "loss/l1": 4.0,
            "loss/l1/weighted": 2.0,
            "loss/l1/share": 2 / 12,
            "weight/l1": 0.5,
            "loss/metered": 4.0,
            "loss/metered/weighted": 8.0,
            "loss/metered/share": 8 / 12,
            "weight/metered": 2.0,
            "metrics/metered/size": 2.0,
            "metrics/metered/any": 1.0,
            "metrics/metered/peak": 3.0,
        }

    def test_slash_with_gradients(self, autodiff: Any) -> None:
        pipeline = pn.Pipeline(["l1", "l2"], base=lambda x: x.sum())
        found = pipeline.value_and_grad(autodiff.array([1.0]), wrt="input", cosines=True).metrics("slash")
        assert found["grad_norm/l1"] == 1.0
        assert found["grad_norm/total"] == 4.0
        assert [found[f"grad_share/{name}"] for name in ("base_loss", "l1", "l2")] == [0.25, 0.25, 0.5]
        close([found["grad_cos/base_loss__l1"], found["grad_cos/l1__l2"]], [1.0, 1.0])

    def test_slash_without_times(self) -> None:
        assert pn.LossOutput.of([pn.TermOutput("a", 1.0)]).metrics("slash") == {
            "loss/total": 1.0,
            "loss/a": 1.0,
            "loss/a/weighted": 1.0,
            "loss/a/share": 1.0,
            "weight/a": 1.0,
        }

    def test_shares_of_nothing_are_left_out(self) -> None:
        zero, skipped = pn.TermOutput("a", 0.0), pn.TermOutput("b", None, error=pn.TermError("b", "failed"))
        assert [key for key in pn.LossOutput.of([zero, skipped]).metrics("slash") if "share" in key] == []
        infinite = pn.LossOutput.of([pn.TermOutput("a", 1.0), pn.TermOutput("c", np.inf)]).metrics("slash")
        assert {key: value for key, value in infinite.items() if "share" in key} == {"loss/a/share": 1.0}

    @pytest.mark.parametrize("style", ["flat", "slash"])
    def test_on_the_device_nothing_is_read(self, autodiff: Any, style: Any) -> None:
        pipeline = pn.Pipeline(["l1", pn.Term(pn.l2, 0.5)], base=lambda x: (x.sum(), {"peak": x.max()}))
        out = pipeline.value_and_grad(autodiff.array([1.0, -3.0]), wrt="input", cosines=True)
        found, expected = out.metrics(style, device=True), out.metrics(style)
        arrays = [value for value in found.values() if not isinstance(value, float)]
        assert len(arrays) > len(found) / 2
        assert not any(getattr(value, "requires_grad", False) for value in arrays)
        assert list(found) == list(expected)
        close([float(value) for value in found.values()], list(expected.values()))

    def test_on_the_device_zeros_have_a_share_of_zero(self, autodiff: Any) -> None:
        found = pn.Pipeline(["l1", "l2"])(autodiff.array([0.0])).metrics("slash", device=True)
        assert [float(found[f"loss/{name}/share"]) for name in ("l1", "l2")] == [0.0, 0.0]

    def test_device_is_a_flag(self) -> None:
        with pytest.raises(pn.OptionError, match='metrics: device="cuda"; expected'):
            PIPELINE(x=np.ones(2)).metrics(device="cuda")  # type: ignore[arg-type]

    def test_unknown_style(self) -> None:
        with pytest.raises(pn.OptionError, match='metrics: style="nested"; expected "flat" or "slash"'):
            PIPELINE(x=np.ones(2)).metrics("nested")  # type: ignore[arg-type]

    def test_nested(self, library: Any) -> None:
        nested = without_times(PIPELINE(x=library.array([1.0, 3.0])).to_dict())
        assert nested["base_loss"] == {"value": 2.0, "grad_norm": None, "custom": {"ppl": 2.0}}
        assert nested["regularizers"]["l1"] == {
            "value": 4.0,
            "weight": 0.5,
            "contribution": 2.0,
            "grad_norm": None,
            "grad_norm_weighted": None,
            "custom": {},
        }
        assert nested["regularizers"]["bad"]["value"] is None
        assert list(nested) == ["loss_total", "base_loss", "regularizers", "regularizer_total", "total_grad_norm"]
        assert (nested["loss_total"], nested["regularizer_total"], nested["total_grad_norm"]) == (12.0, 10.0, None)

    def test_through_json_and_back(self, autodiff: Any) -> None:
        out = PIPELINE.value_and_grad(x=autodiff.array([1.0, 3.0]), wrt="x", cosines=True)
        nested = out.to_dict()
        again = pn.LossOutput.from_dict(json.loads(out.to_json()))
        np.testing.assert_equal(again.to_dict(), nested)
        assert again.metrics() == out.metrics()
        np.testing.assert_equal(pn.LossOutput.from_dict(nested).to_dict(), nested)

    def test_nan_and_infinity_survive_json(self, library: Any) -> None:
        terms = [pn.Term(lambda x, k=k: x[k], name=f"t{k}", inputs="x") for k in range(3)]
        out = pn.Pipeline([pn.Term(lambda x: (x[3], {"m": math.inf}), name="m"), *terms])(
            x=library.array([math.nan, math.inf, -math.inf, 1.0])
        )
        text = out.to_json()
        parsed = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        assert parsed["regularizers"]["t0"]["value"] == "NaN"
        assert parsed["regularizers"]["t2"]["value"] == "-Infinity"
        assert parsed["regularizers"]["m"]["custom"] == {"m": "Infinity"}
        np.testing.assert_equal(pn.LossOutput.from_dict(parsed).metrics(), out.metrics())

    @pytest.mark.parametrize(
        ("nested", "message"),
        [
            ({}, '"loss_total" is missing; given: none'),
            ({"loss_total": 1.0}, '"regularizers" is missing; given: loss_total'),
            (
                {"loss_total": 1.0, "regularizers": {}, "regularizer_total": 0.0, "los": 1},
                'from_dict: unknown key "los"',
            ),
        ],
    )
    def test_what_is_no_output(self, nested: Any, message: str) -> None:
        with pytest.raises(pn.InputError, match=message):
            pn.LossOutput.from_dict(nested)

    def test_a_term_alone(self, library: Any) -> None:
        term = PIPELINE(x=library.array([1.0, 3.0]))["l1"]
        assert without_times(term.to_dict())["contribution"] == 2.0

    def test_repr(self, autodiff: Any) -> None:
        out = PIPELINE.value_and_grad(x=autodiff.array([1.0, 3.0]), wrt="x")
        lines = repr(out).splitlines()
        assert lines[0].startswith("LossOutput, total 12, gradient 4.2")
        assert lines[1].split() == ["term", "value", "weight", "contribution", "share", "gradient"]
        assert lines[2].split()[:5] == ["base_loss", "2", "1", "2", "17"]
        assert lines[5].split()[:3] == ["bad", "skipped", "1"]
        assert repr(out["l1"]).startswith("TermOutput('l1', value=4, weight=0.5, contribution=2")
        assert repr(pn.Pipeline()()) == "LossOutput, total 0"
        lost = pn.LossOutput.of([pn.TermOutput("a", 1.0, grad_error="no path")], base=pn.TermOutput("base_loss", None))
        assert [line.split()[-1] for line in repr(lost).splitlines()[2:]] == ["-", "-"]
        assert repr(out.terms).startswith("{'l1': TermOutput('l1'")

    def test_looking_inside(self, library: Any) -> None:
        out = PIPELINE(x=library.array([1.0, 3.0]))
        assert out.names == ("base_loss", "l1", "metered", "bad")
        assert [term.name for term in out] == ["l1", "metered", "bad"]
        assert len(out) == len(out.terms) == 3
        assert out["base_loss"] is out.base
        assert out.terms["l1"] is out["l1"]
        with pytest.raises(pn.InputError, match='no term is named "l2"; expected one of: "base_loss", "l1"'):
            out["l2"]


class TestValues:
    def test_frozen(self) -> None:
        out = PIPELINE(x=np.ones(2))
        with pytest.raises(AttributeError):
            out.total = 1.0  # type: ignore[misc]
        with pytest.raises(AttributeError):
            out["l1"].value = 1.0  # type: ignore[misc]

    def test_equality(self, library: Any) -> None:
        x, y = library.array([1.0, 3.0]), library.array([1.0, 4.0])
        one, same, other = (pn.Pipeline(["l1", "l2"])(z).read() for z in (x, x, y))
        strip = [pn.LossOutput.from_dict(without_times(out.to_dict())) for out in (one, same, other)]
        assert strip[0] == strip[1] != strip[2]
        assert strip[0] != 3
        assert hash(strip[0]) == hash(strip[1])
        assert strip[0]["l1"] == strip[1]["l1"] != strip[2]["l1"]
        assert hash(strip[0]["l1"]) == hash("l1")

    def test_pickling_leaves_the_graph_behind(self, library: Any) -> None:
        x = library.array([1.0, 3.0])
        if library is TORCH:
            x.requires_grad_()
        out = PIPELINE(x=x)
        again = pickle.loads(pickle.dumps(out))
        assert again.metrics() == out.metrics()
        assert again == pickle.loads(pickle.dumps(out))
        if library is TORCH:
            assert not again.total.requires_grad

    def test_state_is_pickled_too(self, library: Any) -> None:
        def counted(x: Any, state: Any) -> Any:
            return pn.Evaluation(x.sum(), state=(state or 0, [x.sum()]))

        out = pn.Pipeline([pn.Term(counted)])(library.array([1.0]))
        assert float(pickle.loads(pickle.dumps(out)).state["counted"][1][0]) == 1.0


class TestCheck:
    @pytest.mark.parametrize(("bad", "kind"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "inf")])
    def test_names_the_term(self, library: Any, bad: float, kind: str) -> None:
        pipeline = pn.Pipeline([pn.Term(pn.l1, inputs="a"), pn.Term(pn.l2, inputs="b")])
        out = pipeline(a=library.array([1.0]), b=library.array([bad]))
        with pytest.raises(pn.NonFiniteError, match="l2: the value is (nan|inf)") as caught:
            out.check()
        assert caught.value.kind == kind

    def test_gives_the_output_back(self, library: Any) -> None:
        out = PIPELINE(x=library.array([1.0, 3.0]))
        assert out.check() is out

    def test_a_weight_and_a_gradient(self) -> None:
        with pytest.raises(pn.NonFiniteError, match="a: the weight is nan") as raised:
            pn.LossOutput.of([pn.TermOutput("a", 1.0, math.nan)]).check()
        assert raised.value.phase == "value"
        with pytest.raises(pn.NonFiniteError, match="a: the gradient norm is inf") as raised:
            pn.LossOutput.of([pn.TermOutput("a", 1.0, 1.0, grad_norm=math.inf)]).check()
        assert raised.value.phase == "gradient"

    @pytest.mark.parametrize(("total", "kind"), [(math.inf, "inf"), (math.nan, "nan")])
    def test_a_sum_that_overflows(self, total: float, kind: str) -> None:
        with pytest.raises(pn.NonFiniteError, match="though every term is finite") as caught:
            pn.LossOutput(total).check()
        assert caught.value.kind == kind


class TestTransfers:
    """Everything moves to the host at once, whatever is asked for."""

    PIPELINE = pn.Pipeline(
        [
            pn.Term(pn.l1, inputs="x"),
            pn.Term(lambda x: (x.sum(), {"peak": x.max(), "count": (x > 0).sum(), "n": 3}), name="metered"),
        ],
        base=lambda x: x.mean(),
    )

    @pytest.mark.skipif(TORCH not in LIBRARIES, reason="PyTorch was not chosen")
    @pytest.mark.parametrize("tracked", [False, True])
    def test_torch(self, monkeypatch: pytest.MonkeyPatch, tracked: bool) -> None:
        """On the CPU nothing moves; there the tensors pretend to lie elsewhere."""
        x = TORCH.array([1.0, 3.0])
        out = self.PIPELINE.value_and_grad(x=x, wrt="x", cosines=True) if tracked else self.PIPELINE(x=x)
        expected = out.metrics(), out.to_dict()
        moves: list[str] = []
        for name in ("cpu", "numpy", "item", "__float__", "__bool__", "__int__"):
            real = getattr(torch.Tensor, name)
            monkeypatch.setattr(
                torch.Tensor, name, lambda self, *a, real=real, name=name: (moves.append(name), real(self, *a))[1]
            )
        monkeypatch.setattr(torch.Tensor, "is_cpu", property(lambda self: False))
        for read, right in zip((out.metrics, out.to_dict), expected, strict=True):
            moves.clear()
            found = read()
            assert moves == ["cpu"]
            np.testing.assert_equal(found, right)

    @pytest.mark.skipif(DEVICE == "cpu", reason="needs an accelerator")
    def test_torch_on_an_accelerator(self) -> None:
        from torch.utils._python_dispatch import TorchDispatchMode

        class Transfers(TorchDispatchMode):
            count = 0

            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                result = func(*args, **(kwargs or {}))
                moved = isinstance(result, torch.Tensor) and result.is_cpu and args[0].is_cuda
                self.count += moved or func is torch.ops.aten._local_scalar_dense.default
                return result

        out = self.PIPELINE(x=TORCH.array([1.0, 3.0]))
        with Transfers() as transfers:
            out.metrics()
        assert transfers.count == 1

    @pytest.mark.skipif(JAX not in LIBRARIES, reason="JAX was not chosen")
    def test_jax(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import jax

        out = self.PIPELINE(x=JAX.array([1.0, 3.0]))
        moves: list[int] = []
        real = jax.device_get
        monkeypatch.setattr(jax, "device_get", lambda x: (moves.append(1), real(x))[1])
        out.metrics()
        assert len(moves) == 1

    def test_values_of_two_libraries(self) -> None:
        if TORCH not in LIBRARIES:
            pytest.skip("needs PyTorch")
        out = pn.LossOutput.of([pn.TermOutput("a", TORCH.array(1.0)), pn.TermOutput("b", NUMPY.array(2.0), 3)])
        assert out.metrics()["b_weighted"] == 6.0
