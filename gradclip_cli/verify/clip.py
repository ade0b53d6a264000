"""The function under test."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

import torch


class Clip(Protocol):
    """What `torch.nn.utils.clip_grad_norm_` is: scales the gradients in place, returns the norm from before."""

    def __call__(
        self,
        parameters: Iterable[torch.Tensor],
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor: ...


class ClipRaised(Exception):
    """The function under test raised where it should not have."""


def torch_clip(
    parameters: Iterable[torch.Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> torch.Tensor:
    """`torch.nn.utils.clip_grad_norm_`, looked up when it is called: what the training loop on this machine would get."""
    return torch.nn.utils.clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite, foreach)
