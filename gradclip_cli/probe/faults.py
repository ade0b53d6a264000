"""The faults that can be planted, one table: what each is called, what it does to an update, how to recognise it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradclip_cli.errors import GradclipError, UsageError
from gradclip_cli.model.probe import Planted

if TYPE_CHECKING:
    import torch

    from gradclip_cli.probe.batch import Batch

    Spoil = Callable[[Batch, float, torch.Generator, int | None], Batch]

_PLANTED = re.compile(r"([a-z0-9-]+)@([1-9]\d{0,8})(?::(.+))?")
_FAR = 100.0
# Overflows fp16 from any gradient a training has.
_OVERFLOWS = 2.0**40


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault.

    Attributes:
        size: What SIZE means, "" for a kind without.
        default, largest: Of SIZE; the smallest is above 0.
        explanation: What happens, and what is to be seen of it.
        spoil: Changes the batch, given its size, a source of chance and the number of tokens the model knows.
        per_usual_label: The loss is divided by the number of labels the batch had before.
        embedded: The number that stands in the input.
        times_loss, times_lr, times_gradient: What SIZE or a constant multiplies.
        lasts: SIZE is the number of updates.
        dtype: Under which alone it means something.
    """

    name: str
    explanation: str
    size: str = ""
    default: float | None = None
    largest: float = 1e12
    spoil: Spoil | None = None
    per_usual_label: bool = False
    embedded: float | None = None
    times_loss: bool = False
    times_lr: bool = False
    times_gradient: float | None = None
    lasts: bool = False
    dtype: str = ""


def _mislabelled(batch: Batch, size: float, chance: torch.Generator, num_tokens: int | None) -> Batch:
    import torch

    from gradclip_cli.probe.batch import IGNORED, label_key, replaced, tensors

    key = label_key(batch)
    if key is None:
        raise GradclipError("mislabelled: the batch has no labels; expected a tensor called labels, or the last of several")
    labels = tensors(batch)[key]
    if labels.is_floating_point():
        return replaced(batch, {key: labels + _FAR * (labels.std() if labels.numel() > 1 else 1.0)})
    counted = labels != IGNORED
    # Classes of a classifier are those seen; a language model knows more tokens than a batch holds.
    num_classes = num_tokens if num_tokens and labels.dim() > 1 else int(labels.max()) + 1
    wrong = _absent(labels[counted], num_classes, chance)
    hit = torch.rand(labels.shape, generator=chance).to(labels.device) < size
    return replaced(batch, {key: labels.masked_fill(hit & counted, wrong)})


def _long(batch: Batch, size: float, chance: torch.Generator, num_tokens: int | None) -> Batch:
    from gradclip_cli.probe.batch import replaced, tensors

    found = tensors(batch)
    # (batch, position) of tokens and labels, (batch, position, channel) of features.
    sequences = {key: t for key, t in found.items() if t.dim() == (3 if t.is_floating_point() else 2)}
    if not sequences:
        raise GradclipError("long-sequence: the batch holds no sequences; expected tokens (batch, position)")
    return replaced(batch, {key: t.repeat(1, int(size), *(1,) * (t.dim() - 2)) for key, t in sequences.items()})


def _foreign(batch: Batch, size: float, chance: torch.Generator, num_tokens: int | None) -> Batch:
    import torch

    from gradclip_cli.probe.batch import IGNORED, label_key, replaced, tensors

    found, at = tensors(batch), label_key(batch)
    floats = {key: t * _FAR for key, t in found.items() if key != at and t.is_floating_point()}
    if floats:
        return replaced(batch, floats)
    key = next((k for k, t in found.items() if k != at and not t.is_floating_point() and t.dim() >= 2), None)
    if key is None or num_tokens is None:
        raise GradclipError("foreign-tokens: the batch holds neither tokens of a model with an embedding nor features")
    tokens = found[key]
    hit = torch.rand(tokens.shape, generator=chance).to(tokens.device) < size
    new = {key: tokens.masked_fill(hit, _absent(tokens, num_tokens, chance))}
    if at is not None and found[at].shape == tokens.shape and not found[at].is_floating_point():
        new[at] = torch.where(hit & (found[at] != IGNORED), new[key], found[at])
    return replaced(batch, new)


def _unmasked(batch: Batch, size: float, chance: torch.Generator, num_tokens: int | None) -> Batch:
    import torch

    from gradclip_cli.probe.batch import IGNORED, label_key, replaced, tensors

    found, at = tensors(batch), label_key(batch)
    tokens = next((t for k, t in found.items() if k != at and at is not None and t.shape == found[at].shape), None)
    if at is None or tokens is None or not bool((found[at] == IGNORED).any()):
        raise GradclipError(
            f"mask-off: the batch has no label that is ignored; expected labels of {IGNORED} beside tokens of the same shape"
        )
    return replaced(batch, {at: torch.where(found[at] == IGNORED, tokens, found[at])})


