"""The loops that the trainers are compared with, written out by hand: the arithmetic of scopes, and nothing of ours."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax, mse_loss

from .cases import LEARNING_RATE, MAX_NORM, VOCABULARY

__all__ = ["gradients_of_language_model", "train_language_model", "train_regressor"]

WEIGHTS = {"base_loss": 1.0, "decay": 0.01, "confidence": 0.3, "size": 1e-3, "spread": 0.1}


def train_language_model(model: nn.Module, steps: list[Any], *, across: bool) -> list[float]:
    """Tokens are the denominator: of all ranks together, or of each by itself, whose gradients are then averaged."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        terms = _language_terms(model, step, across=across)
        losses.append(_step(model, optimizer, sum(WEIGHTS[name] * term for name, term in terms.items())))
    return losses


def gradients_of_language_model(model: nn.Module, step: list[Any], *, across: bool) -> dict[str, Tensor]:
    """The gradient of each term of a step at all parameters, and of the total."""
    found = {}
    for name, term in _language_terms(model, step, across=across).items():
        model.zero_grad()
        term.backward(retain_graph=True)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
        found[name] = torch.cat([gradient.flatten() for gradient in gradients])
    return {**found, "total": sum(WEIGHTS[name] * gradient for name, gradient in found.items())}


def _language_terms(model: nn.Module, step: list[Any], *, across: bool) -> dict[str, Any]:
    ranks = len(step)
    counts = [sum(int(counted(batch).sum()) for batch in mine) for mine in step]
    terms: dict[str, Any] = dict.fromkeys(WEIGHTS, 0.0)
    terms["decay"] = sum(p.square().sum() for p in model.parameters())
    for mine, own in zip(step, counts, strict=True):
        total = sum(counts) if across else own * ranks
        for batch in mine:
            out = model(batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True)
            logits, labels, here = out.logits[:, :-1], batch["labels"][:, 1:], counted(batch)
            logp = log_softmax(logits, -1)
            negative_entropy = (logp.exp() * logp).sum(-1)
            share = here.sum() / total
            nll = cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1), reduction="sum")
            terms["base_loss"] += nll / total
            terms["confidence"] += share * (negative_entropy * here).sum() / here.sum()
            terms["size"] += out.logits.square().sum()
            terms["spread"] += share * out.hidden_states[1].square().mean()
    return terms


def counted(batch: dict[str, Tensor]) -> Tensor:
    return batch["labels"][:, 1:] != -100


def train_regressor(model: nn.Module, steps: list[Any], *, ranks: int | None = None) -> list[float]:
    """Micro-batches count equally. Each window of a step is that of a rank; given their number, some had several."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in steps:
        optimizer.zero_grad()
        loss = 0.01 * sum(p.square().sum() for p in model.parameters())
        for mine in step:
            parts = len(mine) * (ranks or len(step))
            for batch in mine:
                logits = model.layers(batch["x"])
                loss = loss + mse_loss(logits, batch["labels"]) / parts
                loss = loss + 0.01 * logits.abs().sum() + 0.1 * logits.square().mean() / parts
        losses.append(_step(model, optimizer, loss))
    return losses


def _step(model: nn.Module, optimizer: Any, loss: Tensor) -> float:
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
    optimizer.step()
    return loss.item()
