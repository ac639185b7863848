"""A server on 127.0.0.1 that speaks the wire format of the `tinker` SDK 0.36 and runs a training client behind it.

Requests are carried out in the order of their `seq_id`, and each once: a request that comes again, because its answer
was lost, gets the answer of the first. What goes wrong is said by the test:

    with ProtocolServer(make_client) as server:
        server.fail("optim_step", after=True)          # 500, though the step was taken
        ...
        assert server.count("optim_step") == 1

Operations are named as the service's paths are, `"forward_backward"`, `"optim_step"`, `"save_weights"`; a pass without
gradient is `"forward"`; the question for an answer is `"retrieve Forward"`, `"retrieve ForwardBackward"`,
`"retrieve OptimStep"`.
"""

import contextlib
import json
import os
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import zstandard

from .faults import Does, Fault, Faults
from .service import Body, Execution, Refused, Service, Settings, as_json, digest_of, read_pass

_ORDERED = {"optim_step", "save_weights", "save_weights_for_sampler", "load_weights"}
_AT_ONCE = {
    "create_session",
    "session_heartbeat",
    "create_model",
    "get_info",
    "weights_info",
    "create_sampling_session",
    "asample",
}


class ProtocolServer:
    """The service of one test, with what it has done and what it is to do wrong."""

    def __init__(self, make_client: Callable[[str, int, int], Any], settings: Settings | None = None) -> None:
        """`make_client(base_model, rank, seed)` gives a client in the form of `LocalTrainingClient`."""
        self.settings = Settings() if settings is None else settings
        self.faults = Faults()
        self.executed: list[Execution] = []
        """Everything that was done, over all lives, in order."""
        self.received: Counter[str] = Counter()
        """Requests by operation, each time they came."""
        self._make = lambda: Service(make_client, self.settings, self.executed)
        self.service = self._make()
        self._http: _Http | None = None
        self._lives: list[threading.Thread] = []
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def count(self, operation: str) -> int:
        """How often this was really done."""
        return sum(done.operation == operation for done in self.executed)

    # Lives.

    def start(self, *, lost: bool = False) -> None:
        """Listen, where it listened before if it did; with `lost` it knows nothing of what was."""
        if lost:
            self.service.close()
            self.service = self._make()
        self._http = _listening(self._port, self)
        self._port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        """Go, and take every connection along. What was begun goes on."""
        if self._http is not None:
            http, self._http = self._http, None
            http.shutdown()
            http.server_close()
            http.drop_all()

    def die(self, seconds: float, *, lost: bool = False) -> None:
        """Stop now, and start again later."""

        def life() -> None:
            time.sleep(seconds)
            self.start(lost=lost)

        self.stop()
        self._lives.append(threading.Thread(target=life, daemon=True))
        self._lives[-1].start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        for life in self._lives:
            life.join()
        self.stop()
        self.service.close()

    # Faults.

    def _add(self, on: str, does: Does, **more: Any) -> None:
        self.faults.add(Fault(on, does, **more))

    def fail(self, on: str, status: int = 500, *, times: int = 1, after: bool = False) -> None:
        self._add(on, "status", status=status, times=times, after=after)

    def drop(self, on: str, *, times: int = 1, after: bool = False) -> None:
        self._add(on, "drop", times=times, after=after)

    def wait(self, on: str, seconds: float, *, times: int = 1, after: bool = False) -> None:
        self._add(on, "wait", seconds=seconds, times=times, after=after)

    def garble(self, on: str, *, times: int = 1) -> None:
        self._add(on, "garble", times=times, after=True)

    def die_on(self, on: str, seconds: float, *, after: bool = False, lost: bool = False) -> None:
        self._add(on, "die", seconds=seconds, after=after, lost=lost)

    # Requests.

    def answer(self, path: str, body: bytes, headers: Any) -> tuple[int, Body] | None:
        """What a request gets, with what goes wrong on the way; None where the connection goes."""
        name = path.removeprefix("/api/v1/").strip("/")
        operation, carry_out = self._route(name, body, headers)
        self.received[operation] += 1
        fault = self.faults.take(operation)
        if fault is None:
            return carry_out()
        if fault.after:
            given = carry_out()
            return self._do(fault, given)
        if fault.does == "wait":
            time.sleep(fault.seconds)
            return carry_out()
        return self._do(fault, None)

    def _do(self, fault: Fault, given: tuple[int, Body] | None) -> tuple[int, Body] | None:
        if fault.does == "wait":
            time.sleep(fault.seconds)
            return given
        if fault.does == "status":
            return fault.status, as_json({"error": "as the test wants it"})
        if fault.does == "garble":
            kind = "application/json" if given is None else given[1].kind
            return 200, Body(kind, b"\x0a\xff not a message")
        if fault.does == "die":
            self.die(fault.seconds, lost=fault.lost)
        return None

    def _route(self, name: str, body: bytes, headers: Any) -> tuple[str, Callable[[], tuple[int, Body]]]:
        service, key = self.service, headers.get("X-API-Key")
        if key != self.settings.api_key:
            raise Refused(401, f"got the key {key!r}")
        if name == "forward_backward":
            plain = zstandard.ZstdDecompressor().decompress(body) if headers.get("Content-Encoding") == "zstd" else body
            asked = read_pass(plain)
            operation = "forward" if asked.forward_only else "forward_backward"
            return operation, lambda: (200, service.run_pass(asked, digest_of(plain)))
        given = json.loads(body or b"null")
        if name == "retrieve_future":
            operation = f"retrieve {headers.get('X-Tinker-Request-Type')}"
            return operation, lambda: service.retrieve_future(given)
        if name in _ORDERED:
            return name, lambda: (200, getattr(service, name)(given, digest_of(body)))
        if name in _AT_ONCE:
            return name, lambda: (200, getattr(service, name)(given))
        if name.startswith("sessions/") and name.endswith("/finish"):
            return "finish", lambda: (200, service.finish(name.split("/")[1]))
        fixed = {
            "client/config": dict(self.settings.config),
            "client/dynamic_config": {},
            "telemetry": {"status": "accepted"},
            "healthz": {"status": "ok"},
            "get_server_capabilities": {"supported_models": [{"model_name": "tiny"}]},
        }
        if name not in fixed:
            raise Refused(404, f"no such path: {name}")
        return name, lambda: (200, as_json(fixed[name]))