def _absent(seen: torch.Tensor, num_classes: int, chance: torch.Generator) -> int:
    """A number below `num_classes` that does not occur, or any other than the first where all do."""
    import torch

    order = torch.randperm(num_classes, generator=chance)
    absent = order[~torch.isin(order, seen.cpu())]
    return int(absent[0] if len(absent) else (int(seen.flatten()[0]) + 1) % num_classes)


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            "mislabelled",
            "A batch whose labels are all one and the same wrong one (numbers: 100 standard deviations off), as after a join that went "
            "wrong. All tokens pull into one direction, where those of a usual batch cancel: the norm explodes (GC101) and the loss of "
            "that batch is high.",
            "the share of the labels",
            1.0,
            1.0,
            spoil=_mislabelled,
        ),
        Kind(
            "long-sequence",
            "A batch whose rows are SIZE times as long, under a loss that is divided by the usual number of tokens: the norm explodes "
            "(GC101) about as many times, and so does the loss of that batch.",
            "how many times as long",
            24.0,
            32.0,
            spoil=_long,
            per_usual_label=True,
        ),
        Kind(
            "foreign-tokens",
            "A batch of one repeated token that the model has never seen, as from a broken file or another language (features: 100 times "
            "as large). The model is certain that it cannot come: the norm explodes (GC101) and the loss of that batch is high.",
            "the share of the tokens",
            1.0,
            1.0,
            spoil=_foreign,
        ),
        Kind(
            "mask-off",
            "A batch whose ignored labels (-100: padding, prompts) count like all others, under a loss that is divided by the usual number "
            "of labels. The model has never been asked for padding: the norm explodes (GC101). The recorded `ignored_fraction` is 0.",
            spoil=_unmasked,
            per_usual_label=True,
        ),
        Kind(
            "loss-times",
            "A loss that is SIZE times too large, as a sum where a mean was meant: the norm is as many times the usual one (GC101).",
            "the factor",
            100.0,
            times_loss=True,
        ),
        Kind(
            "lr-jump",
            "A learning rate that is SIZE times too high for one update, as from a schedule that was resumed wrongly. Its own norm is a "
            "usual one; the updates behind it start from a damaged model (GC101 or GC102 there). No bound on the gradient helps.",
            "the factor",
            100.0,
            times_lr=True,
        ),
        Kind(
            "inf-input",
            "One channel of the embedded input (one number of the features, where there is no embedding) is inf: the loss is not finite "
            "(GC105), nor is the norm (GC104). Clipping cannot repair it; the loop drops such a batch.",
            embedded=math.inf,
        ),
        Kind("nan-input", "The same with nan.", embedded=math.nan),
        Kind(
            "fp16-overflow",
            "Gradients that are too large for fp16, for SIZE updates in a row: the loss scaler skips them and halves the loss scale each "
            "time (GC108 from four on). Needs --dtype fp16.",
            "the number of updates",
            6.0,
            1000.0,
            times_gradient=_OVERFLOWS,
            lasts=True,
            dtype="fp16",
        ),
    )
}
"""What `gradclip probe --inject` takes. A new fault is a row here, and a function above where it changes the batch."""


def planted(text: str, *, steps: int, dtype: str) -> Planted:
    """What `KIND@STEP[:SIZE]` asks for.

    Args:
        steps: Updates the probe makes.
        dtype: "fp32", "bf16", "fp16".

    Raises:
        UsageError: It is something else, or asks for what cannot be.
    """
    match = _PLANTED.fullmatch(text)
    if match is None:
        raise UsageError(f"--inject {text!r}: expected KIND@STEP or KIND@STEP:SIZE", hint="--inject mislabelled@120; --list-faults")
    name, step, size = match[1], int(match[2]), match[3]
    kind = KINDS.get(name)
    if kind is None:
        raise UsageError(f"--inject {text!r}: there is no fault {name!r}; expected one of {', '.join(KINDS)}", hint="--list-faults")
    if kind.dtype and dtype != kind.dtype:
        raise UsageError(f"--inject {text!r}: means nothing in {dtype}; expected --dtype {kind.dtype}")
    value = _size(text, kind, size)
    last = step + int(value or 1) - 1 if kind.lasts else step
    if last > steps:
        raise UsageError(f"--inject {text!r}: reaches update {last}, and there are {steps}", hint="plant it earlier, or --steps more")
    return Planted(name, step, last, value)


def _size(text: str, kind: Kind, size: str | None) -> float | None:
    if size is None:
        return kind.default
    if not kind.size:
        raise UsageError(f"--inject {text!r}: {kind.name} has no size; expected {kind.name}@STEP")
    try:
        value = float(size)
    except ValueError:
        value = math.nan
    if not 0 < value <= kind.largest:
        raise UsageError(f"--inject {text!r}: expected {kind.size}, above 0 and up to {kind.largest:g}, behind the colon")
    if (kind.lasts or kind.name == "long-sequence") and value != int(value):
        raise UsageError(f"--inject {text!r}: expected {kind.size}, a whole number, behind the colon")
    return value


def explained(kinds: Sequence[Kind] = tuple(KINDS.values())) -> list[tuple[str, str]]:
    """How each is written, and what it does."""
    return [
        (f"{k.name}@STEP" + (f"[:SIZE]  SIZE: {k.size} [default: {k.default:g}]" if k.default is not None else ""), k.explanation)
        for k in kinds
    ]
