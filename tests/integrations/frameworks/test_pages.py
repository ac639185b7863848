"""Pages of frameworks that need no adapter, and of several at once, print what they say; skipped without those."""

import os
import warnings
from pathlib import Path

import pytest

from tests.pages import run

PAGES = Path(__file__).parents[3] / "docs" / "trainers"

os.environ.setdefault("KERAS_BACKEND", "jax")


@pytest.mark.parametrize(("page", "framework"), [("flax.md", "flax"), ("equinox.md", "equinox")])
def test_code_on_the_page_runs_and_prints_what_it_says(page: str, framework: str):
    pytest.importorskip(framework)
    pytest.importorskip("optax")
    run(f"docs/trainers/{page}", (PAGES / page).read_text())


def test_the_page_that_compares_code_by_hand_with_terms_prints_what_it_says():
    for framework in ("keras", "lightning", "transformers", "trl"):
        pytest.importorskip(framework)
    with warnings.catch_warnings():
        run("docs/trainers/by-hand.md", (PAGES / "by-hand.md").read_text())
