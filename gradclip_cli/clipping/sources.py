"""From paths to steps: which files there are, what format each is in, and which of them are one step."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from os.path import isdir, isfile
from pathlib import Path
from typing import Any

from gradclip_cli.clipping import shards, store_dcp, store_safetensors, store_torch
from gradclip_cli.clipping.copies import Difference
from gradclip_cli.clipping.norms import MOST_P
from gradclip_cli.clipping.recorded import GRADIENTS, RUN_HEADER, holds_shards
from gradclip_cli.clipping.store import Copy, Stored, StoredTensor, damaged, open_regular
from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import NormStage
from gradclip_cli.wording import count

_SAFETENSORS, _TORCH = ".safetensors", (".pt", ".pth", ".bin", ".ckpt")
_MOST_DEPTH = 4
_SHARD = re.compile(r"[-_.](\d+)-of-(\d+)$")
_STEP = re.compile(r"(?:step|iteration|iter|update|it)[-_=. ]*(\d{1,18})(?!\d)", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![\d.])\d{1,18}(?!\d)")
_NO_STEP = re.compile(r"(?:rank|shard|part|epoch|gpu|device|worker|node)[-_=. ]*\d+", re.IGNORECASE)
_STAGES = {s.value: s for s in NormStage}


@dataclass(frozen=True, slots=True)
class Claims:
    """What the files say of the gradients in them.

    Attributes:
        scale: The factor that a loss scaler had put on them; values are divided by it.
        stage: Whether they were saved before or after clipping.
        max_norm, norm_type: Of that clipping.
        total_norm: The norm before it, as the training saw it.
        restored: What values are multiplied by to undo that clipping; 1 unless it was asked for.
    """

    scale: float = 1.0
    stage: NormStage = NormStage.UNKNOWN
    max_norm: float | None = None
    norm_type: float | None = None
    total_norm: float | None = None
    restored: float = 1.0

    @property
    def told_norm(self) -> float | None:
        """The norm of the values by what is told: that of the training, or what its clipping left of it; None where it is not told."""
        if self.total_norm is None or not 0 <= self.total_norm < math.inf:
            return None
        if self.stage is not NormStage.POST_CLIP:
            return self.total_norm
        return None if self.max_norm is None else min(self.total_norm, self.max_norm)

    @property
    def divisor(self) -> float:
        """What stored values are divided by."""
        return self.scale / self.restored


@dataclass(frozen=True, slots=True)
class StoredStep:
    """The gradients of one optimizer update.

    Attributes:
        source: The file, the first of several, or the checkpoint's directory.
        world_size, copies, alone: As of `Stored`.
        difference: Of the copies, once they were compared.
    """

    step: int
    source: Path
    tensors: tuple[StoredTensor, ...]
    claims: Claims = field(default_factory=Claims)
    world_size: int = 1
    copies: tuple[Copy, ...] = ()
    alone: str = ""
    difference: Difference | None = None


@dataclass(frozen=True, slots=True)
class Gradients:
    """All steps that could be made out, in order.

    Attributes:
        format: "safetensors", "torch", "dcp", ... with " + " between several.
        failures: What could not be read, one error each.
        notes: What was guessed or left out.
    """

    format: str
    steps: tuple[StoredStep, ...]
    failures: tuple[GradclipError, ...]
    notes: tuple[str, ...]


def find(paths: Sequence[Path]) -> Gradients:
    """Look through files, directories, distributed checkpoints and recorded runs; only headers are read.

    A step's number is what the metadata says, else what the name says (`step-00000412.safetensors`), else its place in the order of names.
    Files named as parts (`-00001-of-00003`), or with one number and no tensor in common, are one step, and so are the shards of all ranks.
    """
    failures: list[GradclipError] = []
    notes: list[str] = []
    units: list[Path] = []
    for path in paths:
        try:
            units += _expand(path, failures)
        except GradclipError as e:
            failures.append(e)
    stored = _all_read(units, failures)
    for run in filter(_is_run, dict.fromkeys(paths)):
        folders = [p for p in sorted(run.glob(f"rank-*/{GRADIENTS}")) if isdir(p)]
        if any(shards.is_sharded(s) for s in stored if s.path.parent == run / GRADIENTS):
            others = [p for folder in folders for p in sorted(_walk(folder, 0, failures), key=_natural)]
            stored += _all_read([p for p in others if p not in units], failures)
        elif folders:
            notes.append(
                f"the gradients of rank 0 were read, not those of {count(len(folders), 'other rank')}: where each rank held a part, the "
                "norms are of that part alone"
            )
    stored = _marked(shards.joined(stored))
    notes += _summed(stored)
    groups, broken = _grouped(stored)
    failures += broken
    steps = _numbered(groups, failures, notes)
    return Gradients(" + ".join(dict.fromkeys(s.format for s in stored)), tuple(steps), tuple(failures), tuple(notes))


def _is_run(path: Path) -> bool:
    return isfile(path / RUN_HEADER) and not isfile(path / store_dcp.METADATA)


def _expand(path: Path, failures: list[GradclipError]) -> list[Path]:
    """The files and checkpoints that a path stands for."""
    # Unlike those of a path, these say no where it may not be looked.
    if not isdir(path) or isfile(path / store_dcp.METADATA):
        return [path]
    if _is_run(path):
        return _of_run(path, failures)
    unseen: list[GradclipError] = []
    found = list(_walk(path, 0, unseen))
    failures += unseen
    if not found and not unseen:
        raise GradclipError(
            f"{path}: found no gradients; expected {_SAFETENSORS}, {', '.join(_TORCH)} or a distributed checkpoint in it",
            hint="gradclip record --save-grads writes them",
        )
    return sorted(found, key=_natural)


def _of_run(path: Path, failures: list[GradclipError]) -> list[Path]:
    """Of a recorded run the gradients of rank 0."""
    folder = path / GRADIENTS
    found = sorted(_walk(folder, 0, failures), key=_natural) if isdir(folder) else []
    if not found:
        raise GradclipError(
            f"{path}: found a recorded run without gradients; expected files in {GRADIENTS}/",
            hint="gradclip record --save-grads writes them",
        )
    return found


def _walk(folder: Path, depth: int, failures: list[GradclipError]) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            listed = [(Path(e.path), e.is_dir(follow_symlinks=False)) for e in entries if not e.name.startswith(".")]
    except OSError as e:
        what = (e.strerror or str(e)).lower()
        failures.append(GradclipError(f"{folder}: {what}; expected a readable directory", hint="check the path"))
        return
    for path, is_folder in listed:
        if not is_folder:
            if path.suffix.lower() in (_SAFETENSORS, *_TORCH):
                yield path
        elif isfile(path / store_dcp.METADATA):
            yield path
        elif depth < _MOST_DEPTH:
            yield from _walk(path, depth + 1, failures)


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Sorts step-9 before step-10."""
    return [(0, int(t), "") if t.isdecimal() and len(t) < 4000 else (1, 0, t) for t in re.split(r"(\d+)", str(path)) if t]


