"""Several processes: the loss that each propagates, and values and gradients of the objective that they share."""

import contextlib
import dataclasses
import functools
import math
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from ..backends import Backend, owner
from ..errors import GradientError, OptionError
from ..pipeline import LossOutput, Term, TermOutput
from ..pipeline.combine import compared
from ..pipeline.gradients import announce, points_of, unreached, with_base, with_norms
from ..pipeline.gradients import track as track_here
from ..pipeline.inputs import lookup
from ..pipeline.output import BASE
from ..pipeline.scope import PARAMS, scope_of
from ..pipeline.sums import Sums
from ..pipeline.term import Scope
from .scope import MicroBatch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

__all__ = [
    "average",
    "averaged",
    "check_wrappers",
    "loss",
    "measuring",
    "ranks",
    "reduce",
    "replicas",
    "synchronized",
    "track",
]


def ranks(group: Any = None) -> int:
    """How many processes share an objective; 1 where `torch.distributed` was not started."""
    import torch.distributed as dist

    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def replicas(model: Any) -> "tuple[int, ProcessGroup | None]":
    """How many processes a model is trained by, and their group: under DDP, under FSDP2, or 1 for any other model.

    The wrapper may be inside: `torch.compile(DistributedDataParallel(…))`, or layers that are sharded one by one.
    """
    check_wrappers("replicas", model)
    ddp, sharded = _wrappers(model)
    if (ddp and sharded) or len(ddp) > 1:
        names = [type(module).__name__ for module in (*ddp, *sharded)]
        raise OptionError("replicas", "the model", ", ".join(names), "one wrapper that averages gradients, not several")
    if ddp:
        return ranks(ddp[0].process_group), ddp[0].process_group
    if sharded:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        meshes = [getattr(parameter, "device_mesh", None) for parameter in trained]
        sizes = {mesh.size() for mesh in meshes if mesh is not None}
        if sizes != {ranks()} or None in meshes:
            beside = ", and parameters without one" if None in meshes else ""
            given = f"{sorted(sizes)} of {ranks()} processes{beside}"
            expected = "one over all processes for every parameter: shard the whole model by fully_shard(model)"
            raise OptionError("replicas", "the mesh of the model", given, expected)
        if any(sum(not part.is_replicate() for part in placed.placements) > 1 for placed in trained):
            expected = "FSDP2 alone: with tensor parallelism, processes share a batch, and terms would count twice"
            raise OptionError("replicas", "the model", "FSDP2 with tensor parallelism", expected)
        return ranks(), None
    return 1, None


