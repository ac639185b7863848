"""What a service says as a term: values, gradients, metrics, and how it is asked."""

import json
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import jsonschema
import numpy as np
import pytest
import torch

import penalties as pn
from penalties.terms.validation import Validation

from .service import Request, answer, in_turn, serving, with_body, with_results

CONTRACT = Path(__file__).parents[3] / "docs" / "assets" / "validation.openapi.json"

length = with_results(lambda text: float(len(text)))
square = with_results(lambda x: sum(number**2 for number in x), lambda x: [2 * number for number in x])


def plain(**options: Any) -> dict[str, Any]:
    """Quick to fail."""
    return {"timeout": 10.0, "backoff": 0.001, **options}


def test_the_value_is_the_mean_penalty_and_the_metrics_say_how_it_was_found():
    with serving(with_results(lambda text: float("x" in text))) as service:
        validation = Validation(service.url, **plain())
        pipeline = pn.Pipeline([pn.Term(validation, weight=0.5, inputs={"samples": "answers"}, differentiable=False)])
        out = pipeline(answers=["ax", "b", "c", "xx"])
    metrics = out.metrics()
    assert metrics["validation"] == 0.5
    assert metrics["validation_weighted"] == 0.25
    assert metrics["validation/validated"] == 4
    assert metrics["validation/valid"] == 0.5
    assert 0 < metrics["validation/latency_ms"] < 5000
    assert [metrics[f"validation/{name}"] for name in ("failed", "retries", "open")] == [0, 0, False]
    assert service.requests[0].line == "POST /validate HTTP/1.1"
    assert service.requests[0].headers["content-type"] == "application/json"


def test_every_sample_is_sent_once_in_batches_that_travel_at_once():
    arrived = []

    def slowly(request: Request) -> None:
        arrived.append(request.began)
        service.stopped.wait(0.2)
        length(request)

    with serving(slowly) as service:
        value = Validation(service.url, batch=3, connections=4, **plain())(["x" * n for n in range(10)]).value
    assert value == 4.5
    assert sorted(len(item) for item in service.items) == list(range(10))
    assert sorted(len(request.body["items"]) for request in service.requests) == [1, 3, 3, 3]
    assert max(arrived) - min(arrived) < 0.2


def test_no_more_requests_at_once_than_connections():
    now, most = [0], [0]

    def counted(request: Request) -> None:
        now[0] += 1
        most[0] = max(most[0], now[0])
        time.sleep(0.02)
        now[0] -= 1
        length(request)

    with serving(counted) as service:
        Validation(service.url, batch=1, connections=2, **plain())(["x"] * 8)
    assert most[0] == 2


def test_the_score_function_is_unbiased():
    """Over all samples that may be drawn, by their probability, its gradient is that of the expected penalty."""
    penalties = [0.0, 1.0, 3.0]
    p = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    logits = p.log().requires_grad_()
    exact = torch.autograd.grad((logits.softmax(0) * torch.tensor(penalties)).sum(), logits)[0]
    with serving(with_results(lambda item: penalties[item])) as service:
        for baseline in (True, False):
            validation = Validation(service.url, gradient="score", baseline=baseline, **plain())
            term = pn.Term(validation, inputs={"samples": "samples", "logprobs": "logprobs"})
            expected = torch.zeros(3, dtype=torch.float64)
            for first in range(3):
                for second in range(3):
                    samples = [first, second]
                    out = pn.Pipeline([term])(samples=samples, logprobs=logits.log_softmax(0)[samples])
                    assert out.total.item() == pytest.approx((penalties[first] + penalties[second]) / 2)
                    (gradient,) = torch.autograd.grad(out.total, logits)
                    expected += p[first] * p[second] * gradient
            assert torch.allclose(expected, exact, atol=1e-9)


