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
