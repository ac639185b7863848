"""OpenTelemetry: a span per call, an event per term."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .scalars import scalar
from .sink import Sink, library

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

__all__ = ["OpenTelemetry"]

_FLUSH: Final = 1000
"""Milliseconds to wait for spans to be sent."""


class OpenTelemetry(Sink):
    """Record every pipeline or custom loss call as a span, with an event for each of its terms.

    A span's attributes are `penalties.call`, `penalties.step` and so on, plus the flat metrics when it ends, such as
    `penalties.metrics.l1`. The span of a failed call records the exception and has the status ERROR. A pipeline inside
    a custom loss is a child span; what `gradients.track` measures afterwards is a separate span. Only the API is
    used: without an SDK, or if a span is not sampled, no value is read.

    >>> from opentelemetry import trace
    >>> from penalties.telemetry import OpenTelemetry
    >>> OpenTelemetry(trace.get_tracer("my_training"))
    <OpenTelemetry 0 open spans>
    """

    events: tuple[str, ...] = (
        "custom_loss.start",
        "custom_loss.stop",
        "custom_loss.exception",
        "pipeline.start",
        "pipeline.stop",
        "pipeline.exception",
        "term.stop",
        "term.exception",
        "gradients.stop",
    )

    def __init__(self, tracer: "Tracer | None" = None) -> None:
        """Use the given tracer, or one from the global provider."""
        library("OpenTelemetry", "opentelemetry.trace", package="opentelemetry-api", extra="otel")
        from opentelemetry import trace

        super().__init__("")
        self._trace = trace
        self._tracer = trace.get_tracer("penalties") if tracer is None else tracer
        self._spans: dict[tuple[str, Any], Span] = {}

    def record(self, event: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Start a span, end it, or add a term to it."""
        kind, _, moment = event.partition(".")
        call = metadata.get("call")
        if kind == "gradients":
            self._start(kind, call, metadata)
        if moment == "start":
            self._start(kind, call, metadata)
        elif kind == "term":
            span = self._spans.get(("pipeline", call)) or self._spans.get(("custom_loss", call))
            if span is not None and span.is_recording():
                span.add_event(event, _term(measurements, metadata))
        else:
            # None if the call started before the sink was attached.
            span = self._spans.pop((kind, call), None)
            if span is not None:
                self._end(span, moment, metadata)

    def _start(self, kind: str, call: Any, metadata: Mapping[str, Any]) -> None:
        parent = self._spans.get(("custom_loss", call))
        context = None if parent is None else self._trace.set_span_in_context(parent)
        # The step may be an array, which is read once per call.
        known = {**metadata, "step": scalar(metadata.get("step"))}
        attributes = {f"penalties.{name}": value for name, value in known.items() if _is_plain(value)}
        self._spans[kind, call] = self._tracer.start_span(kind, context, attributes=attributes)

    def _end(self, span: "Span", moment: str, metadata: Mapping[str, Any]) -> None:
        if span.is_recording():
            if moment == "stop":
                metrics = metadata["output"].metrics(style="flat")
                span.set_attributes({f"penalties.metrics.{name}": value for name, value in metrics.items()})
            else:
                error = metadata["error"]
                span.record_exception(error)
                span.set_status(self._trace.StatusCode.ERROR, f"{type(error).__name__}: {error}")
        span.end()

    def flush(self) -> None:
        """Have the provider send pending spans; waits a second at most."""
        # Only the SDK's provider has it: the API's own sends nothing.
        flush = getattr(self._trace.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(_FLUSH)

    def close(self) -> None:
        """End the spans that are still open."""
        super().close()
        while self._spans:
            self._spans.popitem()[1].end()

    def __repr__(self) -> str:
        return f"<OpenTelemetry {len(self._spans)} open spans{', closed' if self.closed else ''}>"


def _term(measurements: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    # Plain values only: an array may be on a device, and the span's metrics read all arrays in one transfer.
    attributes = {name: value for name, value in {**measurements, **metadata}.items() if _is_plain(value)}
    if "error" in metadata:
        attributes["exception.type"] = type(metadata["error"]).__name__
        attributes["exception.message"] = str(metadata["error"])
    return attributes


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | int | float | str)
