"""The verdict on how a run went, on made-up runs."""

import json
import math
import shlex

import pytest

from penalties.pipeline.explanation import EXPLOSION_RATIO

from .synthetic import Part, config, everything, falling, small, write_run
from .verdicts import base, told, verdict


def test_a_gradient_that_explodes(tmp_path):
    parts = {"kl": Part(lambda step: 1.0, lambda step: 1.0, lambda step: 5000.0 if step == 30 else 0.5)}
    found = verdict(write_run(tmp_path, steps=40, parts=parts))
    assert told(found, "exploded") == [
        "The gradient exploded: its norm was 5000 at step 30, 4472 times the usual 1.12 of the first quarter; "
        "most of it came from kl."
    ]
    assert found.summary.startswith("The loss stayed at about 3; the gradient exploded at step 30. ")


def test_an_explosion_is_not_attributed_to_a_gradient_at_other_inputs(tmp_path):
    norms = lambda step: 500.0 if step == 9 else 1.0
    start = Part(lambda step: 2.0, lambda step: 1.0, norms, place="logprobs")
    parts = {"size": Part(lambda step: 1.0, lambda step: 1.0, lambda step: 9e4, place="params")}
    folder = write_run(tmp_path, steps=12, base=start, parts=parts)
    path = folder / "metrics.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for one in found:
        one["loss"]["total_grad_norm"] = norms(one["step"])
    path.write_text("".join(json.dumps(one) + "\n" for one in found))
    (sentence,) = told(verdict(folder), "exploded")
    assert sentence.endswith("; most of it came from base_loss.")


def with_norms(folder, *norms):
    """A run of which only the norms of the total are known."""
    write_run(folder, steps=len(norms), base=base(norm=None))
    path = folder / "metrics.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for one, norm in zip(found, norms, strict=True):
        one["loss"]["total_grad_norm"] = norm
    path.write_text("".join(json.dumps(one) + "\n" for one in found))
    return folder


@pytest.mark.parametrize("usual", [1e-3, 1e3])
def test_a_gradient_explodes_by_how_much_longer_it_is_than_usual(tmp_path, usual):
    longest = EXPLOSION_RATIO * usual
    assert told(verdict(with_norms(tmp_path / "once", usual, usual, usual, longest)), "exploded")
    assert not told(verdict(with_norms(tmp_path / "never", usual, usual, usual, 0.99 * longest)), "exploded")


def test_an_explosion_of_which_only_the_total_is_known(tmp_path):
    folder = with_norms(tmp_path, 1.0, 1.0, 1.0, 300.0)
    assert told(verdict(folder), "exploded") == [
        "The gradient exploded: its norm was 300 at step 3, 300 times the usual 1 of the first quarter."
    ]


def test_a_loss_that_is_not_finite(tmp_path):
    values = lambda step: math.nan if step in (5, 7) else 2.0
    found = verdict(write_run(tmp_path, steps=10, base=base(values), parts={"kl": Part(lambda step: 1.0)}))
    assert told(found, "broken") == [
        "The loss was NaN or infinite in 2 of 10 steps, first at step 5; not finite there: base_loss."
    ]
    assert found.summary.startswith("The loss stayed at about 2.1; the loss was NaN or infinite in 2 of 10 steps. ")


def test_a_loss_that_is_not_finite_to_the_end_leads(tmp_path):
    parts = {"kl": Part(lambda step: math.inf if step > 6 else 4.0 - 0.4 * step)}
    found = verdict(write_run(tmp_path, steps=10, parts=parts))
    assert str(found).splitlines()[1:3] == [
        "The loss became infinite at step 7 and never came back; not finite there: kl.",
        "The loss fell by 10 % from 2.4 to 2.16 until step 6; the base loss stayed at about 2.",
    ]
    assert found.summary.startswith(
        "The loss became infinite at step 7 and never came back; it fell by 10 % to 2.16 until step 6. "
    )
    values = lambda step: math.nan if step in (5, 9) else 2.0
    found = verdict(write_run(tmp_path, steps=10, base=base(values)))
    assert told(found, "broken") == [
        "The loss became NaN at step 9, the last; not finite there: base_loss; 1 earlier step was NaN or infinite too."
    ]


def test_a_loss_that_spikes(tmp_path):
    values = lambda step: 1e6 if step == 20 else 2.0 - step * 0.002
    found = verdict(write_run(tmp_path, steps=200, base=base(values)))
    assert told(found, "spiked") == [
        "The loss spiked to 1e6 at step 20, against about 1.971 around it; the means leave it out."
    ]
    assert found.summary.startswith("The loss fell by 19 % to 1.61; the loss spiked to 1e6 at step 20. ")
    for calm in (lambda step: 1e6 if step == 0 else 2.0, lambda step: 1e6 if step == 39 else 2.0, falling(100, 1, 40)):
        assert told(verdict(write_run(tmp_path, steps=40, base=base(calm))), "spiked") == []


