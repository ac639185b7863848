"""A step of fine-tuning in micro-batches with activation checkpointing, against plain loops of transformers and peft.

Qwen3-0.6B's and 8 B's sizes with random weights, an adapter of rank 16, and 32 sequences of 2048 tokens a step. Both
sides train one model in the same micro-batches, at a learning rate of 0, so that their losses and the norms of their
gradients can be compared.
"""

import gc
import importlib.util
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax

import penalties as pn
from penalties.training import AdamParams, Datum, LocalTrainingClient, ModelInput, forward_backward_custom, references

from ..harness import Row
from .measuring import DEVICE, GPU, OURS, machine, memory_row, ratio_row

__all__ = ["run"]

ONE_PASS, TWO_PASSES = 1.03, 1.35
GIGABYTES = 80.0
RANK = 16
ESTIMATE, SQUARES, ENTROPY, KL = 0.01, 1e-4, 0.01, 0.1
CLIP = 1.0

PLAIN = "transformers and peft, cross-entropy alone"
BY_HAND = "transformers and peft, + entropy estimate + l2"
BY_HAND_LOGITS = "transformers and peft, + entropy + KL + l2"
SEPARABLE = f"{OURS}, + entropy estimate + l2, one pass"
WHOLE = f"{OURS}, + a term over the batch, two passes"
LOGITS = f"{OURS}, + entropy + KL + l2, one pass"
LIMITS: Final = {SEPARABLE: (BY_HAND, ONE_PASS), WHOLE: (BY_HAND, TWO_PASSES), LOGITS: (BY_HAND_LOGITS, ONE_PASS)}
"""What each of our sides is compared with, and how many times its time it may take."""

# A step that takes longer is timed twice only.
_LONG = 3.0


class Size(NamedTuple):
    """A model, and the data of a step."""

    name: str
    config: Mapping[str, Any]
    by_hand_logits: bool
    sequences: int = 32
    length: int = 2048
    together: int = 4
    """Sequences in a micro-batch."""


QWEN3: Final = {"vocab_size": 151936, "num_key_value_heads": 8, "head_dim": 128}
SIZES: Final = (
    Size(
        "Qwen3-0.6B",
        {
            **QWEN3,
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "tie_word_embeddings": True,
        },
        by_hand_logits=True,
    ),
    Size(
        "Qwen3-8B",
        {
            **QWEN3,
            "hidden_size": 4096,
            "intermediate_size": 12288,
            "num_hidden_layers": 36,
            "num_attention_heads": 32,
            "tie_word_embeddings": False,
        },
        by_hand_logits=False,
    ),
)
TINY: Final = {
    "vocab_size": 100,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}


class Step(NamedTuple):
    """What a step computed."""

    loss: float
    norm: float
    """Of the gradient, before clipping."""


Side = Callable[[int], Step]
"""A step over so many sequences."""


class Measured(NamedTuple):
    """What one side takes."""

    milliseconds: list[float]
    gigabytes: float
    """The most memory in use, the model included."""
    step: Step


def run(scale: float) -> list[Row]:
    """Steps of both sizes."""
    missing = [name for name in ("transformers", "peft") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"\ntraining: not measured, since {' and '.join(missing)} cannot be imported", flush=True)
        return []
    small = not GPU or scale == 0
    rows: list[Row] = []
    found: list[Mapping[str, Measured]] = []
    for size in SIZES:
        if small:
            config = {**TINY, "tie_word_embeddings": size.config["tie_word_embeddings"]}
            size = Size(size.name, config, by_hand_logits=True, sequences=4, length=6, together=2)
        more, measures = steps(size, torch.bfloat16 if GPU else torch.float32)
        rows += more
        found.append(measures)
        _free()
    for measures in found:
        compared(measures)
    return [] if small else rows