def _all_read(paths: Iterable[Path], failures: list[GradclipError]) -> list[Stored]:
    stored = []
    for path in dict.fromkeys(paths):
        try:
            stored.append(_read(path))
        except GradclipError as e:
            failures.append(e)
    return stored


def _marked(stored: Sequence[Stored]) -> list[Stored]:
    """Those in folders of shards marked, where they say nothing of themselves."""
    folders = {s.path.absolute().parent for s in stored if s.world_size == 1 and not s.alone and not shards.is_known_whole(s)}
    sharded = {folder for folder in folders if holds_shards(folder)}
    why = "nothing tells where in the whole tensors they belong"
    return [replace(s, alone=why) if s.world_size == 1 and not s.alone and s.path.absolute().parent in sharded else s for s in stored]


def _read(path: Path) -> Stored:
    if isdir(path):
        result = store_dcp.read(path)
    else:
        result = _read_file(path)
    gradients = tuple(t for t in result.tensors if t.dtype.kind != "other")
    left_out = [t.name for t in result.tensors if t.dtype.kind == "other"]
    if not gradients:
        raise damaged(path, count(len(left_out), "integer tensor") if left_out else "no tensor", "gradients")
    notes = result.notes
    if left_out:
        notes = (*notes, f"{_few(left_out)} left out: integers are no gradients")
    return replace(result, tensors=gradients, notes=notes)


