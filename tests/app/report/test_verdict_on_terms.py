"""The verdict on terms: shares of the gradient, conflicts, small gradients, failures, times."""

import numpy as np
import pytest

from penalties.app.report import read
from penalties.app.report.summary import summarise
from penalties.pipeline.explanation import CONFLICT, DOMINANCE

from .synthetic import Part, config, falling, write_run
from .verdicts import base, told, verdict


def test_a_term_that_dominates(tmp_path):
    parts = {
        "kl": Part(lambda step: 3.0, lambda step: 2.0, lambda step: 40.0),
        "sparsity": Part(lambda step: 1.0, lambda step: 0.01, lambda step: 0.5),
    }
    found = verdict(write_run(tmp_path, steps=100, base=base(falling(4.0, 2.0, 100), lambda step: 10.0), parts=parts))
    assert (
        found.summary == "The loss fell by 18 % to 8.119. kl had 89 % of the gradient; sparsity had a small gradient."
    )
    assert told(found, "outcome") == [
        "The loss fell by 18 % from 9.895 to 8.119 in 100 steps; the base loss fell by 46 % from 3.885 to 2.109 "
        "(means of the first and the last 5 steps)."
    ]
    assert told(found, "gradient") == ["Shares of the gradient, on average: kl 89 % and base_loss 11 %."]
    assert told(found, "small") == [
        "sparsity had a small gradient: less than 0.1 % of the whole; that of kl was 16000 times as long."
    ]
    assert told(found, "conflicts") == [
        "Whether gradients conflict is not known: no cosines between them were measured."
    ]


def test_two_terms_with_about_the_same_gradient(tmp_path):
    parts = {"kl": Part(lambda step: 1.0, lambda step: 1.0, lambda step: 4.0)}
    found = verdict(write_run(tmp_path, steps=10, base=base(norm=lambda step: 5.0), parts=parts))
    assert told(found, "gradient") == ["Shares of the gradient, on average: base_loss 56 % and kl 44 %."]
    assert found.summary == "The loss stayed at about 3. base_loss had 56 % of the gradient."


def test_no_term_with_most_of_the_gradient(tmp_path):
    parts = {name: Part(lambda step: 1.0, lambda step: 1.0, lambda step: 1.0) for name in ("a", "b")}
    found = verdict(write_run(tmp_path, steps=10, parts=parts))
    assert told(found, "gradient") == ["Shares of the gradient, on average: base_loss 33 %, a 33 % and b 33 %."]
    assert found.summary == "The loss stayed at about 4."


def test_a_term_that_takes_over(tmp_path):
    parts = {"kl": Part(lambda step: 1.0, lambda step: step / 10, lambda step: 1.0)}
    found = verdict(write_run(tmp_path, steps=100, parts=parts))
    assert told(found, "gradient")[1] == (
        "base_loss had most of the gradient in the first quarter, 52 %; kl in the last, 90 %."
    )


def test_without_gradients_shares_are_of_the_loss(tmp_path):
    parts = {
        "kl": Part(lambda step: -1.0, lambda step: 0.5, None),
        "l1": Part(lambda step: 1.0, lambda step: 1e-3, None),
    }
    off = config(["kl", "l1"], 4, gradients_every=0)
    found = verdict(write_run(tmp_path, steps=4, base=base(norm=None), parts=parts, settings=off))
    assert told(found, "gradient") == [
        "Shares of the loss, on average: base_loss 80 % and kl 20 %; "
        "gradients were not measured (train.gradients_every = 0)."
    ]
    assert told(found, "small") == ["l1 had a small part of the loss: less than 0.1 % of it."]
    assert told(found, "conflicts")[0].endswith("no cosines between them were measured (train.gradients_every = 0).")
    told_config = config(["kl", "l1"], 4, gradients_every=10)
    found = verdict(write_run(tmp_path, steps=4, base=base(norm=None), parts=parts, settings=told_config))
    assert told(found, "conflicts")[0].endswith("no cosines between them were measured.")


def test_the_only_term(tmp_path):
    found = verdict(write_run(tmp_path, steps=4))
    assert found.summary == "The loss stayed at about 2. base_loss is the only term."
    assert told(found, "conflicts") == told(found, "small") == []


