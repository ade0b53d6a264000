"""Places and counts in the sentences of this family."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gradclip_cli.detect.loop import Clip, Update
from gradclip_cli.model import Hit

Pair = tuple[Update, Clip | None]


def where(site: str | None) -> tuple[str, int, str] | None:
    """File, line and function of a site."""
    if not site:
        return None
    file, line, function = site.split(" via ")[0].rsplit(":", 2)
    return file, int(line), function


def is_above(stack: Sequence[str], other: Sequence[str]) -> bool | None:
    """Whether the innermost function that leads to both calls makes the first on an earlier line; None where there is none."""
    lines = {(place[0], place[2]): place[1] for site in reversed(other) if (place := where(site))}
    for site in stack:
        place = where(site)
        if place and (place[0], place[2]) in lines and lines[place[0], place[2]] != place[1]:
            return place[1] < lines[place[0], place[2]]
    return None


def at(site: str | None) -> str:
    """A place as people write it: file:line."""
    place = where(site)
    return "an unknown place" if place is None else f"{place[0]}:{place[1]}"


def same_place(pairs: Iterable[tuple[Update, Clip]]) -> list[list[tuple[Update, Clip]]]:
    """Grouped by the site of the clip, in the order of the first."""
    groups: dict[str | None, list[tuple[Update, Clip]]] = {}
    for u, c in pairs:
        groups.setdefault(c.site, []).append((u, c))
    return list(groups.values())


def in_updates(pairs: Sequence[Pair], of: Sequence[Update]) -> str:
    """How often: "in all 40 updates", "in 3 of 40 updates"."""
    count = len({id(u) for u, _ in pairs})
    return f"in all {len(of)} updates" if count == len(of) else f"in {count} of {len(of)} updates"


def hit(text: str, pairs: Sequence[Pair], evidence: Mapping[str, float]) -> Hit:
    """A hit from the first to the last update it was seen in; steps count from 1."""
    steps = [u.u + 1 for u, _ in pairs]
    counted = {"num_updates": len(set(steps)), **evidence}
    return Hit(text, min(steps), max(steps), {k: v for k, v in counted.items() if v == v})
