"""`gradclip replay`: what clipping does to stored gradients."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    import re

    from gradclip_cli.model.replay import Replay


_MOST_ERRORS = 20


def replay(
    gradients: Annotated[
        list[Path],
        typer.Argument(
            metavar="GRADS...",
            readable=False,
            help="A recorded run, files (.safetensors, .pt), a distributed checkpoint, or directories of them.",
            show_default=False,
        ),
    ],
    max_norm: Annotated[
        list[float] | None,
        typer.Option(metavar="M", help="Clip at this norm; may be repeated [default: what the files tell].", show_default=False),
    ] = None,
    norm_type: Annotated[
        float | None, typer.Option(metavar="P", help="1, 2, 3, ..., inf [default: what the files tell, else 2].", show_default=False)
    ] = None,
    clip_value: Annotated[
        list[float] | None, typer.Option(metavar="V", help="Compare clipping of values to [-V, V]; may be repeated.", show_default=False)
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(metavar="REGEX", help="Compare clipping by groups: tensors whose names match it alike are one.", show_default=False),
    ] = None,
    histogram: Annotated[bool, typer.Option("--histogram", help="Count the elements by magnitude.")] = False,
    unclip: Annotated[
        bool, typer.Option("--unclip", help="Scale gradients that were saved after clipping back to the norm before it.")
    ] = False,
    optimizer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Run the steps through an optimizer of torch.optim: sgd, adamw, ...", show_default=False),
    ] = None,
    lr: Annotated[float | None, typer.Option(metavar="LR", help="Its learning rate [default: 0.001].", show_default=False)] = None,
    optimizer_arg: Annotated[
        list[str] | None, typer.Option(metavar="KEY=VALUE", help="Its other arguments: momentum=0.9.", show_default=False)
    ] = None,
    format: Annotated[Literal["text", "json", "markdown"], typer.Option("--format", "-f", help="How to print the result.")] = "text",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw it into FILE.png or FILE.svg.", show_default=False)] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="RUN", help="Also write a run directory for `analyze`.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --plot and -o overwrite what is there.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text, also on a terminal.")] = False,
) -> int:
    """Measure stored gradients in float64, and show what clipping does to them and to an optimizer's updates.

    Per step: the norm, the coefficient, what makes up the norm, tensors that are not finite, and other ways of clipping beside the
    global one. Memory stays within a few blocks, whatever the step holds. Under `torchrun --nproc-per-node N -m gradclip_cli replay ...`
    the ranks share the reading. Needs torch only for --optimizer and for several ranks; nothing in a file is ever executed.

    Exit status: 0 looked and reported; 3 a file could not be read, or no step was found (the others are reported all the same).
    """
    # Rows of a sum are shorter than what one thread adds up; threads would only take time to start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from gradclip_cli.cli.output import complain, emit, tell, wants_color
    from gradclip_cli.cli.progress import reading
    from gradclip_cli.clipping.norms import MOST_P
    from gradclip_cli.clipping.optimizer import OptimizerKind
    from gradclip_cli.clipping.ranks import started_ranks
    from gradclip_cli.clipping.replay import Request
    from gradclip_cli.clipping.replay import replay as measure
    from gradclip_cli.errors import ExitCode, GradclipError, UsageError
    from gradclip_cli.report.replay import FORMATS

    for name, values in (("--max-norm", max_norm), ("--norm-type", [norm_type]), ("--clip-value", clip_value)):
        if bad := [v for v in values or [] if v is not None and not v > 0]:
            raise UsageError(f"{name} {bad[0]:g}; expected a number above 0")
    if norm_type is not None and MOST_P < norm_type < math.inf:
        raise UsageError(f"--norm-type {norm_type:g}; expected a number up to {MOST_P:g}, or inf", hint="--norm-type inf")
    if optimizer is None and (lr is not None or optimizer_arg):
        raise UsageError("--lr and --optimizer-arg are the optimizer's; expected --optimizer", hint="--optimizer adamw")
    with started_ranks() as ranks:
        try:
            _check_targets(gradients, plot, output, force=force)
            kind = None if optimizer is None else OptimizerKind(optimizer, lr, optimizer_arg or ())
            request = Request(tuple(max_norm or ()), norm_type, tuple(clip_value or ()), _pattern(group_by), histogram, unclip, kind)
            with reading(gradients[0]) if ranks.rank == 0 else nullcontext():
                result, failures = measure(gradients, request, ranks=ranks)
        except GradclipError as e:
            if ranks.rank > 0:
                return int(e.code)
            raise
    if ranks.rank == 0:
        for failure in failures[:_MOST_ERRORS]:
            complain(failure.message, failure.hint)
        if len(failures) > _MOST_ERRORS:
            complain(f"{len(failures) - _MOST_ERRORS:,} more could not be read", "--format json lists them all" if result else None)
        if result is not None:
            emit(FORMATS[format](result, color=wants_color(no_color)))
            if plot is not None:
                from gradclip_cli.report.replay_plot import plot_replay

                plot_replay(result, plot, force=force)
                tell(f"wrote {plot}")
            if output is not None:
                _write_run(result, output, force=force)
                tell(f"wrote {output}")
    return int(ExitCode.OK if result is not None and not failures else ExitCode.CANNOT_JUDGE)


def _pattern(group_by: str | None) -> re.Pattern[str] | None:
    import re

    from gradclip_cli.errors import UsageError

    if group_by is None:
        return None
    try:
        return re.compile(group_by)
    except re.error as e:
        raise UsageError(f"--group-by {group_by!r} is no regular expression ({e})", hint=r"--group-by '^layers\.\d+'") from e


def _check_targets(gradients: list[Path], plot: Path | None, output: Path | None, *, force: bool) -> None:
    """Whether what was asked for may be written, before the work is done."""
    from gradclip_cli.errors import UsageError
    from gradclip_cli.report import check_plot_target

    if plot is not None:
        check_plot_target(plot, force=force)
    if output is None:
        return
    from gradclip_cli.runfile import check_free, check_writable

    # Of links in a circle os.path.realpath makes no error; that is for who opens them.
    if any(Path(os.path.realpath(path)).is_relative_to(os.path.realpath(output)) for path in gradients):
        raise UsageError(f"{output}: holds the gradients that are to be read; expected another directory", hint="name another with -o")
    if not force:
        check_free(output)
    check_writable(output)


def _write_run(result: Replay, directory: Path, *, force: bool) -> None:
    """The norms as a recorded run."""
    import numpy as np

    from gradclip_cli.errors import GradclipError
    from gradclip_cli.model.recorded import TensorInfo
    from gradclip_cli.model.run import NormStage
    from gradclip_cli.runfile import RunWriter, remove_recorded

    if result.partial:
        raise GradclipError(
            f"{directory}: not written, as a run is of whole gradients; {result.partial}",
            hint="`gradclip analyze` reads the recorded run itself; or save whole tensors, or a distributed checkpoint",
        )
    steps = result.steps
    names = tuple(dict.fromkeys(name for s in steps for name in s.tensors))
    place = {name: i for i, name in enumerate(names)}
    norms = np.full((len(steps), len(names)), np.nan, np.float32)
    with np.errstate(over="ignore"):
        for row, s in zip(norms, steps, strict=True):
            row[[place[name] for name in s.tensors]] = s.tensor_norms
    # Of gradients that were clipped before they were saved, the norm before is the one the file tells.
    clipped = np.array([s.stage is NormStage.POST_CLIP for s in steps])
    total = np.array([s.total_norm for s in steps])
    told = np.array([np.nan if s.claimed_total_norm is None else s.claimed_total_norm for s in steps])
    untold = np.array([s.claimed_total_norm is None for s in steps])
    columns = {
        "grad_norm": np.where(clipped, told, total),
        "has_grad_norm": (~(clipped & untold)).astype(np.float64),
        "grad_norm_used": np.where(clipped, total, [s.clips[0].clipped_norm if s.clips else np.nan for s in steps]),
        "has_grad_norm_used": (clipped | bool(result.max_norms)).astype(np.float64),
    }
    if result.max_norms:
        columns["max_norm"] = np.full(len(steps), result.max_norms[0])
        with np.errstate(divide="ignore", invalid="ignore"):
            columns["clip_coef"] = np.where(clipped, total / told, [s.clips[0].coefficient for s in steps])
    if force:
        remove_recorded(directory)
    problems: list[str] = []
    writer = RunWriter(
        directory,
        {
            "world_size": 1,
            "command": f"gradclip replay {result.source}",
            "norm_type": result.norm_type,
            "max_norm": result.max_norms[0] if result.max_norms else None,
            "exact": True,
        },
        on_problem=problems.append,
    )
    writer.add_tensors([TensorInfo(name, (), result.dtypes[0]) for name in names])
    writer.append(np.array([s.step for s in steps], np.int64), columns, norms)
    writer.close("finished")
    if problems:
        raise GradclipError(problems[0], hint="name another directory with -o")
