"""The page: whole, alone, and safe whatever names say."""

import base64
import dataclasses
import hashlib
import html
import json
import os
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penalties.app import report
from penalties.app.cli import main
from penalties.app.report.page import _template, compose
from penalties.app.report.runlog import EMPTY, Evaluations, Event, Failure, RunLog, Series, TermLog
from penalties.app.report.tables import failures
from penalties.app.runs.disk import RunError
from penalties.errors import MissingLibraryError

from .drawn import drawings
from .synthetic import Part, config, everything, small, write_run

UPLOT = "/*! https://github.com/leeoniya/uPlot (v1.6.32) */"
EVIL = "<b>&\"'</b></script><script>alert(1)</script>"


class Page(HTMLParser):
    """The elements of a page: it fails on one that is not closed, or closed twice."""

    EMPTY = ("meta", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def made(*folders: Path) -> str:
    return report.make(folders).html


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    return made(everything(tmp_path_factory.mktemp("runs") / "everything"))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("runs")
    return made(small(folder / "a"), small(folder / "b", seed=5), everything(folder / "c"))


@pytest.fixture(scope="module", params=["page", "comparison"])
def any_page(request) -> str:
    return request.getfixturevalue(request.param)


def test_every_element_is_closed_once(any_page):
    assert any_page.startswith("<!DOCTYPE html>\n")
    Page(any_page)


def test_a_page_requests_nothing_from_a_network(any_page):
    found = Page(any_page)
    links = [value for _, attributes in found.found for name, value in attributes.items() if name in ("href", "src")]
    assert {link for link in links if not link.startswith("#run-")} <= {"data:,"}
    # Nothing but the address in the comment with which uPlot begins.
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttpRequest", any_page.replace(UPLOT, ""))


def test_the_security_policy_allows_our_scripts_alone(any_page):
    found = Page(any_page)
    (policy,) = [one["content"] for one in found.all("meta") if one.get("http-equiv")]
    scripts = re.findall(r"<script>(.*?)</script>", any_page, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(digests) == 2
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert policy == f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"


def test_the_licence_of_what_is_inlined_stands_beside_it(any_page):
    folder = Path(report.__file__).parent / "vendor" / "uplot"
    assert "Copyright (c) 2022 Leon Sorokin" in (folder / "LICENSE").read_text()
    assert "1.6.32" in (folder / "README.md").read_text()
    assert any_page.count(UPLOT) == 1


def test_every_id_is_there_once_and_every_link_leads_somewhere(any_page):
    found = Page(any_page)
    ids = [attributes["id"] for _, attributes in found.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {link["href"].removeprefix("#") for link in found.all("a")} <= set(ids)


def test_charts_can_be_reached_and_read_without_a_mouse(any_page):
    sliders = [one for one in Page(any_page).all("div") if one.get("role") == "slider"]
    assert sliders
    for one in sliders:
        assert one["tabindex"] == "0"
        assert one["aria-label"].endswith("Arrow keys move the cursor.")
        assert int(one["aria-valuemin"]) <= int(one["aria-valuenow"]) <= int(one["aria-valuemax"])
    assert "<svg" not in any_page


def test_a_page_has_every_section(page):
    text = html.unescape(page)
    for title in ("Held-out base loss", "Terms", "kl_estimate", "Weights", "Shares of the gradient", "Gradient norms",
                  "Cosines between gradients", "Failures", "the first one", "Time and memory", "Time", "slowest terms",
                  "Events", "message", "Resolved config"):  # fmt: skip
        assert f">{title}<" in text, title
    assert "[train]\nsteps = 300" in text
    assert 'fn = "topology"' in text


def test_the_verdict_is_at_the_top(page):
    assert page.index("The loss fell by 42") < page.index("<figure")


def test_names_are_text_wherever_they_stand(tmp_path):
    parts = {
        EVIL: Part(lambda step: 1.0, fails={1: EVIL}),
        "kl": Part(lambda step: 1.0, norm=None, grad_error=EVIL),
    }
    told = config([EVIL, "kl"], 9) | {EVIL: {EVIL: EVIL}, "model": {"name": EVIL}}
    folder = write_run(
        tmp_path / EVIL.replace("/", "|"),
        steps=3,
        parts=parts,
        settings=told,
        events=[(1, EVIL, EVIL)],
        cosines=lambda *_: -0.9,
    )
    plain = write_run(tmp_path / "plain", steps=3)
    for text in (made(folder), made(folder, plain)):
        found = Page(text)
        assert len([one for one in found.all("script") if one.get("type") is None]) == 2
        assert not any("alert(1)" in part for part in re.findall(r"<script>(.*?)</script>", text, re.DOTALL))
        assert "<b>&" not in text
        assert EVIL in "".join(found.texts)


def test_numbers_of_charts_are_those_of_the_log(page, tmp_path):
    log = report.read(everything(tmp_path))
    charts = drawings(page)
    loss = charts["Held-out base loss"]
    assert set(loss.names) == {"training base loss", "held-out base loss", "training loss with all terms"}

    def check(found, series, failed=()):
        steps, values = series.steps.tolist(), series.values.tolist()
        wanted = {step: value if value == value else "NaN" for step, value in zip(steps, values, strict=True)}
        assert list(found) == sorted([*wanted, *failed])
        for step, value in found.items():
            logged = wanted.get(step, "failed")
            assert value == (logged if isinstance(logged, str) else pytest.approx(logged, rel=1e-12))

    check(loss.line("training base loss"), log.loss)
    check(loss.line("held-out base loss"), log.evaluations.loss)
    check(loss.line("training loss with all terms"), log.total)
    topology = log.terms["topology"]
    failed = [failure.step for failure in topology.failures]
    assert len(failed) == 10
    check(charts["topology"].line("value"), topology.value, failed)
    check(charts["topology"].line("contribution"), topology.contribution, failed)
    check(charts["kl_estimate"].line("contribution"), log.terms["kl_estimate"].contribution)
    assert set(charts["orthogonality"].line("value")) == set(range(0, 240, 4))
    check(charts["Gradient norms"].line("total"), log.grad_norm)
    for name in ("base_loss", "entropy"):
        check(charts["Gradient norms"].line(name), log.terms[name].pull)
        check(charts["Shares of the gradient"].line(name), log.terms[name].pull)


def long_run(steps: int, terms: int = 5) -> RunLog:
    """A run of many steps, made without a file."""
    random = np.random.default_rng(0)
    at = np.arange(steps)

    def series(scale: float) -> Series:
        return Series(at, scale * (1 + random.random(steps)))

    names = ["base_loss", *(f"term{place}" for place in range(terms))]
    logs = {
        name: TermLog(
            name, series(1), Series(at, np.full(steps, 0.1)), series(0.1), series(2), series(0.2), series(1e-3)
        )
        for name in names
    }
    total = series(5)
    total.values[steps // 2 :: 1000] = np.nan
    cosines = {("base_loss", "term0"): Series(at[::10], random.uniform(-1, 1, len(at[::10])))}
    return RunLog(at, total, series(1), series(0.05), series(800), series(1e-3), logs, cosines)


@pytest.mark.parametrize("steps", [1, 2, 100_000])
def test_a_run_of_any_length(steps):
    text = compose([long_run(steps)], ["long"]).html
    Page(text)
    assert len(text) < 4_000_000


def test_the_extremes_of_a_long_run_are_in_its_charts_and_the_page_says_what_is_not():
    log = long_run(100_000)
    log.total.values[77_777] = 11.5
    text = compose([log], ["long"]).html
    total = drawings(text)["Base loss"].line("training loss with all terms")
    assert total[77_777] == 11.5
    assert "NaN" in total.values()
    assert re.search(r"minimum, the maximum and the last of each of \d\D?\d+ parts of a long run", text)
    assert "parts of a long run" not in compose([long_run(50)], ["short"]).html


def test_ten_long_runs_stay_small():
    log = long_run(10_000)
    text = compose([log] * 10, [f"run {place}" for place in range(10)]).html
    assert len(text.encode()) < 4_000_000


def test_many_terms_and_runs_stay_small():
    log = long_run(3_000, terms=24)
    assert len(compose([log] * 8, [f"run {place}" for place in range(8)]).html) < 7_000_000


def test_a_run_without_steps_says_so(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "lock").touch()
    text = made(tmp_path)
    Page(text)
    assert "No step yet." in text
    assert "<figure" not in text
    assert "cannot be compared: no step yet." in made(tmp_path, small(tmp_path / "other", steps=3))


def test_a_log_alone_is_enough(tmp_path):
    text = made(write_run(tmp_path, steps=3))
    Page(text)
    assert "The folder has no readable config.json." in text


def test_a_run_without_terms_gradients_times(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 0, "loss": {"loss_total": 2.0}}\n')
    text = made(tmp_path)
    Page(text)
    assert text.count("<figure") == 1
    assert "Gradient" not in text


def test_pace_memory_and_learning_rate_are_one_row(tmp_path):
    text = made(write_run(tmp_path, steps=3, memory=lambda step: 1e9))
    found = re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>(<figure|</div)", text.partition('<dl class="pace">')[2])
    assert [name for name, *_ in found] == ["tokens/s", "peak memory", "learning rate"]
    assert [words for _, words, _ in found][1:] == ["1 GB", "0.003"]
    # What never changes has no history.
    assert [what for *_, what in found] == ["<figure", "</div", "</div"]
    assert "peak memory" not in made(write_run(tmp_path, steps=3))


def test_own_metrics_have_charts(tmp_path):
    base = Part(lambda step: 2.0, lambda step: 1.0, metrics={"accuracy": lambda step: step / 4})
    text = made(write_run(tmp_path, steps=3, base=base))
    assert ">Metrics<" in text
    assert "<strong>base_loss/accuracy</strong>" in text


def test_what_a_run_was_made_with_is_there(tmp_path):
    folder = write_run(tmp_path, steps=3)
    first = {"step": 0, "commit": "0123456789abcdef", "changed": True, "versions": {"torch": "2.9", "evil": EVIL}}
    (folder / "environment.json").write_text(json.dumps({"processes": [first]}))
    text = made(folder)
    Page(text)
    assert "<span>commit 01234567, with changes</span>" in text
    assert '<p class="note">commit 0123456789abcdef with changes, torch 2.9, ' in text
    assert EVIL not in text
    second = {"step": 2, "commit": "fedcba9876543210", "changed": False, "versions": {"torch": "2.10"}}
    (folder / "environment.json").write_text(json.dumps({"processes": [first, second]}))
    text = made(folder)
    assert "<span>commit fedcba98</span>" in text
    assert "<strong>from step 3</strong>: commit fedcba9876543210, torch 2.10</p>" in text


def test_events_are_listed_with_checkpoints_together(tmp_path):
    events = [(step, "checkpoint", "") for step in range(3)] + [(2, "warning", "kl dominates")]
    text = made(write_run(tmp_path, steps=3, events=events))
    assert "<td>2</td><td>warning</td><td>kl dominates</td>" in text
    assert "<td>saved</td><td>3 checkpoints, the last at this step</td>" in text
    text = made(write_run(tmp_path, steps=3, events=events[:1]))
    assert "1 checkpoint, the last at this step" in text
    text = made(write_run(tmp_path, steps=60, events=[(step, "warning", "x") for step in range(60)]))
    assert "and 20 more in metrics.jsonl" in text


def test_failures_are_listed_by_reason(tmp_path):
    fails = {1: "late", 4: "late", 2: "lost"}
    text = made(write_run(tmp_path, steps=6, parts={"a": Part(lambda step: 1.0, fails=fails)}))
    assert "<td>2</td><td>late</td><td>first at step 1</td><td>4</td>" in text
    assert "<td>1</td><td>lost</td><td>first at step 2</td><td>–</td>" in text


def test_failures_that_differ_in_numbers_are_of_one_kind(tmp_path):
    fails = {step: f"took {step / 7:.3g} s at 0x{step:x}f" for step in range(1, 6)}
    text = made(write_run(tmp_path, steps=8, parts={"a": Part(lambda step: 1.0, fails=fails)}))
    assert f"<td>5</td><td>took # s at #</td><td>first at step 1: {fails[1]}</td><td>5</td>" in text
    assert "failed in 5 of 8 steps, first at step 1: took 0.143 s at 0x1f." in text


def test_the_first_kinds_of_failures_are_listed_and_the_others_counted():
    class Looked(list):
        times = 0

        def __iter__(self):
            self.times += 1
            return super().__iter__()

    words = ["".join("abcdefghij"[int(digit)] for digit in str(step)) for step in range(2000)]
    found = Looked(Failure(step, word) for step, word in enumerate(words))
    log = RunLog(np.arange(2000), terms={"a": TermLog("a", failures=found)})
    rows = failures(log, {"a": "x"})
    assert len(rows) == 21
    assert rows[0].cells == ["1", "a", "first at step 0", "–"]
    assert rows[-1].cells == ["1\u202f980", "for 1\u202f980 other reasons, in metrics.jsonl", "", ""]
    # Once for all kinds: a look for each of them takes 40 seconds for 60 000.
    assert found.times == 1


def test_the_slowest_term_is_first(tmp_path):
    parts = {"quick": Part(lambda step: 1.0, seconds=1e-4), "slow": Part(lambda step: 1.0, seconds=0.01)}
    text = made(write_run(tmp_path, steps=6, parts=parts)).partition("slowest terms")[2]
    assert text.index(">slow<") < text.index(">quick<")


def test_a_time_without_that_of_the_steps(tmp_path):
    log = RunLog(np.arange(2), terms={"a": TermLog("a", duration=Series(np.arange(2), np.ones(2)))})
    text = compose([log], ["a"]).html
    assert "<td>1\xa0s</td><td>1\xa0s</td><td>–</td>" in text


def test_what_was_not_measured_is_not_drawn():
    at = np.arange(3)
    ones = Series(at, np.ones(3))
    terms = {name: TermLog(name, value=ones, pull=ones) for name in ("base_loss", "a")}
    evaluations = Evaluations(ones, {"a": ones})
    log = RunLog(at, total=ones, seconds=ones, terms=terms, evaluations=evaluations)
    found = compose([log], ["run"]).html
    # What never changes is a line of text.
    assert list(drawings(found)) == ["Held-out base loss", "Shares of the gradient"]
    assert "Gradient norms: base_loss 1, a 1 at all 3 steps" in found
    assert "Time: 1 at all 3 steps" in found
    assert "tokens" not in found.partition("</header>")[0]
    log = RunLog(at, total=ones, terms=terms, evaluations=Evaluations(ones, {"base_loss": ones}))
    assert "held out" not in compose([log], ["run"]).html.partition("<script")[0]


def test_a_contribution_that_never_changes_is_the_weighted_value(tmp_path):
    folder = write_run(tmp_path / "still", steps=3, parts={"kl": Part(lambda step: 0.3, lambda step: 0.05)})
    found = html.unescape(report.make([folder]).html)
    assert "kl (weight 0.05; adds 0.015): value 0.3, contribution 0.015 at all 3 steps" in found


def test_a_legend_shows_how_a_line_is_drawn(tmp_path):
    page = Page(report.make([small(tmp_path / "run")]).html)
    classes = [of["class"] for tag, of in page.found if tag == "button" and "aria-pressed" in of]
    assert "t1 line" in classes
    assert "t1 dashed" in classes
    assert "t0 behind" in classes
    # That of the total beside that of the base loss, which is grey.
    assert "total line" in classes


def test_cosines_of_pairs_that_were_not_measured_are_left_open(tmp_path):
    at = np.arange(3)
    terms = {name: TermLog(name, value=Series(at, np.ones(3))) for name in ("a", "b", "c")}
    cosines = {
        ("a", "b"): Series(at, np.array([-0.9, -0.8, -0.7])),
        ("a", "c"): EMPTY,
        ("b", "c"): Series(at[:1], np.array([-0.001])),
    }
    log = RunLog(at, total=Series(at, np.ones(3)), terms=terms, cosines=cosines)
    text = compose([log], ["run"]).html.partition('class="cosines"')[2].partition("</table>")[0]
    assert text.count("<td ") == 3
    assert 'class="against fight" style="--strength:0.80" title="a and b: mean −0.8, lowest −0.9 at step 0' in text
    assert "not measured" in text
    assert ">0.00</td>" in text, "no minus before nothing"
    assert text.count("<figure") == 1, "one measurement has no history"


def test_gradients_at_other_inputs_have_their_own_chart(tmp_path):
    parts = {
        "size": Part(lambda step: 1.0, place="params"),
        "kl": Part(lambda step: 1.0, place="flat_logprobs"),
        "still": Part(lambda step: 1.0, norm=None),
    }
    base = Part(lambda step: 2.0, lambda step: 1.0, place="flat_logprobs")
    parts["size"] = dataclasses.replace(parts["size"], norm=lambda step: 1.0 + step)
    text = made(write_run(tmp_path, steps=3, base=base, parts=parts, cosines=lambda *_: 0.5))
    charts = drawings(text)
    assert charts["Shares of the gradient"].names == ["base_loss", "kl"]
    assert charts["Gradient norms at other inputs"].names == ["size at the parameters"]
    assert "norm 0.2 at the parameters" in text
    assert "flat_logprobs" not in text
    matrix = text.partition('class="cosines"')[2].partition("</table>")[0]
    assert re.findall(r">(\w+)</span>", matrix) == ["base_loss", "size", "kl", "size", "kl", "still"]


def test_gradients_that_are_measured_now_and_then_say_so(tmp_path):
    base = Part(lambda step: 2.0, lambda step: 1.0, lambda step: 1.0 + step, measured=10)
    folder = write_run(tmp_path, steps=45, base=base, parts={"kl": Part(lambda step: 1.0, measured=10)})
    text = made(folder)
    assert "and of their sum; measured in 5 of 45 steps" in text
    charts = drawings(text)
    assert charts["Gradient norms"].line("base_loss") == {0: 1, 10: 11, 20: 21, 30: 31, 40: 41}
    assert charts["Shares of the gradient"].line("base_loss") == {0: 1, 10: 11, 20: 21, 30: 31, 40: 41}
    assert "measured in" not in made(write_run(tmp_path, steps=45))


def test_the_table_of_terms_says_what_its_numbers_are(tmp_path):
    parts = {"kl": Part(lambda step: float(step), lambda step: step / 100)}
    text = made(write_run(tmp_path, steps=101, parts=parts))
    assert "<td>2 → 98</td><td>0 → 1</td>" in text
    note = "Share: |term| / Σ|terms|, averaged over steps. Values are means of the first and the last 5 steps; weights"
    assert note in html.unescape(text)
    assert "Values and weights are those of the first and the last step." in made(write_run(tmp_path, steps=9))


def test_numbers_in_events_have_a_true_minus(tmp_path):
    text = made(write_run(tmp_path, steps=1, events=[(0, "warning", "a-1 and b: cosine -0.45, 1e-5 on 2026-11-15")]))
    assert "a-1 and b: cosine −0.45, 1e−5 on 2026-11-15" in text


def test_runs_of_one_name_have_that_of_their_folder_too(tmp_path):
    a, b = small(tmp_path / "x" / "run", steps=3), small(tmp_path / "y" / "run", steps=3)
    assert list(report.make([a, b]).verdicts) == ["x/run", "y/run"]


def test_failures_and_events_of_a_log_that_was_made_by_hand():
    at = np.arange(2)
    terms = {"a": TermLog("a", value=Series(at, np.ones(2)), failures=[Failure(5, "late")])}
    log = RunLog(at, total=Series(at, np.ones(2)), terms=terms, events=[Event(1, "resumed", "")])
    Page(compose([log], ["run"]).html)


def test_a_report_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    folder = small(tmp_path / "run", steps=3)
    out = tmp_path / "new" / "folder" / "report.html"
    report.make([folder]).save(out)
    before = out.read_text()
    assert before.startswith("<!DOCTYPE html>")
    assert os.listdir(out.parent) == ["report.html"]

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunError, match="the disk is full"):
        report.make([small(tmp_path / "other", steps=4)]).save(out)
    assert out.read_text() == before
    assert os.listdir(out.parent) == ["report.html"]


def test_no_run_is_an_error():
    with pytest.raises(RunError, match="no run was given") as caught:
        report.make([])
    assert caught.value.status == 2


def test_without_jinja_the_error_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    _template.cache_clear()
    with pytest.raises(MissingLibraryError, match=r'a report needs jinja2: pip install "penalties\[cli\]"'):
        report.make([small(tmp_path, steps=2)])


def test_the_command_writes_beside_the_log_and_says_the_verdict(tmp_path, capsys):
    folder = small(tmp_path / "run", steps=12)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == (
        "run: The held-out base loss fell by 46 % to 2.053. base_loss had 64 % of the gradient; sparsity had a small "
        f"gradient; the gradients of base_loss and kl_estimate conflicted.\nreport: {folder / 'report.html'}\n"
    )
    assert (folder / "report.html").is_file()


def test_the_command_compares_several_runs(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [str(small(tmp_path / name, steps=6, seed=seed)) for seed, name in enumerate("ab")]
    assert main(["report", *runs]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].startswith("a and b ended, on average, with a held-out base loss of ")
    assert lines[3] == "report: report.html"
    assert "2 runs compared" in (tmp_path / "report.html").read_text()


def test_the_command_with_json_and_with_quiet(tmp_path, capsys):
    folder, out = small(tmp_path / "run", steps=6), tmp_path / "out.html"
    assert main(["report", str(folder), "--out", str(out), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["kind"], said["report"], said["verdict"]) == ("report", str(out), None)
    assert said["runs"]["run"][0].startswith("The held-out base loss fell by ")
    assert main(["report", str(folder), str(small(tmp_path / "b", steps=6)), "--out", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"][0].endswith(".")
    assert main(["report", str(folder), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_the_command_without_a_run_is_wrong(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "no metrics.jsonl" in capsys.readouterr().err
    assert main(["report"]) == 2


def test_what_the_model_said_is_shown_and_its_metrics_are_drawn(tmp_path: Path) -> None:
    path = tmp_path / "run" / "metrics.jsonl"
    path.parent.mkdir()
    lines: list[dict[str, Any]] = [{"kind": "step", "step": step, "loss": {"loss_total": 1.0}} for step in range(60)]
    for step in range(0, 61, 4):
        said = [{"prompt": "a <b> =", "text": f"said after {step}"}, {"prompt": "c =", "text": ""}]
        lines.append({"kind": "samples", "step": step, "samples": said, "metrics": {"exact_match": step / 60}})
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    page = report.make([path.parent]).html
    assert "a &lt;b&gt; =" in page
    shown = [step for step in range(0, 61, 4) if f"said after {step}<" in page]
    assert shown == [0, 12, 24, 36, 48, 60]
    assert "over samples for held-out prompts" in page
    assert "exact_match" in page
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines[:60]))
    assert 'aria-label="Samples"' not in report.make([path.parent]).html
