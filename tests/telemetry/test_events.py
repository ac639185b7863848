"""Events reach who listens, and nobody who listens can stop the training."""

import logging
import subprocess
import sys
import threading

import pytest

from penalties import telemetry
from penalties.errors import OptionError
from penalties.telemetry import EVENTS, attach, detach, events

from .outputs import Remember, Unread

KINDS = ("custom_loss", "pipeline", "term")


def test_the_events_are_starts_stops_and_exceptions_and_explanations():
    spans = [f"{kind}.{moment}" for kind in KINDS for moment in ("start", "stop", "exception")]
    assert [*spans, "gradients.stop", "monitor.explain"] == list(EVENTS)


def test_a_handler_hears_what_it_asked_for_and_gets_the_very_objects():
    handler = Remember()
    attach(handler, ["term.stop", "term.start"])
    value = {"value": Unread()}
    metadata = {"name": "l1"}
    for event in EVENTS:
        events.emit(event, value, metadata)
    assert handler.names == ["term.start", "term.stop"]
    assert handler.heard[0][1] is value
    assert handler.heard[0][2] is metadata


def test_a_handler_hears_everything_unless_it_or_the_caller_says_otherwise():
    plain, with_events, overruled = Remember(), Remember(), Remember()
    with_events.events = ("pipeline.stop",)
    overruled.events = ("pipeline.stop",)
    attach(plain)
    attach(with_events)
    attach(overruled, "pipeline.start")
    for event in EVENTS:
        events.emit(event, {}, {})
    assert plain.names == list(EVENTS)
    assert with_events.names == ["pipeline.stop"]
    assert overruled.names == ["pipeline.start"]


def test_nobody_listening_is_an_empty_tuple():
    assert events.handlers == ()
    events.emit("term.stop", {}, {})
    handler_id = attach(Remember())
    assert len(events.handlers) == 1
    assert handler_id in repr(events.handlers)
    assert detach(handler_id)
    assert events.handlers == ()


def test_ids_are_given_or_made_up_and_never_twice():
    assert attach(Remember(), handler_id="mine") == "mine"
    taken = attach(Remember())
    number = int(taken.removeprefix("handler-"))
    attach(Remember(), handler_id=f"handler-{number + 1}")
    assert attach(Remember()) == f"handler-{number + 2}"
    with pytest.raises(OptionError, match='attach: handler_id="mine"; expected an id that is not in use'):
        attach(Remember(), handler_id="mine")
    assert detach("mine")
    assert attach(Remember(), handler_id="mine") == "mine"


def test_detaching_what_is_not_attached_says_so():
    assert detach("nobody") is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((3,), "attach: handler=3; expected a function of"),
        ((print, "pipeline.stopp"), 'attach: events="pipeline.stopp"; expected .* did you mean pipeline.stop?'),
        (
            (print, ["term.stop", "zzz"]),
            'attach: events="zzz"; expected the name of an event; the events are custom_loss',
        ),
        ((print, [3]), "attach: events=3; expected the name of an event"),
        ((print, 3), "attach: events=3; expected names of events"),
        ((print, []), r"attach: events=\(\); expected at least one name"),
    ],
)
def test_what_makes_no_sense_is_an_error(arguments, message: str):
    with pytest.raises(OptionError, match=message):
        attach(*arguments)
    assert events.handlers == ()


def test_a_handler_that_raises_is_logged_once_and_detached_and_the_others_go_on(caplog: pytest.LogCaptureFixture):
    def broken(event, measurements, metadata):
        raise RuntimeError("no space left")

    before, after = Remember(), Remember()
    attach(before)
    attach(broken, handler_id="broken")
    attach(after)
    for _ in range(3):
        events.emit("term.stop", {}, {})
    assert len(before.heard) == len(after.heard) == 3
    (record,) = caplog.records
    assert record.name == "penalties.telemetry"
    assert record.levelno == logging.ERROR
    assert record.getMessage() == "handler broken failed on term.stop and was detached"
    assert "no space left" in caplog.text  # the traceback
    assert not detach("broken")


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_program_passes_through(error: type[BaseException]):
    def interrupt(event, measurements, metadata):
        raise error

    attach(interrupt, handler_id="interrupt")
    with pytest.raises(error):
        events.emit("term.stop", {}, {})
    assert detach("interrupt")


