"""Which calls of a trace can be believed: of a shape that our own watcher writes (see `gradclip_cli.watch.observer`).

Whoever judges a trace takes its events as they are; so what is missing or of another type is sorted out here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_Test = Callable[[Any, int], bool]
_LARGEST = 1 << 62
# file:line:function
_SITE = re.compile(r".+:\d{1,9}:[^:]*", re.DOTALL)


def _anything(value: Any, num_tensors: int) -> bool:
    return True


def _integer(value: Any, num_tensors: int) -> bool:
    return type(value) is int and abs(value) < _LARGEST


def _number(value: Any, num_tensors: int) -> bool:
    return value is None or isinstance(value, float | bool) or _integer(value, num_tensors)


def _text(value: Any, num_tensors: int) -> bool:
    return isinstance(value, str)


def _site(value: Any, num_tensors: int) -> bool:
    return isinstance(value, str) and _SITE.fullmatch(value.split(" via ")[0]) is not None


def _scalar(value: Any, num_tensors: int) -> bool:
    return _text(value, num_tensors) or _number(value, num_tensors)


def _tensors(value: Any, num_tensors: int) -> bool:
    return isinstance(value, list) and all(type(i) is int and 0 <= i < num_tensors for i in value)


def _list_of(test: _Test) -> _Test:
    return lambda value, n: isinstance(value, list) and all(test(v, n) for v in value)


def _map_to(test: _Test) -> _Test:
    return lambda value, n: isinstance(value, dict) and all(test(v, n) for v in value.values())


def _group_list(value: Any, num_tensors: int) -> bool:
    pairs = isinstance(value, list) and all(isinstance(g, list) and len(g) == 2 for g in value)
    return pairs and all(_tensors(tensors, num_tensors) and _list_of(_integer)(ranks, num_tensors) for tensors, ranks in value)


_NEEDED: Mapping[str, Mapping[str, _Test]] = {
    "optimizer": {"o": _integer, "class": _text, "tensors": _tensors, "sharded": _tensors, "inside": _map_to(_scalar)},
    "backward": {"scale": _number, "in_step": _anything},
    "clip": {
        "how": _text,
        "bound": _scalar,
        "p": _number,
        "returned": _number,
        "whole": _anything,
        "given": _integer,
        "tensors": _tensors,
        "repeated": _tensors,
        "empty": _integer,
        "foreign": _integer,
        "foreign_gradients": _integer,
        "scaled": _map_to(_number),
        "in_backward": _anything,
        "in_step": _anything,
    },
    "measure": {"returned": _number, "given": _integer, "p": _number},
    "edit": {
        "o": _integer,
        "tensors": _tensors,
        "cleared": _tensors,
        "counts": _map_to(_integer),
        "factors": _list_of(_number),
        "clamp": _number,
        "before": _number,
        "after": _number,
        "in_step": _anything,
    },
    "unscale": {"o": _integer, "scale": _number},
    "enter": {"o": _integer, "closure": _anything, "in_backward": _anything},
    "use": {"o": _integer, "divided": _number, "skipped": _number, "evaluation": _number},
    "exit": {"o": _integer, "wrapper": _anything},
    "skip": {"o": _integer, "scale": _number},
    "hand": {"norm": _number, "bound": _number, "over": _anything, "scaled_copy": _anything, "function": _text},
}
"""What each kind of event has in every case."""

_ALLOWED: Mapping[str, _Test] = {
    "site": lambda value, n: value is None or _site(value, n),
    "stack": _list_of(_site),
    "changed": _map_to(_tensors),
    "before": lambda value, n: _number(value, n) or _map_to(_number)(value, n),
    "after": lambda value, n: _number(value, n) or _map_to(_number)(value, n),
    "before_of_them": _number,
    "after_of_them": _number,
    "copies": _integer,
    "by_own_code": _anything,
    "behind_update": _anything,
    "around": _map_to(_scalar),
    "nonfinite": _tensors,
    "groups": _group_list,
    "reduced_with": _list_of(_integer),
    "computed_with": _list_of(_integer),
    "gathered_with": _list_of(_integer),
    "peaks": _tensors,
    "shards": _map_to(lambda value, n: _list_of(_number)(value, n) or _map_to(_list_of(_number))(value, n)),
    "norms": lambda value, n: _list_of(_number)(value, n) or _map_to(_number)(value, n),
    "norm": _number,
    "largest": _number,
    "tensors": _tensors,
}
"""What it may have besides, or has only where gradients were read."""


def is_event(value: Any, num_tensors: int) -> bool:
    """Whether this is an event as the watcher writes it, of a part that names so many tensors."""
    if not isinstance(value, dict) or not isinstance(value.get("k"), str) or not _integer(value.get("u"), 0) or "site" not in value:
        return False
    needed = _NEEDED.get(value["k"])
    if needed is None or not all(name in value and test(value[name], num_tensors) for name, test in needed.items()):
        return False
    if not all(test(value[name], num_tensors) for name, test in _ALLOWED.items() if name in value):
        return False
    match value["k"]:
        case "clip":
            return all(isinstance(value.get(name, {}), dict) for name in ("before", "after"))
        case "edit":
            return _number(value["before"], 0) and _number(value["after"], 0)
        case "use" if "norm" in value:
            read = ("largest", "nonfinite", "tensors", "norms")
            return all(name in value for name in read) and isinstance(value["norms"], list) and len(value["norms"]) == len(value["tensors"])
    return True
