"""Where commands write: the result to standard output, everything else to standard error."""

from __future__ import annotations

import os
import sys


def emit(text: str) -> None:
    """Write the result. A reader that closes the pipe early (`| head`) is no error and changes no exit status.

    Raises:
        OSError: Where it cannot be written for another reason (a full disk).
    """
    try:
        try:
            sys.stdout.write(text if text.endswith("\n") else text + "\n")
        except UnicodeEncodeError:
            encoding = sys.stdout.encoding or "ascii"
            sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        abandon()
    except OSError:
        abandon()
        raise


def abandon() -> None:
    """Give standard output up: Python flushes it once more at exit, and there must be nowhere for that to fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def tell(text: str) -> None:
    """A line on standard error; where that is closed or full there is nobody to tell."""
    if sys.stderr is None:
        return
    try:
        print(text, file=sys.stderr, flush=True)
    except UnicodeEncodeError:
        print(text.encode("ascii", "backslashreplace").decode("ascii"), file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def complain(message: str, hint: str | None = None, *, level: str = "error") -> None:
    """One sentence on standard error, with its hint; control characters of file names and keys made visible."""
    from gradclip_cli.report.escape import visible

    lines = [f"gradclip: {level}: {visible(message)}"]
    if hint:
        lines.append(f"hint: {visible(hint)}")
    tell("\n".join(lines))


def wants_color(no_color: bool) -> bool:
    """Colour only on a terminal that did not decline it (NO_COLOR, TERM=dumb, --no-color)."""
    return not no_color and sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