def test_a_spike_does_not_count_in_the_ends(tmp_path):
    values = lambda step: 1e6 if step == 3 else 4.0 if step < 100 else 2.0
    found = verdict(write_run(tmp_path, steps=200, base=base(values)))
    assert found.summary.startswith("The loss fell by 50 % to 2; the loss spiked to 1e6 at step 3. ")


def test_a_steep_start_shows_the_first_loss(tmp_path):
    values = lambda step: 6.0 if step == 0 else 3.0 - step / 100
    found = verdict(write_run(tmp_path, steps=100, base=base(values)))
    assert told(found, "outcome") == [
        "The loss fell by 43 % from 3.58 to 2.03 in 100 steps "
        "(means of the first and the last 5 steps; at the first step it was 6)."
    ]


def test_a_sum_that_overflows_though_its_terms_do_not(tmp_path):
    folder = write_run(tmp_path, steps=2)
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().replace('"loss_total": 2.0', '"loss_total": "Infinity"', 1))
    assert told(verdict(folder), "broken") == ["The loss was NaN or infinite in 1 of 2 steps, first at step 0."]


def test_a_loss_that_never_was_finite(tmp_path):
    found = verdict(write_run(tmp_path, steps=3, base=base(lambda step: math.nan)))
    assert told(found, "outcome") == ["The loss was never finite."]
    assert found.summary.startswith("The loss was never finite. ")


def test_a_gradient_that_is_not_finite_though_the_loss_is(tmp_path):
    norm = lambda step: math.nan if step == 2 else 1.0
    found = verdict(write_run(tmp_path, steps=4, base=base(norm=norm)))
    assert told(found, "broken") == [
        "The gradient was NaN or infinite in 1 of 4 steps, first at step 2, though the loss was finite."
    ]


@pytest.mark.parametrize(
    ("losses", "sentence"),
    [
        ({4: 3.0}, "The held-out base loss is 3 at step 4, the only evaluation."),
        ({4: 3.0, 9: 2.0}, "The held-out base loss fell by 33 % from 3 to 2, its lowest."),
        ({4: 3.0, 6: 1.99, 9: 2.0}, "The held-out base loss fell by 33 % from 3 to 2, lowest at step 6, 1.99."),
        (
            {2: 3.0, 4: 1.0, 9: 2.0},
            "The held-out base loss was lowest at step 4, 1, and has risen to 2 at step 9: "
            "train for fewer steps, about 4.",
        ),
        ({0: 3.0}, "The held-out base loss is 3 before training, the only evaluation."),
        ({4: math.nan}, None),
    ],
)
def test_held_out_data(tmp_path, losses, sentence):
    found = verdict(write_run(tmp_path, steps=10, evaluate=losses))
    assert told(found, "held out") == ([] if sentence is None else [sentence])
    assert found.summary.startswith("The held-out base loss " if sentence else "The loss ")
    assert ("has risen to" in found.summary) == ("risen" in (sentence or ""))


def test_a_run_that_was_resumed_from_its_beginning(tmp_path):
    resumed = {"kind": "event", "step": 0, "event": "resumed", "message": "from the beginning"}
    steps = {"steps": range(1, 6), "settings": config([], 5), "tail": json.dumps(resumed) + "\n"}
    assert told(verdict(write_run(tmp_path / "one", **steps)), "run") == ["It was resumed before step 1."]
    both = write_run(tmp_path / "both", events=[(4, "resumed", "")], **steps)
    assert told(verdict(both), "run") == ["It was resumed before step 1 and after step 4."]


def test_a_run_that_failed_before_its_first_step_says_why(tmp_path):
    failed = {"kind": "event", "step": 0, "event": "failed", "message": "kl: raised ValueError: no\nmore"}
    write_run(tmp_path, steps=0, settings=config(["kl"], 5), tail=json.dumps(failed) + "\n")
    found = verdict(tmp_path)
    assert told(found, "run") == ["It failed before its first step was finished: kl: raised ValueError: no"]
    assert found.summary == "No step yet; the run failed before its first step was finished."


def test_a_held_out_loss_that_never_fell(tmp_path):
    found = verdict(write_run(tmp_path, steps=10, evaluate={0: 1.0, 5: 1.5, 9: 2.0}))
    assert told(found, "held out") == [
        "The held-out base loss was lowest before training, 1, and has risen to 2 at step 9: a lower learning "
        "rate may help."
    ]
    assert "held-out base loss was lowest before training, 1, and has risen to 2" in found.summary


def test_a_checkpoint_is_the_better_one_only_where_it_is_kept(tmp_path):
    losses = {2: 3.0, 4: 1.0, 9: 2.0}
    saved = [(step, "checkpoint", "") for step in (4, 9)]
    found = verdict(write_run(tmp_path, steps=10, evaluate=losses, events=saved))
    assert told(found, "held out")[0].endswith("at step 9: the checkpoint of step 4 is better.")
    saved.insert(1, (8, "checkpoint", ""))
    saved.insert(1, (9, "checkpoint", ""))
    found = verdict(write_run(tmp_path, steps=10, evaluate=losses, events=saved[1:]))
    assert told(found, "held out")[0].endswith("the checkpoint of step 8 is better.")
    found = verdict(write_run(tmp_path, steps=10, evaluate=losses, events=[(9, "checkpoint", "")]))
    assert told(found, "held out")[0].endswith("at step 9: train for fewer steps, about 4.")


