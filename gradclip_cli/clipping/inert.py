"""A pickle read as inert data: nothing that it names is imported, looked up or called.

What an unpickler would call becomes a `Call`, what it would import a `Symbol`. Only what tensors, state dicts and the metadata of
checkpoints are made of is taken at all, so that a file which carries code is refused by name. Memory and time stay within a small
multiple of the pickle's bytes: memo slots live in a dict (the C unpickler makes a table as long as the highest slot a file mentions),
and dicts are lists of pairs (hashing a deeply nested key has no bound).
"""

from __future__ import annotations

import pickletools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any


class Refused(Exception):
    """What is in the pickle that does not belong there, as a part of a sentence: "a call of os.system"."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """Something a pickle would import."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class Persistent:
    """A reference to data outside the pickle: the bytes of a tensor."""

    id: Any


@dataclass(slots=True, eq=False)
class Call:
    """What would be called, its arguments, and the items and the state that would be set on the result."""

    function: Symbol
    args: tuple[Any, ...]
    items: Dict
    state: Any = None


@dataclass(slots=True, eq=False)
class Dict:
    """The pairs of a dict in order; a key may come twice."""

    items: list[tuple[Any, Any]] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        return iter(self.items)

    def get(self, key: str) -> Any:
        """The last value of a text key, None where there is none."""
        return next((v for k, v in reversed(self.items) if type(k) is str and k == key), None)


_STORAGES = {
    "Double",
    "Float",
    "Half",
    "BFloat16",
    "Long",
    "Int",
    "Short",
    "Char",
    "Byte",
    "Bool",
    "ComplexDouble",
    "ComplexFloat",
    "Untyped",
}
_DTYPES = {
    *("float64", "float32", "float16", "bfloat16", "complex32", "complex64", "complex128", "bool"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
}
_CHECKPOINT = "torch.distributed.checkpoint."
_KNOWN = {
    "collections": {"OrderedDict", "defaultdict"},
    "torch": {"Size", "device", "Tensor", *(f"{s}Storage" for s in _STORAGES), *_DTYPES},
    "torch.storage": {"UntypedStorage", "TypedStorage"},
    "torch._utils": {"_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter", "_rebuild_parameter_with_state"},
    "torch._tensor": {"_rebuild_from_type_v2"},
    "torch.nn.parameter": {"Parameter"},
    "torch.serialization": {"_get_layout"},
    f"{_CHECKPOINT}metadata": {
        *("Metadata", "MetadataIndex", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata", "TensorProperties"),
        *("StorageMeta", "_MEM_FORMAT_ENCODING"),
    },
    f"{_CHECKPOINT}filesystem": {"_StorageInfo", "_StoragePrefix"},
    "pathlib": {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath", "Path", "PurePath"},
    "pathlib._local": {"PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath"},
    "builtins": {"dict", "list", "set", "tuple", "int", "float", "complex", "bool", "str"},
}


_MARK = object()


def read(file: IO[bytes]) -> Any:
    """One pickle, from where the file stands.

    Returns:
        None, bool, int, float, str, bytes, tuple, list, `Dict`, `Call`, `Symbol` or `Persistent`. Lists and `Dict`s may refer
        to each other in any way that the file says, also in circles.

    Raises:
        Refused: It names anything but the parts of tensors and checkpoints, uses an instruction they do not need, or is damaged.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    try:
        for op, arg, _ in pickletools.genops(file):
            if op.name == "STOP":
                return stack.pop()
            _step(op.name, arg, stack, memo)
    except Refused:
        raise
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, MemoryError, RecursionError) as e:
        raise Refused("a damaged pickle") from e
    raise Refused("a pickle without an end")


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {
    *("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "SHORT_BINSTRING", "BINSTRING"),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def _step(name: str, arg: Any, stack: list[Any], memo: dict[int, Any]) -> None:
    if name in _VALUES:
        stack.append(arg)
    elif name in _CONSTANTS:
        stack.append(_CONSTANTS[name])
    elif name in ("BINGET", "LONG_BINGET"):
        stack.append(memo[arg])
    elif name in ("BINPUT", "LONG_BINPUT"):
        memo[arg] = stack[-1]
    elif name == "MEMOIZE":
        memo[len(memo)] = stack[-1]
    elif name == "MARK":
        stack.append(_MARK)
    elif name in _TUPLES:
        stack.append(tuple(_pop(stack, _TUPLES[name])))
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name == "EMPTY_DICT":
        stack.append(Dict())
    elif name in ("EMPTY_LIST", "EMPTY_SET"):
        stack.append([])
    elif name in ("SETITEM", "SETITEMS"):
        items = _pop(stack, 2) if name == "SETITEM" else _since_mark(stack)
        _set_items(stack[-1], items)
    elif name in ("APPEND", "APPENDS", "ADDITEMS"):
        values = _pop(stack, 1) if name == "APPEND" else _since_mark(stack)
        stack[-1].extend(values)
    elif name == "GLOBAL":
        module, _, attribute = arg.partition(" ")
        stack.append(_symbol(module, attribute))
    elif name == "STACK_GLOBAL":
        module, attribute = _pop(stack, 2)
        stack.append(_symbol(module, attribute))
    elif name == "BINPERSID":
        stack.append(Persistent(stack.pop()))
    elif name in ("REDUCE", "NEWOBJ"):
        function, args = _pop(stack, 2)
        if not isinstance(function, Symbol) or type(args) is not tuple:
            raise Refused("a call of something that is not named")
        stack.append(Call(function, args, Dict()))
    elif name == "BUILD":
        state = stack.pop()
        if not isinstance(stack[-1], Call):
            raise Refused("a state without an object")
        stack[-1].state = state
    elif name not in ("PROTO", "FRAME"):
        raise Refused(f"the pickle instruction {name}")


def _symbol(module: Any, name: Any) -> Symbol:
    if type(module) is not str or type(name) is not str:
        raise Refused("an import of something that is not named")
    if name not in _KNOWN.get(module, ()):
        raise Refused(f"a reference to {module}.{name}")
    return Symbol(module, name)


def _set_items(target: Any, items: list[Any]) -> None:
    # An OrderedDict is a call whose items follow.
    pairs = target.items if isinstance(target, Call) else target
    pairs.items.extend(zip(items[::2], items[1::2], strict=True))


def _pop(stack: list[Any], num: int) -> list[Any]:
    values = stack[-num:]
    if len(values) < num or any(v is _MARK for v in values):
        raise Refused("a damaged pickle")
    del stack[-num:]
    return values


def _since_mark(stack: list[Any]) -> list[Any]:
    values = []
    while (value := stack.pop()) is not _MARK:
        values.append(value)
    return values[::-1]
