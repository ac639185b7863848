"""Services that stall, drip, lie, redirect, flood, and break off: each is bounded, and an error of ours."""

import gzip
import json
import resource
import socket
import threading
import time
from typing import Any

import numpy as np
import pytest

import penalties as pn
from penalties.terms.validation import Validation

from .service import Behaviour, Request, serving, with_body, with_bytes

SECRET = "Bearer s3cr3t-t0k3n"
OK = b"HTTP/1.1 200 OK\r\n"
MEGABYTE = b" " * 2**20


def stalls(request: Request) -> None:
    """Nothing, for as long as the test may take."""
    request.connection.recv(1)


def drips(sent: bytes) -> Behaviour:
    """One byte after another, each of them in time."""

    def behave(request: Request) -> None:
        for byte in sent:
            request.connection.sendall(bytes([byte]))
            time.sleep(0.05)

    return behave


def floods(head: bytes, chunk: bytes) -> Behaviour:
    """Gigabytes."""

    def behave(request: Request) -> None:
        request.connection.sendall(head)
        for _ in range(4096):
            request.connection.sendall(chunk)

    return behave


def echoes(request: Request) -> None:
    """Says back what it was told, wherever it can."""
    told = request.headers["authorization"].encode()
    request.connection.sendall(b"HTTP/1.1 400 " + told + b"\r\nX-Told: " + told + b"\r\n\r\n" + told)


def fails(behave: Behaviour, items: Any = ("a", "b"), **options: Any) -> pn.ServiceError:
    """The error; it comes soon, and has no secret in it."""
    began = time.monotonic()
    about = {"timeout": 1.0, "backoff": 0.001, "attempts": 2, "max_bytes": 100_000, **options}
    with serving(behave) as service:
        validation = Validation(service.url, headers={"Authorization": SECRET}, **about)
        with pytest.raises(pn.ServiceError) as caught:
            validation(np.array(items) if about.get("gradient") else list(items))
        assert time.monotonic() - began < about["timeout"] + 2
        service.stopped.set()
    assert str(caught.value).startswith(f"{service.url}: ")
    seen: BaseException | None = caught.value
    while seen is not None:
        assert "s3cr3t" not in f"{seen} {seen!r} {vars(seen)}"
        seen = seen.__cause__
    return caught.value


@pytest.mark.parametrize(
    "behave",
    [
        pytest.param(stalls, id="nothing"),
        pytest.param(drips(OK + b"X-Long: " + b"x" * 1000), id="headers"),
        pytest.param(drips(OK + b"Content-Length: 1000\r\n\r\n" + b" " * 1000), id="body"),
    ],
)
def test_a_service_that_takes_its_time_is_given_up_at_the_deadline(behave: Behaviour):
    assert "no answer within 0.5 s" in str(fails(behave, timeout=0.5))


def test_what_failed_before_the_deadline_is_said():
    def behave(request: Request) -> None:
        with_body(b"", status="502 Oops")(request) if request.number == 0 else stalls(request)

    assert "no answer within 0.5 s; before that, it answered with status 502" in str(fails(behave, timeout=0.5))


@pytest.mark.parametrize(
    "behave",
    [
        pytest.param(floods(OK + b"Content-Length: 4294967296\r\n\r\n", MEGABYTE), id="a length"),
        pytest.param(floods(OK + b"\r\n", MEGABYTE), id="no length"),
        pytest.param(
            floods(OK + b"Transfer-Encoding: chunked\r\n\r\n", b"100000\r\n" + MEGABYTE + b"\r\n"), id="chunks"
        ),
        pytest.param(floods(OK + b"Content-Length: 12" + b"3" * 5000 + b"\r\n\r\n", b""), id="a long length"),
    ],
)
def test_an_answer_that_is_too_large_is_not_read(behave: Behaviour):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    error = fails(behave, timeout=5.0)
    assert "more than 100000 bytes: raise max_bytes=" in str(error) or "broke the protocol" in str(error)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_headers_without_end_are_not_read():
    assert "broke the protocol" in str(fails(floods(OK, b"X: " + b"x" * 60_000 + b"\r\n"), timeout=5.0))


def test_a_compressed_answer_is_not_unpacked():
    bomb = gzip.compress(b" " * 2**24)
    assert "is compressed, although the request" in str(fails(with_body(bomb, Content_Encoding="gzip")))


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_a_redirect_is_not_followed(status: str):
    with serving(stalls) as elsewhere:
        error = fails(with_body(b"", status=status, Location=elsewhere.url))
        assert f"status {status[:3]}, a redirect, which is not followed" in str(error)
        assert not elsewhere.requests


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (b"", "closed the connection"),
        (OK, "closed the connection"),
        (OK + b"Content-Length: 100\r\n\r\n{", "closed the connection before its answer was complete"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", "broke the protocol"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "broke the protocol"),
        (bytes(range(128, 192)), "broke the protocol"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "status 204; expected 200"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "status 404; expected 200: check the address"),
        (b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n", "status 401; expected 200"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "status 500"),
    ],
)
def test_what_is_no_answer_is_an_error(sent: bytes, message: str):
    assert message in str(fails(with_bytes(sent)))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>Moved</html>",
        b"\xff\xfe\x00",
        b'{"results": [{"penalty": NaN}, {"penalty": 1}]}',
        b'{"results": [{"penalty": Infinity}, {"penalty": 1}]}',
        b'{"results": [{"penalty": ' + b"9" * 5000 + b'}, {"penalty": 1}]}',
        b"[" * 90_000,
    ],
)
def test_what_is_no_json_is_an_error(body: bytes):
    assert "the answer is not JSON" in str(fails(with_body(body)))


