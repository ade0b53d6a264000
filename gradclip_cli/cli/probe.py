"""`gradclip probe`: a short training that shows what clipping does."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

_MAX_NORM = "1.0"
_MOST_TWINS = 6
# With the largest jump it is still a float32.
_LARGEST_LR = 1e6


def probe(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:FUNCTION]", help="A function that returns a model and batches.", show_default=False),
    ] = None,
    preset: Annotated[
        Literal["tiny", "small", "medium"] | None,
        typer.Option(help="A small GPT and text made for it: seconds, a minute or two, a GPU [default: tiny].", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="hf:DIR", help="A local Hugging Face causal language model; with --text.", show_default=False)
    ] = None,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The text that --model is trained on (of its first 4 MB).", show_default=False)
    ] = None,
    steps: Annotated[int, typer.Option(metavar="N", min=1, help="Optimizer updates.")] = 200,
    lr: Annotated[
        float | None, typer.Option(metavar="LR", help="Learning rate [default: what suits the model].", show_default=False)
    ] = None,
    optimizer: Annotated[
        Literal["adamw", "adam", "sgd"] | None, typer.Option(help="Optimizer [default: adamw, or the function's own].", show_default=False)
    ] = None,
    dtype: Annotated[Literal["fp32", "bf16", "fp16"], typer.Option(help="By autocast; fp16 with a GradScaler.")] = "fp32",
    accumulate: Annotated[int, typer.Option(metavar="N", min=1, help="Micro-batches of an update.")] = 1,
    max_norm: Annotated[
        str | None, typer.Option(metavar="M", help="Clip at this norm, or none [default: 1.0].", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    compile: Annotated[bool, typer.Option("--compile", help="Through torch.compile.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=2**32 - 1, help="The same seed gives the same training.")] = 0,
    parallel: Annotated[
        Literal["ddp", "fsdp2"] | None, typer.Option(help="Under torchrun: how ranks share the model [default: ddp].", show_default=False)
    ] = None,
    inject: Annotated[
        list[str] | None, typer.Option(metavar="KIND@STEP[:SIZE]", help="Plant a fault; may be repeated.", show_default=False)
    ] = None,
    list_faults: Annotated[bool, typer.Option("--list-faults", help="Explain the faults and end.")] = False,
    compare: Annotated[
        str | None,
        typer.Option(metavar="max_norm=A,B,...", help="Train once for each: numbers, none, suggested.", show_default=False),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="RUN", help="The run directory to make [default: runs/probe-DATE].", show_default=False),
    ] = None,
    format: Annotated[Literal["text", "json", "markdown"], typer.Option("--format", "-f", help="How to print the result.")] = "text",
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw it into FILE.png or FILE.svg.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Let --plot and -o replace what is there.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Plain text, also on a terminal.")] = False,
) -> int:
    """Train a small model for a short while, recorded as `gradclip record` does, and judge what came of it.

    For those who have no log yet, who want to see what a threshold would do before the long run, or who want a known fault to test
    their alarms. A fault changes one update (--list-faults); the header of the run says what was planted. With --compare the same
    seed is trained once for each max_norm, each into a directory of its own below RUN; `suggested` is what `gradclip
    suggest-threshold` says of the first. Batches whose gradient is not finite are dropped.

    FUNCTION returns a model and an iterable of batches, then, if it likes, a loss function and an optimizer. Without a loss function the
    model gives the loss: model(**batch), model(*batch) or model(batch). A loss function is called with model and batch, a criterion
    (torch.nn.CrossEntropyLoss()) with the model's output and the target of (input, target).

    Under torchrun: `torchrun --nproc-per-node 2 -m gradclip_cli probe -o RUN`.

    Exit status: 0 trained and reported; 2 bad command line; 3 it could not be trained, or a twin has no threshold; 130 interrupted
    (what was recorded stays).
    """
    if list_faults:
        return _list_faults()
    from gradclip_cli.cli.record import check_torch
    from gradclip_cli.errors import UsageError
    from gradclip_cli.probe.faults import planted

    if sum(given is not None for given in (target, preset, model)) > 1:
        raise UsageError("expected one of MODULE:FUNCTION, --preset and --model", hint="see `gradclip probe --help`")
    if (model is None) != (text is None):
        raise UsageError("--model and --text belong together; expected both or neither", hint="--model hf:path/to/model --text some.txt")
    if model is not None and not model.startswith("hf:"):
        raise UsageError(f"--model {model!r}: expected hf: and a directory", hint="--model hf:path/to/model")
    if lr is not None and not 0 < lr <= _LARGEST_LR:
        raise UsageError(f"--lr is {lr:g}; expected a number above 0, up to {_LARGEST_LR:g}")
    faults = [planted(given, steps=steps, dtype=dtype) for given in inject or ()]
    for i, fault in enumerate(faults):
        if any(fault.kind == other.kind and fault.step <= other.last_step and other.step <= fault.last_step for other in faults[:i]):
            raise UsageError(f"--inject {fault}: there is a {fault.kind} at that update already", hint="give it once, with a larger SIZE")
    labels = _labels(max_norm, compare)
    if plot is not None:
        from gradclip_cli.report import check_plot_target

        check_plot_target(plot, force=force)
    check_torch()
    from gradclip_cli.cli.probe_twins import Request, run_twins

    request = Request(
        target=target,
        preset=preset or "tiny",
        model=None if model is None else Path(model.removeprefix("hf:")),
        text=text,
        steps=steps,
        lr=lr,
        optimizer=optimizer,
        dtype=dtype,
        accumulate=accumulate,
        device=device,
        compile=compile,
        seed=seed,
        parallel=parallel,
        planted=tuple(faults),
        labels=labels,
        command=tuple(sys.argv),
    )
    return run_twins(request, output, format=format, plot=plot, force=force, no_color=no_color, side_by_side=compare is not None)


def _list_faults() -> int:
    import textwrap

    from gradclip_cli.cli.output import emit
    from gradclip_cli.probe.faults import explained

    blocks = [f"{usage}\n{textwrap.fill(text, 78, initial_indent='    ', subsequent_indent='    ')}" for usage, text in explained()]
    emit("\n\n".join(blocks))
    return 0


def _labels(max_norm: str | None, compare: str | None) -> tuple[str, ...]:
    """The bounds to train at, as they were asked for.

    Raises:
        UsageError: They are no bounds.
    """
    from gradclip_cli.errors import UsageError

    if compare is None:
        only = _MAX_NORM if max_norm is None else max_norm.strip()
        _check("--max-norm", [only], ["none"])
        return (only,)
    if max_norm is not None:
        raise UsageError("--max-norm and --compare were given; expected one of them", hint="--compare max_norm=none,1.0")
    key, _, values = compare.partition("=")
    labels = tuple(v.strip() for v in values.split(","))
    if key.strip() != "max_norm" or not 2 <= len(labels) <= _MOST_TWINS:
        raise UsageError(
            f"--compare {compare!r}: expected max_norm= and 2 to {_MOST_TWINS} values", hint="--compare max_norm=none,1.0,suggested"
        )
    _check("--compare max_norm", labels, ("none", "suggested"))
    if labels[0] == "suggested":
        raise UsageError(
            "--compare: the first cannot be `suggested`, which is made from the first", hint="--compare max_norm=none,suggested"
        )
    if len(set(labels)) < len(labels):
        raise UsageError(f"--compare {compare!r}: names a value twice")
    return labels


def _check(option: str, labels: Sequence[str], words: Sequence[str]) -> None:
    from gradclip_cli.errors import UsageError

    for label in labels:
        try:
            good = label in words or 0 < float(label) < float("inf")
        except ValueError:
            good = False
        if not good:
            raise UsageError(f"{option} {label!r}: expected a finite number above 0 or {' or '.join(words)}")
