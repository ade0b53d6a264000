"""Round numbers on axes. Heights, not values, are what matplotlib gets, so that no number is too large or too small to be drawn."""

from __future__ import annotations

import math

import numpy as np

from gradclip_cli.report.panel import Scale
from gradclip_cli.wording import number

Ticks = tuple[list[float], list[str]]
"""Places and labels."""

_LARGEST = 1.7e308


def value_ticks(scale: Scale, low: float, high: float) -> Ticks:
    """Ticks of the value axis between two heights."""
    if scale.kind == "linear":
        ticks, labels = _round_ticks(max(low * scale.unit, -_LARGEST), min(high * scale.unit, _LARGEST), 5)
    elif scale.kind == "log":
        ticks, labels = _log_ticks(low, high)
    else:
        ticks, labels = _asinh_ticks(scale, low, high)
    heights = scale.height(np.asarray(ticks, np.float64)).tolist()
    inside = [(h, t) for h, t in zip(heights, labels, strict=True) if low <= h <= high]
    return [h for h, _ in inside], [t for _, t in inside]


def _round_ticks(low: float, high: float, most: int) -> Ticks:
    """Round numbers between two values, written with the decimals they differ in."""
    rough = high / most - low / most
    power = 10.0 ** math.floor(math.log10(rough)) if rough > 0 else 0.0
    if not power:
        return [low], [number(low, 4)]
    factor = next(f for f in (1, 2, 2.5, 5, 10) if f * power >= 0.999 * rough)
    step = factor * power
    ticks = [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]
    if not 1e-4 <= max(map(abs, ticks), default=0.0) < 1e7:
        return ticks, [number(t) for t in ticks]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9) + (factor == 2.5))
    return ticks, [f"{t:,.{decimals}f}" for t in ticks]


def _log_ticks(low: float, high: float) -> Ticks:
    """Values between two powers of ten: round numbers within a decade, 1-2-5 over two, else decades."""
    if high - low < 1:
        return _round_ticks(10.0**low, 10.0 ** min(high, 308), 5)
    decades = range(math.floor(low), math.ceil(high) + 1)
    stride = max(1, math.ceil((high - low) / 7))
    ticks = [m * 10.0**d for d in decades if d % stride == 0 and -308 <= d <= 307 for m in ((1, 2, 5) if high - low < 2.6 else (1,))]
    return ticks, [power_label(t) for t in ticks]


def _asinh_ticks(scale: Scale, low: float, high: float) -> Ticks:
    """Zero and powers of ten of both signs, as far apart as labels need."""
    least = math.ceil(math.log10(scale.unit))
    most = math.floor(math.log10(scale.unit) + max(-low, high) / math.log(10))
    stride = max(1, math.ceil((high - low) / math.log(10) / 6))
    powers = [10.0**d for d in range(max(least, -307), min(most, 308) + 1, stride)]
    ticks = [-p for p in reversed(powers)] + [0.0] + powers
    return ticks, [power_label(t) for t in ticks]


def power_label(value: float) -> str:
    """A round number in few characters: 100, 0.01, 1e7."""
    if value == 0 or 1e-3 <= abs(value) < 1e5:
        return number(value, 4)
    digit, _, exponent = f"{value:.0e}".partition("e")
    return f"{digit}e{int(exponent)}"


def step_ticks(first: int, last: int, most: int) -> Ticks:
    """Round steps, at most about so many; their places are counted from the first step, exactly, however large the steps are."""
    rough = max((last - first) / most, 1)
    power = 10 ** int(math.log10(rough))
    step = next(int(f * power) for f in (1, 2, 2.5, 5, 10) if f * power >= rough and (f != 2.5 or power > 1))
    ticks = list(range(-(-first // step) * step, last + 1, step))
    return [float(t - first) for t in ticks], [f"{t:,}" for t in ticks]
