"""Several files of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gradclip_cli.model.run import Damage, Overflow
from gradclip_cli.readers.keys import listed
from gradclip_cli.readers.log import Column, Log


def merge(logs: Sequence[Log]) -> Log:
    """One log from the files of one run, in the order they were written.

    Files that share a key go on one behind the other; files of different keys (a metric each) stand side by side.
    """
    if len(logs) == 1:
        return logs[0]
    notes = [n for log in logs for n in log.notes]
    if len({log.by_step for log in logs}) > 1:
        # Steps and counted rows do not mix; keep the kind that holds more.
        size = {kind: sum(len(c.values) for log in logs if log.by_step is kind for c in log.columns.values()) for kind in (True, False)}
        kept = size[True] >= size[False]
        left_out = [k for log in logs if log.by_step is not kept for k in log.columns]
        notes.append(f"{listed(left_out)} {'without' if kept else 'with'} steps, left out beside the others")
        logs = [log for log in logs if log.by_step is kept]
    goes_on = len({k for log in logs for k in log.columns}) < sum(len(log.columns) for log in logs)
    parts: dict[str, list[Column]] = {}
    offset = 0
    for log in logs:
        for key, c in log.columns.items():
            parts.setdefault(key, []).append(c if log.by_step else replace(c, at=c.at + offset))
        if goes_on:
            offset += max((int(c.at[-1]) + 1 for c in log.columns.values() if len(c.at)), default=0)
    columns = {
        key: cs[0]
        if len(cs) == 1
        else Column(np.concatenate([c.at for c in cs]), np.concatenate([c.values for c in cs]), any(c.rounded for c in cs))
        for key, cs in parts.items()
    }
    damage: tuple[Damage, ...] = tuple(d for log in logs for d in log.damage)
    overflows: tuple[Overflow, ...] = tuple(o for log in logs for o in log.overflows)
    empty = {key: what for log in logs for key, what in log.empty.items() if key not in columns}
    if len(logs) > 1:
        notes.append(f"read from {len(logs)} files")
    return replace(logs[0], columns=columns, damage=damage, overflows=overflows, empty=empty, notes=tuple(dict.fromkeys(notes)))
