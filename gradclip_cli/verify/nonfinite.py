"""B3xx: inf and nan."""

from __future__ import annotations

import math

import numpy as np
import torch

from gradclip_cli.verify.bench import Bench, Case, grads_of, name_of
from gradclip_cli.verify.clip import ClipRaised
from gradclip_cli.verify.outcome import Outcome, Unjudged


def inf_gradient(bench: Bench) -> Outcome:
    """One inf: the norm is inf and every finite gradient becomes 0, as the definition says."""
    return _spoiled(bench, math.inf, "one inf: the norm is inf, every finite gradient becomes 0 and the inf nan")


def nan_gradient(bench: Bench) -> Outcome:
    """One nan: the norm is nan and so is every gradient, as the definition says."""
    return _spoiled(bench, math.nan, "one nan: the norm is nan and so is every gradient")


def _spoiled(bench: Bench, value: float, happens: str) -> Outcome:
    num = 0
    wrong: list[str] = []
    for case in bench.cases(3.7):
        _spoil(case, value)
        returned = bench.clip(case.parameters, norm_type=case.norm_type, foreach=case.foreach)
        after = grads_of(case.parameters)
        elements = np.concatenate([a.reshape(-1) for a in after])
        num += 1
        nans = int(np.isnan(elements).sum())
        if math.isfinite(returned):
            wrong.append(f"the norm is returned as {returned:.6g}, finite ({case.label})")
        elif math.isnan(value) and nans != elements.size:
            wrong.append(f"{elements.size - nans} of {elements.size} gradients are not nan afterwards ({case.label})")
        elif math.isinf(value) and (nans != 1 or np.nansum(np.abs(elements)) != 0):
            wrong.append(f"the norm is {returned:g}, yet gradients other than 0 are left ({case.label})")
    if not num:
        raise Unjudged("no dtype here can hold such gradients")
    evidence = {"num_cases": float(num), "num_wrong": float(len(wrong))}
    if wrong:
        return Outcome(False, f"one {value:g}: {wrong[0]}; wrong in {len(wrong)} of {num} cases", evidence)
    return Outcome(True, f"{happens} ({num} cases); clipping repairs nothing", evidence)


def error_if_nonfinite(bench: Bench) -> Outcome:
    """With `error_if_nonfinite=True` a non-finite norm raises before anything is changed."""
    num = 0
    for value in (math.inf, math.nan):
        for dtype in bench.dtypes:
            if not bench.holds(dtype):
                continue
            for foreach in bench.paths:
                case = bench.case(dtype, 2.0, foreach, 3.7)
                _spoil(case, value)
                before = grads_of(case.parameters)
                label = f"one {value:g} in {name_of(dtype)}, {'foreach' if foreach else 'single-tensor'}"
                try:
                    returned = bench.clip(case.parameters, error_if_nonfinite=True, foreach=foreach)
                except ClipRaised as e:
                    if not isinstance(e.__cause__, RuntimeError):
                        return Outcome(False, f"error_if_nonfinite=True raises {e} instead of a RuntimeError ({label})")
                else:
                    return Outcome(False, f"error_if_nonfinite=True raises nothing; the norm is returned as {returned:g} ({label})")
                if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(grads_of(case.parameters), before, strict=True)):
                    return Outcome(False, f"error_if_nonfinite=True raises after gradients were changed ({label})")
                num += 1
    if not num:
        raise Unjudged("no dtype here can hold such gradients")
    return Outcome(True, f"error_if_nonfinite=True raises before anything is changed ({num} cases)", {"num_cases": float(num)})


def _spoil(case: Case, value: float) -> None:
    grad = case.parameters[1].grad
    assert grad is not None
    with torch.no_grad():
        grad[7] = value
    case.before[1][7] = value