def test_the_log_probabilities_of_tokens_share_the_gradient_of_their_sample():
    tokens = [torch.tensor([-0.5, -1.0], requires_grad=True), torch.tensor([-0.1], requires_grad=True)]
    with serving(length) as service:
        term = pn.Term(
            Validation(service.url, gradient="score", **plain()),
            inputs={"samples": "samples", "logprobs": "logprobs"},
        )
        pn.Pipeline([term])(samples=["xxx", "x"], logprobs=tokens).total.backward()
    assert tokens[0].grad.tolist() == [1, 1]
    assert tokens[1].grad.tolist() == [-1]


def test_slopes_are_passed_straight_through(autodiff: Any):
    # In a thread: there a term that JAX cannot trace is called with plain arrays.
    with serving(square) as service, pn.Executor() as executor:
        validation = Validation(service.url, gradient="straight-through", **plain())
        x = autodiff.array([[1.0, -2.0], [0.5, 0.0]], "float64")
        out = executor.run(
            pn.Pipeline([pn.Term(validation, inputs={"samples": "x"}, runs="thread")]), {"x": x}, wrt="x"
        )
        assert out.metrics()["total"] == pytest.approx(5.25 / 2)
        assert np.allclose(autodiff.numpy(out.gradient["x"]), [[1, -2], [0.5, 0]])
        relaxed = autodiff.array([[0.9, -1.8], [0.6, 0.1]], "float64")
        term = pn.Term(validation, inputs={"samples": "x", "relaxed": "relaxed"}, runs="thread")
        out = executor.run(pn.Pipeline([term]), {"x": x, "relaxed": relaxed}, wrt="relaxed")
        assert np.allclose(autodiff.numpy(out.gradient["relaxed"]), [[1, -2], [0.5, 0]])
    assert all(request.body["slopes"] for request in service.requests)


@pytest.mark.parametrize("runs", ["thread", pytest.param("process", marks=pytest.mark.slow)])
def test_it_trains_from_elsewhere_as_inline(runs: str):
    x = torch.tensor([[1.0, -2.0], [0.5, 0.0]], requires_grad=True)
    with serving(square) as service, pn.Executor(max_workers=1) as executor:
        validation = Validation(service.url, gradient="straight-through", **plain())
        term = pn.Term(validation, inputs={"samples": "x"}, runs=runs, timeout=60)
        executor.run(pn.Pipeline([term]), {"x": x}).total.backward()
    assert torch.equal(x.grad, x.detach())


def test_its_future_can_be_awaited_and_cancelled():
    def hangs(request: Request) -> None:
        service.stopped.wait(20)

    with serving(in_turn(length, hangs)) as service, pn.Executor() as executor:
        validation = Validation(service.url, **plain())
        about = {"name": "length", "inputs": {"samples": "x"}, "runs": "async", "differentiable": False}
        pipeline = pn.Pipeline([pn.Term(validation.submit, **about, timeout=0.5, on_error="skip")])
        assert executor.run(pipeline, {"x": ["aaa", "b"]}).metrics()["length"] == 2
        late = executor.run(pipeline, {"x": ["aaa", "b"]})["length"]
        assert isinstance(late.error, pn.TermTimeoutError)
        assert not late.error.abandoned


def test_threads_share_connections_and_each_gets_its_own_answer():
    with serving(length) as service:
        validation = Validation(service.url, **plain())
        with ThreadPoolExecutor(8) as pool:
            values = list(pool.map(lambda n: validation(["x" * n]).value, range(40)))
    assert values == list(range(40))


def test_a_connection_is_used_again():
    connections = set()

    def kept(request: Request) -> None:
        connections.add(request.connection)
        body = json.dumps({"results": [{"penalty": 1.0}]}).encode()
        whole = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        request.connection.sendall(whole)
        request.connection.recv(65536)
        request.connection.sendall(whole)

    with serving(kept) as service:
        validation = Validation(service.url, **plain())
        assert [validation(["x"]).value for _ in range(2)] == [1, 1]
    assert len(connections) == 1


def test_a_failure_that_passes_costs_a_retry():
    broken = with_body(b"", status="503 Service Unavailable")
    with serving(in_turn(broken, broken, length)) as service:
        evaluation = Validation(service.url, **plain())(["xx"])
    assert evaluation.value == 2
    assert (evaluation.metrics["retries"], evaluation.metrics["failed"]) == (2, 0)


