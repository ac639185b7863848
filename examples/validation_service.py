"""Train a writer of formulas on what a service says about them, over HTTP, while the service now and then fails.

The writer draws texts of parentheses and digits, letter by letter. The service, which follows the contract of
`docs/terms/validation.md`, says how wrong each text is as a formula; nobody can differentiate that. The score function
trains the writer all the same. One request in seven fails: it is repeated, and no step is lost. Run it with
`python examples/validation_service.py`; it needs `pip install "penalties[torch,validation]"`.
"""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

import torch
from torch import Tensor, nn

import penalties as pn
from penalties.terms.validation import Validation

STEPS = 120
LETTERS = "()1+"
LENGTH, BATCH = 7, 128


def wrong(text: str) -> float:
    """How wrong a text is as a formula: parentheses that do not match, and neighbours that may not be neighbours."""
    depth, count = 0, 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if depth < 0:
            depth, count = 0, count + 1
    follows = {"(": "(1", ")": ")+", "1": ")+", "+": "(1"}
    return count + depth + sum(b not in follows[a] for a, b in zip("(" + text, text + ")", strict=True))


class Service(BaseHTTPRequestHandler):
    """The contract: a penalty for each item. Every seventh request is answered by 503."""

    asked: ClassVar[int] = 0

    def do_POST(self) -> None:
        items = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["items"]
        body = json.dumps({"results": [{"penalty": wrong(text)} for text in items]}).encode()
        Service.asked += 1
        self.send_response(503 if Service.asked % 7 == 0 else 200)
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
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


class Writer(nn.Module):
    """Draws each letter by the one before it and the place."""

    def __init__(self) -> None:
        super().__init__()
        self.scores = nn.Parameter(torch.zeros(LENGTH, len(LETTERS) + 1, len(LETTERS)))

    def forward(self) -> tuple[list[str], Tensor]:
        """Texts, and the log-probability of each."""
        last, drawn, logprobs = torch.full((BATCH,), len(LETTERS)), [], []
        for scores in self.scores:
            letter = torch.distributions.Categorical(logits=scores[last])
            last = letter.sample()
            drawn.append(last)
            logprobs.append(letter.log_prob(last))
        texts = ["".join(LETTERS[index] for index in text) for text in torch.stack(drawn, -1)]
        return texts, torch.stack(logprobs).sum(0)


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    writer = Writer()
    optimizer = torch.optim.Adam(writer.parameters(), lr=0.05)
    retries = 0
    print(f"{'step':>4} {'penalty':>8} {'valid':>6}  one of the texts")
    with serving() as address, pn.Executor() as executor:
        validation = Validation(address, gradient="score", backoff=0.01, timeout=5)
        inputs = {"samples": "texts", "logprobs": "logprobs"}
        pipeline = pn.Pipeline([pn.Term(validation, name="formulas", inputs=inputs, runs="thread", timeout=10)])
        for step in range(STEPS + 1):
            texts, logprobs = writer()
            out = executor.run(pipeline, {"texts": texts, "logprobs": logprobs})
            optimizer.zero_grad()
            out.total.backward()
            optimizer.step()
            metrics = out["formulas"].metrics
            retries += metrics["retries"]
            if step % 30 == 0:
                print(f"{step:4d} {out['formulas'].value.item():8.3f} {metrics['valid']:6.0%}  {texts[0]}")
    texts, _ = writer()
    right = sum(wrong(text) == 0 for text in texts) / len(texts)
    print(f"\n{retries} requests were repeated, and no step was lost")
    print(f"{right:.0%} of new texts are formulas, {len({*texts})} of {len(texts)} different")


if __name__ == "__main__":
    main()
