"""Running what `gradclip probe` was asked for, and reporting it."""

from __future__ import annotations

import math
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gradclip_cli.cli.output import complain, emit, tell, wants_color
from gradclip_cli.cli.progress import counting
from gradclip_cli.errors import ExitCode, GradclipError, UsageError

if TYPE_CHECKING:
    from gradclip_cli.model.finding import Analysis
    from gradclip_cli.model.probe import Planted, Probe, Twin
    from gradclip_cli.model.threshold import Suggestion
    from gradclip_cli.probe.conditions import Conditions
    from gradclip_cli.probe.run import Trained
    from gradclip_cli.probe.subject import Subject

# For a rank whose disk is slow, not for one that died.
_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Request:
    """The command line, checked."""

    target: str | None
    preset: str
    model: Path | None
    text: Path | None
    steps: int
    lr: float | None
    optimizer: str | None
    dtype: str
    accumulate: int
    device: str
    compile: bool
    seed: int
    parallel: str | None
    planted: tuple[Planted, ...]
    labels: tuple[str, ...]
    command: tuple[str, ...]


def run_twins(
    request: Request, output: Path | None, *, format: str, plot: Path | None, force: bool, no_color: bool, side_by_side: bool
) -> int:
    """Train each twin, judge it, report all."""
    from gradclip_cli.cli.record import run_directory
    from gradclip_cli.report.probe import FORMATS

    directory = run_directory(output, "probe", force=force)
    with _ranks(request) as conditions:
        with _output_apart():
            result, code = _probe(request, conditions, directory, force=force, side_by_side=side_by_side)
        if conditions.rank == 0:
            emit(FORMATS[format](result, color=wants_color(no_color)))
            if plot is not None:
                from gradclip_cli.report.probe_plot import plot_probe

                plot_probe(result, plot, force=force)
                tell(f"wrote {plot}")
    return int(code)


@contextmanager
def _output_apart() -> Iterator[None]:
    """What the user's code prints meanwhile goes to standard error: standard output is for the result."""
    sys.stdout.flush()
    kept, elsewhere = os.dup(1), os.open(os.devnull, os.O_WRONLY) if sys.stderr is None else os.dup(2)
    try:
        os.dup2(elsewhere, 1)
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
        os.close(elsewhere)


@contextmanager
def _ranks(request: Request) -> Iterator[Conditions]:
    """The conditions of this process; under torchrun it joins the others meanwhile."""
    from gradclip_cli.probe.conditions import Conditions
    from gradclip_cli.verify.device import resolve_device

    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if request.parallel is not None and not several:
        raise UsageError(f"--parallel {request.parallel} needs several ranks", hint="torchrun --nproc-per-node 2 -m gradclip_cli probe ...")
    if request.parallel == "fsdp2" and request.dtype == "fp16":
        raise UsageError("--parallel fsdp2 and --dtype fp16: the loss scaler of torch does not know shards", hint="--dtype bf16")
    device = resolve_device(request.device, int(os.environ.get("LOCAL_RANK", "0")))
    conditions = Conditions(
        device, request.steps, math.inf, request.lr, request.optimizer, request.dtype, request.accumulate, request.compile, request.seed
    )
    if not several:
        yield conditions
        return
    import torch.distributed as dist

    from gradclip_cli.verify.ranks import join

    ranks = join(device, _TIMEOUT_S)
    try:
        yield replace(conditions, parallel=request.parallel or "ddp", rank=ranks.rank)
    finally:
        dist.destroy_process_group()


def _probe(request: Request, conditions: Conditions, directory: Path, *, force: bool, side_by_side: bool) -> tuple[Probe, ExitCode]:
    from gradclip_cli.model.probe import Probe
    from gradclip_cli.probe.comparison import compare, twin
    from gradclip_cli.probe.own import own_function
    from gradclip_cli.probe.run import set_seed

    def on_problem(problem: str) -> None:
        complain(problem, level="warning")
        problems.append(problem)

    twins: list[Twin] = []
    notes: list[str] = []
    # Of the recording: a twin that is not there to its end is no twin.
    problems: list[str] = []
    trained: Trained | None = None
    first: Analysis | None = None
    speaks = conditions.rank == 0
    places = {label: directory / f"max_norm-{label}" if side_by_side else directory for label in request.labels}
    for place in places.values() if side_by_side else ():
        _make_free(place, conditions.rank, force=force)
    if request.target is not None:
        # A module is imported once: the first twin must not begin behind other draws than the next.
        set_seed(conditions.seed)
        own_function(request.target)
    with counting(request.steps * len(request.labels) if speaks else 0) as move_on:
        for label, place in places.items():
            max_norm = math.inf if label == "none" else _suggested(first, conditions) if label == "suggested" else float(label)
            if isinstance(max_norm, str):
                notes.append(f"no twin at the suggested threshold: {max_norm}")
                continue
            trained = _train(request, replace(conditions, max_norm=max_norm), place, label, move_on, on_problem, directory)
            if speaks:
                analysis = _judged(place)
                first = first or analysis
                twins.append(twin(label, max_norm, analysis, trained, request.planted))
    assert trained is not None
    result = Probe(
        source=str(directory),
        subject=trained.subject,
        num_parameters=trained.num_parameters,
        conditions=_told(conditions, trained),
        planted=request.planted,
        twins=tuple(twins),
        comparison=compare(twins) if len(twins) > 1 and not problems else (),
        notes=(*notes, *problems),
    )
    return result, ExitCode.CANNOT_JUDGE if result.notes else ExitCode.OK