class _Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # 40 ms an answer otherwise
    wbufsize = -1
    server: "_Http"

    def setup(self) -> None:
        super().setup()
        self.server.connections.add(self.connection)

    def finish(self) -> None:
        self.server.connections.discard(self.connection)
        super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve()

    def do_POST(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = self._body()
        try:
            answer = self.server.owner.answer(self.path, body, self.headers)
        except Refused as refused:
            answer = refused.status, as_json({"detail": str(refused)})
        if answer is None:
            self.close_connection = True
            _reset(self.connection)
            return
        status, given = answer
        self.send_response(status)
        if status >= 400:
            # The SDK waits so long, instead of 0.5, 1, 2 … 10 s, though only where it submits.
            self.send_header("retry-after-ms", "20")
        if self.path == "/api/v1/client/config":
            # The SDK asks for it over a pool that it never closes.
            self.send_header("Connection", "close")
        self.send_header("Content-Type", given.kind)
        self.send_header("Content-Length", str(len(given.content)))
        self.end_headers()
        self.wfile.write(given.content)

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts: list[bytes] = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)


class _Http(ThreadingHTTPServer):
    """One life of a server."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, owner: ProtocolServer) -> None:
        self.owner = owner
        self.connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def drop_all(self) -> None:
        for connection in list(self.connections):
            _reset(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that is gone is nothing to speak of."""
        if not isinstance(sys.exception(), OSError | ValueError):
            super().handle_error(request, client_address)


def _reset(connection: socket.socket) -> None:
    """End a connection at once, so that whoever reads from it is told."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RDWR)


def _listening(port: int, owner: ProtocolServer) -> _Http:
    """A server on this port, or on a free one.

    Free ones are looked for below those that the system gives to clients: one of those could be given away while the
    server is dead.
    """
    if port:
        return _Http(port, owner)
    first = 20000 + os.getpid() * 37 % 10000
    for candidate in range(first, first + 1000):
        with contextlib.suppress(OSError):
            return _Http(candidate, owner)
    raise OSError(f"no free port from {first} on")