@pytest.mark.slow
def test_attempts_wait_longer_and_longer_at_random():
    waited = []
    for _ in range(12):
        with serving(with_body(b"", status="500 Oops")) as service, pytest.raises(pn.ServiceError, match="status 500"):
            Validation(service.url, timeout=10.0, backoff=0.02, attempts=4, failures=9)(["x"])
        began = [request.began for request in service.requests]
        assert len(began) == 4
        waited.append(np.diff(began))
    mean = np.mean(waited, 0)
    assert mean[2] > 1.5 * mean[0]
    assert np.std(np.array(waited)[:, 2]) > 0.01
    assert np.max(waited) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("after", ["1", None])
def test_a_service_is_given_the_time_that_it_asks_for(after: str | None):
    from email.utils import formatdate

    wait = after or formatdate(time.time() + 2, usegmt=True)
    with serving(in_turn(with_body(b"", status="429 Slow Down", Retry_After=wait), length)) as service:
        assert Validation(service.url, **plain())(["x"]).value == 1
    first, second = (request.began for request in service.requests)
    assert second - first >= 0.95


def test_a_service_that_asks_for_more_time_than_there_is_fails_at_once():
    began = time.monotonic()
    busy, message = with_body(b"", status="503 Busy", Retry_After=86400), r"status 503, and asks to wait 8.64e\+04 s"
    with serving(busy) as service, pytest.raises(pn.ServiceError, match=message):
        Validation(service.url, **plain())(["x"])
    assert time.monotonic() - began < 5
    assert len(service.requests) == 1


def test_the_rate_is_limited():
    with serving(length) as service:
        validation = Validation(service.url, batch=1, rate=20.0, connections=8, **plain())
        began = time.monotonic()
        validation(["x"] * 30)
    assert 0.4 < time.monotonic() - began < 5
    times = np.array([request.began for request in service.requests])
    # Never more than twenty and what a second refills, in any half second.
    assert max(np.sum((times >= one) & (times < one + 0.5)) for one in times) <= 31
    with serving(length) as service:
        began = time.monotonic()
        Validation(service.url, batch=1, rate=0.5, **{**plain(), "timeout": 60})(["x"])
        assert time.monotonic() - began < 1


def test_after_failures_in_a_row_it_is_left_alone_and_then_tried_once():
    broken = with_body(b"", status="500 Oops")
    with serving(in_turn(*[broken] * 4, length)) as service:
        validation = Validation(service.url, attempts=1, failures=3, reset=0.3, **plain())
        for _ in range(3):
            with pytest.raises(pn.ServiceError, match="answered with status 500"):
                validation(["x"])
        for _ in range(5):
            with pytest.raises(pn.ServiceError, match="not asked, after 3 failures in a row or more; asked again in 0"):
                validation(["x"])
        assert len(service.requests) == 3
        time.sleep(0.35)
        # One request finds out that it still fails.
        with pytest.raises(pn.ServiceError, match="status 500"):
            validation(["x"])
        with pytest.raises(pn.ServiceError, match="not asked"):
            validation(["x"])
        time.sleep(0.35)
        evaluation = validation(["x"])
        assert (evaluation.value, evaluation.metrics["open"]) == (1, False)
        assert len(service.requests) == 5


def test_of_many_that_wait_one_tries_a_service_that_was_down():
    broken = with_body(b"", status="500 Oops")
    with serving(in_turn(*[broken] * 2, length)) as service:
        validation = Validation(service.url, attempts=1, failures=2, reset=0.1, batch=1, partial=True, **plain())
        for _ in range(2):
            with pytest.raises(pn.ServiceError):
                validation(["x"])
        time.sleep(0.15)
        with ThreadPoolExecutor(8) as pool:
            outcomes = [future.exception() for future in [pool.submit(validation, ["x"]) for _ in range(8)]]
    assert any(outcome is None for outcome in outcomes)
    assert len(service.requests) >= 3


