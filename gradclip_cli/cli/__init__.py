"""The command line: one thin file a command, one row each in `COMMANDS`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Annotated, cast

import typer

from gradclip_cli.errors import UsageError
from gradclip_cli.launch_environment import check_launch_environment

# Name, module and function, one line of help (at most 55 characters). Only the command that was asked for is imported.
COMMANDS: tuple[tuple[str, str, str], ...] = (
    ("analyze", "gradclip_cli.cli.analyze:analyze", "What happened in a run, what led to what."),
    ("check", "gradclip_cli.cli.check:check", "May the long run start? Exit status 0 or 1, for CI."),
    ("explain", "gradclip_cli.cli.explain:explain", "What a rule means, how it decides, when it is wrong."),
    ("probe", "gradclip_cli.cli.probe:probe", "A short training that shows what clipping does."),
    ("record", "gradclip_cli.cli.record:record", "Run a training script, record what its gradients do."),
    ("replay", "gradclip_cli.cli.replay:replay", "What clipping does to stored gradients."),
    ("suggest-threshold", "gradclip_cli.cli.suggest_threshold:suggest_threshold", "What max_norm should be, from the norms of a run."),
    ("verify", "gradclip_cli.cli.verify:verify", "Does clipping take effect, in a loop, on this device?"),
)
RUN_A_SCRIPT = ("record", "verify")
OF_SEVERAL_RANKS = ("probe", "record", "replay", "verify")


def load(place: str) -> Callable[..., int]:
    """The function of a row, given as `module:function`."""
    module, function = place.split(":")
    return cast("Callable[..., int]", getattr(import_module(module), function))


def build_app(args: Sequence[str]) -> typer.Typer:
    """The typer application for one command line; the commands that it does not ask for are a name and a line of help.

    Raises:
        UsageError: Where an argument is empty: as a path it would be the working directory, which nobody named. Or where the variables
            of a launcher are no numbers.
    """
    app = typer.Typer(
        name="gradclip",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        # With rich, printing the help takes twice as long.
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_gradclip)
    asked = next((a for a in args if not a.startswith("-")), None)
    if "" in args and asked not in RUN_A_SCRIPT:
        raise UsageError("found an empty argument, expected a name or a value", hint="is a variable of the shell unset?")
    if asked in OF_SEVERAL_RANKS:
        check_launch_environment()
    for name, place, line in COMMANDS:
        if name == asked:
            # Options behind a script's name are the script's.
            app.command(name, context_settings={"allow_interspersed_args": name not in RUN_A_SCRIPT})(load(place))
        else:
            app.command(name, help=line)(_unloaded)
    return app


def _unloaded() -> int:
    raise AssertionError("a command that was not asked for")


def _version(asked: bool) -> None:
    if asked:
        from gradclip_cli import __version__

        print(f"gradclip {__version__}")
        raise typer.Exit


def _gradclip(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """Is this PyTorch training run stable, and does gradient norm clipping really protect it?

    Exit status: 0 reported, or judged clean; 1 findings that count; 2 bad command line; 3 could not judge; 70 a bug; 130 interrupted.
    """