def _read_file(path: Path) -> Stored:
    with os.fdopen(open_regular(path), "rb") as file:
        head = file.read(64)
    suffix = path.suffix.lower()
    if not head:
        raise damaged(path, "an empty file", "gradients")
    if store_safetensors.claims(head) and suffix not in _TORCH:
        return store_safetensors.read(path)
    if store_torch.claims(head) and suffix != _SAFETENSORS:
        return store_torch.read(path)
    is_safetensors, is_torch = store_safetensors.claims(head), store_torch.claims(head)
    found = "a safetensors file" if is_safetensors else "a file of torch.save" if is_torch else "something else"
    if suffix == _SAFETENSORS:
        raise damaged(path, found, "safetensors, as the name says", hint=_hint(head))
    if suffix in _TORCH:
        raise damaged(path, found, "a file of torch.save, as the name says", hint=_hint(head))
    raise damaged(path, found, "safetensors, a file of torch.save or a distributed checkpoint", hint=_hint(head))


def _hint(head: bytes) -> str:
    if store_safetensors.claims(head) or store_torch.claims(head):
        return "rename it to what it is"
    if head[:1] == b"\x80":
        return "a bare pickle may run code and is not opened; torch.save or safetensors hold tensors alone"
    return "name the files of gradients"


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3:,} more"


def _summed(stored: Sequence[Stored]) -> list[str]:
    """The notes of the files, each once, with how many files it holds for."""
    counts: dict[str, int] = {}
    for s in stored:
        for note in (*s.notes, *([f"{s.num_empty:,} parameters without a gradient"] if s.num_empty else [])):
            counts[note] = counts.get(note, 0) + 1
    return [note if len(stored) == 1 else f"{note} (in {n:,} of {len(stored):,} files)" for note, n in counts.items()]


@dataclass(slots=True)
class _Group:
    """Files that are one step. `number` is None where neither metadata nor name tell it."""

    parts: list[Stored]
    number: int | None
    by_name: bool


def _grouped(stored: Sequence[Stored]) -> tuple[list[_Group], list[GradclipError]]:
    sets: dict[tuple[str, str], dict[int, Stored]] = {}
    groups: list[_Group] = []
    failures: list[GradclipError] = []
    for s in stored:
        shard = _SHARD.search(s.path.stem)
        if shard is None:
            groups.append(_group([s], s.path.stem))
            continue
        sets.setdefault((str(s.path.parent), s.path.stem[: shard.start()] + "\0" + shard[2]), {})[int(shard[1])] = s
    for (_, key), parts in sets.items():
        stem, _, total = key.partition("\0")
        whole = list(parts.values())
        if len(whole) != int(total):
            failures.append(damaged(whole[0].path, f"{len(whole)} of {int(total)} parts", "all parts, as a norm of some is wrong"))
        else:
            groups.append(_group(whole, stem))
    return _merged(groups, failures), failures


def _group(parts: list[Stored], stem: str) -> _Group:
    told = [n for s in parts if (n := _integer(s.metadata.get("step"))) is not None]
    if told:
        return _Group(parts, told[0], by_name=False)
    number = _number_in(stem)
    if number is None and len(parts) == 1 and _NUMBER.search(stem) is None:
        number = _number_in(parts[0].path.absolute().parent.name) if _STEP.search(parts[0].path.absolute().parent.name) else None
    return _Group(parts, number, by_name=number is not None)


def _number_in(stem: str) -> int | None:
    if match := _STEP.search(stem):
        return int(match[1])
    numbers = _NUMBER.findall(_NO_STEP.sub("", stem))
    return int(numbers[-1]) if numbers else None


