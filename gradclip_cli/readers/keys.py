"""Which key of a log is the loss, the norm and the rest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import numpy as np

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import CLIP_COEF, GRAD_NORM, LOSS, LOSS_SCALE, LR, MAX_NORM, TENSOR_PREFIX
from gradclip_cli.readers import names
from gradclip_cli.readers.log import Log, Wanted

_ROLES = (LOSS, GRAD_NORM, LR, LOSS_SCALE, CLIP_COEF)
# Formats that anything may be written in; the others are known to be training runs by their very shape.
_OPEN_FORMATS = ("csv", "json-lines", "parquet", "text")

# Up and down again, a few times: what is planned goes no other way.
_MOST_TURNS = 4


def pick(source: str, log: Log, wanted: Wanted, notes: list[str]) -> dict[str, str]:
    """Series name -> key."""
    num_points = {k: int(np.count_nonzero(np.isfinite(c.values))) for k, c in log.columns.items() if len(c.values)}
    keys: dict[str, str] = {}
    for role in _ROLES:
        named = {LOSS: wanted.loss, GRAD_NORM: wanted.grad_norm, LR: wanted.lr}.get(role)
        if named is not None:
            keys[role] = asked(source, named, log)
            continue
        if log.roles.get(role) in num_points:
            keys[role] = log.roles[role]
            continue
        found = [k for k in names.candidates(role, num_points) if k not in (wanted.loss, wanted.grad_norm, wanted.lr, wanted.step)]
        if found:
            keys[role] = found[0]
            others = [k for k in found[1:] if role in (LOSS, GRAD_NORM)]
            if others:
                notes.append(f"took {found[0]!r} for the {_spoken(role)}; also there: {listed(others)}")
    if LOSS not in keys and wanted.grad_norm is None:
        parts = [k for k in num_points if names.is_loss_like(k) and k not in keys.values()]
        if len(parts) == 1:
            keys[LOSS] = parts[0]
            notes.append(f"took {parts[0]!r} for the loss, the only key like one")
        elif parts:
            notes.append(f"no total loss among {listed(parts)}; name one with --loss KEY")
    if GRAD_NORM in keys and (key := _scheduled_bound(log)) is not None and key not in keys.values():
        keys[MAX_NORM] = key
    if LOSS not in keys and GRAD_NORM not in keys:
        _by_file_name(source, num_points, keys, notes)
    taken = set(keys.values())
    for key in num_points:
        if (tensor := names.tensor_of(key)) is not None and key not in taken:
            keys[TENSOR_PREFIX + tensor] = key
    return keys


def check_credible(source: str, log: Log, wanted: Wanted, keys: Mapping[str, str], *, steps_known: bool) -> None:
    """Refuse to see a run where a column is called `loss` and nothing else speaks of a training (insurance, packets, a sweep).

    Raises:
        GradclipError: Naming what to say if it is one all the same.
    """
    if log.format not in _OPEN_FORMATS or wanted.loss or wanted.grad_norm or wanted.step:
        return
    loss = keys.get(LOSS)
    guessed = loss is not None and loss != log.roles.get(LOSS) and names.rank(LOSS, loss) is None and names.is_loss_like(loss)
    plain = GRAD_NORM in keys and names.words(keys[GRAD_NORM]) in ("norm", "total_norm", "global_norm")
    plain_norm = plain and LOSS not in keys
    if not guessed and not plain_norm and (steps_known or (LOSS in keys and GRAD_NORM in keys and not plain)):
        return
    if LOSS in keys and steps_known and (LR in keys or GRAD_NORM in keys):
        return
    others = [k for k in log.columns if k not in keys.values()]
    if not plain_norm and any(map(names.speaks_of_training, others)) and (steps_known or not guessed):
        return
    lacks = "" if LR in keys else ", no learning rate"
    name, option = (LOSS, "--loss") if LOSS in keys else (GRAD_NORM, "--grad-norm")
    raise GradclipError(
        f"{source}: {keys[name]!r} may be a {_spoken(name)}, but nothing else here speaks of a training run (no step{lacks})",
        hint=f"if it is one, say so with {option} {keys[name]!r}",
    )


def _by_file_name(source: str, num_points: Mapping[str, int], keys: dict[str, str], notes: list[str]) -> None:
    """A table with one `Value` column is one tag, and its file is called after it (`run-x-tag-train_loss.csv`)."""
    value = next((k for k in num_points if k.strip().lower() in ("value", "values")), None)
    if value is None:
        return
    stem = re.sub(r"^.*?-tag-", "", PurePath(source).stem)
    for role in (LOSS, GRAD_NORM):
        tails = [stem, *("_".join(re.split(r"[-_.\s]+", stem)[i:]) for i in range(8))]
        if any(names.rank(role, tail) is not None for tail in tails if tail):
            keys[role] = value
            notes.append(f"took {value!r} for the {_spoken(role)} after the file's name")
            return


def asked(source: str, key: str, log: Log) -> str:
    """The key that the user named, or the one that differs from it in punctuation only.

    Raises:
        GradclipError: Naming the nearest where it is not there.
    """
    if key in log.columns:
        return key
    same = [k for k in log.columns if names.words(k) == names.words(key)]
    if len(same) == 1:
        return same[0]
    near = names.nearest(key, log.columns)
    hint = f"did you mean {', '.join(map(repr, near))}?" if near else f"keys found: {listed(list(log.columns), 20)}"
    raise GradclipError(f"{source}: no key {key!r} in this log", hint=hint)


def nothing_found(source: str, log: Log) -> GradclipError:
    """What to say where neither a loss nor a norm is there."""
    found = list(log.columns)
    guesses = [k for k in found if names.is_loss_like(k) or names.is_norm_like(k)]
    guesses += [k for k in found if k not in guesses and ("loss" in k.lower() or "norm" in k.lower())]
    if guesses:
        hint = f"name one with --loss or --grad-norm; the nearest are {listed(guesses, 8)}"
    elif found:
        hint = f"name one with --loss KEY or --grad-norm KEY; keys found: {listed(found, 20)}"
    else:
        hint = "is this the log of a training run?"
    empty = next((f"; {key!r} {what}" for key, what in log.empty.items()), "")
    return GradclipError(
        f"{source}: found neither a training loss nor a gradient norm among {len(found)} keys ({log.format}){empty}", hint=hint
    )


def logged_bound(log: Log) -> float | None:
    """max_norm, where it is logged beside the series and never changes."""
    for key, column in log.columns.items():
        if names.rank(MAX_NORM, key) is not None and len(column.values) > 1 and np.ptp(column.values) == 0 and column.values[0] > 0:
            return float(column.values[0])
    return None


def _scheduled_bound(log: Log) -> str | None:
    """The key of a max_norm that is logged beside the series and changes, as a schedule does: a largest norm goes up and down."""
    for key, column in log.columns.items():
        if names.rank(MAX_NORM, key) == 0:
            moves = np.sign(np.diff(column.values[np.isfinite(column.values)]))
            moves = moves[moves != 0]
            if len(moves) and np.count_nonzero(np.diff(moves)) <= _MOST_TURNS:
                return key
    return None


def _spoken(role: str) -> str:
    return "gradient norm" if role == GRAD_NORM else role


def listed(keys: Sequence[str], most: int = 5) -> str:
    """Some keys, for a sentence."""
    shown = ", ".join(repr(k) if len(k) <= 80 else repr(k[:77] + "...") for k in keys[:most])
    return shown + (f" and {len(keys) - most} more" if len(keys) > most else "")