def test_gradients_at_other_inputs_are_not_ranked(tmp_path):
    parts = {
        "size": Part(lambda step: 1.0, norm=lambda step: 1e-6, place="params"),
        "kl": Part(lambda step: 1.0, place="flat_logprobs"),
    }
    cosines = lambda step, a, b: 0.0 if "size" in (a, b) else -0.1
    start = Part(lambda step: 2.0, lambda step: 1.0, place="flat_logprobs")
    found = verdict(write_run(tmp_path, steps=2, base=start, parts=parts, cosines=cosines))
    assert told(found, "gradient") == [
        "Shares of the gradient, on average: base_loss 91 % and kl 9.1 %.",
        "size has no share: its gradient is taken at the parameters (median norm 1e−7), "
        "those of most terms at the log-probabilities.",
    ]
    assert told(found, "small") == []
    assert told(found, "conflicts") == [
        "No two gradients conflicted (1 of 3 pairs were measured): the lowest mean cosine is −0.1, between those of "
        "base_loss and kl."
    ]


def test_gradients_that_are_all_at_the_parameters_compare(tmp_path):
    parts = {"kl": Part(lambda step: 1.0, place="parameters", measured=10), "l1": Part(lambda step: 1.0, measured=10)}
    start = Part(lambda step: 2.0, lambda step: 1.0, place="parameters", measured=10)
    run = read(write_run(tmp_path, steps=95, base=start, parts=parts))
    summary = summarise(run)
    assert [term.inputs for term in summary.terms.values()] == [(), (), ()]
    assert [round(term.grad_share, 3) for term in summary.terms.values()] == [0.833, 0.083, 0.083]
    assert [round(term.early, 3) for term in summary.terms.values()] == [0.833, 0.083, 0.083]
    assert len(run.terms["kl"].pull) == 10


def test_where_no_term_has_a_gradient(tmp_path):
    still = Part(lambda step: 0.0, lambda step: 1.0, lambda step: 0.0)
    found = verdict(write_run(tmp_path, steps=4, base=still, parts={"kl": still}))
    assert told(found, "gradient") == ["No term had a gradient."]
    assert told(found, "outcome") == ["The loss stayed at 0 in 4 steps; the base loss stayed at 0."]
    assert found.summary.startswith("The loss stayed at 0. No term had a gradient; ")
    assert told(found, "small")[1] == "kl had no gradient: its value is 0 in every step."
    zero = Part(lambda step: 0.0, lambda step: 1.0, None)
    found = verdict(write_run(tmp_path, steps=4, base=zero, parts={"kl": zero}))
    assert told(found, "gradient")[0].startswith("Every term was 0 in every step; gradients were not measured")


def test_a_value_of_zero_with_a_gradient_is_not_nothing(tmp_path):
    found = verdict(write_run(tmp_path, steps=4, parts={"policy": Part(lambda step: 0.0, lambda step: 1.0)}))
    assert told(found, "small") == []


def test_without_a_leading_term_the_largest_shares_are_listed(tmp_path):
    parts = {f"t{place}": Part(lambda step: 1.0, lambda step: 1.0) for place in range(8)}
    (told_, *_) = told(verdict(write_run(tmp_path, steps=2, parts=parts)), "gradient")
    assert told_.startswith("Shares of the gradient, on average: the largest are base_loss 11 %, t0 11 %, ")
    assert told_.count("11 %") == 6


def pairs(cosine):
    return {"parts": {"kl": Part(lambda step: 1.0, lambda step: 1.0)}, "cosines": lambda step, a, b: cosine(step)}


def test_gradients_that_conflict(tmp_path):
    found = verdict(write_run(tmp_path, steps=10, **pairs(lambda step: -0.2 if step == 0 else -0.7)))
    assert told(found, "conflicts") == [
        "The gradients of base_loss and kl conflicted: their cosine was −0.65 on average, "
        "below −0.3 in 90 % of 10 measurements."
    ]
    assert found.summary.endswith("The gradients of base_loss and kl conflicted.")
    found = verdict(write_run(tmp_path, steps=1, **pairs(lambda step: -0.7)))
    assert told(found, "conflicts") == [
        "The gradients of base_loss and kl conflicted: their cosine was −0.7 on average."
    ]
    found = verdict(write_run(tmp_path, steps=5, **pairs(lambda step: -0.7)))
    assert told(found, "conflicts")[0].endswith("below −0.3 in all 5 measurements.")


