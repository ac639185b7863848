"""Colours that can be told apart, by eyes of every kind."""

import itertools
import re

import numpy as np
import pytest

from penalties.app.report.charts.palette import DARK, LIGHT, RUN_STOPS, css, ramp, run_class, term_class

# Machado, Oliveira and Fernandes (2009), full severity, on linear RGB.
EYES = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
PAPER = {"light": "#ffffff", "dark": "#15181d"}


def linear(color: str) -> np.ndarray:
    signal = np.array([int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(signal <= 0.04045, signal / 12.92, ((signal + 0.055) / 1.055) ** 2.4)


def oklab(light: np.ndarray) -> np.ndarray:
    """Ottosson (2020)."""
    cones = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566]]
    cones.append([0.0883024619, 0.2817188376, 0.6299787005])
    lab = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099]]
    lab.append([0.0259040371, 0.7827717662, -0.8086757660])
    return np.array(lab) @ np.cbrt(np.array(cones) @ np.clip(light, 0, 1))


def contrast(a: str, b: str) -> float:
    lights = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) + 0.05 for color in (a, b))
    return lights[1] / lights[0]


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_any_two_terms_differ_visibly(colors, eyes):
    seen = [oklab(np.array(EYES[eyes]) @ linear(color)) for color in colors]
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
    # Oklab: 0.02 is just seen side by side.
    assert min(distances) > (0.08 if eyes == "tritanopia" else 0.095)


@pytest.mark.parametrize(("colors", "paper"), [(LIGHT, "light"), (DARK, "dark"), *zip(RUN_STOPS, PAPER, strict=True)])
def test_every_colour_stands_out_from_the_page(colors, paper):
    assert min(contrast(color, PAPER[paper]) for color in colors) >= 2.8


def test_the_page_has_the_paper_that_the_colours_were_made_for():
    from importlib.resources import files

    style = files("penalties.app.report").joinpath("style.css").read_text()
    assert [f"--paper: {color};" in style for color in PAPER.values()] == [True, True]


def test_a_ramp_runs_through_its_stops():
    assert ramp(RUN_STOPS[0], 5) == list(RUN_STOPS[0])
    assert ramp(RUN_STOPS[0], 1) == [RUN_STOPS[0][0]]
    assert len(set(ramp(RUN_STOPS[1], 30))) == 30


def test_no_two_of_many_terms_look_the_same():
    classes = [term_class(0, base=True), *(term_class(place, base=False) for place in range(21))]
    assert len(set(classes)) == 22


def test_neighbours_among_runs_have_different_lines():
    assert run_class(3).split()[1:] != run_class(4).split()[1:]


def test_every_class_has_a_colour_in_light_and_in_dark():
    style = css(12)
    assert all(style.count(f".{name}{{--c:") == 2 for name in ("t0", "t7", "t1.dash1", "t7.dash2", "r0", "r11"))


def test_colours_that_come_again_are_others():
    colors = re.findall(r"--c:(#\w{6})", css(0))
    assert len(colors) == len(set(colors)) == 2 * 3 * 8
