"""`gradclip suggest-threshold`: what `max_norm` should be."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from gradclip_cli.model.run import Run
    from gradclip_cli.readers import Wanted


def suggest_threshold(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", readable=False, help="Log files, or directories to search for runs.", show_default=False),
    ],
    percentile: Annotated[
        float | None,
        typer.Option(metavar="P", help="This percentile of the healthy norms, instead of the 99th.", show_default=False),
    ] = None,
    target_clip_fraction: Annotated[
        float | None, typer.Option(metavar="F", help="The threshold that clips this share of the healthy steps.", show_default=False)
    ] = None,
    pool: Annotated[bool, typer.Option("--pool", help="One number from all runs together.")] = False,
    from_step: Annotated[
        int | None, typer.Option(metavar="N", help="Look at steps from N on (rows, in a log without).", show_default=False)
    ] = None,
    to_step: Annotated[int | None, typer.Option(metavar="N", help="Look at steps up to N.", show_default=False)] = None,
    format: Annotated[
        Literal["text", "json", "markdown", "value"],
        typer.Option("--format", "-f", help="How to print the result; value: the number alone."),
    ] = "text",
    snippet: Annotated[
        Literal["torch", "hf", "lightning", "deepspeed", "accelerate", "fsdp"] | None,
        typer.Option(help="Print only the line to paste.", show_default=False),
    ] = None,
    loss: Annotated[
        str | None, typer.Option(metavar="KEY", help="The training loss, where its name is not recognised.", show_default=False)
    ] = None,
    grad_norm: Annotated[str | None, typer.Option(metavar="KEY", help="The global gradient norm, likewise.", show_default=False)] = None,
    lr: Annotated[str | None, typer.Option(metavar="KEY", help="The learning rate, likewise.", show_default=False)] = None,
    step: Annotated[str | None, typer.Option(metavar="KEY", help="The step counter, likewise.", show_default=False)] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw it into FILE.png or FILE.svg.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --plot overwrite FILE.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text, also on a terminal.")] = False,
) -> int:
    """Suggest max_norm from the gradient norms that a run logged before clipping, with an interval and the reasons.

    The rule: a safety net touches few healthy steps and catches every explosion. So it is the 99th percentile of the healthy norms. One
    healthy step in a hundred is clipped, most of those a little; an explosion is ten times the usual norm at least and lies above.
    Healthy are the finite norms after the warm-up, outside explosions, loss spikes and what follows a divergence; those that
    exploded are kept to tell whether a threshold would have caught them. A lower percentile makes clipping a part of the ordinary step: it
    then lowers the learning rate in effect.

    The interval (about 95 %) is where other batches would have put the same percentile: a moving-block bootstrap. Where the log
    cannot tell (norms from after clipping, means over steps, too few, too unsteady) there is no number but the reason.

    Exit status: 0 suggested; 3 no number, or a RUN could not be read (the others are reported all the same).
    """
    # No linear algebra happens here, and the threads numpy starts for it take a tenth of the time of a small log.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from gradclip_cli.cli.output import complain, emit, tell, wants_color
    from gradclip_cli.errors import ExitCode, UsageError
    from gradclip_cli.readers import Wanted
    from gradclip_cli.report import check_plot_target
    from gradclip_cli.report.snippet import snippet as line_to_paste
    from gradclip_cli.report.threshold import FORMATS
    from gradclip_cli.threshold import check_choice
    from gradclip_cli.threshold import suggest_threshold as suggest

    check_choice(percentile, target_clip_fraction)
    if from_step is not None and to_step is not None and from_step > to_step:
        raise UsageError(f"--from-step {from_step} lies behind --to-step {to_step}; expected the first step and the last")
    if snippet is not None and format != "text":
        raise UsageError(f"--snippet and --format {format} were given; expected one of them", hint="leave one out")
    if plot is not None:
        check_plot_target(plot, force=force)
    found, failed = _read(runs, Wanted(loss, grad_norm, lr, step))
    if not found:
        return int(ExitCode.CANNOT_JUDGE)
    groups: Sequence[Run | list[Run]] = [found] if pool else found
    if len(groups) > 1 and (snippet is not None or format == "value"):
        asked = "--format value" if snippet is None else "--snippet"
        raise UsageError(f"{asked} prints one number, and {len(groups)} runs were found", hint="--pool makes one of all; or name one run")
    suggestions = [
        suggest(g, percentile=percentile, target_clip_fraction=target_clip_fraction, from_step=from_step, to_step=to_step) for g in groups
    ]
    only = suggestions[0]
    if only.max_norm is None and (snippet is not None or format == "value"):
        complain(f"{only.source}: {only.refusal}", only.hint)
    elif snippet is not None and only.max_norm is not None:
        emit(line_to_paste(snippet, only.max_norm, only.norm_type))
    else:
        emit(FORMATS[format](suggestions, color=wants_color(no_color)))
    if plot is not None:
        from gradclip_cli.report.threshold_plot import plot_thresholds

        plot_thresholds(suggestions, plot, force=force)
        tell(f"wrote {plot}")
    answered = any(s.max_norm is not None for s in suggestions)
    return int(ExitCode.CANNOT_JUDGE if failed or not answered else ExitCode.OK)


def _read(paths: Sequence[Path], wanted: Wanted) -> tuple[list[Run], bool]:
    """All runs, and whether a path could not be read."""
    from gradclip_cli.cli.output import complain
    from gradclip_cli.cli.progress import reading
    from gradclip_cli.errors import GradclipError
    from gradclip_cli.readers import read

    found: list[Run] = []
    failed = False
    for path in paths:
        try:
            with reading(path):
                for result in read(path, wanted):
                    if isinstance(result, GradclipError):
                        complain(result.message, result.hint, level="warning")
                    else:
                        found.append(result)
        except GradclipError as e:
            complain(e.message, e.hint)
            failed = True
    return found, failed