def test_a_handler_may_detach_itself_and_others():
    late = Remember()

    def once(event, measurements, metadata):
        assert detach("once")
        assert detach("late")

    attach(once, handler_id="once")
    attach(late, handler_id="late")
    events.emit("term.stop", {}, {})
    events.emit("term.stop", {}, {})
    assert len(late.heard) == 1  # the event that was under way
    assert events.handlers == ()


def test_a_handler_may_attach_and_emit():
    inner = Remember()

    def outer(event, measurements, metadata):
        attach(inner, "term.stop", handler_id="inner")
        events.emit("term.stop", {}, {})

    attach(outer, "pipeline.stop")
    events.emit("pipeline.stop", {}, {})
    assert inner.names == ["term.stop"]


def test_a_handler_that_emits_without_end_is_logged_once_and_detached(caplog: pytest.LogCaptureFixture):
    def endless(event, measurements, metadata):
        events.emit(event, measurements, metadata)

    attach(endless, handler_id="endless")
    events.emit("term.stop", {}, {})
    assert [record.getMessage() for record in caplog.records] == [
        "handler endless failed on term.stop and was detached"
    ]
    assert "RecursionError" in caplog.text
    assert events.handlers == ()


def test_threads_emit_attach_detach_and_fail_at_once(caplog: pytest.LogCaptureFixture):
    always = Remember()
    attach(always, "term.stop")
    barrier = threading.Barrier(8)

    def broken(event, measurements, metadata):
        raise RuntimeError

    attach(broken, handler_id="broken")

    def work(number: int) -> None:
        barrier.wait()
        for count in range(200):
            mine = Remember()
            handler_id = attach(mine, "term.stop")
            events.emit("term.stop", {}, {"thread": number, "count": count})
            assert detach(handler_id)
            assert {"thread": number, "count": count} in [metadata for _, _, metadata in mine.heard]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(always.heard) == 8 * 200
    assert len(events.handlers) == 1
    assert len(caplog.records) == 1


def test_a_handler_that_raises_in_two_threads_at_once_is_logged_once(caplog: pytest.LogCaptureFixture):
    inside = threading.Barrier(2)

    def broken(event, measurements, metadata):
        inside.wait()
        raise RuntimeError

    attach(broken)
    threads = [threading.Thread(target=events.emit, args=("term.stop", {}, {})) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(caplog.records) == 1
    assert events.handlers == ()


def test_importing_loads_no_sink_and_no_library():
    libraries = ("numpy", "torch", "jax", "wandb", "mlflow", "tensorboardX", "tensorboard", "opentelemetry")
    code = (
        "import sys; from penalties import telemetry; "
        f"print([m for m in sys.modules if m in {libraries} or m.startswith('penalties.telemetry.')]); "
        "telemetry.JSONLines, telemetry.TensorBoard, telemetry.OpenTelemetry, telemetry.MLflow; "
        f"telemetry.WeightsAndBiases; print([m for m in {libraries} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded, after = done.stdout.splitlines()
    assert sorted(eval(loaded)) == [f"penalties.telemetry.{name}" for name in ("events", "logger", "scalars")]
    assert after == "[]"


def test_every_public_name_is_there():
    assert set(telemetry.__all__) <= set(dir(telemetry))
    for name in telemetry.__all__:
        assert getattr(telemetry, name)
    with pytest.raises(AttributeError, match="module 'penalties.telemetry' has no attribute 'Prometheus'"):
        _ = telemetry.Prometheus
