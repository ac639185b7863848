"""Every call goes through the same files in the same order, which docs/architecture.md names."""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import penalties as pn
from penalties import telemetry

ROOT = Path(__file__).parents[2]
SOURCES = Path(pn.__file__).parent


def path() -> list[str]:
    """The files that the page lists, in its order."""
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.partition("read these eight files in order:")[2].partition("\n\n")[2].partition("\n\n")[0]
    return re.findall(r"^\d\. `([\w/.]+)`", section, re.MULTILINE)


def walked(call: Callable[[], Any]) -> list[str]:
    """The files of the path in which a call enters a function, each once, in the order of the first entries.

    Constructors do not count: what they make is used later. The output is known by its class.
    """
    named = {str(SOURCES / "pipeline" / name): name for name in path()}
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if (
            event == "call"
            and frame.f_code.co_filename in named
            and not frame.f_code.co_name.startswith(("<", "__init__"))
        ):
            found[named[frame.f_code.co_filename]] = None

    call()  # what is imported late, and planned once
    sys.setprofile(note)
    try:
        out = call()
    finally:
        sys.setprofile(None)
    return [*found, named[str(inspect.getsourcefile(type(out)))]]


def own(x: torch.Tensor) -> torch.Tensor:
    return x.square().sum()


PIPELINE = pn.Pipeline([pn.Term(own), pn.Term("l1")])
FUSED = pn.Pipeline(["l1", "l2"])
X = torch.ones(3, requires_grad=True)


def test_the_page_lists_eight_files():
    assert len(path()) == 8
    assert all((SOURCES / "pipeline" / name).is_file() for name in path())


@pytest.mark.parametrize("size", [3, 300_000], ids=["by itself", "fused"])
@pytest.mark.parametrize("options", [{}, {"cosines": True}, {"keep": True}], ids=["plain", "cosines", "keep"])
def test_a_call_with_gradients(size: int, options: dict[str, Any]):
    x = torch.ones(size, requires_grad=True)
    assert walked(lambda: PIPELINE.value_and_grad(x, **options)) == path()
    assert walked(lambda: FUSED.value_and_grad(x, **options)) == path()


def test_a_call_without_gradients():
    assert walked(lambda: PIPELINE(X)) == path()


def test_a_call_that_is_announced():
    handler = telemetry.attach(lambda *_: None)
    try:
        assert walked(lambda: PIPELINE.value_and_grad(X)) == path()
    finally:
        telemetry.detach(handler)


def test_a_call_of_an_executor_starts_elsewhere():
    with pn.Executor(sequential=True) as executor:
        assert walked(lambda: executor.run(PIPELINE, X, wrt="input")) == path()[1:]
