"""B1xx: the contract itself, for every dtype, norm type and path."""

from __future__ import annotations

import math

import numpy as np
import torch

from gradclip_cli.clipping import reference
from gradclip_cli.verify.bench import Bench, Case, Float64, allowed, coefficient_of, expected_coefficients, grads_of, name_of, nearest
from gradclip_cli.verify.outcome import Outcome, Tally, Unjudged, number

# Gradients this many times the bound; the odd numbers keep a coefficient from being exact in binary by chance.
_BELOW, _JUST_BELOW = 0.53, 0.97
_JUST_ABOVE, _ABOVE, _FAR_ABOVE = 1.05, 3.7, 97.0
# PyTorch multiplies by min(1, M / (G + 1e-6)): an implementation may do so just below the bound.
_UNCHANGED = 2e-6


def total_norm(bench: Bench) -> Outcome:
    """The returned norm of gradients below the bound, where clipping changes nothing."""
    tally = Tally("the total norm")
    for case in bench.cases(_BELOW):
        tally.compare(case.label, _clip(bench, case), case.norm, allowed(case.dtype))
    return tally.outcome(bench.left_out())


def coefficient(bench: Bench) -> Outcome:
    """By what gradients above the bound are scaled."""
    tally = Tally("the coefficient")
    turned = 0
    for case in bench.cases(_ABOVE):
        _clip(bench, case)
        measured, cosine = coefficient_of(case.before, grads_of(case.parameters))
        if 1 - cosine > _turn(case.dtype):
            turned += 1
            continue
        expected = nearest(measured, expected_coefficients(case.norm, bench.max_norm))
        tally.compare(case.label, measured, expected, allowed(case.dtype))
    if turned:
        raise Unjudged(
            f"the gradients were not scaled by one coefficient in {turned} cases, so there is none to compare: see the direction"
        )
    return tally.outcome(bench.left_out())


def direction(bench: Bench) -> Outcome:
    """Whether direction and proportions between tensors survive clipping."""
    worst: tuple[float, str, float, float] | None = None
    lowest = 1.0
    num = wrong = 0
    for case in bench.cases(_ABOVE):
        _clip(bench, case)
        after = grads_of(case.parameters)
        whole, cosine = coefficient_of(case.before, after)
        each = [coefficient_of([b], [a])[0] for b, a in zip(case.before, after, strict=True)]
        spread = max((abs(c / whole - 1) for c in each), default=0.0) if whole else math.inf
        excess = max(spread / allowed(case.dtype), (1 - cosine) / _turn(case.dtype))
        excess = math.inf if math.isnan(excess) else excess
        num += 1
        wrong += excess > 1
        lowest = min(lowest, cosine)
        if worst is None or excess > worst[0]:
            worst = (excess, case.label, cosine, spread)
    if worst is None:
        raise Unjudged("no dtype here can hold such gradients")
    _, label, cosine, spread = worst
    evidence = {"cosine": cosine, "coefficient_spread": spread, "num_cases": float(num), "num_wrong": float(wrong)}
    if wrong:
        return Outcome(
            False,
            f"clipping changed the direction: cosine {cosine:.6f}, the coefficients of single tensors differ by up to "
            f"{number(spread)} of the common one ({label}); wrong in {wrong} of {num} cases",
            evidence,
        )
    turn = max(1 - lowest, 0.0)
    return Outcome(
        True, f"direction and proportions are kept in {num} cases: 1 - cosine is {number(turn)} at most{bench.left_out()}", evidence
    )


def unchanged_below_bound(bench: Bench) -> Outcome:
    """Gradients below the bound must come back as they were."""
    tally = Tally("the largest relative change of a gradient below the bound", "gradients below the bound come back as they were")
    for ratio in (_BELOW, _JUST_BELOW):
        for case in bench.cases(ratio):
            _clip(bench, case)
            change = max(_relative_change(b, a) for b, a in zip(case.before, grads_of(case.parameters), strict=True))
            tally.compare(f"{case.label}, {ratio:g} x max_norm", change, 0.0, _UNCHANGED)
    return tally.outcome(bench.left_out())


