"""Which device is judged, and which dtypes it has."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradclip_cli.errors import GradclipError, UsageError
from gradclip_cli.verify.bench import DTYPES
from gradclip_cli.verify.outcome import first_line

_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64", "half": "float16"}


def resolve_device(name: str, local_rank: int = 0) -> torch.device:
    """The device of this name, `auto` being the best there is, ready for use.

    Args:
        local_rank: Which of several devices, where the name does not say.

    Raises:
        UsageError: Where no device is called so.
        GradclipError: Where this machine has none.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"--device: no device is called {name!r}", hint="cpu, cuda, cuda:1, mps, or auto") from None
    if device.type in ("cuda", "xpu") and device.index is None:
        device = torch.device(device.type, local_rank)
    try:
        (torch.ones(2, device=device) * 2).sum().item()
    except Exception as e:  # noqa: BLE001 - each backend has exceptions of its own for a device that is not there
        raise GradclipError(
            f"--device {name}: there is no such device here ({_why(device, e)})", hint="`--device cpu` is always there"
        ) from e
    return device


def _why(device: torch.device, error: Exception) -> str:
    if device.type == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        return f"torch {torch.__version__} was built without CUDA"
    if device.type == "cuda" and torch.cuda.is_available():
        return f"{torch.cuda.device_count()} CUDA devices, counted from 0"
    return first_line(error, 80)


def num_devices(device: torch.device) -> int | None:
    """How many ranks the device kind has room for; None where there is no limit."""
    return torch.cuda.device_count() if device.type == "cuda" else None if device.type == "cpu" else 1


def resolve_dtypes(names: Sequence[str]) -> tuple[torch.dtype, ...]:
    """The dtypes of these names; all four where none is given.

    Raises:
        UsageError: Where one of them is unknown.
    """
    wanted = [part.lower().removeprefix("torch.") for name in names for part in name.replace(",", " ").split()]
    out = []
    for name in wanted or DTYPES:
        full = _SHORT.get(name, name)
        if full not in DTYPES:
            raise UsageError(f"--dtype: gradients in {name!r} are not checked", hint=f"one or several of {', '.join(DTYPES)}")
        out.append(DTYPES[full])
    return tuple(dict.fromkeys(out))


def supported(dtypes: Sequence[torch.dtype], device: torch.device) -> tuple[torch.dtype, ...]:
    """Those the device can take a norm in."""
    out = []
    for dtype in dtypes:
        try:
            torch.linalg.vector_norm(torch.ones(2, dtype=dtype, device=device)).item()
        except (RuntimeError, TypeError):
            continue
        out.append(dtype)
    return tuple(out)
