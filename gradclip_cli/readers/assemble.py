"""Log -> Run: decide which key is what, and put every series on a strictly increasing step axis."""

from __future__ import annotations

from dataclasses import replace

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import GRAD_NORM, LOSS, Run
from gradclip_cli.readers import attempts, axis, keys
from gradclip_cli.readers.log import Log, Wanted


def assemble(source: str, log: Log, wanted: Wanted) -> list[Run]:
    """The runs in one log: one, or several where the step counter began anew.

    Args:
        source: What to call it in reports.

    Raises:
        GradclipError: Where a wanted key is not there, or neither a loss nor a gradient norm is found.
    """
    notes = [*log.notes, *(f"{key!r} {what}" for key, what in log.empty.items())]
    chosen = keys.pick(source, log, wanted, notes)
    main = next((chosen[r] for r in (LOSS, GRAD_NORM) if r in chosen), None)
    if main is None:
        if log.overflows:
            return [Run(source, log.format, {}, overflows=log.overflows, damage=log.damage, notes=tuple(notes), recorded=log.recorded)]
        raise keys.nothing_found(source, log)
    logged = keys.logged_bound(log)
    damage = tuple(d for d in log.damage if d.key is None or d.key in chosen.values())
    log = replace(log, max_norm=log.max_norm if logged is None else logged, damage=damage)
    log = axis.without_constant_step(log, main, notes)
    log = axis.oldest_first(log, wanted, main, notes)
    found = axis.find(source, log, wanted, main, notes)
    keys.check_credible(source, log, wanted, chosen, steps_known=found.known)
    columns = {name: axis.on_axis(log.columns[key], found) for name, key in chosen.items()}
    if found.lost:
        notes.append(
            f"{found.lost} logged row{'s have' if found.lost > 1 else ' has'} no step and {'were' if found.lost > 1 else 'was'} left out"
        )
    columns = {name: c for name, c in columns.items() if len(c.steps)}
    if not columns:
        raise GradclipError(f"{source}: no value of {main!r} stands beside a step", hint="name the step with --step KEY")
    main_name = LOSS if LOSS in columns else next(iter(columns))
    columns = axis.over_epochs(log, found, columns, main_name, notes)
    return attempts.split(source, log, chosen, columns, main_name, found.known, notes)
