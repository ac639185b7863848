"""What a notebook shows: tables in HTML, and terms over time."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penalties as pn
from penalties import telemetry

HOSTILE = "<script>alert('x')</script>"
PIPELINE = pn.Pipeline([pn.Term(pn.l1, 0.5, inputs="x"), pn.Term(pn.l2, inputs="x", name=HOSTILE.replace("/", ""))])


class Page(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.bars: list[str] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        self.bars += [str(value) for _, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def output(**options: Any) -> pn.LossOutput:
    return PIPELINE.value_and_grad(x=torch.tensor([1.0, -3.0]), wrt="x", **options)


@pytest.mark.parametrize(
    "shown",
    [PIPELINE, pn.Pipeline(), output(), pn.explain(output(cosines=True))],
    ids=["pipeline", "empty", "output", "explanation"],
)
def test_tables_have_the_text_of_the_terminal_and_no_markup_from_names(shown: Any) -> None:
    page = Page(shown._repr_html_())
    assert page.open == []
    assert set(page.tags) <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
    words = " ".join(page.text).split()
    assert words == str(shown).split()


def test_a_share_is_drawn_behind_its_number() -> None:
    # l1 contributes 2, l2 10.
    assert [bar.split()[1].split("%")[0] for bar in Page(output()._repr_html_()).bars] == ["17", "83"]


def test_a_name_that_ends_like_a_share_is_not_one() -> None:
    page = Page(pn.Pipeline([pn.Term(pn.l1, name="half %")])(np.ones(2))._repr_html_())
    assert "half %" in page.text
    assert len(page.bars) == 1


class TestPlot:
    HISTORY = tuple(
        PIPELINE.value_and_grad(x=torch.tensor([1.0, 3.0 / (1 + step)]), wrt="x").read() for step in range(4)
    )

    def lines(self, figure: Any, panel: int = 0) -> dict[str, tuple[list[float], list[float]]]:
        lines = figure.axes[panel].get_lines()
        return {line.get_label(): (list(line.get_xdata()), list(line.get_ydata())) for line in lines}

    def test_contributions_and_shares_of_the_gradient(self) -> None:
        figure = pn.plot(self.HISTORY)
        assert [axes.get_title() for axes in figure.axes] == ["contribution to the loss", "share of the gradient"]
        drawn = self.lines(figure)
        assert drawn["l1"] == ([0, 1, 2, 3], [out["l1"].contribution for out in self.HISTORY])
        assert drawn["total"][1] == [out.total for out in self.HISTORY]
        shares = np.array([values for _, values in self.lines(figure, 1).values()])
        np.testing.assert_allclose(shares.sum(0), 1)

    def test_steps_of_a_mapping(self) -> None:
        assert self.lines(pn.plot({10 * step: out for step, out in enumerate(self.HISTORY)}))["l1"][0] == [
            0,
            10,
            20,
            30,
        ]

    def test_a_log_with_gradients_that_were_measured_later(self, tmp_path: Path) -> None:
        with telemetry.JSONLines(tmp_path / "log.jsonl"):
            for step in range(3):
                x = torch.tensor([1.0, 3.0 + step], requires_grad=True)
                pn.gradients.track(PIPELINE(x=x, step=5 * step), at=x)
        figure = pn.plot(tmp_path / "log.jsonl")
        assert self.lines(figure)["total"][0] == [0, 5, 10]
        assert len(self.lines(figure, 1)["l1"][0]) == 3

    def test_a_term_that_rests_has_marks_where_it_ran(self) -> None:
        pipeline = pn.Pipeline(["l1", pn.Term(pn.l2, every=2)])
        figure = pn.plot([pipeline(np.ones(2), step=step).read() for step in range(5)])
        assert self.lines(figure)["l2"][0] == [0, 2, 4]
        assert [line.get_marker() for line in figure.axes[0].get_lines()] == ["", "o", ""]

    def test_what_cannot_be_drawn(self, tmp_path: Path) -> None:
        with pytest.raises(pn.InputError, match="the history is empty; append"):
            pn.plot([])
        with pytest.raises(pn.OptionError, match="plot: history=.*float.*; expected outputs of a pipeline"):
            pn.plot([1.0])  # type: ignore[list-item]
        with pytest.raises(pn.OptionError, match="expected a file that telemetry.JSONLines wrote; there is none"):
            pn.plot(tmp_path / "nothing")
        (tmp_path / "log").write_text('{"event": "pipeline.stop"}\n')
        with pytest.raises(pn.InputError, match="line 1 of .*log is not from telemetry.JSONLines"):
            pn.plot(tmp_path / "log")

    def test_without_matplotlib_it_says_what_to_install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "matplotlib", None)
        monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
        with pytest.raises(pn.MissingLibraryError, match=r'pip install "penalties\[plot\]"'):
            pn.plot(self.HISTORY)
