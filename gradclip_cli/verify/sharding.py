"""B6xx: several ranks. The norm is that of the whole gradient, and every rank uses the same coefficient."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gradclip_cli.clipping import reference
from gradclip_cli.verify.bench import (
    NORM_TYPES,
    Bench,
    allowed,
    as_float64,
    coefficient_of,
    expected_coefficients,
    grads_of,
    local_part,
    name_of,
    nearest,
)
from gradclip_cli.verify.outcome import Outcome, Unjudged, first_line, number

_ROWS = 8  # of the batch, on each rank
_RATIO = 3.7


def process_group(bench: Bench) -> Outcome:
    """The ranks find one another and add up right."""
    group = bench.group
    tensor = torch.tensor([2.0**group.rank % 1021, 1.0], device=bench.device)
    dist.all_reduce(tensor)
    expected = [float(sum(2.0**r % 1021 for r in range(group.world_size))), float(group.world_size)]
    ok = tensor.tolist() == expected
    sent = "gloo" if bench.device.type == "cpu" else "nccl"
    evidence = {"sum": float(tensor[0]), "expected": expected[0], "world_size": float(group.world_size)}
    if not ok:
        return Outcome(False, f"an all-reduce over {sent} gives {tensor.tolist()}, expected {expected}", evidence)
    return Outcome(True, f"{group.world_size} ranks over {sent} add up right", evidence)


class Model:
    """Two layers, the same on every rank, and this rank's part of the batch; sizes that every number of ranks divides.

    Attributes:
        full: The gradient of the whole batch, computed on this rank alone: what the sharded one must be.
        norm: Its norm, 3.7 times the bound.
    """

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.dtype = bench.model_dtype
        if not bench.holds(self.dtype):
            raise Unjudged(f"{name_of(self.dtype)} cannot hold gradients around {bench.max_norm:g}")
        group = bench.group
        rng = np.random.default_rng(23)
        self._width = group.world_size
        self._weights = [rng.standard_normal(p.shape) / 3 for p in self._empty().parameters()]
        rows = _ROWS * group.world_size
        self._x = bench.plant(rng.standard_normal((rows, 8)), self.dtype)
        self._y = bench.plant(rng.standard_normal((rows, 2 * self._width)), self.dtype)
        self._factor = 1.0
        alone = self.module()
        self.loss(alone, slice(None)).backward()
        self._factor = _RATIO * bench.max_norm / reference.total_norm(grads_of(alone.parameters()))
        alone.zero_grad()
        self.loss(alone, slice(None)).backward()
        self.full = grads_of(alone.parameters())
        self.norm = reference.total_norm(self.full)

    def module(self) -> torch.nn.Sequential:
        """A new copy on the device."""
        module = self._empty()
        with torch.no_grad():
            for p, w in zip(module.parameters(), self._weights, strict=True):
                p.copy_(torch.from_numpy(w))
        return module.to(self.bench.device, self.dtype)

    def _empty(self) -> torch.nn.Sequential:
        return torch.nn.Sequential(torch.nn.Linear(8, 4 * self._width), torch.nn.Tanh(), torch.nn.Linear(4 * self._width, 2 * self._width))

    def loss(self, module: Callable[[torch.Tensor], torch.Tensor], rows: slice) -> torch.Tensor:
        """The mean over these rows."""
        return module(self._x[rows]).sub(self._y[rows]).square().mean() * self._factor

    def part(self, index: int, parts: int) -> slice:
        """The rows of one of several data-parallel ranks."""
        each = _ROWS * self.bench.group.world_size // parts
        return slice(index * each, (index + 1) * each)

    def backward(self, module: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Of this rank's part of the batch."""
        group = self.bench.group
        self.loss(module, self.part(group.rank, group.world_size)).backward()

    def judge(self, what: str, parameters: Sequence[torch.Tensor], clip: Callable[[], float], more: str = "") -> Outcome:
        """Clip, and compare norm, coefficient and gradient of every rank with the unsharded ones."""
        before = [as_float64(local_part(p.grad)) for p in parameters if p.grad is not None]
        returned = clip()
        after = [as_float64(local_part(p.grad)) for p in parameters if p.grad is not None]
        coefficient = coefficient_of(before, after)[0]
        return _agreement(self.bench, what, returned, coefficient, self.norm, allowed(self.dtype), more)


