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
    from difflib import get_close_matches
    from shutil import get_terminal_size
    from textwrap import fill

    from gradclip_cli.cli.output import emit
    from gradclip_cli.errors import UsageError
    from gradclip_cli.rules import PAGES

    if rule is None:
        rows = (f"{r.id}  {r.name:<20} {r.severity.value:<8} {r.page.splitlines()[0]}" for r in PAGES)
        emit("\n".join((*rows, "", "`gradclip explain GC101` tells more of one.")))
        return 0
    wanted = rule.strip().lower()
    for r in PAGES:
        if wanted in (r.id.lower(), r.name):
            width = min(get_terminal_size((80, 24)).columns, 100)
            paragraphs = [fill(" ".join(p.split()), width) for p in r.page.split("\n\n")]
            emit("\n\n".join((f"{r.id} {r.name} ({r.severity.value})", *paragraphs)))
            return 0
    near = get_close_matches(wanted, [n for r in PAGES for n in (r.id.lower(), r.name)], n=1)
    shown = f"did you mean {near[0].upper() if near[0].startswith('gc') else near[0]}? " if near else ""
    raise UsageError(f"no rule {rule!r}", hint=f"{shown}`gradclip explain` lists them all")
