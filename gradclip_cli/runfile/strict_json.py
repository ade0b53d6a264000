"""JSON that any parser takes: non-finite numbers are the strings "nan", "inf" and "-inf", and come back as numbers."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

_NONFINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def dumps(value: Any, *, indent: int | None = None) -> bytes:
    """UTF-8, on one line unless indented; what is no JSON value is written as its text."""
    try:
        # Nearly all there is to write is finite already.
        text = json.dumps(value, indent=indent, allow_nan=False, default=_default)
    except (ValueError, TypeError):
        text = json.dumps(_plain(value), indent=indent, allow_nan=False, default=str)
    return text.encode("utf-8", "backslashreplace")


def loads(data: bytes) -> Any:
    """The value.

    Raises:
        ValueError: Where it is no JSON, or nested deeper than anyone writes.
    """
    try:
        return _restored(json.loads(data.decode("utf-8", "strict")))
    except RecursionError as e:
        raise ValueError("nested too deep") from e


def _default(value: Any) -> Any:
    return _plain(value) if isinstance(value, np.generic | Mapping) else str(value)


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value


def _restored(value: Any) -> Any:
    if isinstance(value, str):
        return _NONFINITE.get(value, value)
    if isinstance(value, dict):
        return {k: _restored(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_restored(v) for v in value]
    return value