def test_samples_without_an_answer_are_left_out_where_that_is_asked_for():
    def sometimes(request: Request) -> None:
        if request.body["items"][0][0] < 0:
            answer(request, b"", status="400 Bad Request")
        else:
            square(request)

    x = torch.tensor([[1.0], [-1.0], [3.0]], requires_grad=True)
    with serving(sometimes) as service:
        about = {"gradient": "straight-through", "batch": 1, "failures": 100, **plain()}
        term = pn.Term(Validation(service.url, partial=True, **about), inputs={"samples": "x"})
        out = pn.Pipeline([term])(x=x)
        out.total.backward()
        metrics = out.metrics()
        assert (metrics["validation"], metrics["validation/validated"], metrics["validation/failed"]) == (5, 2, 1)
        assert x.grad.tolist() == [[1], [0], [3]]
        with pytest.raises(pn.ServiceError, match="status 400"):
            Validation(service.url, **about)(x.detach())
        with pytest.raises(pn.ServiceError, match="status 400"):
            Validation(service.url, partial=True, **about)(-x.detach().abs())


def test_the_score_of_samples_without_an_answer_is_left_out_too():
    def sometimes(request: Request) -> None:
        answer(request, b"", status="404 Gone") if request.body["items"] == ["bad"] else length(request)

    with serving(sometimes) as service:
        about = {"gradient": "score", "batch": 1, "partial": True, **plain()}
        evaluation = Validation(service.url, **about)(["x", "bad", "xxx"], logprobs=np.zeros(3))
    assert evaluation.value == 2
    assert evaluation.gradient["logprobs"].tolist() == [-1, 0, 1]


def test_it_travels_without_its_connections():
    with serving(length) as service:
        validation = Validation(service.url, **plain())
        validation(["x"])
        assert cloudpickle.loads(cloudpickle.dumps(validation))(["xx"]).value == 2


def test_a_step_is_skipped_when_the_service_fails():
    with serving(with_body("no")) as service, pn.Executor() as executor:
        term = pn.Term(
            Validation(service.url, **plain()),
            inputs={"samples": "x"},
            runs="thread",
            differentiable=False,
            on_error="skip",
        )
        out = executor.run(pn.Pipeline([term, pn.Term(pn.l1, inputs="w")]), {"x": ["a"], "w": torch.ones(2)})
    assert out.metrics()["total"] == 2
    assert str(out["validation"].error).endswith("/validate: the answer is not JSON")
    assert isinstance(out["validation"].error.__cause__, pn.ServiceError)


