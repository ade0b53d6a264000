"""`gradclip analyze`: what happened in a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import typer


def analyze(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", readable=False, help="Log files, or directories to search for runs.", show_default=False),
    ],
    format: Annotated[Literal["text", "json", "markdown"], typer.Option("--format", "-f", help="How to print the result.")] = "text",
    loss: Annotated[
        str | None, typer.Option(metavar="KEY", help="The training loss, where its name is not recognised.", show_default=False)
    ] = None,
    grad_norm: Annotated[str | None, typer.Option(metavar="KEY", help="The global gradient norm, likewise.", show_default=False)] = None,
    lr: Annotated[str | None, typer.Option(metavar="KEY", help="The learning rate, likewise.", show_default=False)] = None,
    step: Annotated[str | None, typer.Option(metavar="KEY", help="The step counter, likewise.", show_default=False)] = None,
    max_norm: Annotated[
        float | None,
        typer.Option(metavar="X", help="Also tell what clipping at X would have done to each flagged step.", show_default=False),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw loss and norm into FILE.png or FILE.svg.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --plot overwrite FILE.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text, also on a terminal.")] = False,
) -> int:
    """Find exploding steps, loss spikes and non-finite values in a run, what led to what, and whether it recovered.

    Reads TensorBoard event files, CSV, JSON lines, trainer_state.json, Parquet, MLflow, W&B offline files and the console
    logs of the common trainers. The format is found from the content; a directory may hold several runs.

    Exit status: 0 looked and reported; 3 nothing could be judged, or a RUN could not be read.
    """
    # No linear algebra happens here, and the threads numpy starts for it take a tenth of the time of a small log.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from gradclip_cli.interrupt import end_at_once

    with end_at_once():
        from gradclip_cli.analysis import analyze as judge
        from gradclip_cli.cli.output import complain, emit, tell, wants_color
        from gradclip_cli.cli.progress import reading
        from gradclip_cli.errors import ExitCode, GradclipError
        from gradclip_cli.model.finding import Analysis, Verdict
        from gradclip_cli.readers import Wanted, read
        from gradclip_cli.report import FORMATS, check_plot_target

    if plot is not None:
        check_plot_target(plot, force=force)
    if max_norm is not None:
        from gradclip_cli.threshold import check_max_norm, what_if

        check_max_norm(max_norm)
    wanted = Wanted(loss, grad_norm, lr, step)
    analyses: list[Analysis] = []
    failed = False
    for path in runs:
        try:
            with reading(path):
                for result in read(path, wanted):
                    if isinstance(result, GradclipError):
                        complain(result.message, result.hint, level="warning")
                    else:
                        analysis = judge(result)
                        analyses.append(analysis if max_norm is None else what_if(analysis, max_norm))
        except GradclipError as e:
            complain(e.message, e.hint)
            failed = True
    if analyses:
        emit(FORMATS[format](analyses, color=wants_color(no_color)))
    if plot is not None and analyses:
        from gradclip_cli.report.plot import plot as draw

        draw(analyses, plot, force=force)
        tell(f"wrote {plot}")
    judged = any(a.verdict is not Verdict.CANNOT_JUDGE for a in analyses)
    return int(ExitCode.CANNOT_JUDGE if failed or not judged else ExitCode.OK)
