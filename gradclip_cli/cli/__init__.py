"""The command line: one thin file a command, one row each in `COMMANDS`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from gradclip_cli.cli import analyze, explain

COMMANDS: tuple[tuple[str, Callable[..., int]], ...] = (
    ("analyze", analyze.analyze),
    ("explain", explain.explain),
)


def _version(asked: bool) -> None:
    if asked:
        from gradclip_cli import __version__

        print(f"gradclip {__version__}")
        raise typer.Exit


def build_app() -> typer.Typer:
    """The typer application, its commands in the order of the table."""
    app = typer.Typer(
        name="gradclip",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def gradclip(
        version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")] = False,
    ) -> None:
        """Is this PyTorch training run stable, and does gradient norm clipping really protect it?

        [bold]Exit status[/bold]: 0 looked and reported; 2 bad command line; 3 could not judge; 70 a bug; 130 interrupted.
        """

    for name, function in COMMANDS:
        app.command(name)(function)
    return app