def bound_met(bench: Bench) -> Outcome:
    """The norm afterwards, just above the bound and far above it."""
    tally = Tally("the norm afterwards, as a multiple of max_norm,", "the norm afterwards is at most max_norm")
    for ratio in (_JUST_ABOVE, _FAR_ABOVE):
        for case in bench.cases(ratio):
            _clip(bench, case)
            after = reference.total_norm(grads_of(case.parameters), case.norm_type) / bench.max_norm
            # Smaller is the coefficient's affair; here only the bound counts.
            tally.compare(f"{case.label}, {ratio:g} x max_norm", after, min(after, 1.0), allowed(case.dtype))
    return tally.outcome(bench.left_out())


def returns_norm_before(bench: Bench) -> Outcome:
    """The returned value is the norm from before clipping, not the one afterwards."""
    tally = Tally("the returned value", "the returned value is the norm from before clipping")
    for case in bench.cases(_ABOVE):
        returned = _clip(bench, case)
        after = reference.total_norm(grads_of(case.parameters), case.norm_type)
        is_after = abs(returned - after) <= allowed(case.dtype) * after and abs(case.norm - after) > 3 * allowed(case.dtype) * case.norm
        if is_after:
            return Outcome(
                False,
                f"the returned value {returned:.6g} is the norm after clipping, not the {case.norm:.6g} from before ({case.label})",
                {"returned": returned, "norm_before": case.norm, "norm_after": after},
            )
        tally.compare(case.label, returned, case.norm, allowed(case.dtype))
    outcome = tally.outcome(bench.left_out())
    if not outcome.ok:
        raise Unjudged(f"what is returned is the norm neither from before nor from after clipping: {outcome.detail}")
    return outcome


def two_steps_agree(bench: Bench) -> Outcome:
    """`get_total_norm` and `clip_grads_with_norm_` together do what the one call does."""
    if not hasattr(torch.nn.utils, "get_total_norm"):
        raise Unjudged(f"torch {torch.__version__} has no get_total_norm")
    tally = Tally("the difference between clipping in two steps and in one", "two steps and one call clip alike")
    for one in bench.cases(_ABOVE):
        two = bench.case(one.dtype, one.norm_type, one.foreach, _ABOVE)
        _clip(bench, one)
        norm = torch.nn.utils.get_total_norm([p.grad for p in two.parameters if p.grad is not None], two.norm_type, foreach=two.foreach)
        torch.nn.utils.clip_grads_with_norm_(two.parameters, bench.max_norm, norm, foreach=two.foreach)
        apart = [b - a for a, b in zip(grads_of(one.parameters), grads_of(two.parameters), strict=True)]
        # One of the two may leave the epsilon out.
        tolerance = allowed(one.dtype) + reference.EPS / one.norm
        tally.compare(one.label, reference.total_norm(apart) / reference.total_norm(two.before), 0.0, tolerance)
    return tally.outcome()


def value_clipping_differs(bench: Bench) -> Outcome:
    """Value clipping is another operation: the battery can tell the two apart."""
    dtype = next((d for d in bench.dtypes if bench.holds(d)), None)
    if dtype is None:
        raise Unjudged("no dtype here can hold such gradients")
    case = bench.case(dtype, 2.0, False, _ABOVE)
    bound = bench.max_norm / 10
    torch.nn.utils.clip_grad_value_(case.parameters, bound)
    after = grads_of(case.parameters)
    _, cosine = coefficient_of(case.before, after)
    largest, norm = reference.total_norm(after, math.inf), reference.total_norm(after)
    evidence = {"cosine": cosine, "largest_value": largest, "norm_after": norm}
    if largest > bound * (1 + allowed(dtype)):
        return Outcome(False, f"clip_grad_value_({bound:g}) left a value of {number(largest)} in {name_of(dtype)}", evidence)
    if 1 - cosine < 1e-3:
        return Outcome(
            False, f"clip_grad_value_({bound:g}) kept the direction (cosine {cosine:.6f}): it is no value clipping here", evidence
        )
    return Outcome(
        True,
        f"clip_grad_value_({bound:g}) turns the gradient (cosine {cosine:.3f}) and leaves a norm of {number(norm)}: it is told apart",
        evidence,
    )


def _clip(bench: Bench, case: Case) -> float:
    return bench.clip(case.parameters, norm_type=case.norm_type, foreach=case.foreach)


def _turn(dtype: torch.dtype) -> float:
    """What rounding may do to the cosine: the square of half an epsilon an element, with a margin."""
    return max(4 * torch.finfo(dtype).eps ** 2, 1e-13)


def _relative_change(before: Float64, after: Float64) -> float:
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.max(np.abs(after - before) / np.abs(before), initial=0.0))
