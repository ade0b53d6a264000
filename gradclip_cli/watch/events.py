"""The events of a trace.

An event is a flat mapping with `k` (its kind), `u` (updates taken before it) and `site` (`file:line:function`
in the user's code, or None); the other keys depend on the kind. `o` numbers an optimizer, tensors are
numbers too (`tensors` of the rank's part names them). Norms are L2 norms of what this process holds: of a
sharded parameter the local shard.

    optimizer  o, class, names (what the script calls it), tensors, inside (options of a class that clips inside), around (those of an
               object that wraps it), sharded, groups [[tensor], [rank]] (sharded tensors and the ranks that hold one copy of them together)
    backward   scale (the loss scale in the loss, 1 where none), from_loss (not from gradients it was given), changed {o: [tensor]},
               norms {o: norm after}, in_step
    clip       how (norm|value), bound, p, returned, given, tensors, repeated, empty (tensors without gradient),
               foreign, foreign_gradients, copies, before/after {o: norm}, factors {o: [smallest, largest]},
               scaled {o: scale still in the gradients}, in_backward, in_step, behind_update (in a step that has written
               the parameters), raised, shards {before|after: {o: [norm of each group's shards here]}}
    measure    returned, given, p          a norm was computed by `get_total_norm` and nothing was scaled by it
    edit       o, stack, tensors, change counts, factors, clamp, before, after, before_of_them, after_of_them (of what changed alone),
               shards {before|...: [norm of each group's shards here]}, in_step, behind_update
               gradients changed by no call that we know
    unscale    o, scale, automatic
    enter      o, closure, in_backward, wrapper
    use        o, norm, largest, nonfinite [tensor], sparse [tensor], tensors [with a non-zero gradient], norms, empty, skipped,
               divided, evaluation, peaks [tensor with a hook whose largest element is the largest of all], hook (where the
               first of the script's own on tensors begins), reduced_with [rank]
               (that the script's own call summed gradients with), computed_with [rank] (that a function of autograd summed
               values with), gathered_with [rank] (that the parameters were gathered with since the last use), by_own_code (they
               may be others than the last backward, or a call that we know, left)
    exit       o
    skip       o, scale                    the scaler did not call `step`
    hand       norm, bound, over, function  what the user's own code computed from the gradients
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

Event = dict[str, Any]


def plain(value: Any) -> Any:
    """A value of the user's as an event can hold it; a tensor as it is now."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone() if value.numel() == 1 else str(tuple(value.shape))
    return value if isinstance(value, int | float | bool | str | None) else str(value)


def scalars_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors in an event, each of which stands for a number."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for v in value.values() if isinstance(value, dict) else value:
            yield from scalars_in(v)


def as_json(value: Any, read: Callable[[torch.Tensor], float]) -> Any:
    """An event with numbers for its tensors and keys as text, ready to be written."""
    if isinstance(value, torch.Tensor):
        return read(value)
    if isinstance(value, dict):
        return {str(k): as_json(v, read) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(v, read) for v in value]
    return value
