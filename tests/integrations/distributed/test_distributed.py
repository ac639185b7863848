"""Two processes have the values, gradients, norms and cosines of one that sees all data."""

import gc
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import penalties as pn
from penalties.integrations import distributed
from penalties.integrations.scope import MicroBatch
from penalties.integrations.torch import centralize, clip_norm, clip_units, decay, gradient_noise, proximal

from .together import RANKS, together

pytestmark = pytest.mark.slow

TERMS = (
    pn.Term(pn.l2, 0.01, name="decay", inputs="params"),
    pn.Term(pn.l1, 0.02, name="size", inputs="prediction"),
    pn.Term(pn.l2, 0.3, name="mean_size", inputs="prediction", options={"reduction": "mean"}),
    pn.Term(lambda hidden: hidden.tanh().mean(), 0.5, name="own", inputs="hidden", scope="mean"),
)
PIPELINE = pn.Pipeline(TERMS)


def network(outputs: int = 3) -> torch.nn.Sequential:
    torch.manual_seed(0)
    # Odd sizes: shards differ in size, and that of a single output is empty in one process.
    return torch.nn.Sequential(torch.nn.Linear(4, 7), torch.nn.Tanh(), torch.nn.Linear(7, outputs)).double()


def data(count: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(count, 4, dtype=torch.float64, generator=generator)
    return x, torch.randn(count, 3, dtype=torch.float64, generator=generator)


def outputs(model: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[pn.LossOutput, torch.Tensor, torch.Tensor]:
    """The output, the shared tensor and the base loss."""
    seen: list[torch.Tensor] = []
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    handle = inner[1].register_forward_hook(lambda module, args, result: seen.append(result))
    prediction = model(x)
    handle.remove()
    out = PIPELINE(params=list(model.parameters()), prediction=prediction, hidden=seen[0])
    return out, seen[0], (prediction - y).square().mean()


def numbers(out: pn.LossOutput) -> dict[str, Any]:
    nested = out.to_dict()
    for term in (nested["base_loss"], *nested["regularizers"].values()):
        term.pop("duration", None)
        term.pop("custom")
    return nested


def in_ddp(rank: int) -> dict[str, Any]:
    model = DistributedDataParallel(network())
    x, y = (part.chunk(RANKS)[rank] for part in data())
    out, hidden, base = outputs(model, x, y)
    at = distributed.track(out, at=hidden, base=base)
    wrt = distributed.track(out, wrt=list(model.parameters()), base=base)
    (base + distributed.loss(out)).backward()
    return {
        "at": numbers(at),
        "wrt": numbers(wrt),
        "gram": wrt.gram,
        "gradients": [parameter.grad for parameter in model.parameters()],
        "reduced": distributed.reduce(out).metrics(),
    }


def test_ddp_has_the_numbers_of_one_process() -> None:
    model = network()
    out, hidden, base = outputs(model, *data())
    parameters = list(model.parameters())
    at = pn.gradients.track(out, at=hidden, base=base)
    wrt = pn.gradients.track(out, wrt=parameters, base=base)
    (base + out.total).backward()
    for found in together(in_ddp):
        assert found["at"] == close(numbers(at))
        assert found["wrt"] == close(numbers(wrt))
        torch.testing.assert_close(found["gram"], wrt.gram)
        torch.testing.assert_close(found["gradients"], [parameter.grad for parameter in parameters])
        assert found["reduced"] == pytest.approx(out.metrics())


def close(value: Any) -> Any:
    """A nested value, compared as floats are; what is not a number, exactly."""
    if isinstance(value, dict):
        return {key: close(part) for key, part in value.items()}
    if isinstance(value, list):
        return [close(part) for part in value]
    return pytest.approx(value, rel=1e-9, nan_ok=True) if isinstance(value, float) else value


def sharded(rank: int) -> dict[str, Any]:
    model = network()
    fully_shard(model)
    parameters = list(model.parameters())
    own = pn.Term(lambda params: sum((p * p).sum() for p in params), name="own")
    pipeline = pn.Pipeline([pn.Term(fn, 0.1, inputs="params") for fn in (pn.l1, pn.l2, pn.smooth_l1)]).add(
        own.replace(inputs="params")
    )
    measured = pipeline.value_and_grad(params=parameters, cosines=True)
    x, y = (part.chunk(RANKS)[rank] for part in data())
    out, hidden, base = outputs(model, x, y)
    at = distributed.track(out, at=hidden, base=base)
    (base + distributed.loss(out)).backward()
    try:
        distributed.track(out, wrt=parameters)
        raise AssertionError("parameters under FSDP2 are not on the graph")
    except pn.GradientError as error:
        message = str(error)
    return {
        "measured": numbers(measured.__class__(**{**_fields(measured), "base": pn.TermOutput("base_loss", 0.0)})),
        "gram": measured.gram,
        "matrix": pn.orthogonality(parameters[0]).item(),
        "gradients": [parameter.grad.full_tensor() for parameter in parameters],
        "at": numbers(at),
        "message": message,
    }


def _fields(out: pn.LossOutput) -> dict[str, Any]:
    return {name: getattr(out, name) for name in ("total", "terms", "regularizer_total", "total_grad_norm", "cosines")}


def test_fsdp_has_the_numbers_of_one_process() -> None:
    model = network()
    parameters = list(model.parameters())
    pipeline = pn.Pipeline([pn.Term(fn, 0.1, inputs="params") for fn in (pn.l1, pn.l2, pn.smooth_l1)])
    measured = pipeline.value_and_grad(params=parameters, cosines=True)
    out, hidden, base = outputs(model, *data())
    at = pn.gradients.track(out, at=hidden, base=base)
    (base + out.total).backward()
    for found in together(sharded):
        terms = found["measured"]["regularizers"]
        for name in pipeline.names:
            assert terms[name]["value"] == pytest.approx(measured[name].value.item())
            assert terms[name]["grad_norm"] == pytest.approx(float(measured[name].grad_norm))
        assert terms["own"]["value"] == pytest.approx(measured["l2"].value.item())
        assert terms["own"]["grad_norm"] == pytest.approx(float(measured["l2"].grad_norm))
        torch.testing.assert_close(found["gram"][:3, :3], measured.gram)
        assert found["matrix"] == pytest.approx(pn.orthogonality(parameters[0]).item())
        torch.testing.assert_close(found["gradients"], [parameter.grad for parameter in parameters])
        assert found["at"] == close(numbers(at))
        assert "spread over processes (FSDP2)" in found["message"]


def without_cosines(rank: int) -> dict[str, Any]:
    model = DistributedDataParallel(network())
    x, y = (part.chunk(RANKS)[rank] for part in data())
    out, hidden, base = outputs(model, x, y)
    alone = distributed.track(out, at=hidden, base=base, cosines=False)
    points: list[tuple[str, Any]] = [("at", hidden), ("wrt", list(model.parameters()))]
    return {
        "found": [numbers(distributed.track(out, base=base, cosines=False, **{name: x})) for name, x in points],
        "expected": [numbers(distributed.track(out, base=base, **{name: x})) for name, x in points],
        "compared": alone.gram is not None or alone.cosines is not None,
        "held": {cosines: held(cosines) for cosines in (True, False)},
    }


def held(cosines: bool) -> list[int]:
    """How many arrays of the size of the shared tensor there are before each pass from a term to there."""
    counts: list[int] = []
    hidden = torch.ones(3, 5, 7, requires_grad=True) * 2

    def count(gradient: torch.Tensor) -> None:
        counts.append(sum(isinstance(x, torch.Tensor) and x.shape == hidden.shape for x in gc.get_objects()))

    def size(hidden: torch.Tensor) -> torch.Tensor:
        value = hidden.square().sum()
        value.register_hook(count)
        return value

    terms = [pn.Term(size, name=f"size{index}", inputs="hidden", scope="sum") for index in range(6)]
    distributed.track(pn.Pipeline(terms)(hidden=hidden), at=hidden, cosines=cosines)
    return counts


def test_norms_alone_hold_no_gradients() -> None:
    for found in together(without_cosines):
        for one, other in zip(found["found"], found["expected"], strict=True):
            other.pop("cosines")
            assert one == close(other)
        assert not found["compared"]
        assert max(found["held"][False]) - found["held"][False][0] == 2
        assert max(found["held"][True]) - found["held"][True][0] == 5


def without_tokens(rank: int) -> list[dict[str, float]]:
    x = torch.full((3,), 2.0, requires_grad=True)
    pipeline = pn.Pipeline([TERMS[1], TERMS[2]])
    batch = MicroBatch(2, RANKS, part=torch.tensor(0.0), applied=1 / RANKS)
    found: list[dict[str, float]] = []
    for cosines in (True, False):
        measure = distributed.measuring("prediction", {"prediction": x}, batch, x.sum() * 0.0, cosines=cosines)
        out = measure(pipeline(prediction=x), {"size": "sum", "mean_size": "mean"})
        found.append({term.name: float(term.grad_norm) for term in out.all})
    return found


def test_where_no_token_counts_norms_are_numbers() -> None:
    # Two processes with three signs each.
    expected = pytest.approx({"base_loss": 0.0, "size": 6**0.5, "mean_size": 0.0})
    for found in together(without_tokens):
        assert found == [expected, expected]


STEP = pn.Pipeline(
    [
        pn.Term(pn.l2, 0.01, name="decay", inputs="params"),
        pn.Term(pn.l1, 0.02, name="size", inputs="prediction"),
        pn.EMA(pn.Term(pn.l2, 0.3, name="mean_size", inputs="prediction", options={"reduction": "mean"}), 0.9),
    ]
)


def trained(rank: int, kind: str, micro_batches: int) -> tuple[list[torch.Tensor], list[dict[str, float]], Any]:
    model: Any = network(outputs=1)
    if kind in ("ddp", "compiled"):
        model = DistributedDataParallel(model)
        model = torch.compile(model, backend="eager") if kind == "compiled" else model
    elif kind == "fsdp":
        fully_shard(model)
    ranks = 1 if kind == "one" else RANKS
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = pn.train_step(model, torch.nn.functional.mse_loss, STEP, optimizer, max_norm=1.0)
    x, y = data()
    y = y[:, :1]
    # Both processes take their part of each micro-batch.
    parts = [
        (a.chunk(ranks)[rank], b.chunk(ranks)[rank])
        for a, b in zip(x.chunk(micro_batches), y.chunk(micro_batches), strict=True)
    ]
    metrics = [step.accumulate(parts) for _ in range(10)]
    state = float(step.loss.state["mean_size"]["before"])
    whole = [p.full_tensor() if kind == "fsdp" else p for p in model.parameters()]
    return [p.detach() for p in whole], metrics, state


@pytest.mark.parametrize(
    ("kind", "micro_batches"),
    [("ddp", 1), ("ddp", 4), ("ddp", 8), ("fsdp", 1), ("fsdp", 4), ("fsdp", 8), ("compiled", 4)],
)
def test_ten_steps_end_where_those_of_one_process_end(kind: str, micro_batches: int) -> None:
    expected, metrics, state = trained(0, "one", micro_batches)
    for found, logged, kept in together(trained, kind, micro_batches):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        assert logged == [pytest.approx(line) for line in metrics]
        assert kept == pytest.approx(state)


def skipped(rank: int) -> list[float]:
    calls: list[int] = []

    def flaky(prediction: Any) -> Any:
        calls.append(1)
        # In the first step one process has no value at all, in the second one has a part.
        if rank == 1 and len(calls) < 4:
            raise ValueError("not here")
        return prediction.sum() * 0.0 + rank + 1.0

    model = DistributedDataParallel(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    terms = pn.Pipeline([pn.EMA(pn.Term(flaky, name="flaky", scope="mean", on_error="skip"), 0.5), *STEP])
    step = pn.train_step(model, torch.nn.functional.mse_loss, terms, optimizer)
    parts = list(zip(*(part.chunk(2) for part in data()), strict=True))
    return [*(step.accumulate(parts)["flaky"] for _ in range(3)), float(step.loss.state["mean_size"]["before"])]


def test_processes_may_differ_in_which_terms_they_skip() -> None:
    first, second = together(skipped)
    assert first == pytest.approx(second)
    # A running mean that starts with the second step, the first in which both have a value.
    mean = (1 + 1 + 2) / 3
    assert first[:3] == pytest.approx([1.0, mean, (mean + 1.5) / 2])


TRANSFORMS: dict[str, tuple[Any, dict[str, Any]]] = {
    "decay": (decay, {"l1": 0.1, "l2": 0.2}),
    "coupled decay": (decay, {"l1": 0.1, "l2": 0.2, "decoupled": False}),
    "proximal": (proximal, {"l1": 0.3, "l2": 0.1}),
    "rows": (proximal, {"group": 0.5}),
    "columns": (proximal, {"group": 0.5, "axis": 1}),
    "clip_norm": (clip_norm, {"max_norm": 0.1}),
    "clip_units": (clip_units, {"ratio": 0.1}),
    "clip_units of columns": (clip_units, {"ratio": 0.1, "axis": 1}),
    "centralize": (centralize, {}),
    "centralize columns": (centralize, {"axis": 1}),
    "gradient_noise": (gradient_noise, {"variance": 1.0}),
}


def transformed(rank: int, kind: str) -> dict[str, list[torch.Tensor]]:
    found = {}
    for name, (transform, options) in TRANSFORMS.items():
        model = network(outputs=1)
        if kind == "fsdp":
            fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        transform(optimizer, **options)
        generator = torch.Generator().manual_seed(3)
        for parameter in model.parameters():
            gradient = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
            if kind == "fsdp":
                gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
            parameter.grad = gradient
        optimizer.step()
        found[name] = [(p.full_tensor() if kind == "fsdp" else p).detach() for p in model.parameters()]
    return found


def test_transforms_of_the_optimizer_change_shards_as_they_change_the_whole() -> None:
    expected = transformed(0, "one")
    for found in together(transformed, "fsdp"):
        for name in TRANSFORMS:
            torch.testing.assert_close(found[name], expected[name], msg=lambda text, name=name: f"{name}: {text}")


class TestScopes:
    """Without processes nothing is ambiguous; with two, only what adds up must be certain."""

    def test_one_process_needs_no_scope(self) -> None:
        x = torch.ones(3, requires_grad=True)
        out = pn.Pipeline([pn.Term(lambda x: x.sum(), name="own")])(x=x)
        assert distributed.loss(out) == distributed.reduce(out).total == out.total
        assert distributed.track(out, at=x)["own"].grad_norm == pn.gradients.track(out, at=x)["own"].grad_norm

    def test_two_processes_do(self) -> None:
        assert together(_messages) == [(True, True, True)] * RANKS


def _messages(rank: int) -> tuple[bool, ...]:
    x, layer = torch.ones(3, requires_grad=True), torch.nn.Linear(2, 2)
    pipelines: list[tuple[Any, dict[str, Any]]] = [
        (pn.Term(lambda x: x.sum(), name="own"), {"x": x}),
        # Parameters under another name than "params": whether they add up is not said.
        (pn.Term(pn.l2, inputs="mine"), {"mine": list(layer.parameters())}),
    ]
    found: list[bool] = []
    for term, inputs in pipelines:
        try:
            distributed.loss(pn.Pipeline([term])(**inputs))
            found.append(False)
        except pn.OptionError as error:
            found.append("there are 2 processes" in str(error))
    try:
        distributed.reduce(pn.Pipeline(["l1"])(x).read())
        found.append(False)
    except pn.GradientError as error:
        found.append("does not know its pipeline" in str(error))
    return tuple(found)