def check_wrappers(function: str, model: Any) -> None:
    """Raise where a model, or a part of it, is under FSDP1: its parameters are then pieces of flat arrays."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    if fsdp and ranks() > 1 and any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        expected = "fully_shard(model) of torch.distributed.fsdp, whose parameters are whole to a term"
        raise OptionError(function, "the model", "FullyShardedDataParallel", expected)


def _wrappers(model: Any) -> tuple[list[Any], list[Any]]:
    """The modules under DDP, and those under FSDP2, in a model."""
    parallel: Any = sys.modules.get("torch.nn.parallel")
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    modules = list(model.modules()) if ranks() > 1 else []
    ddp = [module for module in modules if parallel and isinstance(module, parallel.DistributedDataParallel)]
    return ddp, [module for module in modules if fsdp and isinstance(module, fsdp.FSDPModule)]


@contextlib.contextmanager
def synchronized(model: Any, *, last: bool) -> Generator[None]:
    """Around the passes of a micro-batch: gradients are added up over processes with the last one of a step only."""
    ddp, sharded = _wrappers(model) if not last else ([], [])
    with contextlib.ExitStack() as stack:
        for module in ddp:
            stack.enter_context(module.no_sync())
        for module in sharded:
            module.set_requires_gradient_sync(False)
            stack.callback(module.set_requires_gradient_sync, True)
        yield


def loss(out: LossOutput, *, group: "ProcessGroup | None" = None) -> "Tensor":
    """The loss for `backward()` in a process, where gradients are averaged over processes, as DDP and FSDP2 do.

    Terms that average over the data of a process, and those of parameters, are right as they are. A term of scope "sum"
    adds up over processes, and is multiplied by their number here.

    >>> import torch
    >>> import penalties as pn
    >>> from penalties.integrations import distributed
    >>> out = pn.Pipeline([pn.Term(pn.l2, inputs="hidden")])(hidden=torch.ones(2, 3, requires_grad=True))
    >>> distributed.loss(out).item()  # in one process
    6.0
    """
    batch = MicroBatch(ranks=ranks(group), applied=1 / ranks(group))
    more: list[Any] = [
        term.contribution * (batch.factor("sum") - 1.0)
        for term in out
        if term.value is not None and _scope(out, term.name, batch) == "sum"
    ]
    total: Any = sum(more, out.total)
    return total


def reduce(out: LossOutput, *, group: "ProcessGroup | None" = None) -> LossOutput:
    """The output with the values of the objective that all processes share, the same in each of them.

    A term of scope "mean", and the base loss, is the mean over processes; one of scope "sum" is the sum. Every process
    must come here. Norms and cosines are those of one process, and are left out: `track` takes them of all.
    """
    count = ranks(group)
    terms = [term for term in out.all if term.value is not None]
    if not terms:
        return out
    shares = [_share(out, term.name, count) for term in terms]
    values = [term.value.detach() * share for term, share in zip(terms, shares, strict=True)]
    found = dict(zip([term.name for term in terms], _summed(values, group), strict=True))
    return _with_values(out, found)


def track(
    out: LossOutput,
    *,
    at: Any = None,
    wrt: Any = None,
    base: Any = None,
    cosines: bool = True,
    group: "ProcessGroup | None" = None,
) -> LossOutput:
    """`pn.gradients.track` of the objective that all processes share: values, norms and cosines, the same in each.

    `at` is a tensor that the terms share, of this process's data, as hidden states are. `wrt` is parameters of which
    each process has a copy, as under DDP. The graph is kept. Every process must come here, with the same terms.

    Parameters under FSDP2 are not on the graph of a loss, and raise; norms of terms that read nothing else come from
    `value_and_grad`.
    """
    shares = functools.partial(_share, out, count=ranks(group))
    start = time.perf_counter()
    measured = _tracked(out, shares, at=at, wrt=wrt, base=base, cosines=cosines, group=group)
    output = with_norms(reduce(measured, group=group), measured)
    announce(output, time.perf_counter() - start)
    return output


def measuring(
    name: str, inputs: Mapping[str, Any], batch: MicroBatch, base: Any = None, *, cosines: bool, group: Any = None
) -> Callable[[LossOutput, Mapping[str, Scope | None]], LossOutput]:
    """What `Accumulation.add` calls for norms and cosines at an input, of micro-batches of which each rank has one.

    They are those of an optimizer step of these micro-batches alone, the same on each rank; every rank must come here.
    `base` is the trainer's own loss, as it is to be given to the trainer; None where the pipeline has it.
    """
    import torch

    point = {"wrt" if name == PARAMS else "at": lookup("norms_at", inputs, name)}
    mean: Any = None
    if base is not None:
        # The mean over the micro-batch, whatever the trainer divides by.
        share = torch.as_tensor(batch.share("mean"), device=base.device)
        mean = base * torch.where(share > 0, batch.applied / share, 0.0)

    def measured(out: LossOutput, scopes: Mapping[str, Scope | None]) -> LossOutput:
        if batch.ranks == 1:
            return track_here(out, base=mean, cosines=cosines, **point)
        part = batch.part
        if part is not None:
            together = averaged(part, group) * batch.ranks
            # Where nothing counts, in no process, all parts are 0.
            part = part / (together + (together == 0))
        whole = MicroBatch(ranks=batch.ranks, part=part)

        def share_of(name: str) -> Any:
            return whole.share(scopes.get(name) or "mean")

        return _tracked(out, share_of, **{"at": None, "wrt": None, **point}, base=mean, cosines=cosines, group=group)

    return measured


def _tracked(
    out: LossOutput, share_of: Callable[[str], Any], *, at: Any, wrt: Any, base: Any, cosines: bool, group: Any
) -> LossOutput:
    """The output with norms and cosines of what all processes share; a term is `Σ share·value` over them.

    Without cosines no gradient is kept: those of two terms exist at a time, and the sum of all.
    """
    import torch

    out = with_base("distributed.track", out, base)
    _, points, what = points_of("distributed.track", out, at=at, wrt=wrt)
    ops = cast("Backend", owner(out.total))

    def gradients_of(term: TermOutput) -> list[Any]:
        found: Sequence[Any] = [None] * len(points)
        if getattr(term.value, "requires_grad", False):
            found = torch.autograd.grad(term.value, points, retain_graph=True, allow_unused=True)
        share = share_of(term.name)
        scaled = [None if gradient is None else gradient.to_dense() * share for gradient in found]
        return scaled if wrt is None else _added_up(points, scaled, group)

    def added(products: Any) -> Any:
        # Where each process has rows of its own, inner products add up.
        return products if wrt is not None else _summed([products], group)[0]

    gram: Any = None
    between: Any = None
    here: list[bool] = []
    if cosines:
        gradients = [gradients_of(term) for term in out.all]
        here = [_is_reached(row) for row in gradients]
        gram = added(compared(ops, gradients)[0])
        lengths = gram.diagonal().clamp(min=0).sqrt()
        norms = lengths[:, None] * lengths[None, :]
        between = gram / torch.where(norms > 0, norms, math.nan)
        weights = torch.stack([torch.as_tensor(term.weight, dtype=gram.dtype, device=gram.device) for term in out.all])
        total = (weights @ gram @ weights).clamp(min=0).sqrt()
    else:
        sums = Sums(ops, len(points))
        squares: list[Any] = []
        for term in out.all:
            row = gradients_of(term)
            here.append(_is_reached(row))
            squares.append(_square(ops, row, points[0]))
            sums.add(row, term.weight)
        squares.append(_square(ops, sums.leaves, points[0]))
        *lengths, total = added(torch.stack(squares)).sqrt().to(torch.promote_types(out.total.dtype, torch.float32))
    measured = {
        term.name: (length, None) if has else (None, unreached(what, "PyTorch"))
        for term, length, has in zip(out.all, lengths, _anywhere(here, points[0], group), strict=True)
    }

    def with_norm(term: TermOutput) -> TermOutput:
        length, error = measured[term.name]
        return dataclasses.replace(term, grad_norm=length, grad_error=None if term.value is None else error)

    return dataclasses.replace(
        out,
        terms={name: with_norm(term) for name, term in out.terms.items()},
        base=None if out.base is None else with_norm(out.base),
        total_grad_norm=total,
        cosines=between,
        gram=gram,
    )


def _is_reached(gradients: Sequence[Any]) -> bool:
    return any(gradient is not None for gradient in gradients)


def _square(ops: Backend, gradients: Sequence[Any], like: Any) -> Any:
    """The square of the length, in float64: that of a float32 may be out of range."""
    import torch

    present = [gradient for gradient in gradients if gradient is not None]
    length = ops.norm(present) if present else torch.zeros(())
    return length.to(like.device, torch.float64).square()


def average(out: LossOutput, *, group: "ProcessGroup | None" = None) -> LossOutput:
    """The output with values whose mean over processes is the term, as `Accumulation.finish` returns them, averaged.

    Norms and cosines stay: `measuring` takes them of all processes.
    """
    terms = [term for term in out.all if term.value is not None]
    count = ranks(group)
    if count == 1 or not terms:
        return out
    values = _summed([term.value.detach() / count for term in terms], group)
    return with_norms(_with_values(out, dict(zip([term.name for term in terms], values, strict=True))), out)


def averaged(value: Any, group: "ProcessGroup | None" = None) -> Any:
    """The mean of a number or a tensor over processes."""
    import torch

    if isinstance(value, torch.Tensor):
        tensor = value.detach()
    else:
        tensor = torch.tensor(float(value), dtype=torch.float64, device=_device(group))
    (total,) = _summed([tensor], group)
    mean = total / ranks(group)
    return mean if isinstance(value, torch.Tensor) else float(mean)


def _with_values(out: LossOutput, values: dict[str, Any]) -> LossOutput:
    terms = [_plain(term, values.get(term.name)) for term in out]
    base = None if out.base is None else _plain(out.base, values.get(BASE))
    made = LossOutput.of(terms, base=base)
    return dataclasses.replace(made, state=out.state, record=out.record)


def _plain(term: TermOutput, value: Any) -> TermOutput:
    return dataclasses.replace(term, value=value, grad_norm=None, grad_norms={}, grad_error=None, gradient=None)


def _share(out: LossOutput, name: str, count: int) -> float:
    """What the value of one process is multiplied by in the term that they share."""
    batch = MicroBatch(ranks=count)
    return batch.share("mean" if name == BASE else _scope(out, name, batch))


def _scope(out: LossOutput, name: str, batch: MicroBatch) -> Scope:
    """The scope of a term. "mean" and "step" are the same arithmetic here; "sum" must be certain."""
    if batch.alone:
        return "mean"
    if out.record is None:
        raise GradientError("distributed: this output does not know its pipeline; pass it as the pipeline returned it")
    term = out.record.pipeline[name]
    scope = scope_of(term)
    if scope is None or (scope == "sum" and term.scope is None and not _reads_data(out, term)):
        expected = (
            f'"mean", "sum" or "step": there are {batch.ranks} processes, and it is not clear how its values add up'
        )
        raise OptionError(name, "scope", None, expected)
    return scope


def _reads_data(out: LossOutput, term: Term) -> bool:
    """Whether its inputs are arrays, not parameters under a name of the user's."""
    import torch

    assert out.record is not None, "checked by the caller"
    names = [out.record.names[0]] if out.record.alone else [name for name in term.inputs.values() if name != PARAMS]
    arrays = [out.record.arrays[name]() for name in names if name in out.record.arrays]
    # One that is gone by now was not a parameter of a model that is being trained.
    return len(arrays) == len(names) and not any(isinstance(x, torch.nn.Parameter) for x in arrays)


