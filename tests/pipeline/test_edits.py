"""Edits of pipelines, each of which gives a new one, and how a pipeline shows itself."""

import copy
import pickle
from typing import Any

import pytest

import penalties as pn


def mse(prediction: Any, target: Any) -> Any:
    return ((prediction - target) ** 2).mean()


def norms() -> pn.Pipeline:
    return pn.Pipeline([pn.Term(pn.l1, weight=0.1), pn.Term(pn.l2, weight=0.01)])


class TestEdits:
    def test_each_gives_a_new_pipeline(self) -> None:
        before = norms()
        kept = pickle.loads(pickle.dumps(before))
        edits = [
            before.add(pn.Term(pn.entropy)),
            before.remove("l1"),
            before.replace("l1", "smooth_l1"),
            before.with_weights({"l1": 5.0}),
            before.with_options({"l1": {"reduction": "mean"}}),
            before.with_base(mse),
            before.disable("l2"),
        ]
        assert before == kept
        assert all(edit != before for edit in edits)
        assert edits[-1].enable("l2") == before

    def test_what_they_do(self) -> None:
        pipeline = norms().add("entropy").replace("l1", "smooth_l1").remove("l2")
        assert pipeline.names == ("smooth_l1", "entropy")
        assert norms().with_weights({"l2": 3}).weights == {"l1": 0.1, "l2": 3}
        changed = norms().with_options({"l2": {"clip": 1.0}}).with_options({"l2": {"reduction": "mean"}})
        assert dict(changed["l2"].options) == {"clip": 1.0, "reduction": "mean"}
        assert norms().with_base(mse).with_base(None) == norms()

    def test_options_reach_a_wrapped_term(self) -> None:
        pipeline = pn.Pipeline([pn.EMA(pn.Normalized(pn.Term(pn.l1)))]).with_options({"l1": {"reduction": "mean"}})
        assert "l1" in pipeline
        assert pipeline["l1"].fn.term.fn.term.options["reduction"] == "mean"

    @pytest.mark.parametrize(
        "edit",
        [
            lambda p: p.remove("l3"),
            lambda p: p.replace("l3", "l1"),
            lambda p: p.with_weights({"l3": 1.0}),
            lambda p: p.with_options({"l3": {}}),
            lambda p: p.enable("l3"),
            lambda p: p.disable("l1", "l3"),
            lambda p: p["l3"],
        ],
    )
    def test_unknown_names(self, edit: Any) -> None:
        with pytest.raises(pn.InputError, match='no term is named "l3"; expected one of: "l1", "l2"'):
            edit(norms())

    def test_duplicate_names(self) -> None:
        for make in (lambda: pn.Pipeline(["l1", "l1"]), lambda: norms().add("l1"), lambda: norms().replace("l1", "l2")):
            with pytest.raises(pn.OptionError, match="different names: give one of the two a name="):
                make()

    @pytest.mark.parametrize("terms", ["l1", pn.Term(pn.l1), 3, {"l1": 1}])
    def test_terms_that_are_no_sequence(self, terms: Any) -> None:
        with pytest.raises(pn.OptionError, match="a sequence of terms"):
            pn.Pipeline(terms)

    def test_dicts_are_for_from_config(self) -> None:
        with pytest.raises(pn.OptionError, match="expected terms; Pipeline.from_config takes dicts"):
            pn.Pipeline([{"fn": "l1"}])

    def test_at_most_a_hundred_terms(self) -> None:
        with pytest.raises(pn.OptionError, match="terms=101; expected at most 100"):
            pn.Pipeline([pn.Term(pn.l1, name=f"l{i}") for i in range(101)])

    @pytest.mark.parametrize("base", [pn.Term(mse, weight=0.5), 3])
    def test_wrong_base(self, base: Any) -> None:
        with pytest.raises(pn.OptionError):
            pn.Pipeline(base=base)

    def test_wrong_name(self) -> None:
        with pytest.raises(pn.OptionError, match="Pipeline: name=3"):
            pn.Pipeline(name=3)  # type: ignore[arg-type]

    def test_it_never_changes(self) -> None:
        pipeline = norms()
        with pytest.raises(AttributeError, match="a Pipeline is immutable"):
            pipeline.name = "other"
        with pytest.raises(AttributeError, match="a Pipeline is immutable"):
            del pipeline.terms

    def test_looking_at_it(self) -> None:
        pipeline = norms()
        assert len(pipeline) == 2
        assert [term.name for term in pipeline] == ["l1", "l2"]
        assert "l1" in pipeline
        assert "l3" not in pipeline
        assert pipeline != [1]
        assert hash(pipeline) == hash(norms())

    def test_copies(self) -> None:
        pipeline = pn.Pipeline(["l1", pn.EMA(pn.Term(pn.l2))], base=pn.Term(mse, name="fit"), name="objective")
        for again in (copy.deepcopy(pipeline), pickle.loads(pickle.dumps(pipeline))):
            assert again == pipeline
            assert again.name == "objective"

    def test_repr_is_a_small_table(self) -> None:
        pipeline = pn.Pipeline(
            [
                pn.Term(pn.l1, 0.001, inputs="params", options={"reduction": "mean"}),
                pn.Term(pn.l2, every=2, enabled=False, differentiable=False, runs="thread", name="decay"),
                pn.Term(pn.kl_estimate, chunk=8),
            ],
            base=mse,
            name="objective",
        )
        assert repr(pipeline).splitlines() == [
            "Pipeline objective, 3 terms",
            "  term         weight  inputs",
            "  base_loss    1       prediction, target",
            "  l1           0.001   params               reduction=mean",
            "  decay        1       x                    disabled, not differentiable, thread, every 2",
            "  kl_estimate  1       logprobs, reference  chunk 8",
        ]
        assert repr(pn.Pipeline()) == "Pipeline, 0 terms"
