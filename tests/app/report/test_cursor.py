"""The cursor of a report in a browser: it shows what the log says."""

import json
import math
from pathlib import Path

import pytest

from .browser import DESKTOP, PHONE, Browser, assert_quiet, in_browser, plot, tip

pytestmark = in_browser


def log_of(page: Path, run: str) -> dict[int, dict]:
    lines = (page.parent / run / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return {one["step"]: one["loss"] for one in found if one["kind"] == "step"}


def as_number(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


@pytest.mark.parametrize("part", [0.0, 0.31, 0.52, 1.0])
def test_hovering_shows_the_numbers_of_the_log(driver: Browser, pages, part):
    log = log_of(pages["small"], "pig-latin")
    tab = driver.open(pages["small"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        tab.hover(left + part * (width - 1), top + height / 2)
        said = tip(tab)
        step = round(part * 59)
        assert said.pop("step") == f"step {step}"
        assert as_number(said.pop("total")) == pytest.approx(log[step]["loss_total"], rel=1e-4)
        assert as_number(said.pop("base_loss")) == pytest.approx(log[step]["base_loss"]["value"], rel=1e-4)
        terms = log[step]["regularizers"]
        assert list(said) == list(terms)
        for name, text in said.items():
            assert as_number(text) == pytest.approx(terms[name]["contribution"], rel=1e-4)
        assert_quiet(tab, pages["small"])
    finally:
        tab.close()


def test_the_cursor_of_every_chart_of_a_run_is_at_the_same_step(driver: Browser, pages):
    tab = driver.open(pages["small"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        tab.hover(left + width / 2, top + height / 2)
        shown = "[...document.querySelectorAll('.cursor')].map((one) => one.hidden ? null : one.style.left)"
        places = tab.run(shown)
        assert len(set(places)) == 1
        assert places[0].startswith("50.")
        assert tip(tab, 1) is None
        tab.hover(2, 2)
        assert set(tab.run(shown)) == {None}
        assert tip(tab) is None
    finally:
        tab.close()


def test_the_dots_of_the_cursor_lie_on_the_lines(driver: Browser, pages):
    log = log_of(pages["small"], "pig-latin")
    tab = driver.open(pages["small"], DESKTOP)
    try:
        left, top, width, height = plot(tab, 1)
        tab.hover(left + width / 2, top + height / 2)
        low, high, is_log, zeros = tab.run(
            "JSON.parse(document.querySelectorAll('figure.chart')[1].querySelector('script').textContent).y"
        )
        assert is_log
        assert zeros == 0
        bottoms = tab.run(
            "[...document.querySelectorAll('figure.chart')[1].querySelectorAll('.cursor i')]"
            ".map((dot) => [dot.className, parseFloat(dot.style.bottom)])"
        )
        step = int(tip(tab, 1)["step"].removeprefix("step "))
        norm = log[step]["total_grad_norm"]
        place = math.log(norm / low) / math.log(high / low)
        assert dict(bottoms)["total under"] == pytest.approx(100 * place, abs=0.01)
    finally:
        tab.close()


def test_the_cursor_says_what_is_not_finite_failed_or_missing(driver: Browser, pages):
    tab = driver.open(pages["everything"], DESKTOP)
    try:
        left, top, width, height = plot(tab)

        def at(step: int) -> dict[str, str]:
            tab.hover(left + width * step / 239, top + height / 2)
            said = tip(tab)
            assert said["step"] == f"step {step}"
            return said

        assert at(85)["total"] == "NaN"
        assert at(97)["topology"] == "failed"
        assert "orthogonality" not in at(97)
        assert "orthogonality" in at(96)
        marks = tab.run(
            "[...document.querySelectorAll('figure.chart')[0].querySelectorAll('.mark')].map((one) => one.title)"
        )
        assert "NaN or infinite: steps 85 to 86" in marks
        assert "resumed after step 79" in marks
    finally:
        tab.close()


def test_a_long_run_shows_steps_that_are_in_the_log(driver: Browser, pages):
    log = log_of(pages["long"], "long")
    tab = driver.open(pages["long"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        for part in (0.1, 0.456, 0.9):
            tab.hover(left + width * part, top + height / 2)
            said = tip(tab)
            step = int(said["step"].removeprefix("step ").replace("\u202f", ""))
            assert abs(step - part * 2999) < 30
            assert as_number(said["total"]) == pytest.approx(log[step]["loss_total"], rel=1e-4)
    finally:
        tab.close()


def test_arrow_keys_move_the_cursor_and_announce_it(driver: Browser, pages):
    log = log_of(pages["small"], "pig-latin")
    tab = driver.open(pages["small"], DESKTOP)
    said = "document.activeElement.getAttribute('aria-valuetext')"
    try:
        tab.press("Tab", 9)
        assert tab.run("document.activeElement.getAttribute('role')") == "slider"
        assert tip(tab)["step"] == "step 0"
        for key, step in (
            ("ArrowRight", 1),
            ("ArrowUp", 2),
            ("ArrowLeft", 1),
            ("ArrowDown", 0),
            ("ArrowLeft", 0),
            ("PageUp", 6),
            ("End", 59),
            ("ArrowRight", 59),
            ("PageDown", 53),
            ("Home", 0),
        ):
            tab.press(key)
            assert tip(tab)["step"] == f"step {step}", key
            assert tab.run(said).startswith(f"step {step}: base_loss ")
            assert tab.run("document.activeElement.getAttribute('aria-valuenow')") == str(step)
        total = tab.run(said).rpartition("total ")[2]
        assert as_number(total) == pytest.approx(log[0]["loss_total"], rel=1e-4)
        tab.press("a")
        tab.press("Escape", 27)
        assert tip(tab) is None
        tab.press("ArrowRight")
        tab.press("Tab", 9)
        assert tip(tab) is None, "it is gone with the focus"
        assert_quiet(tab, pages["small"])
    finally:
        tab.close()


def test_a_finger_moves_the_cursor(driver: Browser, pages):
    tab = driver.open(pages["small"], PHONE, phone=True)
    try:
        tab.call("Emulation.setTouchEmulationEnabled", enabled=True)
        left, top, width, height = plot(tab)
        point = [{"x": left + width / 2, "y": top + height / 2}]
        tab.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=point)
        tab.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        assert tip(tab)["step"] in ("step 29", "step 30")
        box = tab.run(
            "(() => { const box = document.querySelector('.tip').getBoundingClientRect();"
            "return [box.left, box.right]; })()"
        )
        assert 0 <= box[0] < box[1] <= PHONE
    finally:
        tab.close()


def test_a_tip_of_many_rows_stands_under_the_chart_of_a_phone(driver: Browser, pages):
    tab = driver.open(pages["names"], PHONE, phone=True)
    try:
        tab.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
        number = tab.run(
            "[...document.querySelectorAll('figure.chart')].findIndex((one) => one.querySelectorAll('.legend li')[8])"
        )
        left, top, width, height = plot(tab, number)
        tab.hover(left + width / 2, top + height / 2)
        under = tab.run(f"document.querySelectorAll('.tip')[{number}].getBoundingClientRect().top")
        assert under >= top + height
        left, top, width, height = plot(tab, 0)
        tab.hover(left + width / 2, top + height / 2)
        assert tab.run("document.querySelectorAll('.tip')[0].getBoundingClientRect().top") < top + height
    finally:
        tab.close()


def test_the_cursor_tells_runs_by_their_letters(driver: Browser, pages):
    tab = driver.open(pages["compared"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        tab.hover(left + width / 2, top + height / 2)
        assert [name.partition(" ")[0] for name in tip(tab) if name != "step"] == ["A", "B", "C", "D"]
    finally:
        tab.close()


def test_the_cursor_of_gradients_goes_from_one_measured_step_to_the_next(driver: Browser, pages):
    tab = driver.open(pages["rare"], DESKTOP)
    try:
        left, top, width, height = plot(tab, 1)
        tab.hover(left + width * 33 / 44, top + height / 2)
        said = tip(tab, 1)
        assert said["step"] == "step 30"
        assert said["base_loss"] == "31"
        left, top, width, height = plot(tab, 0)
        tab.hover(left + width / 2, top + height / 2)
        assert tip(tab, 1) is None
    finally:
        tab.close()
