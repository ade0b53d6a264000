"""Files of `torch.save`, without torch and without running anything in them.

A file is a zip archive (`data.pkl`, and the bytes of each storage as `data/<key>`), or, before PyTorch 1.6, pickles one behind the other
with the storages behind them (torch/serialization.py). The pickles are read as inert data, so a file that carries code is refused by
the name of what it would have called, as `torch.load(weights_only=True)` refuses it.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO, Any

from gradclip_cli.clipping import inert
from gradclip_cli.clipping.dtypes import DTYPES, Dtype
from gradclip_cli.clipping.store import METADATA_KEYS, Stored, StoredTensor, checked_name, checked_shape, damaged, open_regular, whole

_LEGACY_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9\x20j\xa8P\x19."
_MOST_PICKLE_BYTES = 1 << 26
_MOST_DEPTH = 50
_STORAGES = {
    **{"DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16"},
    **{"LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8"},
    **{"BoolStorage": "bool", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128"},
}
_TENSORS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")
_HINT = "save tensors only: torch.save({name: p.grad for name, p in model.named_parameters()}, path)"


def claims(head: bytes) -> bool:
    """Whether a file begins as one of `torch.save` does."""
    return head.startswith((b"PK\x03\x04", _LEGACY_MAGIC))


@dataclass(frozen=True, slots=True)
class Content:
    """The object that was saved, as inert data, and where the bytes of its storages lie.

    Attributes:
        storages: Key -> first byte and number of bytes, in the file.
        num_bytes: Of the file.
    """

    path: Path
    format: str
    value: Any
    storages: Mapping[str, tuple[int, int]]
    num_bytes: int

    def tensor(self, name: str, value: Any) -> StoredTensor | None:
        """The tensor that a value stands for; None where it stands for something else.

        Raises:
            GradclipError: A tensor that cannot be read, or whose storage is not there.
        """
        for _ in range(_MOST_DEPTH):
            if isinstance(value, inert.Call) and value.function.name in _TENSORS:
                return self._rebuilt(name, value)
            if not isinstance(value, inert.Call) or not value.args:
                return None
            if value.function.name in ("_rebuild_parameter", "_rebuild_parameter_with_state"):
                value = value.args[0]
            elif value.function.name == "_rebuild_from_type_v2" and len(value.args) > 2 and type(value.args[2]) is tuple:
                value = inert.Call(value.args[0], value.args[2], inert.Dict())
            else:
                return None
        return None

    def _rebuilt(self, name: str, call: inert.Call) -> StoredTensor:
        args = call.args
        reference = args[0].id if args and isinstance(args[0], inert.Persistent) else None
        if len(args) < 4 or type(reference) is not tuple or len(reference) < 5 or not isinstance(reference[1], inert.Symbol):
            raise damaged(self.path, f"tensor {name} without a storage")
        kind = args[6] if call.function.name == "_rebuild_tensor_v3" and len(args) > 6 else reference[1]
        named = kind.name if isinstance(kind, inert.Symbol) else ""
        dtype = DTYPES.get(_STORAGES.get(named, named))
        if dtype is None:
            raise damaged(self.path, f"tensor {name} of {named or 'no dtype'}", f"one of {', '.join(DTYPES)}")
        place = self.storages.get(reference[2]) if type(reference[2]) is str else None
        if place is None:
            raise damaged(self.path, f"tensor {name} whose storage is not in the file")
        begin, num_bytes = place
        shape = checked_shape(args[2], self.path, name)
        first, strides = args[1], args[3]
        if type(first) is not int or first < 0 or type(strides) is not tuple or len(strides) != len(shape):
            raise damaged(self.path, f"tensor {name} without strides")
        axes = _dense_axes(shape, strides)
        if axes is None:
            raise damaged(self.path, f"tensor {name}, a view with gaps or repeats", "contiguous ones", hint="save grad.contiguous()")
        if (first + prod(shape)) * dtype.num_bytes > num_bytes:
            raise damaged(self.path, f"tensor {name} of shape {list(shape)} in a storage of {num_bytes:,} bytes", "one that it fits into")
        return whole(name, dtype, shape, self.path, begin + first * dtype.num_bytes, axes)


def _dense_axes(shape: tuple[int, ...], strides: tuple[Any, ...]) -> tuple[int, ...] | None:
    """The dimensions from the slowest to the fastest, where the elements fill a stretch of storage; otherwise None."""
    if prod(shape) == 0:
        return tuple(range(len(shape)))
    if not all(type(s) is int for s in strides):
        return None
    axes = sorted(range(len(shape)), key=lambda i: (-strides[i], -shape[i], i))
    expected = 1
    for i in reversed(axes):
        if shape[i] != 1:
            if strides[i] != expected:
                return None
            expected *= shape[i]
    return tuple(axes)


def read(path: Path) -> Stored:
    """The tensors of the saved object: a tensor, a list, or dicts in each other, whose keys become dotted names.

    Raises:
        GradclipError: Damaged, not of `torch.save`, with code in it, or with tensors that cannot be read.
    """
    with os.fdopen(open_regular(path), "rb") as file:
        content = load(file, path)
    tensors: dict[str, StoredTensor] = {}
    by_place: dict[tuple[int, tuple[int, ...]], str] = {}
    num_empty = 0
    metadata: dict[str, Any] = {}
    notes = []
    for name, value, is_top in _leaves(content.value, path):
        tensor = content.tensor(name, value)
        if tensor is not None:
            if name in tensors:
                raise damaged(path, f"tensor {name} twice", "each name once")
            first = by_place.setdefault((tensor.pieces[0].offset, tensor.shape), name)
            if first != name and tensor.numel:
                notes.append(f"{name} is the same memory as {first}, as of tied parameters, and counts once")
            else:
                tensors[name] = tensor
        elif value is None:
            num_empty += 1
        elif is_top and name in METADATA_KEYS and type(value) in (int, float, str):
            metadata[name] = value
        elif isinstance(value, (inert.Call, inert.Persistent)) and not _is_plain(value):
            what = str(value.function) if isinstance(value, inert.Call) else "a bare storage"
            raise damaged(path, f"{what} at {name or 'the top'}", "tensors", hint=_HINT)
    if sum(t.num_bytes for t in tensors.values()) > content.num_bytes:
        raise damaged(path, "tensors that overlap", "each with bytes of its own")
    return Stored(path, content.format, tuple(tensors.values()), metadata, num_empty, tuple(notes))


def _is_plain(call: inert.Call | inert.Persistent) -> bool:
    return isinstance(call, inert.Call) and call.function.module in ("torch", "builtins", "pathlib", "pathlib._local")


def load(file: IO[bytes], path: Path, begin: int = 0) -> Content:
    """What `torch.save` wrote into the file.

    Args:
        file: Seekable.
        path: For messages and for the places of the storages.
        begin: Where in `path` the file begins, when it is a part of it.

    Raises:
        GradclipError: As `read`.
    """
    head = file.read(len(_LEGACY_MAGIC))
    file.seek(0)
    try:
        if head == _LEGACY_MAGIC:
            return _load_legacy(file, path, begin)
        return _load_zip(file, path, begin)
    except inert.Refused as e:
        raise damaged(path, str(e), "tensors; nothing in it was executed", hint=_HINT) from e
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError, OverflowError) as e:
        raise damaged(
            path, "a damaged archive", "one that torch.save wrote", hint="the file was truncated or altered; copy it again"
        ) from e


def _load_zip(file: IO[bytes], path: Path, begin: int) -> Content:
    storages: dict[str, tuple[int, int]] = {}
    pickled: bytes | None = None
    with zipfile.ZipFile(file) as archive:
        seen = set()
        if min((entry.header_offset for entry in archive.infolist()), default=0):
            # A reader of archives would find the last of several and say nothing of the others.
            raise damaged(path, "something in front of the archive", "one archive", hint="of a distributed checkpoint give the directory")
        for entry in archive.infolist():
            if entry.filename in seen:
                raise damaged(path, f"the archive member {entry.filename} twice", "each name once")
            seen.add(entry.filename)
            _, _, member = entry.filename.partition("/")
            if member == "data.pkl":
                if entry.file_size > _MOST_PICKLE_BYTES:
                    raise damaged(path, f"a pickle of {entry.file_size:,} bytes", "names and shapes only")
                if entry.compress_type != zipfile.ZIP_STORED:
                    raise damaged(path, "a compressed archive", "one that torch.save wrote, which is not compressed")
                pickled = archive.read(entry)
            elif member == "byteorder" and entry.file_size == 3 and archive.read(entry) == b"big":
                raise damaged(path, "tensors of a big-endian machine", "little-endian ones")
            elif member.startswith("data/"):
                if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size or entry.flag_bits & 1:
                    raise damaged(path, "a compressed archive", "one that torch.save wrote, which is not compressed")
                storages[member.removeprefix("data/")] = (begin + _data_offset(file, entry, path), entry.file_size)
    if pickled is None:
        raise damaged(path, "a zip archive without data.pkl", "one that torch.save wrote")
    return Content(path, "torch", inert.read(io.BytesIO(pickled)), storages, file.seek(0, os.SEEK_END))


def _data_offset(file: IO[bytes], entry: zipfile.ZipInfo, path: Path) -> int:
    """The first byte behind the local header of a member (PKWARE APPNOTE, 4.3.7)."""
    file.seek(entry.header_offset)
    header = file.read(30)
    if len(header) < 30 or header[:4] != b"PK\x03\x04":
        raise damaged(path, f"no archive member where {entry.filename} should begin")
    start = entry.header_offset + 30 + int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    if start + entry.file_size > file.seek(0, os.SEEK_END):
        raise damaged(path, f"the end of the file inside {entry.filename}", hint="the file was truncated; copy it again")
    return start


def _load_legacy(file: IO[bytes], path: Path, begin: int) -> Content:
    pickles = io.BytesIO(file.read(_MOST_PICKLE_BYTES))
    inert.read(pickles)  # the magic number
    inert.read(pickles)  # the version
    system = inert.read(pickles)
    if not isinstance(system, inert.Dict) or system.get("little_endian") is not True:
        raise damaged(path, "tensors of a big-endian machine", "little-endian ones")
    value = inert.read(pickles)
    keys = inert.read(pickles)
    sizes = _legacy_item_sizes(value)
    at, end = pickles.tell(), file.seek(0, os.SEEK_END)
    storages = {}
    for key in keys if type(keys) is list else ():
        file.seek(at)
        numel = int.from_bytes(file.read(8), "little")
        if type(key) is not str or key not in sizes:
            raise damaged(path, "a storage that no tensor uses")
        num_bytes = numel * sizes[key]
        if at + 8 + num_bytes > end:
            raise damaged(path, f"the end of the file inside storage {key}", hint="the file was truncated; copy it again")
        storages[key] = (begin + at + 8, num_bytes)
        at += 8 + num_bytes
    return Content(path, "torch, before 1.6", value, storages, end)


def _legacy_item_sizes(value: Any) -> dict[str, int]:
    """Bytes an element, by the key of the storage: the storages themselves hold only their number of elements."""
    sizes = {}
    for part in _everything(value):
        if isinstance(part, inert.Persistent) and type(part.id) is tuple and len(part.id) > 2 and isinstance(part.id[1], inert.Symbol):
            dtype: Dtype | None = DTYPES.get(_STORAGES.get(part.id[1].name, ""))
            if dtype is not None and type(part.id[2]) is str:
                sizes[part.id[2]] = dtype.num_bytes
    return sizes


def _everything(value: Any) -> Iterator[Any]:
    """Every part of inert data once."""
    seen: set[int] = set()
    stack = [value]
    while stack:
        part = stack.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        if isinstance(part, inert.Dict):
            stack += [v for _, v in part]
        elif isinstance(part, inert.Call):
            stack += [*part.args, part.items]
        elif isinstance(part, (list, tuple)):
            stack += part


def _leaves(value: Any, path: Path) -> Iterator[tuple[str, Any, bool]]:
    """What dicts and lists hold, each with its dotted name and whether it stands at the top. Shared containers are entered once.

    Raises:
        GradclipError: Nested deeper than any module is, or with a key that is no name.
    """
    entered: set[int] = set()
    stack: list[tuple[str, Any, int]] = [("", value, 0)]
    while stack:
        name, part, depth = stack.pop()
        children = _children(part)
        if children is None:
            yield name or "tensor", part, depth <= 1
            continue
        if depth > _MOST_DEPTH:
            raise damaged(path, f"containers nested too deeply, or in a circle, at {name[:200]}", "a dict of tensors")
        if id(part) in entered:
            continue
        entered.add(id(part))
        for key, child in reversed(children):
            if type(key) not in (str, int):
                raise damaged(path, f"a key that is no text at {name or 'the top'}", "a dict of tensors")
            stack.append((checked_name(f"{name}.{key}" if name else str(key), path), child, depth + 1))


def _children(part: Any) -> list[tuple[Any, Any]] | None:
    if isinstance(part, inert.Dict):
        return part.items
    if isinstance(part, inert.Call) and part.function.module == "collections":
        return part.items.items
    if isinstance(part, (list, tuple)):
        return list(enumerate(part))
    return None
