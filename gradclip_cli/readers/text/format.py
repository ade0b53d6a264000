"""What is known about one kind of console log."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from gradclip_cli.model.run import NormStage, Sampling


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Format:
    """A kind of console log: how its metric lines look and what the numbers in them mean.

    The lines are taken apart without knowing the format (`tokens.py`); only what cannot be seen there is said here.

    Attributes:
        name: What reports call it.
        summary: One line for the help.
        line: Found in its metric lines, and in no other program's.
        not_training: Found in lines that look like metric lines and are none (evaluations, the summary of a run).
        sums_up: Found in lines that repeat in one what the lines of an epoch told; they count where there are no others.
        step: Keys of the step counter, the best first; () leaves it to the names people use.
        keys: Keys worth reading that no general rule knows.
        extra: Numbers without a key: each named group is a key (`epoch`, `iter`, `step`; `total` is how many
            `iter` there are in an epoch, `rank` whose line it is).
        running_mean: A line is drawn anew while a mean grows; the last one of a step counts.
        skipped: Key of a counter of the steps that a loss scaler skipped since the line before.
        nonfinite: Key of a counter of the steps since the line before whose loss was not finite; they count as skipped too.
        omits_nan: A line without a loss, of a step that was not skipped, had one that was nan.
        roles: Series name -> key, where the names people use would mislead.
        norm_stage, stage_reason, sampling: As in `Log`.
        notes: What one must know about this format's numbers.
    """

    name: str
    summary: str
    line: re.Pattern[str]
    not_training: re.Pattern[str] | None = None
    sums_up: re.Pattern[str] | None = None
    step: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    extra: re.Pattern[str] | None = None
    skipped: str | None = None
    nonfinite: str | None = None
    omits_nan: bool = False
    roles: Mapping[str, str] = field(default_factory=dict)
    norm_stage: NormStage = NormStage.UNKNOWN
    stage_reason: str = ""
    sampling: Mapping[str, Sampling] = field(default_factory=dict)
    running_mean: bool = False
    notes: tuple[str, ...] = ()


def pattern(text: str) -> re.Pattern[str]:
    """A pattern over one line. The line is bytes seen as Latin-1, so only ASCII letters are letters."""
    return re.compile(text, re.ASCII)


TEXT = Format(
    name="text",
    summary="any text with lines such as `step 10 loss: 2.3` or `loss=2.3, grad_norm=0.5`",
    # Found in no line: what no other format's lines look like.
    line=pattern(r"(?!)"),
)