def test_the_best_checkpoint_is_kept_however_old_it_is(tmp_path):
    losses = {2: 3.0, 4: 1.0, 9: 2.0}
    saved = [(step, "checkpoint", "", {"best": 4}) for step in (4, 7, 8, 9)]
    found = verdict(write_run(tmp_path, steps=10, evaluate=losses, events=saved))
    assert told(found, "held out")[0].endswith("at step 9: the checkpoint of step 4 is better.")
    odd = [(step, "checkpoint", "", {"best": 10**400 if step == 9 else "four"}) for step in (4, 7, 8, 9)]
    found = verdict(write_run(tmp_path, steps=10, evaluate=losses, events=odd))
    assert told(found, "held out")[0].endswith("the checkpoint of step 8 is better.")


@pytest.mark.parametrize(
    ("first", "last", "words"),
    [
        (4.0, 2.0, "fell by 50 % from 4 to 2"),
        (2.0, 3.0, "rose by 50 % from 2 to 3"),
        (2.0, 600.0, "grew 300-fold from 2 to 600"),
        (-2.0, 3.0, "rose by 5 from −2 to 3"),
        (-2.0, -3.0, "fell by 1 from −2 to −3"),
        (2.0, -0.5, "fell by 2.5 from 2 to −0.5"),
        (2.0, 0.0, "fell by 100 % from 2 to 0"),
        (0.0, 3.0, "went from 0 to 3"),
        (0.0, 0.0, "stayed at 0"),
        (2.0, 2.001, "stayed at about 2.001"),
    ],
)
def test_how_the_loss_moved(tmp_path, first, last, words):
    found = verdict(write_run(tmp_path, steps=2, base=base(lambda step: last if step else first)))
    assert told(found, "outcome") == [f"The loss {words} in 2 steps."]


def test_one_step(tmp_path):
    found = verdict(small(tmp_path, steps=1))
    assert told(found, "outcome") == ["One step, at which the loss is 4.11."]
    assert found.summary.startswith("The held-out base loss is 4.3. base_loss had 80 % of the gradient")


def test_no_step(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "lock").touch()
    found = verdict(tmp_path)
    assert str(found) == "No step yet.\nThe log has no step yet."


@pytest.mark.parametrize(
    ("steps", "wanted", "events", "tail", "sentences"),
    [
        (10, 10, [], "", []),
        (10, 60, [(10, "finished", "")], "", []),
        (10, 60, [], "", ["The log ends after 10 of 60 steps: the run is still going, or was stopped."]),
        (10, None, [], "", ["The log ends after 10 steps: the run is still going, or was stopped."]),
        (1, None, [], "", ["The log ends after 1 step: the run is still going, or was stopped."]),
        (
            10,
            60,
            [],
            "{",
            ["The log ends after 10 of 60 steps: the run is still going, or was stopped while writing a line."],
        ),
        (
            10,
            60,
            [(4, "resumed", ""), (10, "interrupted", "")],
            "",
            [
                "It was resumed after step 4.",
                "It was interrupted after 10 of 60 steps; resume it with `penalties train --run FOLDER --resume`.",
            ],
        ),
        (
            10,
            10,
            [(2, "resumed", ""), (4, "resumed", ""), (6, "resumed", "")],
            "",
            ["It was resumed after step 2, 4 and 6."],
        ),
        (
            10,
            60,
            [(10, "failed", "kl: the value is nan\nmore")],
            "",
            ["It failed after 10 of 60 steps: kl: the value is nan"],
        ),
        (10, 60, [(10, "failed", "")], "", ["It failed after 10 of 60 steps."]),
        (1, 1, [], "x\nx\n", ["2 lines of the log could not be read: 2 and 3."]),
        (1, 1, [], "x\n", ["1 line of the log could not be read: 2."]),
        (1, 1, [], "x\n" * 7, ["7 lines of the log could not be read: 2, 3, 4, 5, 6 and 2 more."]),
    ],
)
def test_how_the_run_ended(tmp_path, steps, wanted, events, tail, sentences):
    told_config = None if wanted is None else config([], wanted)
    found = verdict(write_run(tmp_path, steps=range(1, steps + 1), events=events, settings=told_config, tail=tail))
    failed = any(kind == "failed" for _, kind, *_ in events)
    assert ("; the run failed after 10 of 60 steps." in found.summary) is failed
    assert told(found, "run") == [one.replace("FOLDER", shlex.quote(str(tmp_path))) for one in sentences]


def test_findings_of_a_run_in_which_everything_happens_are_in_order(tmp_path):
    kinds = [kind for kind, _, _ in verdict(everything(tmp_path)).grouped]
    assert kinds == [
        *("held out", "outcome", "broken", "spiked", "exploded", "gradient"),
        *("small", "conflicts", "failed", "slow", "run"),
    ]
