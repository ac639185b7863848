"""A pass of the local client with three terms over logits, against cross-entropy alone by transformers and peft.

Qwen3-0.6B's size with random weights, an adapter of rank 32, and a teacher of the same size, whose hidden states are
there before.
"""

import importlib.util
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

import penalties as pn
from penalties.training import Datum, LocalTrainingClient, ModelInput

from ..harness import Row
from .measuring import DEVICE, GPU, OURS, measure, memory_row, ratio_row, times, title

__all__ = ["run"]

PEER = "transformers and peft, cross-entropy alone"
MOST = 1.05
ENTROPY, KL = 0.01, 0.1
LOGITS = {"logits": True}
PIPELINE = pn.Pipeline(
    [
        pn.Term(pn.entropy, weight=ENTROPY, inputs="logits", options=LOGITS),
        pn.Term(pn.kl_divergence, weight=KL, inputs=("teacher", "logits"), options=LOGITS),
    ],
    base=pn.Term(pn.cross_entropy, inputs=("logits", "targets"), options=LOGITS),
)


def run(scale: float) -> list[Row]:
    """Cross-entropy, entropy, and KL to a teacher's logits."""
    missing = [name for name in ("transformers", "peft") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"\nlocal client: not measured, since {' and '.join(missing)} cannot be imported", flush=True)
        return []
    with tempfile.TemporaryDirectory() as folder:
        classes, width = save_model(Path(folder))
        dtype = torch.bfloat16 if GPU else torch.float32
        with LocalTrainingClient(folder, rank=32, device=DEVICE, dtype=dtype) as client:
            return rows(client, classes, width, dtype)


def rows(client: LocalTrainingClient, classes: int, width: int, dtype: torch.dtype) -> list[Row]:
    count, length = (8, 1024) if GPU else (2, 5)
    tokens = torch.randint(classes, (count, length + 1), generator=torch.Generator().manual_seed(0))
    data = [Datum(ModelInput.from_ints(row[:-1].tolist()), {"target_tokens": row[1:].tolist()}) for row in tokens]
    read, targets = tokens[:, :-1].to(DEVICE), tokens[:, 1:].to(DEVICE).flatten()
    states = torch.randn(count * length, width, device=DEVICE, dtype=dtype)
    teacher = pn.Logits(states, client.model.get_output_embeddings().weight.detach().clone())

    def ours() -> float:
        graph = client.forward_with_graph(data, ["logits"], lazy=True).result()
        out = PIPELINE.value_and_grad(
            logits=graph.packed["logits"], teacher=teacher, targets=targets, wrt="logits.hidden"
        )
        graph.backward({"logits": out.gradient["logits.hidden"]})
        return out.total.item()

    def named() -> float:
        return client.forward_backward(data, "cross_entropy").result().metrics["loss:sum"]

    def plain(*, terms: bool = False) -> float:
        logits = client.model(input_ids=read, use_cache=False).logits.flatten(0, 1).float()
        loss = cross_entropy(logits, targets)
        total = loss + by_hand(logits, teacher.materialize().float()) if terms else loss
        total.backward()
        return total.item()

    agree(client, ours, lambda: plain(terms=True))
    title(f"local client, Qwen3-0.6B's size, {count} x {length} tokens, V = {classes}; must: times the first line")
    limit = statistics.median(times(plain))
    sides = {
        PEER: plain,
        f"{OURS}, cross-entropy + entropy + KL": ours,
        f"{OURS}, cross-entropy alone": named,
        "transformers and peft, all three": lambda: plain(terms=True),
    }
    found, _ = measure("a pass", limit, sides)
    peer, three = found[PEER], found[f"{OURS}, cross-entropy + entropy + KL"]
    case = "local client, three terms against cross-entropy alone"
    made = memory_row(case, peer.gigabytes, three.gigabytes, most_ratio=1.0)
    return [ratio_row(case, peer.milliseconds, three.milliseconds, MOST), *made] if GPU else []


def agree(client: LocalTrainingClient, ours: Any, plain: Any) -> None:
    """Both sides compute the same loss and the same gradient."""
    parameters = [one for one in client.model.parameters() if one.requires_grad]
    found: list[tuple[float, Tensor]] = []
    for side in (ours, plain):
        for one in parameters:
            one.grad = None
        total = side()
        found.append((total, torch.cat([one.grad.flatten().float() for one in parameters])))
    (mine, gradient), (theirs, expected) = found
    torch.testing.assert_close(mine, theirs, rtol=2e-2, atol=0.0)
    assert (gradient - expected).norm() <= 0.1 * expected.norm(), "gradients differ"


def by_hand(student: Tensor, teacher: Tensor) -> Tensor:
    a, b = log_softmax(student, -1), log_softmax(teacher, -1)
    return -ENTROPY * (a.exp() * a).sum(-1).mean() + KL * (b.exp() * (b - a)).sum(-1).mean()


def save_model(folder: Path) -> tuple[int, int]:
    """Save a random model; returns its number of classes, and its width."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    size: dict[str, Any] = (
        {
            "vocab_size": 151936,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "head_dim": 128,
        }
        if GPU
        else {
            "vocab_size": 100,
            "hidden_size": 16,
            "intermediate_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 8,
        }
    )
    config = Qwen3Config(tie_word_embeddings=True, **size)
    with torch.device(DEVICE):
        model = Qwen3ForCausalLM(config)
    model.to(torch.bfloat16 if GPU else torch.float32).save_pretrained(folder)
    return config.vocab_size, config.hidden_size