def steps(size: Size, dtype: torch.dtype) -> tuple[list[Row], Mapping[str, Measured]]:
    """The rows of a size, and what its sides took."""
    machine()
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), size, dtype)
        client = LocalTrainingClient(
            folder,
            rank=RANK,
            device=DEVICE,
            dtype=dtype,
            checkpointing=True,
            micro_batch_tokens=size.together * size.length,
        )
    with client:
        tokens = torch.randint(
            size.config["vocab_size"],
            (size.sequences, size.length + 1),
            generator=torch.Generator().manual_seed(0),
        )
        sides = {**plain_sides(client, tokens, size), **our_sides(client, tokens)}
        print(
            f"\n{size.name}'s size, {size.sequences} x {size.length} tokens, micro-batches of {size.together}, {dtype}"
        )
        print(f"{'':58}{'ms':>9}  {'x plain':>8}  {'GB':>7}  must", flush=True)
        found: dict[str, Measured] = {}
        rows: list[Row] = []
        for name in (PLAIN, BY_HAND, SEPARABLE, WHOLE, BY_HAND_LOGITS, LOGITS):
            if name in sides:
                measured(name, sides[name], size, found)
                rows += judged(name, size, found)
    return rows, found


def measured(name: str, side: Side, size: Size, found: dict[str, Measured]) -> None:
    """Time a side, and print its line; one that does not fit has none."""
    _free()
    try:
        # Two micro-batches, so that whatever is compiled for one pass over parts is compiled.
        side(2 * size.together)
        if GPU:
            torch.cuda.reset_peak_memory_stats()
        taken, step = timed(side, size.sequences)
        rounds = 3 if GPU and taken < 1e3 * _LONG else 1
        if name == LOGITS and not size.by_hand_logits:
            # Of which only the memory is limited.
            rounds = 0
        all_taken = [taken, *(timed(side, size.sequences)[0] for _ in range(rounds))]
    except Exception as error:
        if not _out_of_memory(error):
            raise
        print(f"{name:<58}does not fit: {str(error).splitlines()[0][:80]}", flush=True)
        return
    gigabytes = torch.cuda.max_memory_allocated() / 1e9 if GPU else 0.0
    found[name] = Measured(all_taken, gigabytes, step)
    middle = statistics.median(all_taken)
    plain = statistics.median(found[PLAIN].milliseconds) if PLAIN in found else math.nan
    print(f"{name:<58}{middle:9.1f}  {middle / plain:8.3f}  {gigabytes:7.2f}", flush=True)


def timed(side: Side, sequences: int) -> tuple[float, Step]:
    """Milliseconds of a step."""
    _wait()
    start = time.perf_counter()
    step = side(sequences)
    _wait()
    return 1e3 * (time.perf_counter() - start), step


def judged(name: str, size: Size, found: Mapping[str, Measured]) -> list[Row]:
    """The rows of a side of ours: against the plain loop with the same terms, or those that one pass can compute."""
    if not GPU or name not in LIMITS:
        return []
    plain, most = LIMITS[name]
    case = f"{size.name}: {name.removeprefix(f'{OURS}, + ')}"
    rows: list[Row] = []
    if plain in found:
        # One that did not fit is over any limit.
        taken = found[name].milliseconds if name in found else [math.inf]
        rows.append(ratio_row(case, found[plain].milliseconds, taken, most))
        verdict = "MISSED" if rows[0].over else "met"
        print(f"{'':58}{'x by hand':>9}  {rows[0].ratio:8.3f}  {'':7}  {most:.2f} {verdict}", flush=True)
    if name == LOGITS and not size.by_hand_logits:
        peak = found[name].gigabytes if name in found else math.inf
        rows += memory_row(f"{size.name}, three terms: the most memory", GIGABYTES, peak, most=GIGABYTES)
    return rows


def compared(found: Mapping[str, Measured]) -> None:
    """Raise if sides that compute the same do not agree."""
    for ours, plain in ((SEPARABLE, BY_HAND), (LOGITS, BY_HAND_LOGITS)):
        if ours in found and plain in found:
            for mine, theirs in zip(found[ours].step, found[plain].step, strict=True):
                torch.testing.assert_close(mine, theirs, rtol=2e-2 if GPU else 1e-4, atol=0.0)


# Ours.


def spread(flat_logprobs: Tensor) -> Tensor:
    """A term over the whole batch: how much log-probabilities differ."""
    return flat_logprobs.std()


