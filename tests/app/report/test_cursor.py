"""The cursor of a report in a browser: it shows what the log says."""

import json
from pathlib import Path

import pytest

from .browser import DESKTOP, PHONE, Browser, assert_quiet, in_browser, plot, press_button, tip

pytestmark = in_browser


def log_of(page: Path, run: str) -> dict[int, dict]:
    lines = (page.parent / run / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return {one["step"]: one["loss"] for one in found if one["kind"] == "step"}


def as_number(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


def number_of(tab, title: str) -> int:
    """The place of the chart with this title."""
    titles = tab.run(
        "[...document.querySelectorAll('.chart:not(.spark) figcaption strong')].map((one) => one.textContent)"
    )
    return titles.index(title)


@pytest.mark.parametrize("part", [0.0, 0.31, 0.52, 1.0])
def test_hovering_shows_the_numbers_of_the_log(driver: Browser, pages, part):
    log = log_of(pages["small"], "pig-latin")
    tab = driver.open(pages["small"], DESKTOP)
    try:
        for title, name, logged in (
            ("Held-out base loss", "training base loss", lambda step: log[step]["base_loss"]["value"]),
            ("kl_estimate", "value", lambda step: log[step]["regularizers"]["kl_estimate"]["value"]),
            ("kl_estimate", "contribution", lambda step: log[step]["regularizers"]["kl_estimate"]["contribution"]),
            ("sparsity", "contribution", lambda step: log[step]["regularizers"]["sparsity"]["contribution"]),
            ("Gradient norms", "total", lambda step: log[step]["total_grad_norm"]),
        ):
            number = number_of(tab, title)
            left, top, width, height = plot(tab, number)
            at = part * 59  # or up to six pixels beside it, at a step that more lines have
            tab.hover(left + min(max(part * width, 1), width - 1), top + height / 2)
            said = tip(tab, number)
            step = int(said["where"].removeprefix("step "))
            assert abs(step - at) <= 2.5
            assert as_number(said[name].partition(" @")[0]) == pytest.approx(logged(step), rel=1e-5)
        assert_quiet(tab, pages["small"])
    finally:
        tab.close()


def test_shares_are_those_of_the_log_and_of_what_is_shown(driver: Browser, pages):
    log = log_of(pages["small"], "pig-latin")
    tab = driver.open(pages["small"], DESKTOP)
    try:
        number = number_of(tab, "Shares of the gradient")
        left, top, width, height = plot(tab, number)

        def said() -> tuple[dict[str, float], dict[str, float]]:
            tab.hover(left + width / 2, top + height / 3)
            tab.hover(left + width / 2, top + height / 2)
            found = tip(tab, number)
            step = log[int(found.pop("where").removeprefix("step "))]
            norms = {"base_loss": step["base_loss"]["grad_norm"]}
            norms |= {name: abs(one["grad_norm_weighted"]) for name, one in step["regularizers"].items()}
            return {name: float(text.removesuffix("%")) / 100 for name, text in found.items()}, norms

        shown, norms = said()
        assert set(shown) == set(norms)
        for name, share in shown.items():
            assert share == pytest.approx(norms[name] / sum(norms.values()), abs=0.006)
        press_button(tab, ".legend button", number)
        shown, norms = said()
        del norms["base_loss"]
        assert set(shown) == set(norms), "what is left out is not shown"
        for name, share in shown.items():
            assert share == pytest.approx(norms[name] / sum(norms.values()), abs=0.006)
    finally:
        tab.close()


def test_the_cursors_of_all_charts_of_a_run_are_at_the_same_step(driver: Browser, pages):
    tab = driver.open(pages["small"], DESKTOP, 2400)
    try:
        number = number_of(tab, "Shares of the gradient")
        plot(tab, number)
        left, top, width, height = plot(tab)
        tab.hover(left + width / 2, top + height / 2)
        assert tip(tab)["where"] == tip(tab, 1)["where"] == tip(tab, number)["where"]
        tab.hover(2, 2)
        assert [tip(tab, place) for place in (0, 1, number)] == [None, None, None]
    finally:
        tab.close()


def test_the_cursor_says_what_is_not_finite_failed_or_elsewhere(driver: Browser, pages):
    tab = driver.open(pages["everything"], DESKTOP)
    try:

        def at(title: str, step: int) -> dict[str, str]:
            number = number_of(tab, title)
            plot(tab, number)
            tab.run(f"document.querySelectorAll('.chart:not(.spark)')[{number}].querySelector('.plot').focus()")
            tab.press("Home")
            for _ in range(step - int(tip(tab, number)["where"].removeprefix("step "))):
                tab.press("ArrowRight")
            return tip(tab, number)

        assert at("Held-out base loss", 85)["training base loss"] == "NaN"
        assert at("topology", 97)["value"] == "failed"
        assert " @" in at("topology", 97)["held out"], "the nearest evaluation, with its step"
        words = tab.run("[...document.querySelectorAll('.signs li')].map((one) => one.textContent)")
        assert "×training base loss NaN or infinite: steps 85 to 86, 160" in words
        assert "↻resumed after step 79" in words
        assert tab.run("document.querySelector('.beyond').textContent").endswith(
            "at step 40 is off the scale; show all"
        )
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
            step = int(said["where"].removeprefix("step ").replace("\u202f", ""))
            assert abs(step - part * 2999) < 30
            assert as_number(
                said["training base loss" if "training base loss" in said else "base loss"]
            ) == pytest.approx(log[step]["base_loss"]["value"], rel=1e-5)
    finally:
        tab.close()


def test_arrow_keys_move_the_cursor_and_announce_it(driver: Browser, pages):
    tab = driver.open(pages["small"], DESKTOP)
    said = "document.activeElement.getAttribute('aria-valuetext')"
    try:
        plot(tab)
        tab.run("document.querySelector('.plot').focus()")
        assert tab.run("document.activeElement.getAttribute('role')") == "slider"
        for key, step in (
            ("ArrowRight", 0),
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
            assert tip(tab)["where"] == f"step {step}", key
            assert tab.run(said).startswith(f"step {step}: training base loss ")
            assert tab.run("document.activeElement.getAttribute('aria-valuenow')") == str(step)
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
        tab.run("new Promise((done) => setTimeout(done, 400))")
        assert tip(tab)["where"] in ("step 28", "step 29", "step 30")
    finally:
        tab.close()


def test_the_cursor_tells_runs_by_their_letters(driver: Browser, pages):
    tab = driver.open(pages["compared"], DESKTOP)
    try:
        left, top, width, height = plot(tab)
        tab.hover(left + width / 2, top + height / 2)
        assert [name.partition(" ")[0] for name in tip(tab) if name != "where"] == ["A", "B", "C", "D"]
    finally:
        tab.close()


def test_the_cursor_of_gradients_goes_from_one_measured_step_to_the_next(driver: Browser, pages):
    tab = driver.open(pages["rare"], DESKTOP)
    try:
        number = number_of(tab, "Gradient norms")
        left, top, width, height = plot(tab, number)
        tab.hover(left + width * 33 / 45, top + height / 2)
        said = tip(tab, number)
        assert said["where"] == "step 30"
        assert said["base_loss"] == "31"
    finally:
        tab.close()
