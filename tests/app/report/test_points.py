"""Charts without steps in a browser: names that can be read, and a cursor that reads the numbers."""

import itertools
from pathlib import Path

import pytest

from penalties.app.ablation import Outcome, Recorded
from penalties.app.ablation.outcomes import Facts, write
from penalties.app.report import make

from .browser import DESKTOP, PHONE, Browser, Tab, assert_quiet, in_browser, plot, written
from .test_charts_in_browser import choose
from .test_cursor import number_of
from .test_study import ablation

pytestmark = in_browser


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of an ablation whose variants are close to each other."""
    folder = ablation(tmp_path_factory.mktemp("ablation"))
    page = folder / "report.html"
    make([folder]).save(page)
    return page


def where(tab: Tab, number: int) -> str:
    return tab.run(f"document.querySelectorAll('.chart:not(.spark)')[{number}].querySelector('.where').textContent")


def focus(tab: Tab, number: int) -> None:
    plot(tab, number)
    tab.run(f"document.querySelectorAll('.chart:not(.spark)')[{number}].querySelector('.plot').focus()")


def test_arrow_keys_go_from_dot_to_dot_and_announce_it(driver: Browser, study: Path) -> None:
    tab = driver.open(study, DESKTOP)
    try:
        focus(tab, 0)
        tab.press("ArrowRight")
        assert where(tab, 0) == "without kl, seed 0: 0.5; mean 0.5333, 0.3899 to 0.6768"
        active = "document.activeElement.getAttribute"
        assert tab.run(f"{active}('role')") == "slider"
        assert tab.run(f"{active}('aria-valuetext')") == where(tab, 0)
        assert tab.run(f"[{active}('aria-valuenow'), {active}('aria-valuemax')]") == ["1", "6"]
        tab.press("End")
        assert where(tab, 0).startswith("kl.weight=2, seed 0: 0.1;")
        tab.press("ArrowRight")
        tab.press("ArrowLeft")
        assert where(tab, 0).startswith("kl.weight=2, seed 1: 0;")
        tab.press("Escape", 27)
        assert where(tab, 0) == ""
        tab.press("Home")
        tab.press("Tab", 9)
        assert where(tab, 0) == "", "it is gone with the focus"
        assert_quiet(tab, study)
    finally:
        tab.close()


def test_the_pointer_reads_the_nearest_point(driver: Browser, study: Path) -> None:
    tab = driver.open(study, DESKTOP, 1800)
    try:
        number = number_of(tab, "Held-out base loss by kl.weight")
        left, top, width, height = plot(tab, number)
        tab.hover(left + 2, top + height / 2)
        assert where(tab, number) == "all: kl.weight 0.5, held-out base loss 2"
        tab.hover(left + width / 2, top + height / 2)
        assert where(tab, number) == "", "nothing is near"
        tab.hover(left + width - 2, top + height / 2)
        assert where(tab, number) == "kl.weight=2: kl.weight 2, held-out base loss 2"
        tab.hover(2, 2)
        assert where(tab, number) == ""
    finally:
        tab.close()


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_names_neither_overlap_nor_leave_the_picture(driver: Browser, tmp_path: Path, width: int) -> None:
    folder = ablation(tmp_path)
    run = folder / "all-seed-0"
    weights = {"all": 0.5, **{f"kl.weight={weight}": weight for weight in (0.01, 0.5001, 0.501, 0.503, 0.51, 10.0)}}
    outcomes = [Outcome(name, 0, run, 1 + weight, {}, None, 1, True) for name, weight in weights.items()]
    facts = {name: Facts({"kl.weight": weight}, None, {}) for name, weight in weights.items()}
    write(folder, Recorded("all", facts, outcomes))
    make([folder]).save(folder / "report.html")
    tab = driver.open(folder / "report.html", width, 1800, phone=width == PHONE)
    try:
        number = number_of(tab, "Held-out base loss by kl.weight")
        plot(tab, number)
        wide = tab.run(f"document.querySelectorAll('.chart:not(.spark)')[{number}].querySelector('canvas').width")
        # Labels of axes, and names of the points for which there is room.
        texts = written(tab, number)
        assert len({one["text"] for one in texts} & set(weights)) >= 3
        for one, other in itertools.combinations(texts, 2):
            apart = one["right"] <= other["left"] or other["right"] <= one["left"]
            assert apart or one["bottom"] <= other["top"] or other["bottom"] <= one["top"], (one, other)
        assert all(one["left"] >= 0 and one["right"] <= wide for one in texts)
    finally:
        tab.close()


def test_names_are_text_wherever_they_are_said(driver: Browser, tmp_path: Path) -> None:
    evil = "<img src=x onerror=hacked=1>\"'</script><script>hacked=1</script>"
    folder = ablation(tmp_path, {name: f"{evil} {name}" for name in ("all", "without kl", "kl.weight=2", "kl")})
    make([folder]).save(folder / "report.html")
    tab = driver.open(folder / "report.html", DESKTOP, 1800)
    try:
        for number in (0, 1, 2):
            focus(tab, number)
            tab.press("ArrowRight")
            assert where(tab, number).startswith(evil)
            choose(tab, "Table", number)
        assert tab.run("[document.images.length, typeof hacked]") == [0, "undefined"]
        assert_quiet(tab, folder / "report.html")
    finally:
        tab.close()
