"""The frame of every text report: a page of a given width, its headings and its columns."""

from __future__ import annotations

import io
import shutil
import sys
from typing import TYPE_CHECKING

from gradclip_cli.report.escape import ascii_only

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_WIDEST = 120
_NARROWEST = 40


class Page:
    """Printed to through `console`, then given out as `text`.

    Args:
        width: Characters a line; the terminal's unless given (COLUMNS overrides).
        color: Whether to use the terminal's sixteen colours; nothing is said by colour alone.
        unicode: Whether more than ASCII may be used; unless given, where standard output can encode it.
    """

    def __init__(self, *, width: int | None = None, color: bool = False, unicode: bool | None = None) -> None:
        from rich.console import Console

        self._buffer = io.StringIO()
        self._unicode = _can_encode(sys.stdout.encoding) if unicode is None else unicode
        wanted = shutil.get_terminal_size().columns if width is None else width
        self.console: Console = Console(
            file=self._buffer,
            width=max(min(wanted, _WIDEST), _NARROWEST),
            force_terminal=color,
            force_jupyter=False,
            no_color=not color,
            color_system="standard" if color else None,
            legacy_windows=False,
            highlight=False,
            markup=False,
            emoji=False,
        )

    @property
    def text(self) -> str:
        """What was printed so far, without blanks at the ends of lines."""
        text = "".join(f"{line.rstrip()}\n" for line in self._buffer.getvalue().splitlines())
        return text if self._unicode else ascii_only(text)


def heading(console: Console, title: str) -> None:
    """A title with an empty line above."""
    console.print()
    console.print(title, style="bold")


def grid(*wraps: bool) -> Table:
    """Columns of text side by side; each wraps or does not."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2, 0, 0))
    for wrap in wraps:
        table.add_column(no_wrap=not wrap, overflow="fold")
    return table


def _can_encode(encoding: str | None) -> bool:
    try:
        "▲⣿".encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
