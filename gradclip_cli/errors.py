"""Exit codes and the one exception a user may see."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the process tells its caller. The numbers are a contract; see README, "Exit codes"."""

    OK = 0
    FINDINGS = 1
    USAGE = 2
    CANNOT_JUDGE = 3
    BUG = 70
    INTERRUPTED = 130


class GradclipError(Exception):
    """A failure the user can act on: printed as one sentence plus a hint, never as a traceback.

    Args:
        message: One sentence: where (path, line, step, key), what was found, what was expected.
        hint: The flag or command that helps.
        code: The exit status; unreadable or unjudgeable input unless said otherwise.
    """

    def __init__(self, message: str, *, hint: str | None = None, code: ExitCode = ExitCode.CANNOT_JUDGE) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code


class UsageError(GradclipError):
    """A bad command line or configuration file (exit status 2)."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, code=ExitCode.USAGE)
