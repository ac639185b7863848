"""The logger writes a readable line whatever it is given."""

import logging
import math

import jax.numpy as jnp
import numpy as np
import pytest
import torch

from penalties.errors import OptionError
from penalties.telemetry import EVENTS, attach_logger, detach, events
from penalties.telemetry.logger import number

from .outputs import Explanation, Output, Unread, fail, stop


def emitted(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("event", "measurements", "metadata", "expected"),
    [
        (
            "custom_loss.start",
            {"time": 0.0},
            {"model_id": "tiny", "data_count": 8, "regularizer_count": 2, "track_grad_norms": True},
            "custom_loss tiny start: data=8 regularizers=2 with gradient norms",
        ),
        ("custom_loss.start", {}, {"model_id": None}, "custom_loss start"),
        ("pipeline.start", {}, {"pipeline": None, "term_count": 2, "step": 7}, "pipeline start: step=7 terms=2"),
        (
            "pipeline.stop",
            {"duration": 0.0123, "loss_total": 0, "regularizer_total": 0, "total_grad_norm": None},
            {"pipeline": "main"},
            "pipeline main stop: total=0.0000 regularizers=0.0000 in 12.3000 ms",
        ),
        (
            "pipeline.stop",
            {"duration": 1, "loss_total": math.nan, "regularizer_total": math.inf, "total_grad_norm": 2.5},
            {},
            "pipeline stop: total=nan regularizers=inf grad_norm=2.5000 in 1000.0000 ms",
        ),
        (
            "term.start",
            {},
            {"name": "kl", "weight": 0.1, "async": True, "step": np.int64(3)},
            "term kl start: step=3 weight=0.1000 (async)",
        ),
        (
            "term.stop",
            {"duration": 0.001, "value": 2, "contribution": 0.2, "grad_norm": 0.5},
            {"name": "kl", "async": False},
            "term kl stop: value=2.0000 contribution=0.2000 grad_norm=0.5000 in 1.0000 ms",
        ),
        ("term.stop", {}, {"name": "100% %s"}, "term 100% %s stop"),
        (
            "term.exception",
            {"duration": 0.001},
            {"name": "kl", "phase": "gradient", "error": ValueError("a\nb"), "async": True},
            "term kl exception: gradient: ValueError: a; b after 1.0000 ms (async)",
        ),
        (
            "pipeline.exception",
            {"duration": None},
            {"term": "kl", "error": KeyError()},
            "pipeline exception: in term kl: KeyError",
        ),
        ("custom_loss.exception", {}, {"error": RuntimeError("x")}, "custom_loss exception: RuntimeError: x"),
        (
            "monitor.explain",
            {},
            {"step": 5, "reason": "jump", "explanation": Explanation()},
            "monitor explain: step=5 reason=jump l1 dominates:; 90 % of the loss",
        ),
    ],
)
def test_an_event_is_a_line(event, measurements, metadata, expected: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="penalties")
    attach_logger()
    events.emit(event, measurements, metadata)
    assert emitted(caplog) == [expected]


@pytest.mark.parametrize("event", EVENTS)
@pytest.mark.parametrize("value", [None, 0, True, "odd", math.nan, np.ones((2, 2)), 10**400, object()], ids=type)
def test_no_value_can_break_a_line(event: str, value: object, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="penalties")
    attach_logger(handler_id="log")
    names = ("duration", "loss_total", "value", "contribution", "grad_norm", "weight", "name", "pipeline", "step")
    given = {**dict.fromkeys(names, value), "error": value, "term": value, "phase": value, "explanation": value}
    events.emit(event, given, given)
    (line,) = emitted(caplog)
    assert "\n" not in line
    assert detach("log")


def test_the_totals_come_in_one_transfer(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="penalties")
    attach_logger()
    output = Output()
    stop(output)
    fail(ValueError("bad"))
    assert output.transfers == 1
    assert emitted(caplog) == [
        "pipeline main stop: total=3.0000 regularizers=3.0000 in 250.0000 ms",
        "pipeline exception: in term l1: ValueError: bad after 250.0000 ms",
    ]


def test_nothing_is_read_where_the_level_is_off(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, logger="penalties")
    attach_logger("debug", handler_id="log")
    events.emit("term.stop", {"value": Unread()}, {"name": "l1"})
    assert emitted(caplog) == []
    assert detach("log")


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "critical"])
def test_lines_have_the_level_and_the_id(level: str, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, logger="penalties")
    assert attach_logger(level, handler_id="log") == "log"
    events.emit("term.start", {}, {"name": "l1"})
    (record,) = caplog.records
    assert record.levelname == level.upper()
    assert record.name == "penalties"


@pytest.mark.parametrize("level", ["loud", "INFO", 20, None, ["info"]])
def test_other_levels_are_errors(level: object):
    with pytest.raises(OptionError, match='expected "debug", "info", "warning", "error" or "critical"'):
        attach_logger(level)
    assert events.handlers == ()


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (-0.00001, "-1.0000e-05"),
        (1234567890, "1.2346e+09"),
        (-math.inf, "-inf"),
        (-(10**400), "-inf"),
        (np.float32(0.5), "0.5000"),
        (np.array(2), "2.0000"),
        (torch.tensor(0.25, requires_grad=True), "0.2500"),
        (torch.tensor(0.25, dtype=torch.bfloat16), "0.2500"),
        (jnp.array(0.25), "0.2500"),
        (np.ones((2, 3)), "ndarray[2, 3]"),
        (torch.ones(1), "Tensor[1]"),
    ],
)
def test_numbers_have_four_decimals(value: object, shown: str):
    assert number(value) == shown
