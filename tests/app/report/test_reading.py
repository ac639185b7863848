"""A log becomes columns, whatever state it is in."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penalties.app.report import RunLog, read
from penalties.app.report.reading import number
from penalties.app.runs.disk import RunError

from .synthetic import Part, config, small, write_run


def records(folder: Path) -> list[dict]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def assert_same(a: RunLog, b: RunLog) -> None:
    assert list(a.terms) == list(b.terms)
    np.testing.assert_array_equal(a.steps, b.steps)
    for name in ("total", "grad_norm", "seconds", "tokens", "learning_rate"):
        assert_equal(getattr(a, name), getattr(b, name))
    for name, term in a.terms.items():
        for part in ("value", "weight", "contribution", "grad_norm", "pull", "duration"):
            assert_equal(getattr(term, part), getattr(b.terms[name], part))
        assert term.failures == b.terms[name].failures
        assert (term.grad_error, term.inputs) == (b.terms[name].grad_error, b.terms[name].inputs)
    assert list(a.cosines) == list(b.cosines)
    for pair, series in a.cosines.items():
        assert_equal(series, b.cosines[pair])
    assert (a.unreadable, a.torn, a.events) == (b.unreadable, b.torn, b.events)


def assert_equal(a, b) -> None:
    np.testing.assert_array_equal(a.steps, b.steps)
    np.testing.assert_array_equal(a.values, b.values)


def test_numbers_are_those_of_the_log(tmp_path):
    run = read(small(tmp_path / "run", metrics=3))
    steps = [one for one in records(tmp_path / "run") if one["kind"] == "step"]
    assert run.steps.tolist() == [one["step"] for one in steps] == list(range(60))
    assert run.total.values.tolist() == [one["loss"]["loss_total"] for one in steps]
    assert run.grad_norm.values.tolist() == [one["loss"]["total_grad_norm"] for one in steps]
    assert run.seconds.values.tolist() == [one["seconds"] for one in steps]
    assert run.tokens.values.tolist() == [one["tokens"] for one in steps]
    assert run.learning_rate.values.tolist() == [one["learning_rate"] for one in steps]
    assert list(run.terms) == ["base_loss", "kl_estimate", "entropy", "sparsity"]
    for name in ("kl_estimate", "entropy", "sparsity"):
        logged = [one["loss"]["regularizers"][name] for one in steps]
        term = run.terms[name]
        assert term.value.values.tolist() == [one["value"] for one in logged]
        assert term.weight.values.tolist() == [one["weight"] for one in logged]
        assert term.contribution.values.tolist() == [one["contribution"] for one in logged]
        assert term.pull.values.tolist() == [one["grad_norm_weighted"] for one in logged]
        assert term.duration.values.tolist() == [one["durations"][name] for one in steps]
    base = run.terms["base_loss"]
    assert base.contribution.values.tolist() == [one["loss"]["base_loss"]["value"] for one in steps]
    assert set(base.weight.values) == {1.0}
    assert run.started == "2026-11-15T18:00:00Z"
    assert run.loss is base.value


def test_lines_that_json_writes_without_spaces_are_read_too(tmp_path):
    folder = small(tmp_path / "run")
    spaced = read(folder)
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(one, separators=(",", ":")) + "\n" for one in records(folder)))
    assert_same(read(folder), spaced)


def test_cosines_of_each_pair_in_the_order_of_the_terms(tmp_path):
    run = read(small(tmp_path / "run"))
    assert next(iter(run.cosines)) == ("base_loss", "kl_estimate")
    assert len(run.cosines) == 6
    logged = [one for one in records(tmp_path / "run") if one["kind"] == "step" and "cosines" in one["loss"]]
    series = run.cosines["base_loss", "entropy"]
    assert series.steps.tolist() == [one["step"] for one in logged]
    assert series.values.tolist() == [one["loss"]["cosines"][0][2] for one in logged]


def test_a_cosine_that_is_nan_or_of_a_wrong_matrix_is_left_out(tmp_path):
    parts = {"kl": Part(lambda step: 1.0), "l1": Part(lambda step: 1.0)}
    folder = write_run(tmp_path, steps=3, parts=parts, cosines=lambda step, a, b: math.nan if "l1" in (a, b) else 0.5)
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[2])
    for wrong in ([[1.0]], 3, [[1.0, 0.5, 0.5], 1, 2]):
        record["loss"]["cosines"] = wrong
        (folder / "metrics.jsonl").write_text("\n".join([*lines[:2], json.dumps(record), ""]))
        run = read(folder)
        assert run.cosines["base_loss", "kl"].values.tolist() == [0.5, 0.5]
        assert len(run.cosines["base_loss", "l1"]) == 0


def test_terms_whose_gradients_have_no_input_in_common_have_no_cosine(tmp_path):
    folder = write_run(tmp_path, steps=2, parts={"kl": Part(lambda step: 1.0)}, cosines=lambda step, a, b: 0.0)
    path = folder / "metrics.jsonl"
    found = records(folder)
    for one in found:
        one["loss"]["base_loss"]["grad_norms"] = {"logprobs": 1.0}
        one["loss"]["regularizers"]["kl"]["grad_norms"] = {"params": 1.0}
    path.write_text("".join(json.dumps(one) + "\n" for one in found))
    run = read(folder)
    assert run.cosines == {}
    assert run.terms["kl"].inputs == ("params",)


def with_metrics(folder: Path) -> Path:
    base = Part(
        lambda step: 2.0, lambda step: 1.0, metrics={"accuracy": lambda step: step / 4, "nll": lambda step: 2.0}
    )
    kl = Part(lambda step: 1.0, every=2, metrics={"kl_max": lambda step: 3.0})
    write_run(folder, steps=4, base=base, parts={"kl": kl}, evaluate={3: 1.5}, memory=lambda step: 1e9 + step)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[-1]["loss"]["base_loss"]["custom"] = {"accuracy": 0.25, "nll": 1.5}
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def test_own_metrics_are_those_of_the_log(tmp_path):
    log = read(with_metrics(tmp_path))
    accuracy, held_out = log.own_metrics()["base_loss", "accuracy"]
    assert accuracy.values.tolist() == [0.0, 0.25, 0.5, 0.75]
    assert (held_out.steps.tolist(), held_out.values.tolist()) == ([3], [0.25])
    # At the steps of its term; and nll is the loss itself.
    assert log.own_metrics()["kl", "kl_max"][0].steps.tolist() == [0, 2]
    assert list(log.own_metrics()) == [("base_loss", "accuracy"), ("kl", "kl_max")]
    assert log.memory.values.tolist() == [1e9, 1e9 + 1, 1e9 + 2, 1e9 + 3]


@pytest.mark.parametrize("wrong", [5, "text", None, [1.0], {"accuracy": "text"}])
def test_own_metrics_of_other_types_are_left_out(tmp_path, wrong):
    folder = with_metrics(tmp_path)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[1]["loss"]["base_loss"]["custom"] = wrong
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    log = read(folder)
    assert log.unreadable == []
    assert log.terms["base_loss"].metrics["accuracy"].steps.tolist() == [0, 2, 3]
    assert log.terms["base_loss"].value.steps.tolist() == [0, 1, 2, 3]


def test_a_term_that_rests_has_numbers_at_its_steps_alone(tmp_path):
    run = read(write_run(tmp_path, steps=9, parts={"rare": Part(lambda step: step + 1.0, every=4)}))
    assert run.terms["rare"].value.steps.tolist() == [0, 4, 8]
    assert run.terms["rare"].contribution.values.tolist() == pytest.approx([0.1, 0.5, 0.9])


def test_failures_have_their_steps_and_reasons(tmp_path):
    fails = {2: "took more than 2 s", 5: 'said "no" \\ and left'}
    run = read(write_run(tmp_path, steps=8, parts={"late": Part(lambda step: 1.0, fails=fails)}))
    told = list(fails.items())
    assert [(one.step, one.reason) for one in run.terms["late"].failures] == told
    assert run.terms["late"].value.steps.tolist() == [0, 1, 3, 4, 6, 7]


def test_a_term_that_fails_at_every_step_is_there(tmp_path):
    fails = dict.fromkeys(range(4), "too late")
    run = read(write_run(tmp_path, steps=4, parts={"never": Part(lambda step: 1.0, fails=fails)}))
    assert len(run.terms["never"].failures) == 4
    assert len(run.terms["never"].value) == 0


def test_nan_and_infinity_are_numbers(tmp_path):
    values = [1.0, math.nan, math.inf, -math.inf]
    base = Part(lambda step: values[step], lambda step: 1.0)
    run = read(write_run(tmp_path, steps=4, base=base))
    np.testing.assert_array_equal(run.total.values, values)
    assert run.total.finite.values.tolist() == [1.0]
    assert run.total.at(2) == math.inf
    assert run.total.at(9) is None


def test_gradients_that_were_not_tracked_are_not_there(tmp_path):
    run = read(write_run(tmp_path, steps=3, base=Part(lambda step: 1.0, lambda step: 1.0, None)))
    assert len(run.grad_norm) == len(run.terms["base_loss"].pull) == 0


def test_a_run_without_base_loss(tmp_path):
    run = read(write_run(tmp_path, steps=3, base=None, parts={"l1": Part(lambda step: 2.0)}))
    assert list(run.terms) == ["l1"]
    assert run.loss is run.total


@pytest.mark.parametrize("tail", ['{"kind": "step", "st', "{", "\x00\x00", '{"kind": "step"'])
def test_a_torn_last_line_is_left_out(tmp_path, tail):
    run = read(small(tmp_path / "run", tail=tail))
    assert run.torn
    assert len(run.steps) == 60
    assert run.unreadable == []


def test_a_last_line_that_is_whole_counts_though_it_has_no_end(tmp_path):
    folder = small(tmp_path / "run")
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text().rstrip("\n"))
    run = read(folder)
    assert (run.torn, len(run.steps), run.events[-1].kind) == (False, 60, "finished")


@pytest.mark.parametrize(
    "bad",
    [
        "nonsense",
        "[1, 2]",
        "7",
        "{}",
        '{"kind": "step", "step": 1}',
        '{"kind": "step", "step": -1, "loss": {"loss_total": 1}}',
        '{"kind": "step", "step": true, "loss": {"loss_total": 1}}',
        '{"kind": "step", "step": 1e3, "loss": {"loss_total": 1}}',
        '{"kind": "step", "step": 99999999999999999999, "loss": {"loss_total": 1}}',
        '{"kind": "step", "step": 1, "loss": {"regularizers": {}}}',
        '{"kind": "step", "step": 1, "loss": {"loss_total": 1, "regularizers": []}}',
        '{"kind": "step", "step": 1, "loss": {"loss_total": 1, "regularizers": {"a": 1}}}',
        '{"kind": "step", "step": 1, "loss": {"loss_total": 1, "base_loss": null}}',
        '{"kind": "eval", "step": 1, "loss": 3}',
        '{"kind": "event", "event": "warning"}',
        "[" * 100_000,
    ],
)
def test_lines_that_are_not_records_are_listed_and_left_out(tmp_path, bad):
    folder = small(tmp_path / "run", steps=6)
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:3], bad, *lines[3:], ""]))
    run = read(folder)
    assert run.unreadable == [4]
    assert len(run.steps) == 6
    assert not run.torn


def test_names_that_are_not_utf8_leave_their_step_readable(tmp_path):
    folder = small(tmp_path / "run", steps=6)
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    index = next(i for i, line in enumerate(lines) if '"step": 4' in line and '"kind": "step"' in line)
    lines[index] = lines[index][:-1] + ', "errors": {"kl_estimate": "no such file: \\udcff"}}'
    path.write_text("\n".join([*lines, ""]))
    run = read(folder)
    assert run.unreadable == []
    assert run.steps.tolist() == list(range(6))


def test_a_malformed_number_makes_its_line_unreadable(tmp_path):
    folder = small(tmp_path / "run", steps=6)
    path = folder / "metrics.jsonl"
    lines = path.read_text().splitlines()
    index = next(i for i, line in enumerate(lines) if '"step": 4' in line and '"kind": "step"' in line)
    lines[index] = lines[index].replace('"tokens": 804', '"tokens": 8.0.4')
    path.write_text("\n".join([*lines, ""]))
    run = read(folder)
    assert run.unreadable == [index + 1]
    assert run.steps.tolist() == [0, 1, 2, 3, 5]


def rewritten(folder: Path, change) -> Path:
    """A log of which each record was changed."""
    found = records(folder)
    for one in found:
        change(one)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
    return folder


def test_lines_that_differ_in_nothing_but_their_errors(tmp_path):
    folder = write_run(tmp_path, steps=6, parts={"a": Part(lambda step: 1.0)})
    run = read(rewritten(folder, lambda one: one["errors"].update({"a": "late"} if one["step"] == 4 else {})))
    assert [failure.step for failure in run.terms["a"].failures] == [4]


def test_an_error_that_is_not_text_does_not_count(tmp_path):
    folder = write_run(tmp_path, steps=3, parts={"a": Part(lambda step: 1.0)})
    assert read(rewritten(folder, lambda one: one["errors"].update(a=None))).terms["a"].failures == []


def test_numbers_that_are_missing_now_and_then(tmp_path):
    folder = write_run(tmp_path, steps=8, parts={"a": Part(lambda step: step + 0.5)})

    def change(one):
        if one["step"] % 3 == 1:
            one["loss"]["regularizers"]["a"]["grad_norm"] = None
        if one["step"] == 5:
            one["loss"]["regularizers"]["a"]["value"] = "NaN"

    run = read(rewritten(folder, change))
    assert run.terms["a"].grad_norm.steps.tolist() == [0, 2, 3, 5, 6]
    assert np.isnan(run.terms["a"].value.at(5))
    assert run.terms["a"].value.at(6) == 6.5


@pytest.mark.parametrize("name", ["value", "grad_norm", "custom", "duration", "total_grad_norm"])
def test_terms_named_like_what_stands_beside_them(tmp_path, name):
    parts = {"a": Part(lambda step: 1.0), name: Part(lambda step: step / 3), "b": Part(lambda step: 2.0)}
    folder = write_run(tmp_path, steps=5, parts=parts)
    run = read(folder)
    assert run.terms[name].value.values.tolist() == [step / 3 for step in range(5)]


def test_values_of_other_types_are_left_out(tmp_path):
    folder = write_run(tmp_path, steps=2)
    path = folder / "metrics.jsonl"
    found = records(folder)
    found[1] |= {"seconds": "soon", "tokens": True, "learning_rate": None}
    path.write_text("".join(json.dumps(one) + "\n" for one in found))
    run = read(folder)
    assert [len(run.seconds), len(run.tokens), len(run.learning_rate)] == [1, 1, 1]


def test_kinds_of_a_later_version_are_skipped(tmp_path):
    folder = write_run(tmp_path, steps=2, tail='{"kind": "profile", "what": 1}\n')
    assert read(folder).unreadable == []


def test_repeated_steps_replace_the_first_ones(tmp_path):
    taken = iter([5.0, 4.0, 3.0, 2.0, 30.0, 20.0])
    base = Part(lambda step: next(taken), lambda step: 1.0)
    run = read(write_run(tmp_path, steps=[0, 1, 2, 3, 2, 3], base=base))
    assert run.steps.tolist() == [0, 1, 2, 3]
    assert run.total.values.tolist() == [5.0, 4.0, 30.0, 20.0]


def test_steps_after_a_repeated_step_do_not_count_until_they_are_repeated(tmp_path):
    fails = {3: "failed the first time"}
    run = read(write_run(tmp_path, steps=[0, 1, 2, 3, 4, 2], parts={"l1": Part(lambda step: 1.0, fails=fails)}))
    assert run.steps.tolist() == [0, 1, 2]
    assert run.terms["l1"].failures == []


def test_evaluations_have_the_base_loss_and_contributions(tmp_path):
    run = read(small(tmp_path / "run"))
    logged = [one for one in records(tmp_path / "run") if one["kind"] == "eval"]
    assert run.evaluations.loss.values.tolist() == [one["loss"]["base_loss"]["value"] for one in logged]
    assert run.evaluations.total.values.tolist() == [one["loss"]["loss_total"] for one in logged]
    kl = [one["loss"]["regularizers"]["kl_estimate"]["contribution"] for one in logged]
    assert run.evaluations.contributions["kl_estimate"].values.tolist() == kl


def test_evaluations_of_repeated_steps_are_replaced(tmp_path):
    losses = {1: 3.0, 3: 2.0}
    run = read(write_run(tmp_path, steps=[0, 1, 2, 3, 2], evaluate=losses))
    assert run.evaluations.loss.steps.tolist() == [1]
    run = read(write_run(tmp_path, steps=[0, 1, 2, 3, 2, 3], evaluate=losses))
    assert run.evaluations.loss.steps.tolist() == [1, 3]


def test_evaluations_without_a_base_loss_compare_by_the_total(tmp_path):
    folder = write_run(tmp_path, steps=2, evaluate={1: 3.0})
    found = records(folder)
    del found[-1]["loss"]["base_loss"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in found))
    run = read(folder)
    assert run.evaluations.loss is run.evaluations.total


def test_why_a_term_has_no_gradient(tmp_path):
    part = Part(lambda step: 1.0, norm=None, grad_error="it is not differentiable")
    assert read(write_run(tmp_path, steps=2, parts={"a": part})).terms["a"].grad_error == "it is not differentiable"


def test_terms_come_in_the_order_of_the_config(tmp_path):
    parts = {"b": Part(lambda step: 1.0, every=2), "a": Part(lambda step: 1.0), "c": Part(lambda step: 1.0)}
    run = read(write_run(tmp_path, steps=[1, 2], parts=parts, settings=config(["c", "b"], 2)))
    assert list(run.terms) == ["base_loss", "c", "b", "a"]


@pytest.mark.parametrize("text", ["not json", "[1]", None])
def test_without_a_config_that_can_be_read_there_is_none(tmp_path, text):
    folder = write_run(tmp_path, steps=1)
    if text is not None:
        (folder / "config.json").write_text(text)
    assert read(folder).config is None


def test_a_run_that_ended_before_its_first_line_has_no_steps(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "lock").touch()
    run = read(tmp_path)
    assert (len(run.steps), list(run.terms), run.torn) == (0, [], False)
    (tmp_path / "metrics.jsonl").write_text("")
    assert len(read(tmp_path).steps) == 0


def test_a_folder_without_a_run_is_an_error_that_says_so(tmp_path):
    with pytest.raises(RunError, match="no metrics.jsonl") as caught:
        read(tmp_path)
    assert caught.value.status == 2
    with pytest.raises(RunError, match="nowhere is not a folder") as caught:
        read(tmp_path / "nowhere")
    assert caught.value.status == 2


def test_a_log_that_cannot_be_read_is_an_error_that_says_why(tmp_path):
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(RunError, match="metrics.jsonl cannot be read: it is a folder; expected a file"):
        read(tmp_path)


def test_keys_never_come_out_of_a_log_or_a_config(tmp_path, monkeypatch):
    monkeypatch.setenv("TINKER_API_KEY", "tml-0123456789")
    fails = {1: "401: the key tml-0123456789 is unknown"}
    told = config([], 2) | {"backend": {"kind": "tinker", "base_url": "https://x/?key=tml-0123456789"}}
    run = read(write_run(tmp_path, steps=2, parts={"a": Part(lambda step: 1.0, fails=fails)}, settings=told))
    assert "tml-0123456789" not in str(run.terms["a"].failures) + str(run.config)


def test_a_long_log_is_read_whole(tmp_path):
    folder = write_run(tmp_path, steps=1000, parts={"a": Part(lambda step: step / 7)}, cosines=lambda *_: 0.25)
    run = read(folder)
    assert run.terms["a"].value.values.tolist() == [step / 7 for step in range(1000)]
    assert len(run.cosines["base_loss", "a"]) == 1000


NUMBERS = st.floats() | st.integers(-(10**20), 10**20) | st.just(10**400)
NAMES = st.text(min_size=1, max_size=8).filter(lambda name: name != "base_loss")
TERM = st.fixed_dictionaries(
    {"value": NUMBERS | st.none(), "weight": NUMBERS, "contribution": NUMBERS | st.none()},
    optional={"grad_norm": NUMBERS | st.none(), "custom": st.dictionaries(NAMES, NUMBERS), "error": st.text()},
)
LOSS = st.fixed_dictionaries(
    {"loss_total": NUMBERS, "regularizers": st.dictionaries(NAMES, TERM, max_size=3)},
    optional={
        "base_loss": st.fixed_dictionaries({"value": NUMBERS, "grad_norm": NUMBERS | st.none()}),
        "total_grad_norm": NUMBERS | st.none(),
        "cosines": st.lists(st.lists(NUMBERS, max_size=2), max_size=2),
    },
)
STEP = st.fixed_dictionaries(
    {"kind": st.just("step"), "step": st.integers(0, 50), "loss": LOSS},
    optional={
        "seconds": NUMBERS,
        "durations": st.dictionaries(NAMES, NUMBERS, max_size=2),
        "errors": st.dictionaries(NAMES, st.text(), max_size=2),
        "metrics": st.dictionaries(NAMES, NUMBERS | st.text(), max_size=3),
    },
)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.text()
        | STEP.map(json.dumps)
        | st.recursive(
            NUMBERS | st.text(),
            lambda inner: (
                st.lists(inner)
                | st.dictionaries(
                    st.sampled_from(["kind", "step", "loss", "loss_total", "regularizers", "base_loss"]), inner
                )
            ),
        ).map(json.dumps)
    )
)
def test_any_log_can_be_read(tmp_path_factory, lines):
    folder = tmp_path_factory.mktemp("broken")
    (folder / "metrics.jsonl").write_bytes("\n".join(lines).encode("utf-8", "surrogatepass"))
    read(folder)


def test_numbers_as_a_log_has_them():
    assert [number(one) for one in (1, 2.5, "Infinity", "-Infinity", "1", True, None, [])] == [
        1.0, 2.5, math.inf, -math.inf, None, None, None, None
    ]  # fmt: skip
    assert math.isnan(number("NaN"))
    assert number(10**400) == math.inf
    assert number(-(10**400)) == -math.inf
