"""Where commands write: the result to standard output, everything else to standard error."""

from __future__ import annotations

import os
import sys


def emit(text: str) -> None:
    """Write the result. A reader that closes the pipe early (`| head`) is no error and changes no exit status."""
    try:
        sys.stdout.write(text if text.endswith("\n") else text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python flushes standard output once more at exit; there must be nowhere for that to fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except UnicodeEncodeError:
        encoding = sys.stdout.encoding or "ascii"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def complain(message: str, hint: str | None = None, *, level: str = "error") -> None:
    """One sentence on standard error, with its hint; control characters of file names and keys made visible."""
    from gradclip_cli.report.escape import visible

    lines = [f"gradclip: {level}: {visible(message)}"]
    if hint:
        lines.append(f"hint: {visible(hint)}")
    print("\n".join(lines), file=sys.stderr)


def wants_color(no_color: bool) -> bool:
    """Colour only on a terminal that did not decline it (NO_COLOR, TERM=dumb, --no-color)."""
    return not no_color and sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
