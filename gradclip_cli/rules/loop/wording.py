"""Places and counts in the sentences of this family."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence

from gradclip_cli.detect.loop import Clip, Update
from gradclip_cli.model.finding import Hit
from gradclip_cli.wording import number

Pair = tuple[Update, Clip | None]

_SITE = re.compile(r"(.+):(\d{1,9}):([^:]*)")
_VIA = " via "


def where(site: str | None) -> tuple[str, int, str] | None:
    """File, line and function of a site: those of the user's own frame, where there is one."""
    found = _SITE.fullmatch((site or "").split(_VIA)[0])
    return (found[1], int(found[2]), found[3]) if found else None


def is_above(stack: Sequence[str], other: Sequence[str]) -> bool | None:
    """Whether the innermost function that leads to both calls makes the first on an earlier line; None where there is none."""
    lines = {(place[0], place[2]): place[1] for site in reversed(other) if (place := where(site))}
    for site in stack:
        place = where(site)
        if place and (place[0], place[2]) in lines and lines[place[0], place[2]] != place[1]:
            return place[1] < lines[place[0], place[2]]
    return None


def at(site: str | None) -> str:
    """A place as people write it: file:line, and that of the library which made the call for them."""
    place, library = where(site), where((site or "").partition(_VIA)[2])
    via = f" (via {library[0]}:{library[1]})" if library else ""
    return "an unknown place" if place is None else f"{place[0]}:{place[1]}{via}"


def same_place(pairs: Iterable[tuple[Update, Clip]]) -> list[list[tuple[Update, Clip]]]:
    """Grouped by the site of the clip, in the order of the first."""
    groups: dict[str | None, list[tuple[Update, Clip]]] = {}
    for u, c in pairs:
        groups.setdefault(c.site, []).append((u, c))
    return list(groups.values())


def beside_bound(pairs: Sequence[Pair], bound: float) -> str:
    """What the optimizer used where the bound was not kept, or, where no norm exceeded it in these updates, that none did."""
    used = max((u.used for u, _ in pairs if not math.isnan(u.used)), default=math.nan)
    if math.isnan(used):
        return f"max_norm is {number(bound)}"
    if used <= bound:
        return f"no norm exceeded max_norm {number(bound)} here (the largest is {number(used)}), and nothing would bound one that does"
    return f"the optimizer used norms up to {number(used)} where max_norm is {number(bound)}"


def in_updates(pairs: Sequence[Pair], of: Sequence[Update]) -> str:
    """How often: "in all 40 updates", "in 3 of 40 updates"."""
    count = len({id(u) for u, _ in pairs})
    return f"in all {len(of)} updates" if count == len(of) else f"in {count} of {len(of)} updates"


def hit(text: str, pairs: Sequence[Pair], evidence: Mapping[str, float]) -> Hit:
    """A hit from the first to the last update it was seen in; steps count from 1. The step is told where the text does not tell it."""
    steps = [u.u + 1 for u, _ in pairs]
    counted = {"num_updates": len(set(steps)), **evidence}
    u, clip = pairs[0]
    step = at(u.step_site)
    place = where(clip.site if clip is not None else None) or where(u.step_site)
    text += "" if step in text or not u.step_site else f"; the step is at {step}"
    return Hit(text, min(steps), max(steps), {k: v for k, v in counted.items() if v == v}, place=place[:2] if place else None)
