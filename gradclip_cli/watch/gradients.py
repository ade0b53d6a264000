"""Keeping the gradients of chosen updates as safetensors files."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from gradclip_cli.errors import UsageError
from gradclip_cli.model.recorded import SHARDS_KEY
from gradclip_cli.model.run import NormStage
from gradclip_cli.runfile import RunWriter, files
from gradclip_cli.watch.shards import Shards

if TYPE_CHECKING:
    import torch

    Named = Iterable[tuple[str, torch.Tensor]]

_EVERY = re.compile(r"every:([1-9]\d{0,8})")
# An update explodes here when its norm is so many times the median of those before it, or not finite: `analyze` looks closer, and
# later; what is kept can only be chosen now. So many updates must be known before, and so many are remembered.
_EXPLODES_TIMES = 8.0
_MIN_KNOWN, _MAX_KNOWN = 8, 64
# Updates kept from before an explosion, as far as they fit into this share of the free memory.
_NUM_BEFORE = 3
_MEMORY_FRACTION = 0.25
# What one run may write: explosions come in crowds.
_MAX_EXPLOSIONS = 10

_DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "complex64": "C64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


def check_choice(which: str) -> int | None:
    """What `--save-grads` asks for: K of `every:K`, None for `never` and `explosions`.

    Raises:
        UsageError: Where it is none of these.
    """
    if which in ("never", "explosions"):
        return None
    match = _EVERY.fullmatch(which)
    if match is None:
        raise UsageError(f"--save-grads {which!r} is not known; expected never, explosions or every:K (every:100)")
    return int(match[1])


@dataclass(frozen=True, slots=True)
class _Kept:
    step: int
    gradients: list[tuple[str, torch.Tensor]]
    metadata: Mapping[str, Any]


class GradientKeeper:
    """Decides at each update whether its gradients are kept, and writes them.

    Args:
        which: `explosions` or `every:K`; see `check_choice`.
        writer: Gives the writer of the run; it tells where files go, and is told where they cannot be written.
    """

    def __init__(self, which: str, writer: Callable[[], RunWriter]) -> None:
        self._every = check_choice(which)
        self._writer = writer
        self._known: deque[float] = deque(maxlen=_MAX_KNOWN)
        self._before: deque[_Kept] = deque()
        self._num_explosions = 0
        self._shards = Shards()

    def on_update(
        self, step: int, named: Callable[[], Named], total_norm: Callable[[], torch.Tensor | float], *, bound: Any = None, scale: Any = None
    ) -> None:
        """Look at an update whose gradients are about to be used.

        Args:
            step: Counted from 1.
            named: Gives each tensor's name and its gradient.
            total_norm: Gives the norm before clipping. `explosions` reads it at once: the one wait for the device that it costs.
            bound: What they were clipped at since, if they were; inf where a call only measured.
            scale: The loss scale that is still in them, if any.
        """
        if self._every is not None and step % self._every:
            return
        norm = total_norm()
        metadata = {
            "step": step,
            "total_norm": norm,
            "scale": 1.0 if scale is None else scale,
            "stage": (NormStage.UNKNOWN if bound is None else NormStage.POST_CLIP).value,
            "norm_type": 2.0,
        }
        if bound is not None:
            metadata["max_norm"] = bound
        if self._every is not None:
            self._write(self._kept(step, list(named()), metadata))
            return
        norm = float(norm)
        if self._explodes(norm):
            self._num_explosions += 1
            for kept in self._before:
                self._write(kept)
            self._before.clear()
            self._write(self._kept(step, list(named()), metadata))
        elif self._num_explosions < _MAX_EXPLOSIONS:
            self._remember(self._kept(step, list(named()), metadata))
        if math.isfinite(norm):
            self._known.append(norm)

    def _explodes(self, norm: float) -> bool:
        if self._num_explosions >= _MAX_EXPLOSIONS:
            return False
        if not math.isfinite(norm):
            return True
        return len(self._known) >= _MIN_KNOWN and norm > _EXPLODES_TIMES * median(self._known)

    def _kept(self, step: int, named: list[tuple[str, torch.Tensor]], metadata: Mapping[str, Any]) -> _Kept:
        shards = self._shards.told(named)
        return _Kept(step, named, metadata if shards is None else {**metadata, SHARDS_KEY: shards})

    def _remember(self, kept: _Kept) -> None:
        """Keep a copy on the gradients' own device, as many as fit."""
        if len(self._before) >= _NUM_BEFORE:
            self._before.popleft()
        gradients = [(name, _plain(g)) for name, g in kept.gradients]
        size = sum(g.numel() * g.element_size() for _, g in gradients)
        if size <= _MEMORY_FRACTION * _free_bytes(gradients):
            self._before.append(replace(kept, gradients=[(name, g.clone()) for name, g in gradients]))
        else:
            self._before.clear()

    def _write(self, kept: _Kept) -> None:
        writer = self._writer()
        path = writer.gradients_path(kept.step)
        metadata = {k: _text(v) for k, v in kept.metadata.items()}
        if not math.isfinite(float(metadata.get("max_norm", 0))):
            del metadata["max_norm"]
        try:
            write_safetensors(path, kept.gradients, metadata)
        except OSError as e:
            writer.report(f"{path}: gradients cannot be kept ({e.strerror or e})")


def write_safetensors(path: Path, tensors: Named, metadata: Mapping[str, str]) -> None:
    """Write tensors under their names, one after the other and never all at once. A file that is there is left alone.

    The format: length of the header (u64), a JSON header with dtype, shape and place of each tensor, their bytes.

    Raises:
        OSError: Where it cannot be written; nothing is left of it then.
    """
    import torch

    plain = [(name, _plain(t)) for name, t in tensors]
    header: dict[str, Any] = {"__metadata__": metadata}
    at = 0
    for name, tensor in plain:
        end = at + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[str(tensor.dtype).removeprefix("torch.")], "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    encoded = json.dumps(header).encode()
    # Tensors begin at a multiple of 8.
    encoded += b" " * (-len(encoded) % 8)
    if os.path.lexists(path):
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    fd = files.create(beside)
    try:
        files.write_all(fd, struct.pack("<Q", len(encoded)) + encoded)
        for _, tensor in plain:
            files.write_all(fd, tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    except OSError:
        beside.unlink()
        raise
    finally:
        os.close(fd)
    os.rename(beside, path)


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """What this process holds of a gradient, dense."""
    import torch

    tensor = tensor.detach()
    if hasattr(tensor, "to_local"):
        tensor = tensor.to_local()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def _text(value: Any) -> str:
    if hasattr(value, "detach"):
        value = float(value)
    return repr(value) if isinstance(value, float) else str(value)


def _free_bytes(gradients: list[tuple[str, torch.Tensor]]) -> int:
    """Memory that is free where the gradients are; 0 where nobody tells."""
    import torch

    device = gradients[0][1].device if gradients else torch.device("cpu")
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 0
