"""Consecutive gradients run through a real torch optimizer, with and without clipping: how far the parameters would have moved.

Most optimizers act element by element, so a block of a tensor can be run through all steps before the next is read, and memory holds one
block. Those that look at a whole matrix get a whole tensor. Parameters start at zero and are moved; what depends on their own size (weight
decay, the step size of Adafactor) is not seen.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gradclip_cli.clipping.blocks import Block, Reader, blocks_of, share
from gradclip_cli.clipping.dtypes import Floats
from gradclip_cli.clipping.norms import dot, exactly
from gradclip_cli.clipping.ranks import Ranks
from gradclip_cli.clipping.sources import StoredStep
from gradclip_cli.clipping.store import StoredTensor
from gradclip_cli.errors import GradclipError, UsageError

if TYPE_CHECKING:
    import torch

# LBFGS calls the model again; SparseAdam takes sparse gradients only.
_UNSUITABLE = {"Optimizer", "LBFGS", "SparseAdam"}
_OF_WHOLE_TENSORS = {"Adafactor", "Muon"}
_DEFAULT_LR = 1e-3


class OptimizerKind:
    """An optimizer of `torch.optim` and the arguments it is made with.

    Args:
        name: Its class, in any case: `sgd`, `adamw`.
        lr: Learning rate.
        options: `key=value` each, the value as Python writes it: `momentum=0.9`, `betas=(0.9, 0.95)`.

    Raises:
        UsageError: No such optimizer or argument.
        GradclipError: torch is missing.
    """

    def __init__(self, name: str, lr: float | None, options: Sequence[str]) -> None:
        classes = _classes()
        found = classes.get(name.lower())
        if found is None:
            raise UsageError(f"--optimizer {name!r} is not known; expected one of {', '.join(classes)}")
        self.name = found.__name__
        self._class = found
        given = _parsed(options)
        if lr is not None and "lr" in given:
            raise UsageError("the learning rate is given by --lr and by --optimizer-arg; expected one of them")
        self.arguments: dict[str, Any] = {"lr": _DEFAULT_LR if lr is None else lr, **given}
        known = [k for k in inspect.signature(found.__init__).parameters if k not in ("self", "params")]
        for key in self.arguments:
            if key not in known:
                raise UsageError(f"{self.name} has no argument {key!r}; it has {', '.join(known)}")
        self.make(_matrix())

    @property
    def needs_whole_tensors(self) -> bool:
        return self.name in _OF_WHOLE_TENSORS

    def takes(self, tensor: StoredTensor) -> bool:
        """Muon is for matrices; what else a model has is left to another optimizer."""
        return self.name != "Muon" or len(tensor.shape) == 2

    def make(self, parameter: torch.Tensor) -> torch.optim.Optimizer:
        """One for a parameter.

        Raises:
            UsageError: It does not take the arguments.
        """
        try:
            return self._class([parameter], **self.arguments)  # type: ignore[no-any-return]
        except (TypeError, ValueError, RuntimeError) as e:
            raise UsageError(f"{self.name} does not take these arguments ({e})") from e


def _matrix() -> torch.Tensor:
    import torch

    return torch.zeros(2, 2, requires_grad=True)


def _classes() -> dict[str, Any]:
    try:
        import torch
    except ImportError as e:
        raise GradclipError("--optimizer needs torch, which is not installed", hint="pip install 'gradclip-cli[torch]'") from e
    found = {k: v for k, v in vars(torch.optim).items() if isinstance(v, type) and issubclass(v, torch.optim.Optimizer)}
    return {k.lower(): v for k, v in sorted(found.items()) if k not in _UNSUITABLE}


def _parsed(options: Sequence[str]) -> dict[str, Any]:
    arguments = {}
    for option in options:
        key, sign, value = option.partition("=")
        try:
            arguments[key.strip()] = ast.literal_eval(value.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            sign = ""
        if not sign:
            raise UsageError(f"--optimizer-arg {option!r}; expected key=value", hint="--optimizer-arg momentum=0.9")
    return arguments


def update_norms(kind: OptimizerKind, steps: Sequence[StoredStep], coefficients: Floats, ranks: Ranks) -> Floats:
    """L2 norms of the updates of each step.

    Args:
        coefficients: Shape (num ways, num steps): what the gradients of a step are multiplied by. A nan leaves the step out.

    Returns:
        float64, shape (num ways, num steps), nan where a step was left out.

    Raises:
        GradclipError: A tensor changes its shape between steps, the optimizer refuses one, or a file cannot be read.
    """
    columns = _columns(kind, steps)
    sums = np.zeros((len(columns), *coefficients.shape))
    error = None
    try:
        with Reader() as reader:
            for span in share([next(iter(c.values())) for c in columns], ranks):
                for i in span:
                    sums[i] = _replayed(kind, columns[i], steps, coefficients, reader)
    except GradclipError as e:
        error = e
    ranks.raise_any(error)
    ranks.join(sums)
    norms = np.array([[math.sqrt(exactly(sums[:, way, step])) for step in range(len(steps))] for way in range(len(coefficients))])
    norms[np.isnan(coefficients)] = np.nan
    return norms.reshape(coefficients.shape)


_Column = Mapping[int, Block]
"""The same block of the same tensor, by the number of the step."""


def _columns(kind: OptimizerKind, steps: Sequence[StoredStep]) -> list[_Column]:
    """Tensor by tensor, block by block; a step that lacks a tensor is missing from its columns."""
    columns: dict[tuple[str, tuple[int, ...], int], dict[int, Block]] = {}
    seen: dict[str, StoredTensor] = {}
    for k, step in enumerate(steps):
        for tensor in step.tensors:
            first = seen.setdefault(tensor.name, tensor)
            if _layout(first) != _layout(tensor):
                raise GradclipError(
                    f"{step.source}: tensor {tensor.name} has another shape, or is stored in another way, than at steps before; "
                    "expected the gradients of one model",
                    hint="leave --optimizer out, or name files that belong together",
                )
        for block in _cut(kind, step.tensors):
            name = step.tensors[block.tensor].name
            columns.setdefault((name, block.piece.origin, block.start), {})[k] = block
    return list(columns.values())


def _layout(tensor: StoredTensor) -> list[object]:
    return [tensor.shape, *((p.origin, p.shape, p.axes) for p in tensor.pieces)]


def _cut(kind: OptimizerKind, tensors: Sequence[StoredTensor]) -> Iterator[Block]:
    if not kind.needs_whole_tensors:
        yield from blocks_of(tensors)
        return
    for i, tensor in enumerate(tensors):
        if len(tensor.pieces) > 1:
            raise GradclipError(
                f"{tensor.pieces[0].path}: tensor {tensor.name} is stored in {len(tensor.pieces)} pieces; {kind.name} needs whole tensors",
                hint="save unsharded gradients, or replay another optimizer",
            )
        if tensor.numel and kind.takes(tensor):
            yield Block(i, tensor.pieces[0], tensor.dtype, 0, tensor.numel)


def _gradient(block: Block, reader: Reader, shape: tuple[int, ...]) -> torch.Tensor:
    import torch

    stored = np.empty(block.num_bytes, np.uint8)
    reader.read(block, stored)
    raw = torch.from_numpy(stored).view(getattr(torch, block.dtype.name))
    if len(shape) == 1:
        return raw
    axes = block.piece.axes
    return raw.reshape([shape[a] for a in axes]).permute([axes.index(i) for i in range(len(axes))])


def _replayed(kind: OptimizerKind, column: _Column, steps: Sequence[StoredStep], coefficients: Floats, reader: Reader) -> Floats:
    """Squared update norms of one block, shape as `coefficients`."""
    import torch

    first = next(iter(column.values()))
    # Parameters as they are kept beside gradients of less than 32 bits.
    dtype = torch.float32 if first.dtype.num_bytes < 4 else getattr(torch, first.dtype.name)
    shape = first.piece.shape if kind.needs_whole_tensors else (first.num,)
    squares = np.zeros(coefficients.shape)
    parameters = [torch.zeros(shape, dtype=dtype, requires_grad=True) for _ in coefficients]
    optimizers = [kind.make(p) for p in parameters]
    for k, block in column.items():
        if np.isnan(coefficients[:, k]).all():
            continue
        gradient = _gradient(block, reader, shape).to(parameters[0].dtype) / steps[k].claims.divisor
        for way, (parameter, optimizer) in enumerate(zip(parameters, optimizers, strict=True)):
            before = parameter.detach().clone()
            parameter.grad = gradient * float(coefficients[way, k])
            try:
                optimizer.step()
            except Exception as e:  # each optimizer refuses in its own way what it is not made for
                why = (str(e).splitlines() or [type(e).__name__])[0]
                tensor = steps[k].tensors[block.tensor]
                raise GradclipError(
                    f"{steps[k].source}: {kind.name} refuses tensor {tensor.name} of {tensor.dtype.name} ({why}); expected one it takes",
                    hint="leave --optimizer out, or choose another or other arguments",
                ) from e
            moved = torch.view_as_real(parameter.detach() - before) if dtype.is_complex else parameter.detach() - before
            values = moved.double().flatten().numpy()
            squares[way, k] = dot(values, values)
    return squares
