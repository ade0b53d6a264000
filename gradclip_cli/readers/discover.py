"""From a path to the files of each run: a file is one run; a directory is searched."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gradclip_cli.errors import GradclipError
from gradclip_cli.readers.log import Reader, Source
from gradclip_cli.readers.open import open_source
from gradclip_cli.readers.tensorboard import of_add_scalars
from gradclip_cli.runfile import is_recorded
from gradclip_cli.runfile.layout import EVENTS, GRADIENTS_FOLDER, PART, RUN_FILE

_SKIPPED_DIRS = frozenset(("__pycache__", "node_modules", "site-packages", "artifacts", "tensorboard_profile"))
_LOG_SUFFIXES = frozenset(
    (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".log", ".out", ".err", ".txt", ".parquet", ".wandb", ".gz", ".stdout", ".stderr")
)
# Files beside a run that hold its configuration or its summary, never its series.
_NOT_A_LOG = re.compile(
    r"(?i)^(requirements.*\.txt|readme.*|license.*|config.*\.json|.*config\.json|tokenizer.*|vocab.*|merges\.txt|special_tokens_map\.json"
    r"|added_tokens\.json|package.*\.json|.*\.index\.json|all_results\.json|train_results\.json|eval_results\.json|wandb-metadata\.json"
    r"|wandb-summary\.json|hparams.*|training_args.*|generation_config\.json|CMakeLists\.txt|debug.*\.log|output\.log\.lock)$"
)
_ROTATION = re.compile(r"^(?P<base>.*?)\.(?P<number>\d{1,4})(?P<gz>\.gz)?$")
_CHECKPOINT = re.compile(r"^checkpoint-(\d+)$")
_MAX_FILES = 20_000


@dataclass(frozen=True, slots=True)
class Unit:
    """The files of one run, in the order they were written.

    Attributes:
        name: What reports call it.
        files: At least one.
        reader: Who reads them.
        sure: False where a directory holds it by chance (a text file that may be anything): a failure
            to read it is no news.
    """

    name: str
    files: tuple[Source, ...]
    reader: Reader
    sure: bool = True


def choose(source: Source, readers: Sequence[Reader]) -> Reader | None:
    """The first reader that claims the content."""
    return next((r for r in readers if r.claims(source)), None)


def units(path: Path, readers: Sequence[Reader]) -> tuple[list[Unit], list[GradclipError]]:
    """What to read for one path of the command line, and what below a directory could not be looked at.

    Raises:
        GradclipError: Where it is missing, of no known format, or a directory without runs.
    """
    if not os.path.isdir(path):
        source = open_source(path)
        reader = choose(source, readers)
        if reader is None:
            raise GradclipError(
                f"{path}: not a format gradclip reads ({_first_bytes(source.head)})",
                hint="see `gradclip analyze --help` for the formats; a text log must be text",
            )
        return [Unit(str(path), (source,), reader)], []
    found, problems = _search(path, readers)
    if not found:
        raise (
            problems[0]
            if problems
            else GradclipError(
                f"{path}: no training run in this directory",
                hint="name the log file itself, or see `gradclip analyze --help` for the formats",
            )
        )
    return found, problems


def _search(root: Path, readers: Sequence[Reader]) -> tuple[list[Unit], list[GradclipError]]:
    problems: list[GradclipError] = []
    groups: dict[tuple[str, str], list[tuple[Source, Reader]]] = {}
    for path in _files(root, problems):
        try:
            source = open_source(path)
        except GradclipError as e:
            # An empty file beside a run is no news; one that cannot be opened may hide a run.
            if not os.access(path, os.R_OK):
                problems.append(e)
            continue
        reader = choose(source, readers)
        if reader is not None:
            groups.setdefault((str(_unit_of(source)), reader.name), []).append((source, reader))
    out = []
    for (name, reader_name), members in groups.items():
        reader = members[0][1]
        if reader_name == "trainer-state":
            # Each checkpoint repeats the history of the one before.
            members = [max(members, key=lambda m: _checkpoint_number(m[0].path))]
            name = str(members[0][0].path)
        elif reader_name == "recorded":
            name = str(members[0][0].path.parent)
        members.sort(key=lambda m: _written_order(m[0].path))
        sure = reader_name != "text"
        out.append(Unit(name, tuple(m[0] for m in members), reader, sure))
    return sorted(out, key=lambda u: u.name), problems


def _files(root: Path, problems: list[GradclipError]) -> list[Path]:
    out: list[Path] = []

    def unsearchable(e: OSError) -> None:
        problems.append(GradclipError(f"{e.filename}: this directory cannot be searched ({e.strerror})", hint="check its permissions"))

    for folder, dirs, files in os.walk(root, onerror=unsearchable):
        dirs[:] = sorted(
            d for d in dirs if not d.startswith(".") and d not in _SKIPPED_DIRS and not os.path.islink(os.path.join(folder, d))
        )
        if RUN_FILE in files and is_recorded(Path(folder)):
            # What `gradclip record` wrote is read through its header; other files beside it are other runs.
            dirs[:] = [d for d in dirs if d != GRADIENTS_FOLDER and not PART.fullmatch(d)]
            files = [name for name in files if not EVENTS.fullmatch(name)]
        metrics = _is_mlflow_metrics(Path(folder), root)
        for name in sorted(files):
            path = Path(folder, name)
            if path.is_symlink() or not _may_be_log(path, metrics):
                continue
            out.append(path)
            if len(out) >= _MAX_FILES:
                raise GradclipError(
                    f"{root}: more than {_MAX_FILES} candidate files in this directory", hint="name the run's own directory"
                )
    return out


def _is_mlflow_metrics(folder: Path, root: Path) -> bool:
    """Whether a folder lies in the `metrics/` of an MLflow run (whose nested keys are nested folders)."""
    parts = folder.relative_to(root.parent).parts if folder.is_relative_to(root.parent) else folder.parts
    return "metrics" in parts


def _may_be_log(path: Path, metrics: bool) -> bool:
    name = path.name
    if "tfevents" in name:
        return True
    if name.startswith(".") or _NOT_A_LOG.match(name):
        return False
    base = _ROTATION.match(name)
    suffixes = Path(base["base"]).suffixes if base else path.suffixes
    return metrics or any(s.lower() in _LOG_SUFFIXES for s in suffixes[-2:])


def _unit_of(source: Source) -> Path:
    """What the files of one run have in common."""
    path = source.path
    if "tfevents" in path.name:
        return path.parent.parent if of_add_scalars(source) else path.parent
    if "metrics" in path.parts and not path.suffix:
        return Path(*path.parts[: len(path.parts) - 1 - path.parts[::-1].index("metrics")])
    if path.name == "trainer_state.json" and _CHECKPOINT.match(path.parent.name):
        return path.parent.parent / path.name
    rotated = _ROTATION.match(path.name)
    return path.with_name(rotated["base"]) if rotated and Path(rotated["base"]).suffix else path


def _written_order(path: Path) -> tuple[float, str]:
    """Sort key: event files by the time in their name, rotated logs from the highest number down to the live one."""
    if m := re.search(r"tfevents\.(\d+)", path.name):
        return float(m[1]), path.name
    rotated = _ROTATION.match(path.name)
    return (-float(rotated["number"]) if rotated else 0.0), path.name


def _checkpoint_number(path: Path) -> tuple[float, float]:
    m = _CHECKPOINT.match(path.parent.name)
    # The one beside the checkpoints is the last word.
    return (float(m[1]) if m else float("inf"), path.stat().st_mtime)


def _first_bytes(head: bytes) -> str:
    return f"it begins with {head[:8]!r}"
