"""The labels of axes in a browser: as many digits as tell one from the next."""

import dataclasses
import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from penalties.app import report
from penalties.app.report import make
from penalties.app.report.page import compose
from penalties.app.report.runlog import Series

from .browser import DESKTOP, Browser, assert_quiet, in_browser, plot, written
from .synthetic import Part, write_run
from .test_charts_in_browser import choose, settle
from .test_cursor import as_number, number_of
from .test_page import long_run

pytestmark = in_browser


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run whose numbers hardly change."""
    folder = tmp_path_factory.mktemp("narrow")
    base = Part(lambda step: 2 + 1e-4 * math.sin(step), lambda step: 1.0)
    write_run(folder, steps=50, base=base, parts={"kl": Part(lambda step: 161.1 + step / 1000)})
    make([folder]).save(folder / "report.html")
    return folder / "report.html"


@pytest.mark.parametrize(("title", "low", "high"), [("Base loss", 1.9999, 2.0001), ("kl", 16.11, 161.15)])
def test_labels_are_the_numbers_where_they_stand(driver: Browser, narrow: Path, title: str, low: float, high: float):
    tab = driver.open(narrow, DESKTOP)
    try:
        number = number_of(tab, title)
        _, _, width, _ = plot(tab, number)
        texts = written(tab, number)
        steps = [one for one in texts if one["text"].isdigit() and int(one["text"]) <= 50 and len(one["text"]) <= 2]
        sides = [one for one in texts if one not in steps or one["text"] == "2"]
        labels = [one["text"] for one in sides]
        assert len(labels) > 4
        assert len(set(labels)) == len(labels)
        assert all(0.99 * low <= as_number(one) <= 1.01 * high for one in labels)
        # Each is as far from the next as it says.
        for of in ("left", "right"):
            ends = {one["text"]: one for one in sides if (one["left"] < width / 2) == (of == "left")}
            places = sorted((as_number(text), one["bottom"]) for text, one in ends.items())
            ratios = [(b[0] - a[0]) / (a[1] - b[1]) for a, b in itertools.pairwise(places)]
            assert not ratios or max(ratios) == pytest.approx(min(ratios), rel=0.2)
        assert all(one["left"] >= 0 for one in texts), "nothing is cut off"
        assert_quiet(tab, narrow)
    finally:
        tab.close()


def test_the_axis_of_a_log_that_starts_at_step_0_starts_there(driver: Browser, tmp_path: Path):
    write_run(tmp_path, steps=4, base=Part(lambda step: 4.0 - step))
    make([tmp_path]).save(tmp_path / "report.html")
    tab = driver.open(tmp_path / "report.html", DESKTOP)
    try:
        plot(tab, 0)
        steps = {one["text"] for one in written(tab, 0) if one["top"] > 300}
        assert steps == {"0", "1", "2", "3"}
    finally:
        tab.close()


@pytest.mark.parametrize("low", [1.089e-2, 1.089e-5, 0.1089, 1.3, 7e4])
def test_a_log_axis_has_round_numbers_wherever_it_starts(driver: Browser, tmp_path: Path, low: float):
    """Nine tenths of the smallest number is just under a power of ten, from which counting upwards may miss it."""
    base = Part(lambda step: 2.0 - step / 50, lambda step: 1.0, lambda step: low * (1 + step / 10))
    write_run(tmp_path, steps=50, base=base, parts={"kl": Part(lambda step: 1.0 + step, norm=lambda step: 10 * low)})
    make([tmp_path]).save(tmp_path / "report.html")
    tab = driver.open(tmp_path / "report.html", DESKTOP)
    try:
        number = number_of(tab, "Gradient norms")
        plot(tab, number)
        labels = [one["text"].replace("\u2212", "-") for one in written(tab, number) if one["right"] < 55]
        assert len(labels) >= 2
        assert {f"{float(label):.6e}"[:8] for label in labels} <= {"1.000000", "2.000000", "5.000000"}
        assert_quiet(tab, tmp_path / "report.html")
    finally:
        tab.close()


def test_an_asinh_axis_has_round_numbers_on_both_sides_of_0(driver: Browser, tmp_path: Path):
    base = Part(lambda step: 3.3e-3 * (step - 20), lambda step: 1.0)
    write_run(tmp_path, steps=50, base=base)
    make([tmp_path]).save(tmp_path / "report.html")
    tab = driver.open(tmp_path / "report.html", DESKTOP)
    try:
        plot(tab)
        choose(tab, "asinh")
        labels = {one["text"] for one in written(tab) if one["right"] < 55}
        assert {"0", "0.02", "−0.02"} <= labels
        assert_quiet(tab, tmp_path / "report.html")
    finally:
        tab.close()


def test_times_are_those_of_a_clock_and_differ_however_near_they_are(driver: Browser, tmp_path: Path):
    log = long_run(1000, terms=1)
    log = dataclasses.replace(log, seconds=Series(log.steps, np.full(1000, 7.2)))
    page = tmp_path / "report.html"
    report.Report(compose([log], ["run"]).html, {}, None).save(page)
    tab = driver.open(page, DESKTOP)
    try:
        plot(tab)
        tab.run("document.querySelector('.controls input[value=seconds]').click()")
        settle(tab)

        def times() -> list[str]:
            return [one["text"].replace("\u00a0", " ") for one in written(tab) if one["top"] > 300]

        assert {"0 s", "1 h 0 min"} <= set(times())
        tab.run("document.querySelector('.plot').focus()")
        tab.press("End")
        for _ in range(5):
            tab.press("+")
        settle(tab)
        near = times()
        assert len(near) > 3
        assert len(set(near)) == len(near)
        assert all(one.startswith("1:5") or one == "2:00:00" for one in near)
        assert_quiet(tab, page)
    finally:
        tab.close()