def test_gradients_that_conflict_at_times(tmp_path):
    found = verdict(write_run(tmp_path, steps=10, **pairs(lambda step: -0.9 if step > 6 else 0.4)))
    assert told(found, "conflicts") == [
        "The gradients of base_loss and kl conflicted at times: their cosine was below −0.3 in 30 % of 10 "
        "measurements, lowest −0.9 at step 7."
    ]
    assert "conflict" not in found.summary


def test_gradients_that_do_not_conflict(tmp_path):
    found = verdict(write_run(tmp_path, steps=10, **pairs(lambda step: -0.1)))
    assert told(found, "conflicts") == [
        "No two gradients conflicted: the lowest mean cosine is −0.1, between those of base_loss and kl."
    ]


def test_of_many_conflicts_the_worst_are_listed(tmp_path):
    parts = {name: Part(lambda step: 1.0) for name in ("a", "b", "c")}
    found = verdict(write_run(tmp_path, steps=4, parts=parts, cosines=lambda step, a, b: -0.5))
    assert len(told(found, "conflicts")) == 4
    assert told(found, "conflicts")[-1] == "The gradients of 3 more pairs of terms conflicted; see the matrix."
    parts.pop("c")
    found = verdict(write_run(tmp_path, steps=4, parts=parts, cosines=lambda step, a, b: -0.5 if "a" in a + b else 0))
    assert len(told(found, "conflicts")) == 3
    parts["d"] = Part(lambda step: 1.0)
    cosines = lambda step, a, b: -0.5 if (a, b) != ("a", "b") and (a, b) != ("b", "d") else 0.0
    found = verdict(write_run(tmp_path, steps=4, parts=parts, cosines=cosines))
    assert told(found, "conflicts")[-1] == "The gradients of 1 more pair of terms conflicted; see the matrix."


def test_in_the_first_line_one_pair_conflicts_and_the_others_are_counted(tmp_path):
    parts = {name: Part(lambda step: 1.0) for name in ("a", "b")}
    cosines = lambda step, a, b: -0.5 if "a" in (a, b) else 0.0
    found = verdict(write_run(tmp_path, steps=4, parts=parts, cosines=cosines))
    assert found.summary.endswith("the gradients of base_loss and a conflicted, and so did those of 1 other pair.")
    found = verdict(write_run(tmp_path, steps=4, parts=parts, cosines=lambda *_: -0.5))
    assert found.summary.endswith("the gradients of base_loss and a conflicted, and so did those of 2 other pairs.")


def test_gradients_that_are_zero_do_not_conflict(tmp_path):
    parts = {"kl": Part(lambda step: 1.0, norm=lambda step: 0.0)}
    found = verdict(write_run(tmp_path, steps=4, parts=parts, cosines=lambda *_: -0.9))
    assert "conflict" not in found.summary
    assert told(found, "conflicts") == ["No two gradients conflicted: of each pair that was measured, one was 0."]


def test_terms_that_agree(tmp_path):
    parts = {"kl": Part(lambda step: 1.0), "l1": Part(lambda step: 1.0)}
    cosines = lambda step, a, b: 0.97 if b == "kl" or (a, b) == ("kl", "l1") else 0.0
    found = verdict(write_run(tmp_path, steps=10, parts=parts, cosines=cosines))
    assert told(found, "agreed") == [
        "The gradients of kl and l1 pointed the same way: their cosine was 0.97 on average; a run without one of them "
        "shows whether it is needed.",
        "The gradients of base_loss and kl pointed the same way: their cosine was 0.97 on average.",
    ]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (Part(lambda step: 5.0, lambda step: 0.0), "its weight is 0 in every step"),
        (Part(lambda step: 5.0, norm=lambda step: 0.0), "its norm is 0 in every step"),
        (Part(lambda step: 5.0, norm=lambda step: 0.0, measured=2), "its norm is 0 wherever it was measured"),
        (Part(lambda step: 0.0, norm=None), "its value is 0 in every step"),
        (Part(lambda step: 5.0, norm=None, grad_error="it is a constant"), "it is a constant"),
    ],
)
def test_a_term_without_a_gradient(tmp_path, part, reason):
    found = verdict(write_run(tmp_path, steps=5, parts={"kl": Part(lambda step: 1.0), "idle": part}))
    assert told(found, "small") == [f"idle had no gradient: {reason}."]
    assert found.summary.endswith("; idle had no gradient.")