def _agreement(bench: Bench, what: str, returned: float, coefficient: float, norm: float, tolerance: float, more: str = "") -> Outcome:
    """Norms and coefficients of all ranks beside the right ones; the ranks that are wrong are named. A collective."""
    seen: list[tuple[float, float]] = bench.group.gather((returned, coefficient))
    right = nearest(coefficient, expected_coefficients(norm, bench.max_norm))
    wrong_norm = [r for r, (n, _) in enumerate(seen) if not abs(n - norm) <= tolerance * norm]
    # A rank whose shard is empty or zero scales nothing.
    wrong_coef = [r for r, (_, c) in enumerate(seen) if not math.isnan(c) and abs(c - right) > tolerance * right]
    error = max(abs(n - norm) / norm for n, _ in seen)
    evidence = {"norm": norm, "coefficient": right, "relative_error": error, "num_wrong": float(len({*wrong_norm, *wrong_coef}))}
    if wrong_coef:
        values = [seen[r][1] for r in wrong_coef]
        said = f"{what}: {_who(wrong_coef, bench)} scaled the gradients by {_values(values)}; the coefficient is {number(right)}"
        said += f" (norms returned there: {_values([seen[r][0] for r in wrong_coef])}, the unsharded one is {number(norm)})"
        return Outcome(False, said, {**evidence, "first_wrong_rank": float(wrong_coef[0])})
    if wrong_norm:
        said = f"{what}: {_who(wrong_norm, bench)} returned {_values([seen[r][0] for r in wrong_norm])}; the unsharded norm is {norm:.6g}"
        return Outcome(False, said, {**evidence, "first_wrong_rank": float(wrong_norm[0])})
    return Outcome(
        True,
        f"{what}: on all {len(seen)} ranks the norm is the unsharded one (relative error {number(error)} of {number(tolerance)} allowed) "
        f"and the coefficient {number(right)}{more}",
        evidence,
    )


def _who(ranks: list[int], bench: Bench) -> str:
    if len(ranks) == bench.group.world_size:
        return "every rank"
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _values(values: list[float]) -> str:
    if len(values) == 1 or max(values) - min(values) <= 1e-6 * abs(max(values)):
        return number(values[0])
    return ", ".join(number(v) for v in values[:4]) + (", ..." if len(values) > 4 else "")


def ranks_agree(bench: Bench) -> Outcome:
    """The same gradients on every rank are clipped alike: a device or a rank that clips differently is named."""
    label, errors = "", []
    for case in bench.cases(_RATIO):
        returned = bench.clip(case.parameters, norm_type=case.norm_type, foreach=case.foreach)
        coefficient = coefficient_of(case.before, grads_of(case.parameters))[0]
        label = f"the same gradients on every rank, {case.label}"
        outcome = _agreement(bench, label, returned, coefficient, case.norm, allowed(case.dtype))
        if not outcome.ok:
            return outcome
        errors.append(outcome.evidence["relative_error"])
    if not errors:
        raise Unjudged("no dtype here can hold such gradients")
    return Outcome(
        True,
        f"the same gradients are clipped alike on all {bench.group.world_size} ranks, in {len(errors)} cases",
        {"num_cases": float(len(errors)), "relative_error": max(errors)},
    )


def ddp(bench: Bench) -> Outcome:
    """DistributedDataParallel: the gradients are reduced when backward ends, each rank clips the same."""
    model = Model(bench)
    ids = [bench.device] if bench.device.type != "cpu" else None
    module = torch.nn.parallel.DistributedDataParallel(model.module(), device_ids=ids)
    model.backward(module)
    parameters = list(module.parameters())
    return model.judge("DDP", parameters, lambda: bench.clip(parameters))


