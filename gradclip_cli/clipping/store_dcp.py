"""Distributed checkpoints (torch.distributed.checkpoint): a directory with `.metadata` and `.distcp` files, without torch.

`.metadata` is a pickle; it is read as inert data (see `inert`). Each entry of a `.distcp` file is a file of `torch.save` of its own
(torch/distributed/checkpoint/filesystem.py), of which only the bytes of the storage are looked for. Nothing outside the directory is
opened, whatever the metadata names.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import IO, Any

from gradclip_cli.clipping import inert, store_torch
from gradclip_cli.clipping.dtypes import DTYPES, Dtype
from gradclip_cli.clipping.store import (
    METADATA_KEYS,
    Piece,
    Stored,
    StoredTensor,
    checked_name,
    checked_shape,
    damaged,
    is_partition,
    open_regular,
)

METADATA = ".metadata"
_MOST_METADATA_BYTES = 1 << 28
_Key = tuple[str, tuple[int, ...] | None]


def read(directory: Path) -> Stored:
    """What the checkpoint holds, each tensor in as many pieces as were saved.

    Raises:
        GradclipError: The metadata is damaged or carries code, or does not agree with the files.
    """
    path = directory / METADATA
    with os.fdopen(open_regular(path), "rb") as file:
        if os.fstat(file.fileno()).st_size > _MOST_METADATA_BYTES:
            raise damaged(path, "metadata of more than 256 MB", "names and shapes only")
        data = file.read()
    try:
        root = inert.read(io.BytesIO(data))
    except inert.Refused as e:
        raise damaged(path, str(e), "the metadata of a distributed checkpoint; nothing in it was executed") from e
    fields = _fields(root)
    described, places = fields.get("state_dict_metadata"), fields.get("storage_data")
    if not isinstance(described, inert.Dict) or not isinstance(places, inert.Dict):
        raise damaged(path, "no state_dict_metadata and storage_data", "the metadata of a distributed checkpoint")
    files = _Files(directory, _places(places, path))
    try:
        return _read(path, described, files)
    finally:
        files.close()


def _read(path: Path, described: inert.Dict, files: _Files) -> Stored:
    tensors = []
    metadata: dict[str, Any] = {}
    names = set()
    for key, value in described:
        name = checked_name(key, path)
        if name in names:
            raise damaged(path, f"{name} twice", "each name once")
        names.add(name)
        if not isinstance(value, inert.Call):
            raise damaged(path, f"{name} without a description")
        if value.function.name == "TensorStorageMetadata":
            tensors.append(_tensor(path, name, _fields(value), files))
        elif name in METADATA_KEYS:
            content = files.value((name, None)).value
            if type(content) in (int, float, str):
                metadata[name] = content
    if sum(t.num_bytes for t in tensors) > files.num_bytes:
        raise damaged(path, "tensors that overlap", "each with bytes of its own")
    return Stored(path.parent, "dcp", tuple(tensors), metadata)


def _fields(value: Any) -> inert.Dict:
    state = value.state if isinstance(value, inert.Call) else None
    return state if isinstance(state, inert.Dict) else inert.Dict()


def _size(value: Any, path: Path, name: str) -> tuple[int, ...]:
    """A `torch.Size`."""
    is_size = isinstance(value, inert.Call) and value.function.name == "Size" and len(value.args) == 1
    return checked_shape(value.args[0] if is_size else None, path, name)


def _tensor(path: Path, name: str, fields: inert.Dict, files: _Files) -> StoredTensor:
    properties = fields.get("properties")
    state = properties.state if isinstance(properties, inert.Call) else None
    kind = state[0] if type(state) is tuple and state else None
    dtype = DTYPES.get(kind.name) if isinstance(kind, inert.Symbol) else None
    if dtype is None:
        found = kind.name if isinstance(kind, inert.Symbol) else "no dtype"
        raise damaged(path, f"tensor {name} of {found}", f"one of {', '.join(DTYPES)}")
    shape = _size(fields.get("size"), path, name)
    chunks = fields.get("chunks")
    pieces = []
    for chunk in chunks if type(chunks) is list else ():
        origin, sizes = (_size(_fields(chunk).get(k), path, name) for k in ("offsets", "sizes"))
        pieces.append(_piece(path, name, dtype, origin, sizes, files))
    if not is_partition(shape, pieces):
        raise damaged(path, f"tensor {name} of shape {list(shape)} in pieces that do not make it up", "pieces that cover it once")
    return StoredTensor(name, dtype, shape, tuple(pieces))


def _piece(path: Path, name: str, dtype: Dtype, origin: tuple[int, ...], shape: tuple[int, ...], files: _Files) -> Piece:
    content = files.value((name, origin))
    tensor = content.tensor(name, content.value)
    if tensor is None or tensor.dtype is not dtype or tensor.shape != shape:
        raise damaged(content.path, f"something else than the piece of {name} at {list(origin)}", f"{dtype.name} of shape {list(shape)}")
    whole = tensor.pieces[0]
    return Piece(whole.path, whole.offset, shape, origin, whole.axes)


def _places(data: inert.Dict, path: Path) -> dict[_Key, tuple[str, int, int]]:
    """What is stored where: (name, origin) -> file, first byte, number of bytes."""
    places: dict[_Key, tuple[str, int, int]] = {}
    for key, value in data:
        index, info = _fields(key), _fields(value)
        name = checked_name(index.get("fqn"), path)
        origin = index.get("offset")
        where = None if origin is None else _size(origin, path, name)
        file, first, size = (info.get(k) for k in ("relative_path", "offset", "length"))
        if type(file) is not str or type(first) is not int or type(size) is not int or not 0 <= first < 2**62 or not 0 <= size < 2**62:
            raise damaged(path, f"{name} without a place in a file")
        if info.get("transform_descriptors"):
            raise damaged(path, f"{name}, which was compressed or transformed when it was saved", "plain bytes")
        places[name, where] = (file, first, size)
    return places


class _Files:
    """The files of a checkpoint, opened one after the other."""

    def __init__(self, directory: Path, places: dict[_Key, tuple[str, int, int]]) -> None:
        self.directory, self.places = directory, places
        self.num_bytes = 0
        self._sizes: dict[str, int] = {}
        self._name = ""
        self._file: IO[bytes] | None = None

    def value(self, key: _Key) -> store_torch.Content:
        """The saved object of an entry.

        Raises:
            GradclipError: There is none, or it is damaged.
        """
        if key not in self.places:
            raise damaged(self.directory / METADATA, f"no place for {key[0]} at {list(key[1] or ())}")
        name, first, size = self.places[key]
        file = self._open(name)
        if first + size > self._sizes[name]:
            raise damaged(self.directory / name, f"the end of the file inside {key[0]}", hint="the file was truncated; copy it again")
        return store_torch.load(io.BufferedReader(_Window(file, first, size)), self.directory / name, first)

    def _open(self, name: str) -> IO[bytes]:
        if self._file is None or name != self._name:
            self.close()
            if Path(name).name != name or "\0" in name:
                raise damaged(self.directory / METADATA, f"a file outside the checkpoint ({name})", "one beside the metadata")
            self._file, self._name = os.fdopen(open_regular(self.directory / name), "rb"), name
            if name not in self._sizes:
                self._sizes[name] = os.fstat(self._file.fileno()).st_size
                self.num_bytes += self._sizes[name]
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Window(io.RawIOBase):
    """A part of a file as a file."""

    def __init__(self, file: IO[bytes], first: int, size: int) -> None:
        self._file, self._first, self._size, self._at = file, first, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence], 0)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: max(self._size - self._at, 0)]
        self._file.seek(self._first + self._at)
        data = self._file.read(len(view))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)
