"""What the user's code compares a norm with, read in its source: plain Python numbers are compared where no hook sees it."""

from __future__ import annotations

import ast
import linecache
import math
import re
from collections.abc import Iterator
from functools import lru_cache
from types import FrameType
from typing import Any

_BOUND_NAME = re.compile(r"max_?(grad_?)?norm|clip|thresh|limit|bound", re.IGNORECASE)
# Names of what is counted, and of other knobs of a clip.
_OTHER_NAME = re.compile(r"step|iter|epoch|batch|start|warm|every|range|ratio|frac|eps|percent|history", re.IGNORECASE)
# Functions from the one that reads the norm up to the one that compares it.
_CALLERS = 3
_ATOMS = (ast.Name, ast.Attribute, ast.Subscript)


def bound_in_source(frame: FrameType) -> float | None:
    """The value of what a function on the stack compares or divides by something that is computed; None where none does.

    A function without source stands for its variables: one with a telling name is taken.
    """
    here: FrameType | None = frame
    for _ in range(_CALLERS):
        if here is None:
            return None
        comparisons = _comparisons(here.f_code.co_filename)
        if comparisons is None:
            return next((v for name, v in here.f_locals.items() if _BOUND_NAME.search(name) and _is_bound(v)), None)
        for start, end, bounds in comparisons:
            if start <= here.f_code.co_firstlineno <= end and start <= here.f_lineno <= end:
                for node in bounds:
                    value = _value(node, here)
                    if _is_bound(value):
                        return float(value)
                break
        here = here.f_back
    return None


def _is_bound(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0


@lru_cache(maxsize=64)
def _comparisons(file: str) -> list[tuple[int, int, list[ast.expr]]] | None:
    """Functions of a file, inner ones first: first and last line, and the bounds in it; None where there is no source."""
    lines = linecache.getlines(file)
    if not lines:
        return None
    try:
        tree = ast.parse("".join(lines))
    except (SyntaxError, ValueError, RecursionError):
        return None
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = [
        (min([f.lineno, *(d.lineno for d in f.decorator_list)]), f.end_lineno or f.lineno, list(_bounds(f)))
        for f in sorted(functions, key=lambda f: f.lineno, reverse=True)
    ]
    return [*found, (0, len(lines) + 1, list(_bounds(tree)))]


def _bounds(tree: ast.AST) -> Iterator[ast.expr]:
    for side, other in compared(tree):
        name = ast.unparse(side)
        if isinstance(side, _ATOMS) and is_named_bound(name) and not _OTHER_NAME.search(ast.unparse(other)) and _varies(other):
            yield side


def compared(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Whatever source compares, divides or takes the lesser of, each with the other."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            sides = [node.left, node.comparators[0]]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            sides = [node.left, node.right]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max") and len(node.args) == 2:
            sides = node.args
        else:
            continue
        yield sides[0], sides[1]
        yield sides[1], sides[0]


def is_named_bound(name: str) -> bool:
    """Whether a variable of this name holds a bound of norms."""
    return _BOUND_NAME.search(name) is not None and not _OTHER_NAME.search(name)


def _varies(node: ast.expr) -> bool:
    return any(isinstance(n, _ATOMS) for n in ast.walk(node)) and not (isinstance(node, _ATOMS) and _BOUND_NAME.search(ast.unparse(node)))


def _value(node: ast.expr, frame: FrameType) -> Any:
    """Names, attributes and constant keys; nothing of the user's is called."""
    try:
        if isinstance(node, ast.Name):
            return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
        if isinstance(node, ast.Attribute):
            return vars(_value(node.value, frame)).get(node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            owner = _value(node.value, frame)
            return owner.get(node.slice.value) if isinstance(owner, dict) else None
    except TypeError:
        pass
    return None