def fsdp2(bench: Bench) -> Outcome:
    """`fully_shard`: gradients are DTensors and their norm is a collective."""
    fully_shard = _named("torch.distributed.fsdp", "fully_shard")
    model = Model(bench)
    module = model.module()
    mesh = _mesh(bench, (bench.group.world_size,))
    for layer in (module[0], module[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    model.backward(module)
    parameters = list(module.parameters())
    outcome = model.judge("FSDP2", parameters, lambda: bench.clip(parameters))
    return outcome if not outcome.ok else _planted(bench, mesh, outcome)


def _planted(bench: Bench, mesh: Any, outcome: Outcome) -> Outcome:
    """Planted DTensor gradients in every dtype, norm type and path, sharded and replicated."""
    tensor = importlib.import_module("torch.distributed.tensor")
    width = bench.group.world_size
    rng = np.random.default_rng(29)
    drawn = [rng.standard_normal((2 * width, 3)), rng.standard_normal((5, width)), 3 * rng.standard_normal(7)]
    placements = [tensor.Shard(0), tensor.Shard(1), tensor.Replicate()]
    num = 0
    for dtype in bench.dtypes:
        for norm_type in NORM_TYPES if bench.holds(dtype) else ():
            for foreach in bench.paths:
                scale = _RATIO * bench.max_norm / reference.total_norm(drawn, norm_type)
                whole = [bench.plant(d * scale, dtype) for d in drawn]
                norm = reference.total_norm([as_float64(w) for w in whole], norm_type)
                parameters = []
                for w, placement in zip(whole, placements, strict=True):
                    p = torch.nn.Parameter(tensor.distribute_tensor(torch.zeros_like(w), mesh, [placement]))
                    p.grad = tensor.distribute_tensor(w, mesh, [placement])
                    parameters.append(p)
                local = [as_float64(local_part(p.grad)) for p in parameters if p.grad is not None]
                returned = bench.clip(parameters, norm_type=norm_type, foreach=foreach)
                after = [as_float64(local_part(p.grad)) for p in parameters if p.grad is not None]
                label = f"DTensor gradients, {name_of(dtype)}, p = {norm_type:g}, {'foreach' if foreach else 'single-tensor'}"
                found = _agreement(bench, label, returned, coefficient_of(local, after)[0], norm, allowed(dtype))
                if not found.ok:
                    return found
                num += 1
    try:
        torch.linalg.vector_norm(torch.empty(0, device=bench.device), math.inf)
        empty = ""
    except RuntimeError:
        empty = "; with p = inf a rank whose shard is empty raises, and the others wait for it"
    return Outcome(True, f"{outcome.detail}; {num} sets of planted DTensors likewise{empty}", {**outcome.evidence, "num_cases": float(num)})


def fsdp1(bench: Bench) -> Outcome:
    """FSDP1 flattens and shards parameters: its module has a clipping method of its own, and only that one is right."""
    wrap = _named("torch.distributed.fsdp", "FullyShardedDataParallel")
    model = Model(bench)
    device = bench.device
    module = wrap(model.module(), device_id=device if device.type != "cpu" else torch.device("cpu"))
    model.backward(module)
    parameters = list(module.parameters())
    local = reference.total_norm(grads_of(parameters))
    mistaken = [number(n) for n in bench.group.gather(local)]
    outcome = model.judge("FSDP1", parameters, lambda: bench.norm_from(module.clip_grad_norm_(bench.max_norm)))
    if not outcome.ok:
        return outcome
    shown = ", ".join(mistaken[:4]) + (", ..." if len(mistaken) > 4 else "")
    return Outcome(True, f"{outcome.detail}; clip_grad_norm_ of torch.nn.utils would see norms of {shown}", outcome.evidence)


def tensor_parallel(bench: Bench) -> Outcome:
    """Weights split by columns and rows, a replicated bias: it counts once."""
    model = Model(bench)
    mesh = _mesh(bench, (bench.group.world_size,))
    module = _parallelized(model, mesh)
    # Every rank sees the whole batch.
    model.loss(module, slice(None)).backward()
    parameters = list(module.parameters())
    return model.judge("tensor parallel", parameters, lambda: bench.clip(parameters))


def two_dimensional_mesh(bench: Bench) -> Outcome:
    """FSDP2 along one dimension of a mesh and tensor parallel along the other: every gradient is sharded over both."""
    fully_shard = _named("torch.distributed.fsdp", "fully_shard")
    group = bench.group
    if group.world_size % 2:
        raise Unjudged(f"{group.world_size} ranks make no mesh of two rows")
    model = Model(bench)
    columns = group.world_size // 2
    mesh = _mesh(bench, (2, columns), ("data", "tensor"))
    module = _parallelized(model, mesh["tensor"])
    fully_shard(module, mesh=mesh["data"])
    model.loss(module, model.part(group.rank // columns, 2)).backward()
    parameters = list(module.parameters())
    return model.judge(f"a mesh of 2 x {columns}, FSDP2 and tensor parallel", parameters, lambda: bench.clip(parameters))


def mixed_meshes(bench: Bench) -> Outcome:
    """Some gradients sharded, some plain: one call refuses them, or is right; a norm a kind, put together, is right."""
    tensor = importlib.import_module("torch.distributed.tensor")
    get_total_norm = _named("torch.nn.utils", "get_total_norm")
    clip_grads_with_norm_ = _named("torch.nn.utils", "clip_grads_with_norm_")
    model = Model(bench)
    mesh = _mesh(bench, (bench.group.world_size,))

    def planted() -> list[torch.nn.Parameter]:
        out = []
        for i, values in enumerate(model.full):
            grad = bench.plant(values, model.dtype)
            grad = tensor.distribute_tensor(grad, mesh, [tensor.Shard(0)]) if i % 2 else grad
            p = torch.nn.Parameter(torch.zeros_like(grad))
            p.grad = grad
            out.append(p)
        return out

    one = planted()
    try:
        returned = bench.norm_from(bench.clip_function(one, bench.max_norm))
    except Exception as e:  # noqa: BLE001 - a refusal is right; it is told
        refusal: str | None = first_line(e, 60)
    else:
        refusal = None
    # All ranks refuse, or all have the norm: otherwise what follows would wait for ever.
    refusals = bench.group.gather(refusal)
    if any(r is None for r in refusals):
        if not all(r is None for r in refusals):
            some = [r for r, said in enumerate(refusals) if said is not None]
            return Outcome(False, f"sharded and plain gradients in one call: {_who(some, bench)} refused them, the others did not", {})
        before = [as_float64(local_part(p.grad)) for p in planted() if p.grad is not None]
        after = [as_float64(local_part(p.grad)) for p in one if p.grad is not None]
        found = _agreement(
            bench, "sharded and plain gradients in one call", returned, coefficient_of(before, after)[0], model.norm, allowed(model.dtype)
        )
        if not found.ok:
            return found

    parts = planted()

    def clip_by_kind() -> float:
        kinds = (parts[0::2], parts[1::2])
        norms = [get_total_norm([p.grad for p in kind]) for kind in kinds]
        total = torch.linalg.vector_norm(torch.stack([n.full_tensor() if hasattr(n, "full_tensor") else n for n in norms]))
        for kind in kinds:
            clip_grads_with_norm_(kind, bench.max_norm, total)
        return float(as_float64(total))

    answer = f"one call refuses them ({refusals[0]})" if refusals[0] else "one call does as well"
    return model.judge("sharded and plain gradients, a norm a kind put together", parts, clip_by_kind, f"; {answer}")


def local_shard_mistake(bench: Bench) -> Outcome:
    """Clipping local shards without the collective gives every rank a coefficient of its own: the battery can see it."""
    tensor = importlib.import_module("torch.distributed.tensor")
    model = Model(bench)
    mesh = _mesh(bench, (bench.group.world_size,))
    shards = [tensor.distribute_tensor(bench.plant(f, model.dtype), mesh, [tensor.Shard(0)]).to_local() for f in model.full]
    before = [as_float64(s) for s in shards]
    bench.clip([bench.parameter(s) for s in shards])
    coefficients = bench.group.gather(coefficient_of(before, [as_float64(s) for s in shards])[0])
    right = nearest(coefficients[0], expected_coefficients(model.norm, bench.max_norm))
    evidence = {"coefficient": right, "smallest": min(coefficients), "largest": max(coefficients)}
    shown = ", ".join(number(c) for c in coefficients[:4]) + (", ..." if len(coefficients) > 4 else "")
    if max(abs(c / right - 1) for c in coefficients) < 1e-3:
        return Outcome(False, f"clipped by local shards every rank scales by {shown}, as it should: the two cannot be told apart", evidence)
    return Outcome(True, f"clipped by local shards the ranks would scale by {shown}; the coefficient is {number(right)}", evidence)


def _parallelized(model: Model, mesh: Any) -> torch.nn.Sequential:
    parallel = importlib.import_module("torch.distributed.tensor.parallel")
    module = model.module()
    parallel.parallelize_module(module, mesh, {"0": parallel.ColwiseParallel(), "2": parallel.RowwiseParallel()})
    return module


def _mesh(bench: Bench, shape: tuple[int, ...], names: tuple[str, ...] | None = None) -> Any:
    return _named("torch.distributed.device_mesh", "init_device_mesh")(bench.device.type, shape, mesh_dim_names=names)


def _named(module: str, name: str) -> Any:
    """Something that older versions of torch do not have."""
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        raise Unjudged(f"torch {torch.__version__} has no {module}.{name}") from None
