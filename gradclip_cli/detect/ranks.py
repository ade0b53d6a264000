"""Sharded gradients: the trace of a rank holds the norms of its own shards. Here they become those of the whole tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gradclip_cli.model.recorded import Shards, shards_of

Event = Mapping[str, Any]
Key = tuple[str, int, int | None, int]
# Norms around an edit: of the optimizer's tensors, and of the edited ones.
_AROUND, _AROUND_THEM = ("before", "after"), ("before_of_them", "after_of_them")


def whole_norms(traces: Mapping[int, Sequence[Event]]) -> dict[int, list[Event]]:
    """The traces, each norm of sharded gradients put together from the ranks that were at the same call.

    A call that one of them did not make keeps the norm of the rank's own shards.
    """
    held = {rank: shards_of(events, traces) for rank, events in traces.items()}
    if not any(held.values()):
        return {rank: list(events) for rank, events in traces.items()}
    keyed = {rank: _keyed(events) for rank, events in traces.items()}
    return {rank: [_whole(key, e, rank, held[rank], keyed) for key, e in keyed[rank].items()] for rank in traces}


def _keyed(events: Sequence[Event]) -> dict[Key, Event]:
    """By kind, update, optimizer, and how many such there were before."""
    keyed: dict[Key, Event] = {}
    counts: dict[tuple[str, int, int | None], int] = {}
    for e in events:
        kind = (e["k"], e["u"], e.get("o"))
        counts[kind] = counts.get(kind, 0) + 1
        keyed[(*kind, counts[kind])] = e
    return keyed


def _whole(key: Key, e: Event, rank: int, held: Mapping[int, Shards], keyed: Mapping[int, Mapping[Key, Event]]) -> Event:
    kind, o = key[0], key[2]
    if kind == "clip" and "before" in e:
        out = dict(e)
        for number, shards in held.items():
            peers = _peers(key, rank, shards, keyed)
            for name in _AROUND if shards.are_all else ():
                if peers:
                    out[name] = {**out.get(name, {}), str(number): _together(p.get(name, {}).get(str(number)) for p in peers)}
        return out
    if kind not in ("use", "edit") or o is None or o not in held:
        return e
    shards = held[o]
    peers = _peers(key, rank, shards, keyed)
    if not peers:
        return e
    if kind == "use":
        return _use(e, peers, shards) if all("norm" in p for p in peers) else e
    tensors = sorted(set(e["tensors"]).union(*(p["tensors"] for p in peers)) & shards.tensors | set(e["tensors"]))
    names = [*(_AROUND if shards.are_all else ()), *(_AROUND_THEM if shards.tensors >= set(tensors) else ())]
    around = {name: _together(p.get(name) for p in peers) for name in names if name in e}
    return {**e, "tensors": tensors, **around}


def _peers(key: Key, rank: int, shards: Shards, keyed: Mapping[int, Mapping[Key, Event]]) -> list[Event]:
    """That event of every rank; none where one lacks it."""
    found = [keyed.get(r, {}).get(key) for r in {*shards.ranks, rank}]
    return [p for p in found if p is not None] if all(p is not None for p in found) else []


def _use(e: Event, peers: Sequence[Event], shards: Shards) -> Event:
    held = [dict(zip(p["tensors"], p["norms"], strict=True)) for p in peers]
    norms = dict(zip(e["tensors"], map(_float, e["norms"]), strict=True))
    for t in set().union(*held) & shards.tensors:
        norms[t] = _together(h[t] for h in held if t in h)
    return {
        **e,
        "norm": _together(norms.values()),
        "tensors": list(norms),
        "norms": list(norms.values()),
        "largest": max(_float(p["largest"]) for p in peers),
        "nonfinite": sorted(set(e["nonfinite"]).union(*(set(p["nonfinite"]) & shards.tensors for p in peers))),
    }


def _together(norms: Iterable[Any]) -> float:
    return math.hypot(*map(_float, norms))


def _float(value: Any) -> float:
    return math.nan if value is None else float(value)
