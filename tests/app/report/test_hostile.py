"""Text from configs, names, data and errors is text on the page, wherever it stands."""

import html
import json
import re
from pathlib import Path

import pytest

from penalties.app import report

from .browser import DESKTOP, Browser, assert_quiet, in_browser, plot
from .drawn import drawings
from .synthetic import Part, config, write_run

EVIL = [
    "</script><script>hacked=1</script>",
    "<img src=x onerror=hacked=1>",
    '"\' onmouseover="hacked=1',
    "<!--<script>",
    "{{ 7 * 7 }}{% raw %}",
    "=cmd|' /C calc'!A0",
    "\u2028\u202e${hacked=1}`",
]
FIELDS = ["term", "metric", "reason", "grad_error", "event", "message", "prompt", "text", "task", "config key"]
FIELDS += ["config value", "model", "library", "version", "commit", "eval_path", "inputs", "token"]


def hostile(folder: Path, evil: str, field: str) -> Path:
    """A run that has this text in a field."""
    of = lambda name, plain: evil if field == name else plain
    term = of("term", "kl")
    parts = {
        term: Part(
            lambda step: 1.0 + step,
            lambda step: 0.1 * step,
            fails={2: of("reason", "late")},
            metrics={of("metric", "rate"): lambda step: step / 9},
            place=of("inputs", "parameters"),
        ),
        "still": Part(lambda step: 1.0, norm=None, grad_error=of("grad_error", "it is a constant")),
    }
    told = config([term, "still"], 9)
    told |= {of("config key", "sinks"): {of("config key", "x"): of("config value", "y")}}
    told["model"]["name"], told["data"]["eval_path"] = of("model", "tiny"), of("eval_path", "held_out.jsonl")
    events = [(1, "resumed", ""), (3, of("event", "warning"), of("message", "kl dominates"))]
    base = Part(lambda step: 3.0 - step / 9, lambda step: 1.0)
    write_run(folder, steps=6, base=base, parts=parts, settings=told, events=events, evaluate={3: 2.0, 5: 1.5})
    said = {"prompt": of("prompt", "a ="), "text": of("text", "b")}
    spoken = {"kind": "samples", "samples": [said], "metrics": {of("task", "exact_match"): 0.5}}
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({**spoken, "step": step}) + "\n" for step in (0, 5))
    tokens = [["say", None], [of("token", "one"), 0.5], ["!", "NaN"]]
    example = {"index": 0, "kinds": ["worst", "first"], "loss": 0.5, "tokens": tokens}
    evaluated = {"kind": "eval", "loss": {"loss_total": 1.0, "base_loss": {"value": 1.0}}, "examples": [example]}
    with (folder / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({**evaluated, "step": step}) + "\n" for step in (3, 5))
    made = {"step": 0, "commit": of("commit", "0123456789"), "versions": {of("library", "torch"): of("version", "2.9")}}
    (folder / "environment.json").write_text(json.dumps({"processes": [made]}))
    return folder


def scripts(page: str) -> list[str]:
    return re.findall(r"<script(?: [^>]*)?>(.*?)</script>", page, re.DOTALL)


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_adds_markup(tmp_path, field):
    plain = write_run(tmp_path / "plain", steps=3)
    usual = report.make([hostile(tmp_path / "usual", "harmless", field), plain]).html
    tags = lambda page: re.findall(
        r"<[a-zA-Z!/][^>]*", re.sub(r"(<script[^>]*>).*?</script>", r"\1", page, flags=re.DOTALL)
    )
    count = len(tags(usual))
    for number, evil in enumerate(EVIL):
        page = report.make([hostile(tmp_path / str(number), evil, field), plain]).html
        assert len(tags(page)) == count
        assert len(scripts(page)) == len(scripts(usual))
        assert not any("hacked" in tag for tag in tags(page) if "title=" not in tag and "aria-label=" not in tag)
        # And is still readable: cut in the middle where it is a long name. Inputs are said only where they differ.
        assert evil.strip()[:9] in html.unescape(page) or field == "inputs"
        drawings(page)


@pytest.mark.slow
class TestInABrowser:
    pytestmark = in_browser

    @pytest.mark.parametrize("evil", EVIL)
    def test_nothing_runs_and_nothing_is_fetched(self, driver: Browser, tmp_path, evil):
        name = evil.replace("/", "|")
        runs = [hostile(tmp_path / f"{place}{name}", evil, field) for place, field in enumerate(FIELDS)]
        for folders in (runs[:1], runs):
            page = tmp_path / "report.html"
            report.make(folders).save(page)
            tab = driver.open(page, DESKTOP)
            try:
                plot(tab)
                tab.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
                tab.run("dispatchEvent(new Event('beforeprint'))")
                tab.run(
                    "document.querySelectorAll('.menu').forEach((menu) => [...menu.querySelectorAll('button')]"
                    ".filter((one) => one.textContent === 'Table').forEach((one) => one.click()))"
                )
                assert tab.run("document.querySelectorAll('img').length") == 0
                assert tab.run("typeof hacked") == "undefined"
                assert_quiet(tab, page)
            finally:
                tab.close()
