"""What a watched loop left behind: the part of a run that only our own recorder writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

SHARDS_KEY = "gradclip.shards"
"""Under this key the metadata of saved gradients tells where in the whole tensors a rank's shards lie."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A parameter whose gradient was watched.

    Attributes:
        name: As the model names it (`layers.0.weight`), made unique where several models share names.
        shape: Of the parameter as the optimizer holds it (the local shard where it is sharded).
        dtype: `float32`, `bfloat16`, ...
    """

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, eq=False)
class RankPart:
    """What one rank recorded.

    Attributes:
        rank: 0 where there is one process.
        header: What was measured and how; see `gradclip_cli.runfile`.
        tensors: In the order of the columns of `tensor_norms`.
        steps: int64, shape (n,): optimizer updates, counted from 1.
        columns: Name -> float64, shape (n,); NaN where an update has no such value *or* it was NaN. The
            names are those of `gradclip_cli.runfile`.
        tensor_norms: float32, shape (n, len(tensors)): the norm of each gradient the optimizer used, NaN where it had none.
        events: The trace: every call that matters for clipping, in order; see `gradclip_cli.watch.trace`.
        ended: How it ended: "finished", "exit 3", "interrupted", "RuntimeError: ...", or "" where nobody wrote it (killed).
    """

    rank: int
    header: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    steps: npt.NDArray[np.int64]
    columns: Mapping[str, npt.NDArray[np.float64]]
    tensor_norms: npt.NDArray[np.float32]
    events: tuple[Mapping[str, Any], ...] = ()
    ended: str = ""


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded run, all ranks.

    Attributes:
        world_size: How many ranks there were; `parts` may hold fewer.
        parts: By rank.
        gradients: Steps whose gradients were saved -> the file.
    """

    world_size: int
    parts: Mapping[int, RankPart]
    gradients: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShardGroup:
    """Tensors of one optimizer that the same ranks hold together.

    Attributes:
        tensors: Numbers of those of which a rank holds a part.
        ranks: Those that hold one whole copy together.
    """

    tensors: frozenset[int]
    ranks: tuple[int, ...]


def shard_groups_of(events: Iterable[Mapping[str, Any]]) -> dict[int, tuple[ShardGroup, ...]]:
    """By optimizer, as a trace tells it; optimizers without sharded tensors are left out."""
    return {
        e["o"]: tuple(ShardGroup(frozenset(tensors), tuple(ranks)) for tensors, ranks in e["groups"])
        for e in events
        if e["k"] == "optimizer" and e.get("groups")
    }
