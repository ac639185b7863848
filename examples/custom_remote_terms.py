"""Train a model on texts, some of them spam, with a term in another process and one behind an HTTP service.

The service judges each text: the model should make good ones likelier and the others less likely. The service fails
once, and that step continues without it. The other term finds the passage of each text that surprises the model most,
in a Python loop that would block everything else in this process. Both read the forward's log-probabilities, and both
train the model. The model is small and random, in this process; the service is a real one, on this machine. Run it with
`python examples/custom_remote_terms.py`; it needs `pip install "penalties[train,process]" httpx`.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import httpx
import torch
from torch import Tensor

import penalties as pn
from penalties.training import AdamParams, Datum, LocalTrainingClient, ModelInput, forward_backward_custom

STEPS = 30
GOOD = ["the cat sat on the mat", "a dog ran in the park", "birds sing in the sun", "the sea is calm today"]
SPAM = ["WIN CASH NOW!!! CLICK", "FREE FREE FREE OFFER!", "$$$ CALL 0800 NOW $$$", "BUY CHEAP PILLS HERE!"]


class Service(BaseHTTPRequestHandler):
    """Scores texts by how little they shout, from -1 to 1. The sixth request fails."""

    asked: ClassVar[int] = 0

    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["texts"]
        scores = [1 - 2 * sum(not (letter.islower() or letter == " ") for letter in text) / len(text) for text in texts]
        body = json.dumps({"scores": scores}).encode()
        Service.asked += 1
        self.send_response(500 if Service.asked == 6 else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def serving() -> Iterator[str]:
    """The address of the service, while it runs."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


async def judge(data: list[Datum], logprobs: list[Tensor], *, url: str) -> tuple[Tensor, dict[str, float]]:
    """`-score` of each text times the mean log-probability of its tokens: the loss of a rewarded policy."""
    texts = [bytes(one.loss_fn_inputs["target_tokens"].data).decode() for one in data]
    async with httpx.AsyncClient(trust_env=False) as client:
        response = await client.post(url, json={"texts": texts})
    if response.status_code != 200:
        raise RuntimeError(f"the service answered with status {response.status_code}")
    scores = response.json()["scores"]
    loss = -sum(score * one.mean() for score, one in zip(scores, logprobs, strict=True)) / len(scores)
    return loss, {"mean_score": sum(scores) / len(scores)}


def worst_passage(logprobs: list[Tensor], *, usual: float = 2.0) -> tuple[Tensor, dict[str, float]]:
    """The largest sum of consecutive tokens' excess surprise, averaged over texts."""
    found = []
    for one in logprobs:
        best = here = torch.zeros(())
        for surprise in -one - usual:
            here = torch.clamp(here + surprise, min=0.0)
            best = torch.maximum(best, here)
        found.append(best)
    return torch.stack(found).mean(), {"process": os.getpid()}


def texts(client: LocalTrainingClient, lines: list[str]) -> list[Datum]:
    """Each text after a line break."""
    start, encode, data = client.get_tokenizer().encode("\n"), client.get_tokenizer().encode, []
    for line in lines:
        tokens = encode(line)
        data.append(Datum(ModelInput.from_ints([*start, *tokens[:-1]]), {"target_tokens": tokens}))
    return data


def surprise(client: LocalTrainingClient, data: list[Datum]) -> float:
    """The mean of -logprob."""
    outputs = client.forward(data).result().loss_fn_outputs
    return -sum(sum(one["logprobs"].data) for one in outputs) / sum(len(one["logprobs"].data) for one in outputs)


def mean(data: list[Datum], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
    """The base loss, in the form that the SDK takes."""
    return -torch.cat(logprobs).mean(), {}


def train(url: str, *, terms: bool) -> str:
    """Train with the terms and print a report, or train without them."""
    regularizers = [
        pn.Term(judge, weight=2.0, options={"url": url}, timeout=5, on_error="skip", enabled=terms),
        pn.Term(worst_passage, weight=0.05, runs="process", timeout=10, enabled=terms),
    ]
    processes = set()
    with pn.Executor(max_workers=1) as executor, LocalTrainingClient("tiny", seed=0) as client:
        data = texts(client, GOOD + SPAM)
        for step in range(STEPS + 1):
            passed = forward_backward_custom(client, data, mean, regularizers=regularizers, executor=executor)
            client.optim_step(AdamParams(learning_rate=3e-3))
            numbers, out = passed.result().metrics, passed.result().custom_loss
            if not terms:
                continue
            processes.add(int(numbers["worst_passage/process"]))
            if out["judge"].error is not None:
                print(f"{step:4d}  skipped {out['judge'].error}")
            elif step % 10 == 0:
                columns = ("base_loss", "judge", "worst_passage", "total")
                print(f"{step:4d} " + " ".join(f"{numbers[name]:8.4f}" for name in columns))
        if terms:
            elsewhere = len(processes - {os.getpid()})
            print(f"\n{Service.asked} requests to the service, and {elsewhere} process beside this one")
        good, spam = surprise(client, data[: len(GOOD)]), surprise(client, data[len(GOOD) :])
        return f"surprise at good texts {good:.2f}, at spam {spam:.2f}"


def main() -> None:
    torch.set_num_threads(1)  # the model is small, and the other cores have terms to run
    print(f"{'step':>4} {'base':>8} {'judge':>8} {'passage':>8} {'total':>8}")
    with serving() as url:
        judged = train(url, terms=True)
        print(f"without the terms: {train(url, terms=False)}")
        print(f"with the terms:    {judged}")


if __name__ == "__main__":
    main()