def test_requests_and_answers_are_those_of_the_contract():
    contract = json.loads(CONTRACT.read_text())
    schemas = contract["components"]["schemas"]

    def check(name: str, value: Any) -> None:
        jsonschema.validate(value, {"$ref": f"#/components/schemas/{name}", "components": {"schemas": schemas}})

    with serving(square) as service:
        Validation(service.url, gradient="straight-through", **plain())(np.ones((3, 2)))
        Validation(service.url, **plain())([[1.0], [2.0]])
    for request in service.requests:
        check("Request", request.body)
    check("Answer", {"results": [{"penalty": 1.0, "slope": [[1, 2], [3, 4]]}, {"penalty": 0}]})
    for wrong in ({}, {"results": [{}]}, {"results": [{"penalty": "1"}]}, {"results": {}}):
        with pytest.raises(jsonschema.ValidationError):
            check("Answer", wrong)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient": "reinforce"}, 'gradient="reinforce"; expected "none", "score" or "straight-through"'),
        ({"baseline": 1}, "baseline=1; expected True or False"),
        ({"partial": "yes"}, 'partial="yes"; expected True or False'),
        ({"batch": 0}, "batch=0; expected a whole number of at least 1"),
        ({"connections": 1.5}, "connections=1.5; expected a whole number"),
        ({"attempts": 0}, "attempts=0; expected"),
        ({"failures": 0}, "failures=0; expected"),
        ({"max_bytes": 0}, "max_bytes=0; expected"),
        ({"timeout": 0}, "timeout=0; expected seconds above 0"),
        ({"timeout": math.inf}, "timeout=inf; expected seconds"),
        ({"backoff": -1}, "backoff=-1; expected seconds, at least 0"),
        ({"reset": None}, "reset=None; expected seconds, at least 0"),
        ({"rate": 0}, "rate=0; expected None, or requests a second, above 0"),
        ({"headers": ["a"]}, 'headers="list"; expected a mapping'),
        ({"headers": {"a b": "x"}}, 'headers="a b"; expected names'),
        ({"endpoint": "validator.example/v1"}, 'endpoint="…"; expected an address such as'),
        ({"endpoint": "ftp://validator.example"}, 'endpoint="…"; expected an address'),
        ({"endpoint": "http://validator.example:port/"}, 'endpoint="…"; expected an address'),
        ({"endpoint": "http://validator.example/\x01?key=secret"}, 'endpoint="…"; expected an address'),
        ({"endpoint": "http://validator example/"}, 'endpoint="…"; expected an address'),
        ({"endpoint": None}, 'endpoint="NoneType"; expected an address'),
    ],
)
def test_a_wrong_option_is_an_error_that_says_what_was_expected(options: dict[str, Any], message: str):
    with pytest.raises(pn.OptionError) as caught:
        Validation(**{"endpoint": "http://127.0.0.1:9", **options})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("gradient", "inputs", "error", "message"),
    [
        ("none", {"samples": []}, pn.ShapeError, "there are no samples; expected at least one"),
        ("none", {"samples": "text"}, pn.OptionError, 'samples="a str"; expected a list of items'),
        ("none", {"samples": [{1, 2}]}, pn.OptionError, "expected strings, finite numbers, and lists"),
        ("none", {"samples": [math.nan]}, pn.OptionError, "expected strings, finite numbers, and lists"),
        ("score", {"samples": ["a"]}, pn.InputError, 'gradient="score" needs the log-probabilities of the samples'),
        (
            "score",
            {"samples": ["a"], "logprobs": np.zeros(2)},
            pn.ShapeError,
            r"logprobs has shape \(2,\) for 1 sample",
        ),
        ("score", {"samples": ["a"], "logprobs": 0.5}, pn.ShapeError, "expected logprobs as an array, or a list"),
        ("straight-through", {"samples": ["a"]}, pn.OptionError, "expected an array with a row for each sample"),
        (
            "straight-through",
            {"samples": np.zeros((2, 2)), "relaxed": np.zeros((2, 3))},
            pn.ShapeError,
            r"relaxed has shape \(2, 3\) and samples \(2, 2\)",
        ),
    ],
)
def test_wrong_inputs_are_an_error(gradient: Any, inputs: dict[str, Any], error: type[Exception], message: str):
    with serving(with_results(lambda _: 1.0)) as service, pytest.raises(error, match=message):
        Validation(service.url, gradient=gradient, **plain())(**inputs)


@pytest.mark.parametrize(
    ("gradient", "unread"),
    [("none", "logprobs"), ("none", "relaxed"), ("score", "relaxed"), ("straight-through", "logprobs")],
)
def test_an_input_that_is_not_read_is_an_error_before_anything_is_sent(gradient: Any, unread: str):
    with serving(length) as service:
        with pytest.raises(pn.OptionError, match=f'{unread}=".*"; expected None with gradient="{gradient}"'):
            Validation(service.url, gradient=gradient, **plain())(["x"], **{unread: np.zeros(1)})
        assert not service.requests


def test_texts_have_probabilities_and_numbers_may_have_densities():
    with serving(with_results(lambda item: 1.0)) as service:
        validation = Validation(service.url, gradient="score", **plain())
        validation([0.5, 0.25], logprobs=np.array([2.0, 1.0]))
        with pytest.raises(pn.OptionError, match="logprobs=2.0; expected log-probabilities, which are at most 0"):
            validation(["x", "y"], logprobs=np.array([2.0, 1.0]))