def _merged(groups: list[_Group], failures: list[GradclipError]) -> list[_Group]:
    """Groups of one number joined where they have no tensor in common; otherwise the first stays."""
    by_number: dict[int, _Group] = {}
    names: dict[int, set[str]] = {}
    result = []
    for group in groups:
        mine = [t.name for s in group.parts for t in s.tensors]
        if len(set(mine)) != len(mine):
            failures.append(damaged(group.parts[0].path, "a tensor in more than one part", "each in one"))
            continue
        if group.number is None or group.number not in by_number:
            result.append(group)
            if group.number is not None:
                by_number[group.number], names[group.number] = group, set(mine)
        elif both := names[group.number].intersection(mine):
            first = by_number[group.number].parts[0].path
            failures.append(
                damaged(
                    group.parts[0].path,
                    f"step {group.number} a second time, with {min(both)} as in {first}",
                    "a step once",
                    hint="of copies of several ranks give one; of shards give the recorded run, whole tensors or a distributed checkpoint",
                )
            )
        else:
            by_number[group.number].parts += group.parts
            names[group.number].update(mine)
    return result


def _numbered(groups: list[_Group], failures: list[GradclipError], notes: list[str]) -> list[StoredStep]:
    if any(g.number is None for g in groups):
        untold = sum(g.number is None for g in groups)
        notes.append(f"steps are numbered from 0 in the order of the names: {untold:,} of {len(groups):,} tell none")
        for i, group in enumerate(groups):
            group.number = i
    elif any(g.by_name for g in groups):
        notes.append("the steps are those in the names of the files")
    steps = []
    for group in groups:
        assert group.number is not None
        try:
            claims = _claims(group.parts)
        except GradclipError as e:
            failures.append(e)
            continue
        tensors = tuple(t for s in group.parts for t in s.tensors)
        world_size, alone = max(s.world_size for s in group.parts), next((s.alone for s in group.parts if s.alone), "")
        copies = tuple(c for s in group.parts for c in s.copies)
        steps.append(StoredStep(group.number, group.parts[0].path, tensors, claims, world_size, copies, alone))
    return sorted(steps, key=lambda s: s.step)


def _claims(parts: Sequence[Stored]) -> Claims:
    """What the parts of a step say, which must be the same.

    Raises:
        GradclipError: They differ, or a value is impossible: a norm divided by a wrong scale is worse than none.
    """
    claims = [_claims_of(s) for s in parts]
    if any(c != claims[0] for c in claims):
        raise damaged(parts[0].path, "parts of one step whose metadata differ", "the same scale, stage and max_norm in all")
    steps = {n for s in parts if (n := _integer(s.metadata.get("step"))) is not None}
    if len(steps) > 1:
        raise damaged(parts[0].path, f"parts of steps {sorted(steps)}", "one step")
    return claims[0]


def _claims_of(stored: Stored) -> Claims:
    scale = _real(stored, "scale")
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise damaged(stored.path, f"a scale of {scale}", "a number above 0")
    stage = stored.metadata.get("stage", NormStage.UNKNOWN.value)
    if type(stage) is not str or stage not in _STAGES:
        raise damaged(stored.path, f"the stage {str(stage)[:100]}", f"one of {', '.join(_STAGES)}")
    max_norm, norm_type, total_norm = (_real(stored, key) for key in ("max_norm", "norm_type", "total_norm"))
    if norm_type is not None and not (0 < norm_type <= MOST_P or norm_type == math.inf):
        raise damaged(stored.path, f"a norm_type of {norm_type:g}", f"a number above 0 and up to {MOST_P:g}, or inf")
    usable = max_norm is not None and max_norm > 0
    return Claims(1.0 if scale is None else scale, _STAGES[stage], max_norm if usable else None, norm_type, total_norm)


def _real(stored: Stored, key: str) -> float | None:
    value = stored.metadata.get(key)
    if value is None or value in ("", "None", "null"):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as e:
        raise damaged(stored.path, f"{key} {str(value)[:100]!r} in the metadata", "a number") from e


def _integer(value: Any) -> int | None:
    if type(value) is int:
        return value if 0 <= value < 2**62 else None
    if type(value) is str and value.isascii() and value.isdecimal() and len(value) < 19:
        return int(value)
    return None