def our_sides(client: LocalTrainingClient, tokens: Tensor) -> dict[str, Side]:
    """A step of the program: its losses and terms by name, as a config has them."""
    squares = pn.Term(pn.l2, weight=SQUARES, inputs="logprobs", options={"reduction": "mean"})
    estimate = pn.Term(pn.entropy_estimate, weight=ESTIMATE, inputs="logprobs")
    options = {"logits": True}
    full = [
        pn.Term(pn.entropy, weight=ENTROPY, inputs="logits", options=options),
        pn.Term(pn.kl_divergence, weight=KL, inputs=("initial.logits", "logits"), options=options),
    ]
    initial = {"initial": references.initial()}

    def side(terms: Sequence[pn.Term], given: Mapping[str, Any] | None = None) -> Side:
        def step(sequences: int) -> Step:
            passed = forward_backward_custom(
                client, data_of(tokens[:sequences]), "cross_entropy", regularizers=terms, references=given
            )
            stepped = client.optim_step(AdamParams(learning_rate=0.0, grad_clip_norm=CLIP))
            loss = passed.result().metrics["total"]
            return Step(loss, stepped.result().metrics["unclipped_grad_l2:mean"])

        return step

    return {
        SEPARABLE: side([estimate, squares]),
        WHOLE: side([estimate, squares, pn.Term(spread, weight=SQUARES)]),
        LOGITS: side([*full, squares], initial),
    }


def data_of(tokens: Tensor) -> list[Datum]:
    weight = 1.0 / tokens[:, 1:].numel()
    return [
        Datum(ModelInput.from_ints(row[:-1]), {"target_tokens": row[1:], "weights": [weight] * (len(row) - 1)})
        for row in tokens.tolist()
    ]


# Plain loops.


def plain_sides(client: LocalTrainingClient, tokens: Tensor, size: Size) -> dict[str, Side]:
    """The same model in a loop by hand."""
    model = client.model
    parameters = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.0, weight_decay=0.0, fused=True)

    def logits_of(read: Tensor) -> Tensor:
        return model(input_ids=read, use_cache=False).logits.flatten(0, 1).float()

    def alone(read: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits_of(read), targets)

    def estimates(read: Tensor, targets: Tensor) -> Tensor:
        nll = cross_entropy(logits_of(read), targets, reduction="none")
        return (1 + ESTIMATE) * nll.mean() + SQUARES * nll.square().mean()

    def full(read: Tensor, targets: Tensor) -> Tensor:
        with torch.no_grad(), model.disable_adapter():
            before = log_softmax(logits_of(read), -1)
        now = log_softmax(logits_of(read), -1)
        nll = -now.gather(1, targets[:, None])
        entropy = -(now.exp() * now).sum(-1).mean()
        kl = (before.exp() * (before - now)).sum(-1).mean()
        return nll.mean() + ENTROPY * entropy + KL * kl + SQUARES * nll.square().mean()

    def side(loss: Callable[[Tensor, Tensor], Tensor]) -> Side:
        def step(sequences: int) -> Step:
            # Checkpointing is for training alone.
            model.train()
            total = torch.zeros((), device=DEVICE)
            parts = tokens[:sequences].split(size.together)
            for part in parts:
                here = part.to(DEVICE)
                value = loss(here[:, :-1], here[:, 1:].flatten()) / len(parts)
                value.backward()
                total += value.detach()
            norm = torch.nn.utils.clip_grad_norm_(parameters, CLIP)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            model.eval()
            return Step(total.item(), norm.item())

        return step

    sides = {PLAIN: side(alone), BY_HAND: side(estimates)}
    return {**sides, BY_HAND_LOGITS: side(full)} if size.by_hand_logits else sides


def save_model(folder: Path, size: Size, dtype: torch.dtype) -> None:
    """A random model, made where it is fast."""
    from transformers import AutoModelForCausalLM, Qwen3Config

    torch.manual_seed(0)
    loader: Any = AutoModelForCausalLM
    with torch.device(DEVICE):
        model = loader.from_config(Qwen3Config(**size.config), dtype=dtype)
    model.save_pretrained(folder)
    del model
    _free()


def _out_of_memory(error: BaseException | None) -> bool:
    """Whether that is what failed, perhaps inside a term."""
    return error is not None and (isinstance(error, torch.OutOfMemoryError) or _out_of_memory(error.__cause__))


def _free() -> None:
    gc.collect()
    if GPU:
        torch.cuda.empty_cache()


def _wait() -> None:
    if GPU:
        torch.cuda.synchronize()
