"""The entry point, and the only place where an exception becomes an exit status."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from gradclip_cli.errors import ExitCode, GradclipError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; see `errors.ExitCode`."""
    import typer

    from gradclip_cli.cli import build_app

    # Typer carries its own copy of click's exceptions in some versions; their bases are reached through its public name.
    click_error: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        result = build_app()(args=None if argv is None else list(argv), prog_name="gradclip", standalone_mode=False)
        # Typer turns Ctrl-C into this status, without a word.
        if result == ExitCode.INTERRUPTED:
            print("gradclip: interrupted", file=sys.stderr)
        return int(result or ExitCode.OK)
    except GradclipError as e:
        _say(e.message, e.hint)
        return int(e.code)
    except typer.Exit as e:
        return int(e.exit_code)
    except click_error as e:
        return _usage(e)
    except (KeyboardInterrupt, typer.Abort):
        print("gradclip: interrupted", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except Exception:  # noqa: BLE001 - whatever is left is a bug of ours, and says so
        import traceback

        traceback.print_exc()
        print("gradclip: this is a bug in gradclip, please report it with the lines above", file=sys.stderr)
        return int(ExitCode.BUG)


def _usage(e: Any) -> int:
    message = e.format_message().strip().replace("Value error, ", "")
    if type(e).__name__ == "NoArgsIsHelpError":
        print(message, file=sys.stderr)
        return int(ExitCode.USAGE)
    context = getattr(e, "ctx", None)
    _say(message[:1].lower() + message[1:].rstrip("."), f"see `{context.command_path if context else 'gradclip'} --help`")
    return int(ExitCode.USAGE)


def _say(message: str, hint: str | None) -> None:
    from gradclip_cli.cli.output import complain

    complain(message, hint)


def run() -> None:
    """What the `gradclip` command calls."""
    sys.exit(main())


if __name__ == "__main__":
    run()