def test_terms_without_a_gradient_are_listed_in_the_first_line(tmp_path):
    little = Part(lambda step: 1.0, lambda step: 1e-3)
    parts = {"a": little, "b": Part(lambda step: 1.0, lambda step: 0.0), "c": little}
    found = verdict(write_run(tmp_path, steps=5, parts=parts))
    assert found.summary.endswith("b had no gradient; a and c had a small gradient.")


def test_little_of_a_gradient_that_is_often_zero(tmp_path):
    parts = {"rare": Part(lambda step: 1.0, norm=lambda step: 0.1 if step == 3 else 0.0)}
    found = verdict(write_run(tmp_path, steps=50, parts=parts))
    assert told(found, "small") == [
        "rare had a small gradient: less than 0.1 % of the whole; that of base_loss was 5000 times as long."
    ]


def test_a_term_that_fails(tmp_path):
    part = Part(lambda step: 1.0, fails={3: "took more than 2 s", 4: "took more than 2 s", 8: "ran out of memory."})
    found = verdict(write_run(tmp_path, steps=10, parts={"topology": part}))
    assert told(found, "failed") == [
        "topology failed in 3 of 10 steps, first at step 3: took more than 2 s (and 1 other reason)."
    ]
    assert found.summary.endswith("topology failed in 3 of 10 steps.")


def test_a_long_reason_is_cut(tmp_path):
    part = Part(lambda step: 1.0, fails={3: "the solver said:\n" + "unsat core " * 30})
    (sentence,) = told(verdict(write_run(tmp_path, steps=10, parts={"smt": part})), "failed")
    assert sentence.startswith("smt failed in 1 of 10 steps, first at step 3: the solver said: unsat")
    assert sentence.endswith("…."), sentence
    assert len(sentence) < 180


def test_a_term_that_never_ran_is_listed_as_failed_only(tmp_path):
    part = Part(lambda step: 1.0, fails=dict.fromkeys(range(5), "no"))
    found = verdict(write_run(tmp_path, steps=5, parts={"a": part}))
    assert told(found, "failed") == ["a failed in 5 of 5 steps, first at step 0: no."]
    assert told(found, "small") == []


def test_a_term_that_takes_the_time(tmp_path):
    found = verdict(write_run(tmp_path, steps=10, parts={"topology": Part(lambda step: 1.0, seconds=0.02)}))
    assert told(found, "slow") == ["topology took 60 ms on average, while a step took 52.4 ms."]


def test_shares_are_means_over_all_steps(tmp_path):
    """A term that rests has no share where it rests."""
    parts = {"rare": Part(lambda step: 1.0, lambda step: 1.0, lambda step: 1.0, every=2)}
    run = read(write_run(tmp_path, steps=4, parts=parts))
    summary = summarise(run)
    assert summary.terms["rare"].grad_share == pytest.approx(0.25)
    assert summary.terms["base_loss"].grad_share == pytest.approx(0.75)
    assert summary.terms["rare"].loss_share == pytest.approx(np.mean([1 / 3, 0, 1 / 3, 0]))


def test_only_a_run_without_a_term_says_what_it_did(tmp_path):
    parts = {"kl": Part(lambda step: 1.0, lambda step: 1e-6), "l1": Part(lambda step: 1.0, lambda step: 0.0)}
    words = str(verdict(write_run(tmp_path, steps=20, parts=parts, cosines=lambda *_: -0.9, evaluate={3: 2.0, 9: 1.0})))
    for claim in ("drove", "helped", "cost ", "did nothing", "next to nothing", "made no difference"):
        assert claim not in words


def test_findings_are_those_of_explain_with_its_thresholds(tmp_path):
    def small(ratio):
        found = verdict(
            write_run(tmp_path / f"{ratio}", steps=5, parts={"a": Part(lambda step: 1.0, lambda step: 1 / ratio)})
        )
        return told(found, "small")

    assert small(DOMINANCE * 1.01)
    assert not small(DOMINANCE * 0.99)
    for cosine, conflicting in ((CONFLICT - 0.01, True), (CONFLICT + 0.01, False)):
        found = verdict(write_run(tmp_path / f"{cosine}", steps=5, **pairs(lambda step, cosine=cosine: cosine)))
        assert ("conflicted." in found.summary) == conflicting
