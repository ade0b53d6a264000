"""The entry point, and the only place where an exception becomes an exit status."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from gradclip_cli.errors import ExitCode, GradclipError
from gradclip_cli.interrupt import end_at_once


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status; see `errors.ExitCode`."""
    if sys.stdout is None:
        # Closed by the caller (`>&-`): nobody wants the result, which is no error.
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long-lived as the process
    try:
        return _run(argv)
    except GradclipError as e:
        _say(e.message, e.hint)
        return int(e.code)
    except KeyboardInterrupt:
        _tell("gradclip: interrupted")
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # Whoever read the output has seen enough.
        return int(ExitCode.OK)
    except OSError as e:
        _say(f"{e.filename or 'standard output'}: {e.strerror or e}", None)
        return int(ExitCode.CANNOT_JUDGE)
    except Exception:  # noqa: BLE001 - whatever is left is a bug of ours, and says so
        import traceback

        _tell(traceback.format_exc() + "gradclip: this is a bug in gradclip, please report it with the lines above")
        return int(ExitCode.BUG)


def _run(argv: Sequence[str] | None) -> int:
    import typer

    from gradclip_cli.cli import build_app

    # Typer carries its own copy of click's exceptions in some versions; their base is reached through its public name.
    click_error: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        args = sys.argv[1:] if argv is None else list(argv)
        result = build_app(args)(args=args, prog_name="gradclip", standalone_mode=False)
    except typer.Exit as e:
        result = e.exit_code
    except typer.Abort:
        raise KeyboardInterrupt from None
    except click_error as e:
        return _usage(e)
    except SystemExit:
        # Typer's answer to a closed pipe.
        raise BrokenPipeError from None
    if result == ExitCode.INTERRUPTED:
        # Typer turns Ctrl-C into this status, without a word.
        raise KeyboardInterrupt
    return int(result or ExitCode.OK)


def _usage(e: Any) -> int:
    from gradclip_cli.cli import RUN_A_SCRIPT

    message = e.format_message().strip().replace("Value error, ", "")
    if type(e).__name__ == "NoArgsIsHelpError":
        _tell(message)
        return int(ExitCode.USAGE)
    context = getattr(e, "ctx", None)
    hint = f"see `{context.command_path if context else 'gradclip'} --help`"
    if type(e).__name__ == "NoSuchOption" and context and context.info_name in RUN_A_SCRIPT:
        hint = f"options of the script stand behind its name; {hint}"
    _say(message[:1].lower() + message[1:].rstrip("."), hint)
    return int(ExitCode.USAGE)


def _say(message: str, hint: str | None) -> None:
    from gradclip_cli.cli.output import complain

    complain(message, hint)


def _tell(text: str) -> None:
    from gradclip_cli.cli.output import tell

    tell(text)


def run() -> None:
    """What the `gradclip` command calls."""
    with end_at_once():
        import gradclip_cli.cli  # noqa: F401 - most of what `main` imports
    code = main()
    try:
        sys.stdout.flush()
    except OSError as e:
        from gradclip_cli.cli.output import abandon

        abandon()
        if not isinstance(e, BrokenPipeError):
            _say(f"standard output: {e.strerror or e}", None)
            code = int(ExitCode.CANNOT_JUDGE)
    sys.exit(code)


if __name__ == "__main__":
    run()