def _make_free(place: Path, rank: int, *, force: bool) -> None:
    from gradclip_cli.runfile import check_free, remove_recorded

    if force:
        remove_recorded(place, rank=rank, world_size=int(os.environ.get("WORLD_SIZE", "1")))
    check_free(place, rank=rank)


def _train(
    request: Request,
    conditions: Conditions,
    place: Path,
    label: str,
    move_on: Callable[[str], None],
    on_problem: Callable[[str], None],
    directory: Path,
) -> Trained:
    """Train one twin; an interrupt or an error leaves what was recorded, and says so."""
    from gradclip_cli.probe.run import run_probe
    from gradclip_cli.probe.training import Update

    done = 0

    def on_update(update: Update) -> None:
        nonlocal done
        done = update.step
        if not update.dropped:
            move_on(f"max_norm {label}  loss {update.loss:.4g}  norm {update.norm:.3g}")

    try:
        trained = run_probe(
            lambda: _subject(request, conditions),
            conditions,
            request.planted,
            place,
            command=request.command,
            on_update=on_update,
            on_problem=on_problem,
        )
    except (KeyboardInterrupt, GradclipError):
        if conditions.rank == 0 and done:
            tell(f"gradclip: {done:,} of {request.steps:,} updates recorded\nsee them with: gradclip analyze {shlex.quote(str(directory))}")
        raise
    if all(update.dropped for update in trained.updates):
        raise GradclipError(
            f"{trained.subject}: the gradients of all {len(trained.updates):,} batches were not finite and no update was made of them; "
            "expected finite ones",
            hint="look at the loss and the data; with --dtype fp16 also at the first updates, where the scaler is still searching",
        )
    if conditions.parallel:
        import torch.distributed as dist

        # Every part is on disk before rank 0 reads.
        dist.barrier()
    return trained


def _subject(request: Request, conditions: Conditions) -> Subject:
    if request.target is not None:
        from gradclip_cli.probe.own import own_subject

        subject = own_subject(request.target)
        if subject.optimizer is not None and (request.optimizer is not None or request.lr is not None):
            raise UsageError(
                f"{request.target} made its own optimizer; --optimizer and --lr have no effect on it",
                hint="leave them out, or do not return it",
            )
        return subject
    if request.model is not None and request.text is not None:
        from gradclip_cli.probe.hugging_face import hugging_face_subject

        return hugging_face_subject(request.model, request.text, request.seed, conditions.rank)
    from gradclip_cli.probe.subject import preset_subject

    return preset_subject(request.preset, request.seed, conditions.rank)


def _judged(place: Path) -> Analysis:
    from gradclip_cli.analysis import analyze
    from gradclip_cli.readers import read

    for result in read(place):
        if not isinstance(result, GradclipError):
            return analyze(result)
        raise result
    raise GradclipError(f"{place}: nothing was recorded; expected at least one update")


def _suggested(first: Analysis | None, conditions: Conditions) -> float | str:
    """What rank 0 suggests, the same on every rank; or why it cannot."""
    from gradclip_cli.report.snippet import pasted
    from gradclip_cli.threshold import suggest_threshold

    answer: list[float | str] = [""]
    if first is not None:
        suggestion: Suggestion = suggest_threshold(first.run)
        # The number that `suggest-threshold` prints.
        answer = [suggestion.refusal if suggestion.max_norm is None else float(pasted(suggestion.max_norm))]
    if conditions.parallel:
        import torch.distributed as dist

        dist.broadcast_object_list(answer)
    return answer[0]


def _told(conditions: Conditions, trained: Trained) -> dict[str, str | int | float]:
    return {
        "steps": conditions.steps,
        "optimizer": trained.optimizer,
        "lr": trained.lr,
        "dtype": conditions.dtype,
        "accumulate": conditions.accumulate,
        "device": conditions.device.type,
        "compile": conditions.compile,
        "seed": conditions.seed,
        "parallel": conditions.parallel,
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
    }
