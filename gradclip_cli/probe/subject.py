"""What is trained: the model of a preset, the user's own, or one from a Hugging Face directory."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from gradclip_cli.errors import GradclipError
from gradclip_cli.probe.batch import Batch

# Of a traceback the innermost frame outside these is told.
_TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep

Loss = Callable[[nn.Module, Batch], torch.Tensor]


@dataclass(frozen=True, eq=False)
class Subject:
    """A model with what it takes to train it.

    Attributes:
        name: For people.
        batches: Endless, or long enough.
        loss: Model and batch in, a scalar out.
        optimizer: The user's own; None where one is to be made.
        lr: A learning rate that suits AdamW.
        foreign: Its code is the user's: what it raises is told as theirs.
    """

    name: str
    model: nn.Module
    batches: Iterator[Batch]
    loss: Loss
    optimizer: torch.optim.Optimizer | None = None
    lr: float = 1e-3
    foreign: bool = True


def preset_subject(name: str, seed: int, rank: int) -> Subject:
    """The model of a preset and its text; each rank reads other places of it."""
    from gradclip_cli.probe.data import preset_batches
    from gradclip_cli.probe.model import GPT
    from gradclip_cli.probe.sizes import PRESETS

    preset = PRESETS[name]
    batches = preset_batches(preset, seed + 1_000_003 * rank)
    return Subject(f"{name} GPT", GPT(preset), batches, call_model, lr=preset.lr, foreign=False)


def call_model(model: nn.Module, batch: Batch) -> torch.Tensor:
    """The loss as the model itself gives it: its output, the output's `loss`, or the first of a tuple."""
    out = model(**batch) if isinstance(batch, Mapping) else model(*batch) if isinstance(batch, list | tuple) else model(batch)
    if isinstance(out, Mapping):
        out = out.get("loss", out)
    elif isinstance(out, list | tuple) and out:
        out = out[0]
    else:
        out = getattr(out, "loss", out)
    return checked_loss(out)


def checked_loss(out: Any) -> torch.Tensor:
    """A loss that can be trained with.

    Raises:
        GradclipError: It is none.
    """
    if not isinstance(out, torch.Tensor) or out.numel() != 1:
        found = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, torch.Tensor) else f"a {type(out).__name__}"
        raise GradclipError(
            f"the loss is {found}; expected a scalar tensor",
            hint="let the model return the loss, or build() return a loss function beside model and batches",
        )
    if not out.requires_grad:
        raise GradclipError("the loss does not depend on any parameter that is trained; expected one with a gradient")
    return out.reshape(())


@contextmanager
def told_as_theirs(subject: str, doing: str) -> Iterator[None]:
    """Turn whatever the user's code raises, and torch on account of it, into one sentence with its place.

    Raises:
        GradclipError: That.
    """
    try:
        yield
    except GradclipError:
        raise
    except SystemExit as e:
        raise GradclipError(f"{subject}: ended the process while {doing} (exit {e.code}); expected it to go on") from e
    except Exception as e:
        frames = [f for f in traceback.extract_tb(e.__traceback__) if not f.filename.startswith((_OURS, _TORCH, "<"))]
        place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
        said = str(e).strip().splitlines()
        raise GradclipError(
            f"{subject}: raised {type(e).__name__}{f' ({said[0][:200]})' if said else ''} while {doing}"
            + (f", at {place}" if place else ""),
            hint="a smaller model, or smaller batches" if is_short_of_memory(e) else "run it in Python for the full traceback",
        ) from e


def is_short_of_memory(error: BaseException) -> bool:
    """Whether torch or Python could not allocate; torch has no exception of its own for a CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
