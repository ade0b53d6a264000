"""The user's own model and data, from a function of theirs: `mypkg.train:build`."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from gradclip_cli.errors import GradclipError, UsageError
from gradclip_cli.probe.batch import Batch
from gradclip_cli.probe.subject import Loss, Subject, call_model, checked_loss, told_as_theirs

_EXPECTED = "expected a model and an iterable of batches, and optionally a loss function and an optimizer"


def own_subject(target: str) -> Subject:
    """What the function `module:function` builds.

    Raises:
        UsageError: The target is not written so.
        GradclipError: There is no such function, it raised, or it returned something else.
    """
    function = own_function(target)
    with told_as_theirs(target, "it built"):
        made = function()
    return _subject(target, made)


def own_function(target: str) -> Callable[[], Any]:
    """The function `module:function`; its module is imported if it was not yet.

    Raises:
        UsageError: The target is not written so.
        GradclipError: There is no such function, or its module raised.
    """
    module_name, _, function_name = target.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), *function_name.split("."))):
        raise UsageError(f"{target!r}: expected MODULE:FUNCTION", hint="gradclip probe mypkg.train:build")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with told_as_theirs(target, "it was imported"):
            function: Any = importlib.import_module(module_name)
    except GradclipError as e:
        missing = e.__cause__.name if isinstance(e.__cause__, ModuleNotFoundError) else None
        if missing and (module_name == missing or module_name.startswith(f"{missing}.")):
            raise GradclipError(
                f"{target}: there is no module {missing}; expected it in this directory or installed", hint="run it from the project's root"
            ) from e
        raise
    for name in function_name.split("."):
        function = getattr(function, name, None)
    if not callable(function):
        raise GradclipError(f"{target}: the module has no function {function_name}; expected one that returns a model and batches")
    found: Callable[[], Any] = function
    return found


def _subject(target: str, made: Any) -> Subject:
    if not isinstance(made, list | tuple) or not 2 <= len(made) <= 4:
        found = f"{len(made)} values" if isinstance(made, list | tuple) else f"a {type(made).__name__}"
        raise GradclipError(f"{target}: returned {found}; {_EXPECTED}", hint="return model, batches")
    model, batches, *rest = made
    if not isinstance(model, nn.Module):
        raise GradclipError(
            f"{target}: the first value it returned is a {type(model).__name__}; expected a torch.nn.Module", hint=_EXPECTED
        )
    if not isinstance(batches, Iterable):
        raise GradclipError(
            f"{target}: the second value it returned is a {type(batches).__name__}; expected an iterable of batches", hint=_EXPECTED
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise GradclipError(f"{target}: the model has no parameter that is trained; expected at least one with requires_grad")
    if any(is_lazy(p) for p in model.parameters()):
        raise GradclipError(
            f"{target}: the model has parameters that have no shape yet; expected none", hint="call it with a batch in the function"
        )
    loss: Loss | None = None
    optimizer = None
    for value in rest:
        if isinstance(value, torch.optim.Optimizer) and optimizer is None:
            optimizer = value
        elif callable(value) and loss is None:
            loss = _loss(value)
        elif value is not None:
            raise GradclipError(
                f"{target}: returned a {type(value).__name__} behind model and batches; expected one loss function, one optimizer",
                hint=_EXPECTED,
            )
    return Subject(target, model, _endless(batches), loss or call_model, optimizer)


def _loss(function: Any) -> Loss:
    """A criterion is given output and target of a pair; any other function model and batch."""
    if isinstance(function, nn.Module):

        def of_pair(model: nn.Module, batch: Batch) -> torch.Tensor:
            if not isinstance(batch, list | tuple) or len(batch) != 2:
                raise GradclipError(
                    f"the criterion {type(function).__name__} needs batches of (input, target); found a {type(batch).__name__}"
                )
            return checked_loss(function(model(batch[0]), batch[1]))

        return of_pair
    return lambda model, batch: checked_loss(function(model, batch))


def _endless(batches: Iterable[Batch]) -> Iterator[Batch]:
    """Begin again at the end; what can be gone through only once is used up then."""
    while True:
        empty = True
        for batch in batches:
            empty = False
            yield batch
        if empty or isinstance(batches, Iterator):
            return
