"""`gradclip record`: run a training script unchanged, and write down what its gradients did."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Annotated

import typer


def named_path(text: str) -> Path:
    """A path from the command line: an empty one would be the working directory, which nobody named."""
    if not text:
        raise typer.BadParameter("found an empty name; is a variable of the shell unset?")
    return Path(text)


def record(
    script: Annotated[str, typer.Argument(metavar="SCRIPT", help="A Python script, or with -m the name of a module.", show_default=False)],
    args: Annotated[
        list[str] | None, typer.Argument(metavar="[ARGS]...", help="What the script is given, options included.", show_default=False)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="RUN",
            parser=named_path,
            help="The run directory to make [default: runs/SCRIPT-DATE].",
            show_default=False,
        ),
    ] = None,
    max_steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="End the script after N optimizer updates.", show_default=False)
    ] = None,
    save_grads: Annotated[
        str, typer.Option(metavar="WHICH", help="Gradients to keep as safetensors: never, explosions, or every:K.")
    ] = "never",
    module: Annotated[bool, typer.Option("-m", help="SCRIPT is a module, as in python -m.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a recorded run that lies there.")] = False,
) -> int:
    """Run a PyTorch training script unchanged, and record every optimizer update.

    Its arguments, output, exit status and signals are as under `python SCRIPT ARGS`. The run directory holds the norm of the
    gradients before clipping and as the optimizer used them, for all and for each tensor, loss, learning rate, loss scale and the
    calls that matter for clipping; TensorBoard reads it as it is. Under torchrun: `torchrun ... -m gradclip_cli record -o RUN SCRIPT`.

    Exit status: that of the script; 2 or 3 where it could not be started.
    """
    from gradclip_cli.watch.launch import start

    check_torch()
    if save_grads != "never":
        # Loads torch, which takes longer than all else before the script starts, and is lost when it does.
        from gradclip_cli.watch.gradients import check_choice

        check_choice(save_grads)
    check_script(script, module=module)
    if given := options_among(args or [], "--save-grads"):
        note_options_of_script(script, given[0])
    directory = run_directory(output, script, force=force)
    start(script, args or [], as_module=module, directory=str(directory), max_updates=max_steps, save_grads=save_grads)


def options_among(args: Sequence[str], *names: str) -> list[str]:
    """Those of these options that a script is given, each with its value where it has one, as they were typed."""
    behind = [*args[1:], "-"][: len(args)]
    return [
        arg if "=" in arg or value.startswith("-") else f"{arg} {value}"
        for arg, value in zip(args, behind, strict=True)
        if arg.partition("=")[0] in names
    ]


def note_options_of_script(script: str, given: str) -> None:
    """Say that an option which looks like one of ours went to the script, as all behind its name does."""
    from gradclip_cli.cli.output import complain
    from gradclip_cli.launch_environment import launched_local_rank

    if launched_local_rank() == 0:
        complain(f"{given} was given to {script}", "options of gradclip go before SCRIPT", level="note")


def check_torch() -> None:
    """Whether there is a torch for the script to use.

    Raises:
        GradclipError: Where there is none.
    """
    from importlib.util import find_spec

    from gradclip_cli.errors import GradclipError

    if find_spec("torch") is None:
        raise GradclipError("PyTorch is not installed here; a training script needs it", hint="pip install 'gradclip-cli[torch]'")


def check_script(script: str, *, module: bool) -> None:
    """Whether there is something to run.

    Raises:
        UsageError: Where there is not.
    """
    from gradclip_cli.errors import UsageError

    if not module and not os.path.exists(script):
        raise UsageError(f"{script}: no such file", hint="everything behind the script's name is given to the script; use -m for a module")


def run_directory(output: Path | None, script: str, *, force: bool) -> Path:
    """Where this rank records; made free where `force` says so."""
    from gradclip_cli.errors import UsageError
    from gradclip_cli.launch_environment import launched_rank
    from gradclip_cli.runfile import check_free, check_writable, remove_recorded

    rank, world_size = launched_rank()
    if output is None:
        if world_size > 1:
            raise UsageError(f"{world_size} ranks record into one directory, which needs a name", hint="name it with -o RUN")
        return _unused(Path("runs", f"{Path(script).resolve().stem}-{time.strftime('%Y%m%d-%H%M%S')}"))
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    directory = output.with_name(f"{output.name}-restart{attempt}") if attempt else output
    if force:
        remove_recorded(directory, rank=rank, world_size=world_size)
    check_free(directory, rank=rank)
    check_writable(directory)
    return directory


def _unused(path: Path) -> Path:
    candidates = (path if i == 1 else path.with_name(f"{path.name}-{i}") for i in count(1))
    return next(c for c in candidates if not os.path.lexists(c))