@pytest.mark.parametrize(
    ("answered", "message"),
    [
        ([], 'no list "results"'),
        (None, 'no list "results"'),
        ({"results": "ab"}, 'no list "results"'),
        ({"results": [{"penalty": 1}]}, "1 results for 2 items"),
        ({"results": [{"penalty": 1}] * 3}, "3 results for 2 items"),
        ({"results": [{"penalty": 1}, 2]}, "results[1] is an int; expected an object"),
        ({"results": [{"penalty": 1}, {}]}, 'results[1] has no "penalty" that is a finite number'),
        ({"results": [{"penalty": "1"}, {"penalty": 1}]}, 'results[0] has no "penalty"'),
        ({"results": [{"penalty": None}, {"penalty": 1}]}, 'results[0] has no "penalty"'),
        ({"results": [{"penalty": True}, {"penalty": 1}]}, 'results[0] has no "penalty"'),
        ({"results": [{"penalty": [1]}, {"penalty": 1}]}, 'results[0] has no "penalty"'),
        ({"results": [{"penalty": 10**400}, {"penalty": 1}]}, 'results[0] has no "penalty"'),
    ],
)
def test_what_is_not_agreed_is_an_error(answered: Any, message: str):
    assert message in str(fails(with_body(json.dumps(answered))))


def test_a_number_that_is_too_large_is_an_error():
    assert 'has no "penalty" that is a finite number' in str(fails(with_body('{"results": [{"penalty": 1e999}, {}]}')))


@pytest.mark.parametrize("slope", [None, 1.0, [1.0], [[1.0, 2.0]], ["1", "2"], [1, None], [1, [2]], [True, True], {}])
def test_a_slope_of_another_kind_or_shape_is_an_error(slope: Any):
    body = json.dumps({"results": [{"penalty": 1.0, "slope": slope}] * 2})
    error = fails(with_body(body), [[1.0, 2.0], [3.0, 4.0]], gradient="straight-through")
    assert 'results[0] has no "slope" of finite numbers, in the shape of its item, (2,)' in str(error)


def test_a_slope_that_is_not_finite_is_an_error():
    body = '{"results": [{"penalty": 1.0, "slope": [1e999, 0]}, {}]}'
    assert 'no "slope" of finite' in str(fails(with_body(body), [[1.0, 2.0]] * 2, gradient="straight-through"))


def test_a_service_that_repeats_a_secret_is_not_quoted():
    assert "status 400" in str(fails(echoes))
    told = f'{{"results": "{SECRET}"}}'
    assert 'no list "results"' in str(fails(with_body(told)))
    assert "protocol" in str(fails(with_bytes(SECRET.encode() + b"\r\n\r\n")))


def test_a_service_that_is_not_there_is_an_error():
    began = time.monotonic()
    with pytest.raises(pn.ServiceError, match=r"could not be reached \(.*\): check the address, and that it runs"):
        Validation("http://127.0.0.1:9/validate", timeout=5.0, backoff=0.001)(["a"])
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("value", ["s3cr3t\r\nX-Evil: 1", "s3cr3t\n", "s3cr3t\0", "s3cr3tß", 7])
def test_a_header_that_cannot_be_sent_is_an_error_that_does_not_show_it(value: Any):
    with pytest.raises(pn.OptionError, match="expected a string of printable ASCII") as caught:
        Validation("http://127.0.0.1:9", headers={"Authorization": value})
    assert "s3cr3t" not in f"{caught.value!r} {caught.value.value!r}"


@pytest.mark.parametrize("address", ["http://user:s3cr3t@127.0.0.1/", "s3cr3t@host", "http://[s3cr3t", "http:/s3cr3t"])
def test_a_password_in_an_address_is_an_error_that_does_not_show_it(address: str):
    with pytest.raises(pn.OptionError, match="without a user or a password: use headers=") as caught:
        Validation(address)
    assert "s3cr3t" not in f"{caught.value!r} {caught.value.value!r}"


def test_keys_in_the_query_of_an_address_are_sent_and_not_shown():
    with serving(with_body("no")) as service:
        validation = Validation(f"{service.url}?key=s3cr3t", timeout=5.0)
        with pytest.raises(pn.ServiceError, match="/validate: the answer is not JSON") as caught:
            validation(["a"])
    assert service.requests[0].line == "POST /validate?key=s3cr3t HTTP/1.1"
    assert "s3cr3t" not in f"{caught.value} {validation!r}"


def test_a_service_without_tls_is_not_spoken_to_over_https():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                connection.recv(65536)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"https://127.0.0.1:{server.getsockname()[1]}/validate"
        with pytest.raises(pn.ServiceError, match=r"could not be reached \(\[SSL"):
            Validation(address, timeout=5.0, attempts=1)(["a"])
        thread.join()
