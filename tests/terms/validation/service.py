"""A service on this machine that answers requests as a test says: rightly, wrongly, slowly, or not at all."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass
class Request:
    """One request, as it arrived."""

    number: int
    line: str
    headers: dict[str, str]
    body: Any
    connection: socket.socket
    began: float


Behaviour: TypeAlias = Callable[[Request], None]
"""Writes to the connection, which is then closed."""


@dataclass
class Service:
    """What it is asked, and how it answers."""

    url: str
    behave: Behaviour
    requests: list[Request] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def items(self) -> list[Any]:
        """All items of all requests."""
        return [item for request in self.requests for item in request.body["items"]]


def answer(request: Request, body: bytes, status: str = "200 OK", **headers: Any) -> None:
    """An ordinary answer."""
    named = {"Content-Length": len(body), **{name.replace("_", "-"): value for name, value in headers.items()}}
    head = "".join(f"{name}: {value}\r\n" for name, value in named.items() if value is not None)
    request.connection.sendall(f"HTTP/1.1 {status}\r\n{head}Connection: close\r\n\r\n".encode() + body)


def with_results(penalty: Callable[[Any], float], slope: Callable[[Any], Any] | None = None) -> Behaviour:
    """The contract."""

    def behave(request: Request) -> None:
        results = [{"penalty": penalty(item)} for item in request.body["items"]]
        if slope is not None:
            results = [{**one, "slope": slope(item)} for one, item in zip(results, request.body["items"], strict=True)]
        answer(request, json.dumps({"results": results}).encode())

    return behave


def with_body(body: bytes | str, **about: Any) -> Behaviour:
    """The same answer to everything."""
    return lambda request: answer(request, body.encode() if isinstance(body, str) else body, **about)


def with_bytes(sent: bytes) -> Behaviour:
    """These bytes, whatever they are."""
    return lambda request: request.connection.sendall(sent)


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """One for each request, and the last for all that follow."""
    return lambda request: behaviours[min(request.number, len(behaviours) - 1)](request)


@contextmanager
def serving(behave: Behaviour) -> Iterator[Service]:
    """The service, while it runs."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        service = Service(f"http://127.0.0.1:{server.getsockname()[1]}/validate", behave)
        threads = [threading.Thread(target=_accept, args=(server, service))]
        threads[0].start()
        try:
            yield service
        finally:
            service.stopped.set()
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            threads[0].join()


def _accept(server: socket.socket, service: Service) -> None:
    threads = []
    with suppress(OSError):
        while True:
            connection, _ = server.accept()
            threads.append(threading.Thread(target=_serve, args=(connection, service)))
            threads[-1].start()
    for thread in threads:
        thread.join()


def _serve(connection: socket.socket, service: Service) -> None:
    # The other side may go at any time.
    with connection, suppress(OSError):
        connection.settimeout(20)
        received = b""
        while b"\r\n\r\n" not in received:
            more = connection.recv(65536)
            if not more:
                return
            received += more
        head, _, body = received.partition(b"\r\n\r\n")
        line, *fields = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in fields)}
        while len(body) < int(headers.get("content-length", 0)):
            body += connection.recv(65536)
        request = Request(len(service.requests), line, headers, json.loads(body), connection, time.monotonic())
        service.requests.append(request)
        service.behave(request)
