"""Train a model on the scores of twelve judges behind an HTTP service that fails in seven ways.

Each judge is an `async def` term: it sends the drafts, and receives a score and its gradient. All judges are awaited
concurrently; one that fails is reported and skipped in that step, which continues with the others. The service is a
real one, on this machine. Run it with `python examples/http_service.py`; it needs PyTorch and HTTPX.
"""

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx
import numpy as np
import torch
from torch import Tensor, nn

import penalties as pn

STEPS = 30
JUDGES = [f"judge_{letter}" for letter in "abcdefghijkl"]
WISHES = {judge: np.random.default_rng(seed).normal(size=(8, 3)) for seed, judge in enumerate(JUDGES)}
# What goes wrong, and at which request to a judge.
FAILURES = {
    ("judge_b", 3): "status 500",
    ("judge_c", 6): "no JSON",
    ("judge_d", 9): "no gradient",
    ("judge_e", 12): "another shape",
    ("judge_f", 15): "not a number",
    ("judge_g", 18): "late",
    ("judge_h", 21): "no answer",
}

# The term has the timeout. A connection that outlived its request would belong to
# an event loop of the executor, and could not be closed after that has ended.
CLIENT = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_keepalive_connections=0), trust_env=False)


async def judged(drafts: Tensor, url: str) -> pn.Evaluation:
    """The score of a judge, lower is better, with its gradient."""
    response = await CLIENT.post(url, json={"drafts": drafts.tolist()})
    if response.status_code != 200:
        raise RuntimeError(f"the service answered with status {response.status_code}")
    answer = response.json()
    return pn.Evaluation(answer["score"], gradient={"drafts": np.array(answer["gradient"])})


def objective(address: str) -> pn.Pipeline:
    """One term per judge, and a little weight decay, computed in this process."""
    about = {"weight": 1 / len(JUDGES), "timeout": 1.5, "on_error": "skip"}
    judges = [pn.Term(judged, name=judge, options={"url": f"{address}/{judge}"}, **about) for judge in JUDGES]
    return pn.Pipeline([pn.Term(pn.l2, name="decay", weight=1e-4, inputs="params"), *judges])


class Service(BaseHTTPRequestHandler):
    """Half the mean square between the drafts and a judge's wish, unless something goes wrong."""

    asked: ClassVar[Counter[str]] = Counter()
    stopped: ClassVar[threading.Event] = threading.Event()

    def do_POST(self) -> None:
        judge = self.path.strip("/")
        drafts = np.array(json.loads(self.rfile.read(int(self.headers["Content-Length"])))["drafts"])
        failure = FAILURES.get((judge, self.asked[judge]))
        self.asked[judge] += 1
        # A judge takes 50 ms: one after the other they would take 0.6 s a step.
        self.stopped.wait({"late": 3.0, "no answer": None}.get(failure, 0.05))
        error = drafts - WISHES[judge]
        answer = {"score": (error**2).mean() / 2, "gradient": (error / error.size).tolist()}
        if failure == "no gradient":
            del answer["gradient"]
        elif failure == "another shape":
            answer["gradient"] = answer["gradient"][0]
        elif failure == "not a number":
            answer["score"] = float("nan")
        body = b"<html>Moved</html>" if failure == "no JSON" else json.dumps(answer).encode()
        with suppress(ConnectionError):  # the caller may have gone
            self.send_response(500 if failure == "status 500" else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # by default 5 may connect at once, and the next waits a second


@contextmanager
def serving() -> Iterator[str]:
    """The address of the service, while it runs."""
    Service.asked.clear()
    Service.stopped.clear()
    with Server(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            Service.stopped.set()
            server.shutdown()


def main() -> None:
    torch.set_num_threads(1)  # the layers are small, and the other cores have terms to run
    torch.manual_seed(0)
    topics = torch.randn(8, 4)
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    agreed = torch.tensor(np.mean(list(WISHES.values()), 0))
    skipped = 0
    print(f"{'step':>4} {'total':>8}  distance to what the judges agree on")
    with serving() as address, pn.Executor() as executor:
        pipeline = objective(address)
        for step in range(STEPS + 1):
            drafts = model(topics)
            out = executor.run(pipeline, {"drafts": drafts, "params": model.parameters()})
            optimizer.zero_grad()
            out.total.backward()
            optimizer.step()
            for term in out:
                if term.error is not None:
                    skipped += 1
                    print(f"{step:4d}  skipped {term.error}")
            if step % 10 == 0:
                print(f"{step:4d} {out.total.item():8.4f}  {(drafts - agreed).norm().item():.3f}")
    print(f"\n{len(JUDGES) * (STEPS + 1)} requests, {skipped} of them failed, and no step was lost")


if __name__ == "__main__":
    main()
