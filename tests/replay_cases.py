"""Gradients for the tests of replay: real files, and their norms from Python's own exact sums."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np

from tests.conftest import ROOT

NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL", "complex64": "C64"}


def write_safetensors(path: Path, tensors: Mapping[str, np.ndarray], **metadata: object) -> Path:
    """As the package of that name writes them, from numpy arrays."""
    header: dict[str, object] = {"__metadata__": {k: str(v) for k, v in metadata.items()}} if metadata else {}
    at = 0
    for name, array in tensors.items():
        header[name] = {"dtype": NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    return write_raw(path, json.dumps(header), b"".join(np.ascontiguousarray(a).tobytes() for a in tensors.values()))


def write_raw(path: Path, header: str | bytes, data: bytes = b"", *, size: int | None = None) -> Path:
    """A safetensors file with any header, true or not."""
    text = header.encode() if isinstance(header, str) else header
    path.write_bytes((len(text) if size is None else size).to_bytes(8, "little") + text + data)
    return path


def exact_norm(arrays: Sequence[np.ndarray], p: float) -> float:
    """The p-norm from sums of exact fractions for whole p, from long doubles otherwise."""
    values = [abs(float(x)) for a in arrays for x in np.asarray(a, np.float64).ravel()]
    if any(map(math.isnan, values)):
        return math.nan
    if math.isinf(p) or any(map(math.isinf, values)):
        return max(values, default=0.0)
    largest = max(values, default=0.0)
    if not largest:
        return 0.0
    scaled = [Fraction(v) / Fraction(largest) for v in values]
    if p == int(p):
        total = math.fsum(float(s ** int(p)) for s in scaled)
    else:
        total = float(np.sum(np.array([float(s) for s in scaled], np.longdouble) ** np.longdouble(p)))
    return largest * total ** (1 / p)


def gradients(seed: int = 0, *, scale: float = 1e-2, dtype: str = "float32") -> dict[str, np.ndarray]:
    """Tensors of a small model, their sizes no multiples of anything."""
    rng = np.random.default_rng(seed)
    shapes = {"wte.weight": (50, 16), "h.0.weight": (16, 33), "h.0.bias": (33,), "h.1.weight": (33, 16), "ln": (), "head.weight": (101, 7)}
    return {name: np.asarray(rng.standard_normal(shape) * scale).astype(dtype) for name, shape in shapes.items()}


def torchrun(num_ranks: int, *args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """`torchrun -m gradclip_cli`, on a free port."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks), "-m", "gradclip_cli"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "80"}
    return subprocess.run([*argv, *map(str, args)], cwd=cwd, env=env, capture_output=True, text=True, timeout=180)


_RANKS = """
import os, sys
import torch._dynamo, torch.distributed
from gradclip_cli.__main__ import main
num_ranks = int(sys.argv[1])
children = []
for rank in range(1, num_ranks):
    child = os.fork()
    if child == 0:
        children = []
        break
    children.append(child)
else:
    rank = 0
os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1"}
code = main(sys.argv[2:])
sys.stdout.flush()
os._exit(max([code, *(os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children)]))
"""


def forked_ranks(num_ranks: int, *args: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    """The same without its launcher and with one import of torch for all, which takes a fraction of the time."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "80", "MASTER_PORT": port}
    argv = [sys.executable, "-c", _RANKS, str(num_ranks), *map(str, args)]
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, timeout=180)
