"""`gradclip explain`: what a rule means, how it decides, when it is wrong."""

from __future__ import annotations

from typing import Annotated

import typer


def explain(
    rule: Annotated[
        str | None, typer.Argument(metavar="[RULE]", help="Id or name of a rule, such as GC101 or exploding-step.", show_default=False)
    ] = None,
) -> int:
    """Tell what a rule finds, how it decides, what to do and when it is wrong; without RULE, list all."""
    import re
    from difflib import get_close_matches
    from shutil import get_terminal_size
    from textwrap import fill

    from gradclip_cli.cli.output import emit
    from gradclip_cli.errors import UsageError
    from gradclip_cli.rules import PAGES

    if rule is None:
        longest = max(len(r.name) for r in PAGES)
        rows = (f"{r.id}  {r.name:<{longest}}  {r.severity.value:<7}  {r.page.splitlines()[0]}" for r in PAGES)
        emit("\n".join((*rows, "", "`gradclip explain GC101` tells more of one.")))
        return 0
    wanted = rule.strip().lower()
    for r in PAGES:
        if wanted in (r.id.lower(), r.name):
            width = min(get_terminal_size((80, 24)).columns, 100)
            paragraphs = [fill(" ".join(p.split()), width) for p in r.page.split("\n\n")]
            emit("\n\n".join((f"{r.id} {r.name} ({r.severity.value})", *paragraphs)))
            return 0
    if re.fullmatch(r"b\d{3}", wanted):
        raise UsageError(f"{rule!r} is no rule but a check of the device battery", hint="`gradclip verify --list` says what each holds")
    # Of the names alone: the ids are all alike.
    near = get_close_matches(wanted, [r.name for r in PAGES], n=1)
    shown = f"did you mean {near[0]}? " if near else ""
    raise UsageError(f"no rule {rule!r}", hint=f"{shown}`gradclip explain` lists them all")