def _summed(values: Sequence[Any], group: Any) -> list[Any]:
    """The sums over processes, in one transfer."""
    import torch

    flat: Any = torch.cat([value.reshape(-1).to(values[0].device, torch.float64) for value in values])
    _all_reduce(flat, group)
    pieces = flat.split([value.numel() for value in values])
    return [piece.reshape(value.shape).to(value.dtype) for piece, value in zip(pieces, values, strict=True)]


def _added_up(points: Sequence[Any], gradients: Sequence[Any], group: Any) -> list[Any]:
    """Gradients at parameters, summed over processes; a process without one counts as 0."""
    import torch

    has = _anywhere([gradient is not None for gradient in gradients], points[0], group)
    found: list[Any] = []
    for point, gradient, there in zip(points, gradients, has, strict=True):
        total: Any = None
        if there:
            total = torch.zeros_like(point) if gradient is None else gradient.contiguous()
            _all_reduce(total, group)
        found.append(total)
    return found


def _anywhere(flags: Sequence[bool], like: Any, group: Any) -> list[bool]:
    """Which flags are set in any process."""
    import torch

    told: Any = torch.tensor([float(flag) for flag in flags], device=like.device)
    _all_reduce(told, group)
    return [flag > 0 for flag in told.tolist()]


def _device(group: Any) -> str:
    """Where a number must be to be added up over processes."""
    import torch.distributed

    started = ranks(group) > 1
    return "cuda" if started and "nccl" in str(torch.distributed.get_backend(group)) else "cpu"


def _all_reduce(x: "Tensor", group: Any) -> None:
    """Add up over processes, in place."""
    if ranks(group) > 1:
        import torch.distributed

        distributed: Any = torch.distributed
        distributed.all_reduce(x, group=group)
