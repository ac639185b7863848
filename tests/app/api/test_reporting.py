"""`penalties.report`: pages of what other loops kept or logged."""

import json

import numpy as np
import pytest

import penalties as pn
from penalties.app.cli import main
from penalties.app.report.histories import read_history, read_sink
from penalties.app.runs.disk import RunError
from penalties.errors import InputError, OptionError
from penalties.telemetry import JSONLines

PIPELINE = pn.Pipeline([pn.Term(pn.l1, weight=0.1), pn.Term(pn.l2, weight=0.01)])


def outputs(steps: int = 10):
    return [PIPELINE(np.ones(3) / (1 + step), step=step).read() for step in range(steps)]


def test_outputs_that_were_kept_have_a_page(tmp_path):
    page = pn.report(outputs())
    assert page.verdicts["history"].summary.startswith("The loss fell by 91 % to 0.0303. ")
    assert "still going" not in str(page.verdicts["history"])
    assert "config.json" not in page.html
    page.save(str(tmp_path / "page.html"))
    assert (tmp_path / "page.html").read_text().startswith("<!DOCTYPE html>")


def test_a_notebook_shows_the_page_in_a_frame():
    shown = pn.report(outputs())._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert shown.count('"') == 4, "nothing in the page ends the attribute"


def test_numbers_are_those_of_the_outputs_at_their_steps():
    kept = {10 * step: out for step, out in enumerate(outputs())}
    run = read_history(kept)
    assert run.steps.tolist() == list(range(0, 100, 10))
    assert run.total.values.tolist() == [out.total for out in kept.values()]
    assert run.terms["l2"].value.values.tolist() == [out["l2"].value for out in kept.values()]
    assert len(run.terms["l1"].duration) == 10


def test_the_log_of_another_loop_has_a_page(tmp_path, capsys):
    import torch

    path = tmp_path / "metrics.jsonl"
    x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    with JSONLines(path):
        for step in range(5):
            out = PIPELINE(x, step=step)
            pn.gradients.track(out, at=x)
    run = read_sink(path)
    assert run.steps.tolist() == [0, 1, 2, 3, 4]
    assert len(run.terms["l1"].pull) == 5, "gradients come with a later event of the step"
    assert len(run.seconds) == 4
    assert "l1" in pn.report(path).html
    assert main(["report", str(path)]) == 0
    assert capsys.readouterr().out.endswith(f"report: {tmp_path / 'metrics.html'}\n")
    assert (tmp_path / "metrics.html").is_file()


def test_failures_and_damaged_lines_of_such_a_log_are_told(tmp_path):
    def flaky(x, step):
        if step == 2:
            raise ValueError("</script>no")
        return pn.l1(x)

    path = tmp_path / "log.jsonl"
    pipeline = pn.Pipeline([pn.Term(flaky, weight=0.1)])
    with JSONLines(path):
        for step in range(4):
            try:
                pipeline(np.ones(3), step=step)
            except pn.TermError:
                continue
    with path.open("a") as file:
        file.write('{"no": "event"}\n[1]\n{"event": "pipeline.stop", "step": "x"}\n{"event": "custom"}\n{"event"')
    run = read_sink(path)
    assert run.steps.tolist() == [0, 1, 3]
    (event,) = run.events
    assert (event.step, event.kind) == (2, "warning")
    assert "</script>no" in event.message
    assert len(run.unreadable) == 3
    assert run.torn
    assert "</script>no" not in pn.report(path).html


def test_what_is_no_history_is_an_error(tmp_path):
    with pytest.raises(InputError, match="the history is empty; append"):
        pn.report([])
    with pytest.raises(OptionError, match="outputs of a pipeline, or the path of a log or a run"):
        pn.report([1.0])  # type: ignore[list-item]
    with pytest.raises(OptionError, match="outputs of a pipeline, or the path of a log or a run"):
        pn.report(3)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="whole numbers of at least 0"):
        pn.report({-1: outputs(1)[0]})
    with pytest.raises(RunError, match="nothing is not a folder; expected"):
        pn.report(tmp_path / "nothing")
    (tmp_path / "other.jsonl").write_text(json.dumps({"event": "term.stop", "step": 1}) + "\n")
    with pytest.raises(RunError, match="has no output of a pipeline; expected a log by telemetry.JSONLines"):
        pn.report(tmp_path / "other.jsonl")
