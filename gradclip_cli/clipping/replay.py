"""What clipping does to stored gradients, step by step: norms, coefficients, angles, and who makes up the norm."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gradclip_cli.clipping import findings
from gradclip_cli.clipping.blocks import TensorSums, Wanted, measure
from gradclip_cli.clipping.copies import largest_difference
from gradclip_cli.clipping.dtypes import Floats
from gradclip_cli.clipping.norms import PowerSum, exactly, ratio, total
from gradclip_cli.clipping.optimizer import OptimizerKind, update_norms
from gradclip_cli.clipping.ranks import Ranks
from gradclip_cli.clipping.reference import coefficient
from gradclip_cli.clipping.sources import Gradients, StoredStep, find
from gradclip_cli.errors import GradclipError
from gradclip_cli.model.replay import Alternative, Clip, NonfiniteTensor, OptimizerReplay, Replay, ReplayStep, TensorShare
from gradclip_cli.model.run import NormStage
from gradclip_cli.wording import count

_MOST_TOP_TENSORS = 10


@dataclass(frozen=True, slots=True)
class Request:
    """What to replay.

    Attributes:
        max_norms: Bounds of the global norm; where there are none, the one that the files tell.
        norm_type: p, up to `MOST_P` or inf; None is the one that the files tell, else 2.
        clip_values: Bounds of value clipping, to compare.
        unclip: Whether gradients that were saved after clipping are scaled back to the norm that the file tells.
        group_by: What its first group (or all of it) matches in a tensor's name is the name of that tensor's group.
    """

    max_norms: tuple[float, ...] = ()
    norm_type: float | None = None
    clip_values: tuple[float, ...] = ()
    group_by: re.Pattern[str] | None = None
    histogram: bool = False
    unclip: bool = False
    optimizer: OptimizerKind | None = None

    @property
    def p(self) -> float:
        """The norm type, 2 where none was given."""
        return 2.0 if self.norm_type is None else self.norm_type


def replay(paths: Sequence[Path], request: Request, *, ranks: Ranks | None = None) -> tuple[Replay | None, tuple[GradclipError, ...]]:
    """Measure all steps that can be read.

    Returns:
        The result, None where no step could be read, and what could not be read or, by the optimizer, not be used.

    Raises:
        GradclipError: The optimizer needs a bound that is not given, or torch.
    """
    ranks = ranks or Ranks()
    gradients = find(paths)
    ranks.agree(gradients.steps)
    request, notes = _completed(request, gradients.steps)
    if gradients.steps and request.optimizer is not None and not request.max_norms:
        raise GradclipError("--optimizer has nothing to compare: the files tell no max_norm; expected --max-norm", hint="--max-norm 1.0")
    steps: list[ReplayStep] = []
    stored: list[StoredStep] = []
    failures = list(gradients.failures)
    for found in gradients.steps:
        try:
            step = _unclipped(found, ranks) if request.unclip else found
            measured, step = _step(step, request, ranks), _compared(step, ranks)
            steps.append(measured)
            stored.append(step)
        except GradclipError as e:
            failures.append(e)
    if not steps:
        return None, tuple(failures)
    unused: list[GradclipError] = []
    if request.optimizer is not None:
        try:
            steps, more = _with_updates(steps, stored, request, request.optimizer, ranks)
            notes += more
        except GradclipError as e:
            # The norms are right all the same.
            unused.append(e)
            request = replace(request, optimizer=None)
    return _result(paths, request, gradients, steps, stored, notes, failures), (*failures, *unused)


def _result(
    paths: Sequence[Path],
    request: Request,
    gradients: Gradients,
    steps: Sequence[ReplayStep],
    stored: Sequence[StoredStep],
    notes: Sequence[str],
    failures: Sequence[GradclipError],
) -> Replay:
    partial = findings.partial(steps, stored, request.p)
    found, remarks = findings.judge(steps, stored, request.p, failures, partial=bool(partial))
    numel: dict[str, int] = {}
    for step in stored:
        for tensor in step.tensors:
            numel[tensor.dtype.name] = numel.get(tensor.dtype.name, 0) + tensor.numel
    kind = request.optimizer
    return Replay(
        source=" ".join(map(str, paths)),
        format=gradients.format,
        dtypes=tuple(sorted(numel, key=lambda name: -numel[name])),
        norm_type=request.p,
        max_norms=request.max_norms,
        clip_values=request.clip_values,
        steps=tuple(steps),
        findings=tuple(found),
        notes=(*gradients.notes, *notes, *remarks),
        optimizer=None if kind is None else OptimizerReplay(kind.name, kind.arguments),
        partial=partial,
        world_size=max(s.world_size for s in stored),
    )


def _completed(request: Request, steps: Sequence[StoredStep]) -> tuple[Request, list[str]]:
    """The request with what the files tell for what was not given."""
    notes = []
    norm_type, max_norms = request.norm_type, request.max_norms
    told = {s.claims.norm_type for s in steps if s.claims.norm_type is not None}
    if norm_type is None and len(told) == 1:
        norm_type = told.pop()
    bounds = {s.claims.max_norm for s in steps if s.claims.max_norm is not None}
    if not max_norms and len(bounds) == 1:
        max_norms = (bounds.pop(),)
        notes.append(f"max_norm {max_norms[0]:g} is the one that the files tell")
    elif not max_norms and bounds:
        notes.append(f"the files tell {len(bounds)} values of max_norm; --max-norm takes one")
    return replace(request, norm_type=norm_type, max_norms=max_norms), notes


def _unclipped(stored: StoredStep, ranks: Ranks) -> StoredStep:
    """The step as it was before the training clipped it, where that can be told."""
    claims = stored.claims
    told = claims.total_norm
    if claims.stage is not NormStage.POST_CLIP or told is None or not math.isfinite(told):
        return stored
    p = claims.norm_type or 2.0
    sums, _ = measure(stored.tensors, Wanted(p), ranks)
    norm = total((s.powers for s in sums), p).norm(p) / claims.scale
    if not math.isfinite(norm) or norm == 0:
        return stored
    left = claims.told_norm
    if stored.alone or left is not None and norm < findings.SAME_NORM * left:
        # The norm told is of the whole gradient and the one found of a part; the coefficient is that of both.
        if claims.max_norm is None:
            return stored
        restored = 1 / coefficient(told, claims.max_norm)
    else:
        restored = told / norm
    return replace(stored, claims=replace(claims, stage=NormStage.PRE_CLIP, restored=restored))


def _compared(stored: StoredStep, ranks: Ranks) -> StoredStep:
    """The step with what was found of parts that several ranks held."""
    return replace(stored, difference=largest_difference(stored.copies, ranks)) if stored.copies else stored


def _step(stored: StoredStep, request: Request, ranks: Ranks) -> ReplayStep:
    p, scale = request.p, stored.claims.divisor
    wanted = Wanted(p, tuple(v * scale for v in request.clip_values), request.histogram)
    sums, histogram = measure(stored.tensors, wanted, ranks)
    total_norm = total((s.powers for s in sums), p).norm(p) / scale
    norms = np.array([s.powers.norm(p) / scale for s in sums])
    squares = total((s.squares for s in sums), 2)
    shares = np.array([ratio(s.squares, squares) for s in sums])
    top: Sequence[int] = (
        np.argsort(-shares, kind="stable")[:_MOST_TOP_TENSORS].tolist() if math.isfinite(squares.mantissa) and squares.mantissa > 0 else []
    )
    clips = tuple(_clip(total_norm, m, shares) for m in request.max_norms)
    return ReplayStep(
        step=stored.step,
        source=str(stored.source),
        numel=sum(t.numel for t in stored.tensors),
        total_norm=total_norm,
        clips=clips,
        alternatives=_alternatives(stored, request, sums, norms, shares, squares),
        top_tensors=tuple(TensorShare(stored.tensors[i].name, float(shares[i]), float(norms[i])) for i in top),
        nonfinite=tuple(
            NonfiniteTensor(t.name, t.numel, s.num_nan, s.num_inf, s.num_neg_inf, s.positions)
            for t, s in zip(stored.tensors, sums, strict=True)
            if s.num_nan or s.num_inf or s.num_neg_inf
        ),
        tensors=tuple(t.name for t in stored.tensors),
        tensor_norms=norms,
        stage=stored.claims.stage,
        claimed_max_norm=stored.claims.max_norm,
        claimed_total_norm=stored.claims.total_norm,
        loss_scale=stored.claims.scale,
        histogram=histogram,
    )


def _clip(total_norm: float, max_norm: float, shares: Floats) -> Clip:
    c = coefficient(total_norm, max_norm)
    return Clip(max_norm, c, c * total_norm, _cosine(shares, np.full(len(shares), c)))


def _cosine(shares: Floats, coefficients: Floats) -> float:
    """Between gradients and what is left of them when each part is multiplied by a coefficient of its own.

    Args:
        shares: Of the squared L2 norm, shape (n,).
        coefficients: Shape (n,).
    """
    length = exactly(shares * coefficients**2) * exactly(shares)
    return exactly(shares * coefficients) / math.sqrt(length) if length > 0 else math.nan


def _alternatives(
    stored: StoredStep, request: Request, sums: Sequence[TensorSums], norms: Floats, shares: Floats, squares: PowerSum
) -> tuple[Alternative, ...]:
    """Other ways with the first bound, where clipping acts on the step at all; value clipping wherever it was asked for."""
    if not math.isfinite(squares.mantissa) or squares.mantissa == 0:
        return ()
    p, scale = request.p, stored.claims.divisor
    result = []
    if request.max_norms:
        bound = request.max_norms[0]
        groups: list[tuple[str, list[int]]] = [("global", [0] * len(sums)), ("per-tensor", list(range(len(sums))))]
        if request.group_by is not None:
            groups.append(("per-group", _group_numbers([t.name for t in stored.tensors], request.group_by)))
        result += [_separately(how, bound, np.array(numbers), [s.powers for s in sums], shares, p, scale) for how, numbers in groups]
    for k, bound in enumerate(request.clip_values):
        dot, squared = exactly(s.clipped[k].dot for s in sums), exactly(s.clipped[k].squared for s in sums)
        num_changed = sum(s.clipped[k].num_changed for s in sums)
        length = math.sqrt(squared) * squares.norm(2)
        numel = max(sum(t.numel for t in stored.tensors), 1)
        cosine = dot / length if length else math.nan
        result.append(Alternative("value", bound, math.sqrt(squared) / scale, cosine, num_changed / numel, None))
    return tuple(result)


def _separately(
    how: str, bound: float, numbers: npt.NDArray[np.int64], powers: Sequence[PowerSum], shares: Floats, p: float, scale: float
) -> Alternative:
    """Each group clipped by a norm of its own.

    Args:
        numbers: Of the group of each tensor, from 0 on, none left out.
    """
    members: list[list[PowerSum]] = [[] for _ in range(int(numbers.max(initial=0)) + 1)]
    for group, part in zip(numbers.tolist(), powers, strict=True):
        members[group].append(part)
    norms = [total(parts, p).norm(p) / scale for parts in members]
    coefficients = np.array([coefficient(n, bound) for n in norms])
    with np.errstate(invalid="ignore"):
        remaining = coefficients * norms
    after = float(remaining.max())
    if not math.isinf(p) and after > 0:
        after *= exactly((remaining / after) ** p) ** (1 / p)
    cosine = _cosine(shares, coefficients[numbers])
    return Alternative(how, bound, after, cosine, float(np.mean(coefficients < 1)), float(coefficients.min()))


def _group_numbers(names: Sequence[str], pattern: re.Pattern[str]) -> list[int]:
    """The group of each tensor; those that the pattern does not match are a group too."""
    numbers: dict[str | None, int] = {}
    result = []
    for name in names:
        match = pattern.search(name)
        key = None if match is None else match[min(1, pattern.groups)] or ""
        result.append(numbers.setdefault(key, len(numbers)))
    return result


def _with_updates(
    steps: Sequence[ReplayStep], stored: Sequence[StoredStep], request: Request, kind: OptimizerKind, ranks: Ranks
) -> tuple[list[ReplayStep], list[str]]:
    """The steps with the norms of their updates."""
    finite = np.array([math.isfinite(s.total_norm) for s in steps])
    ways = [np.ones(len(steps)), *(np.array([s.clips[k].coefficient for s in steps]) for k in range(len(request.max_norms)))]
    coefficients = np.where(finite, np.stack(ways), np.nan)
    norms = update_norms(kind, stored, coefficients, ranks)
    notes = ["the optimizer began with parameters at zero and no state: what weight decay and earlier steps do is not seen"]
    if missing := steps[-1].step - steps[0].step + 1 - len(steps):
        notes.append(f"between these steps {count(missing, 'update')} cannot be seen: the optimizer's state is that of these steps alone")
    if not finite.all():
        skipped_steps = count(int(np.count_nonzero(~finite)), "step")
        notes.append(f"the optimizer skipped {skipped_steps} with a norm that is not finite, as a loss scaler does")
    if skipped := {t.name for s in stored for t in s.tensors if not kind.takes(t)}:
        notes.append(f"{kind.name} is for matrices; {len(skipped):,} other tensors were left out of its updates")
    result = []
    for k, step in enumerate(steps):
        clips = tuple(replace(c, update_norm=float(norms[1 + i, k])) for i, c in enumerate(step.clips))
        result.append(replace(step, clips=clips, update_norm=float(norms[0, k])))
    return result, notes
