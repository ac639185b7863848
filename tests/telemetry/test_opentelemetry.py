"""OpenTelemetry: a span per call with an event per term, and no value read for nothing."""

import sys

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from penalties.errors import MissingLibraryError
from penalties.telemetry import OpenTelemetry, events

from .outputs import Output, Unread, fail, stop


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracer(exporter: InMemorySpanExporter) -> trace.Tracer:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider.get_tracer("tests")


def start(call: int, *, event: str = "pipeline.start") -> None:
    metadata = {"call": call, "pipeline": "main", "term_count": 1, "step": 7, "track_grad_norms": False}
    events.emit(event, {"time": 0.0}, metadata)


def term(call: int, name: str = "l1") -> None:
    metadata = {"call": call, "name": name, "weight": 0.5, "runs": "inline", "async": False, "step": 7}
    events.emit("term.stop", {"duration": 0.1, "value": Unread(), "contribution": 3.0, "grad_norm": None}, metadata)


def test_a_call_is_a_span_and_a_term_is_an_event(tracer: trace.Tracer, exporter: InMemorySpanExporter):
    output = Output()
    with OpenTelemetry(tracer) as sink:
        start(1)
        assert repr(sink) == "<OpenTelemetry 1 open spans>"
        term(1)
        stop(output, call=1, step=7)
    assert repr(sink) == "<OpenTelemetry 0 open spans, closed>"
    (span,) = exporter.get_finished_spans()
    assert span.name == "pipeline"
    assert dict(span.attributes) == {
        "penalties.call": 1,
        "penalties.pipeline": "main",
        "penalties.term_count": 1,
        "penalties.step": 7,
        "penalties.track_grad_norms": False,
        "penalties.metrics.l1": 6.0,
        "penalties.metrics.l1_weighted": 3.0,
        "penalties.metrics.total": 3.0,
    }
    assert output.transfers == 1
    (event,) = span.events
    assert event.name == "term.stop"
    # The value is on a device: its number is among the span's metrics.
    assert dict(event.attributes) == {
        "duration": 0.1,
        "contribution": 3.0,
        "call": 1,
        "name": "l1",
        "weight": 0.5,
        "runs": "inline",
        "async": False,
        "step": 7,
    }
    assert span.status.is_unset


def test_a_failure_is_recorded_with_its_status(tracer: trace.Tracer, exporter: InMemorySpanExporter):
    error = ValueError("bad value")
    with OpenTelemetry(tracer):
        start(1)
        metadata = {"call": 1, "name": "l1", "phase": "gradient", "error": error}
        events.emit("term.exception", {"duration": 0.1}, metadata)
        fail(error)
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == "ValueError: bad value"
    term_event, exception = span.events
    assert term_event.name == "term.exception"
    assert term_event.attributes["phase"] == "gradient"
    assert term_event.attributes["exception.type"] == "ValueError"
    assert term_event.attributes["exception.message"] == "bad value"
    assert exception.name == "exception"
    assert exception.attributes["exception.message"] == "bad value"


def test_calls_at_the_same_time_are_distinguished(tracer: trace.Tracer, exporter: InMemorySpanExporter):
    with OpenTelemetry(tracer):
        start(1)
        start(2)
        term(2, "of the second")
        term(1, "of the first")
        stop(Output(1.0), call=1)
        stop(Output(2.0), call=2)
    first, second = exporter.get_finished_spans()
    for span, call, name in ((first, 1, "of the first"), (second, 2, "of the second")):
        assert span.attributes["penalties.call"] == call
        assert span.attributes["penalties.metrics.l1"] == call
        assert [event.attributes["name"] for event in span.events] == [name]


def test_the_pipeline_of_a_custom_loss_is_inside_it(tracer: trace.Tracer, exporter: InMemorySpanExporter):
    with OpenTelemetry(tracer):
        start(1, event="custom_loss.start")
        start(1)
        term(1)
        stop(Output(), call=1)
        stop(Output(), call=1, event="custom_loss.stop")
        start(2, event="custom_loss.start")
        term(2)
        stop(Output(), call=2, event="custom_loss.stop")
    pipeline, outer, alone = exporter.get_finished_spans()
    assert [span.name for span in (pipeline, outer, alone)] == ["pipeline", "custom_loss", "custom_loss"]
    assert pipeline.parent.span_id == outer.context.span_id
    assert [len(span.events) for span in (pipeline, outer, alone)] == [1, 0, 1]
    assert outer.parent is None


def test_the_span_is_inside_the_callers(tracer: trace.Tracer, exporter: InMemorySpanExporter):
    with OpenTelemetry(tracer), tracer.start_as_current_span("training step"):
        start(1)
        stop(Output(), call=1)
    inner, outer = exporter.get_finished_spans()
    assert inner.parent.span_id == outer.context.span_id


def test_a_call_that_began_before_is_left_out(tracer: trace.Tracer, exporter: InMemorySpanExporter):
    output = Output()
    with OpenTelemetry(tracer):
        term(1)
        stop(output, call=1)
    assert exporter.get_finished_spans() == ()
    assert output.transfers == 0


def test_closing_ends_what_is_open(tracer: trace.Tracer, exporter: InMemorySpanExporter):
    with OpenTelemetry(tracer):
        start(1)
        start(2)
    assert len(exporter.get_finished_spans()) == 2


def test_nothing_is_read_where_nothing_is_recorded():
    for tracer in (None, TracerProvider(sampler=ALWAYS_OFF).get_tracer("tests")):
        output = Output()
        with OpenTelemetry(tracer):
            start(1)
            term(1)
            stop(output, call=1)
            start(2)
            fail(ValueError("bad"), call=2)
        assert output.transfers == 0


def test_a_missing_library_is_one_line_that_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.trace", None)
    with pytest.raises(MissingLibraryError) as caught:
        OpenTelemetry()
    assert str(caught.value) == 'OpenTelemetry needs opentelemetry-api: pip install "penalties[otel]"'


def test_a_step_that_is_an_array_is_a_number(tracer: trace.Tracer, exporter: InMemorySpanExporter):
    import numpy as np

    with OpenTelemetry(tracer):
        events.emit("pipeline.start", {"time": 0.0}, {"call": 9, "step": np.array(3)})
        stop(Output(), call=9, step=3)
    (span,) = exporter.get_finished_spans()
    assert span.attributes is not None
    assert span.attributes["penalties.step"] == 3


def test_gradients_measured_later_are_a_span_of_their_own(tracer: trace.Tracer, exporter: InMemorySpanExporter):
    with OpenTelemetry(tracer) as sink:
        start(1)
        stop(Output(), call=1, step=7)
        stop(Output(), call=1, step=7, event="gradients.stop")
        assert repr(sink) == "<OpenTelemetry 0 open spans>"
    assert [span.name for span in exporter.get_finished_spans()] == ["pipeline", "gradients"]
    assert exporter.get_finished_spans()[1].attributes["penalties.metrics.l1"] == 6.0
