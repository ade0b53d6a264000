"""Sharded gradients: the trace of a rank holds the norms of its own shards. Here they become those of the whole tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradclip_cli.model.recorded import ShardGroup, shard_groups_of

Event = Mapping[str, Any]
Key = tuple[str, int, int | None, int]


def whole_norms(traces: Mapping[int, Sequence[Event]]) -> dict[int, list[Event]]:
    """The traces, each norm of sharded gradients put together from the ranks that were at the same call.

    A call that one of them did not make keeps the norm of the rank's own shards.
    """
    held = {rank: shard_groups_of(events) for rank, events in traces.items()}
    if not any(held.values()):
        return {rank: list(events) for rank, events in traces.items()}
    keyed = {rank: _keyed(events) for rank, events in traces.items()}
    return {rank: [_whole(key, e, held[rank], keyed) for key, e in keyed[rank].items()] for rank in traces}


def _keyed(events: Sequence[Event]) -> dict[Key, Event]:
    """By kind, update, optimizer, and how many such there were before."""
    keyed: dict[Key, Event] = {}
    counts: dict[tuple[str, int, int | None], int] = {}
    for e in events:
        kind = (e["k"], e["u"], e.get("o"))
        counts[kind] = counts.get(kind, 0) + 1
        keyed[(*kind, counts[kind])] = e
    return keyed


def _whole(key: Key, e: Event, held: Mapping[int, Sequence[ShardGroup]], keyed: Mapping[int, Mapping[Key, Event]]) -> Event:
    kind, o = key[0], key[2]
    if kind == "clip":
        out = dict(e)
        for number, groups in held.items():
            peers = _peers(key, groups, keyed)
            for name in e.get("shards", ()) if peers else ():
                norm = _float(e.get(name, {}).get(str(number)))
                parts = [[_shards(p, name, str(number)) for p in of_group] for of_group in peers]
                out[name] = {**out.get(name, {}), str(number): _put_together(norm, _shards(e, name, str(number)), parts)}
        return out
    if kind not in ("use", "edit") or o is None or o not in held:
        return e
    peers = _peers(key, held[o], keyed)
    if not peers:
        return e
    if kind == "use":
        return _use(e, peers, held[o]) if all("norm" in p for of_group in peers for p in of_group) else e
    tensors = set(e["tensors"])
    for group, of_group in zip(held[o], peers, strict=True):
        tensors |= set[int]().union(*(p["tensors"] for p in of_group)) & group.tensors
    around = {
        name: _put_together(_float(e.get(name)), _shards(e, name), [[_shards(p, name) for p in of_group] for of_group in peers])
        for name in e.get("shards", ())
    }
    return {**e, "tensors": sorted(tensors), **around}


def _peers(key: Key, groups: Sequence[ShardGroup], keyed: Mapping[int, Mapping[Key, Event]]) -> list[list[Event]]:
    """That event of every rank of each group; none where one lacks it."""
    found = [[keyed.get(r, {}).get(key) for r in group.ranks] for group in groups]
    whole = [[p for p in of_group if p is not None] for of_group in found]
    return whole if all(map(len, whole)) and [*map(len, whole)] == [*map(len, found)] else []


def _shards(e: Event, name: str, o: str | None = None) -> list[float]:
    """The norm of what this rank holds of each group."""
    parts = e.get("shards", {}).get(name, ())
    return [_float(n) for n in (parts if o is None else parts.get(o, ()) if isinstance(parts, Mapping) else ())]


def _put_together(norm: float, own: Sequence[float], peers: Sequence[Sequence[Sequence[float]]]) -> float:
    """A norm with the shards of all ranks in the place of its own."""
    parts = [p[g] for g, of_group in enumerate(peers) for p in of_group if g < len(p)]
    if not math.isfinite(norm):
        return _together([norm, *parts])
    in_full = max(0.0, norm**2 - math.fsum(n**2 for n in own))
    return _together([math.sqrt(in_full), *parts])


def _use(e: Event, peers: Sequence[Sequence[Event]], groups: Sequence[ShardGroup]) -> Event:
    norms = dict(zip(e["tensors"], map(_float, e["norms"]), strict=True))
    largest, nonfinite = _float(e["largest"]), set(e["nonfinite"])
    for group, of_group in zip(groups, peers, strict=True):
        held = [dict(zip(p["tensors"], p["norms"], strict=True)) for p in of_group]
        for t in set[int]().union(*held) & group.tensors:
            norms[t] = _together(h[t] for h in held if t in h)
        largest = max(largest, *(_float(p["largest"]) for p in of_group))
        nonfinite = nonfinite.union(*(set(p["nonfinite"]) & group.tensors for p in of_group))
    return {
        **e,
        "norm": _together(norms.values()),
        "tensors": list(norms),
        "norms": list(norms.values()),
        "largest": largest,
        "nonfinite": sorted(nonfinite),
    }


def _together(norms: Iterable[Any]) -> float:
    return math.hypot(*map(_float, norms))


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)
