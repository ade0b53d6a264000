"""Weights & Biases offline files (`run-*.wandb`): a LevelDB log of protocol buffer records.

The file begins with `:W&B`, 0xBEE1 and a version, 7 bytes. It is cut into blocks of 32 KiB; a record is one chunk
(FULL) or several (FIRST, MIDDLE..., LAST), none of which crosses a block. A chunk has a header of 7 bytes: CRC-32 of
type and data, length, type. Fields are numbered as in wandb_internal.proto.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import GRAD_NORM, LOSS, LR, MAX_NORM, Damage, NormStage, Sampling
from gradclip_cli.readers import names, wire
from gradclip_cli.readers.log import Log, Reader, Source, Wanted
from gradclip_cli.readers.records import Records

_HEADER = b":W&B\xe1\xbe"
_HEADER_BYTES = 7
_BLOCK = 1 << 15
_CHUNK_HEADER = struct.Struct("<IHB")
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
_TYPE_CRC = {t: zlib.crc32(bytes([t])) for t in (_FULL, _FIRST, _MIDDLE, _LAST)}
_MAX_SHOWN_DAMAGE = 5

# Record: which field holds what.
_HISTORY, _CONFIG, _RUN = 2, 5, 17
_RUN_CONFIG = 4
# HistoryItem and ConfigItem.
_KEY, _NESTED_KEY, _INTEGER, _NUMBER, _TEXT, _JSON, _VALUE_JSON = 1, 2, 5, 6, 7, 8, 16
_HISTORY_ITEM, _HISTORY_STEP, _CONFIG_UPDATE = 1, 2, 1
_KEY_TAGS = frozenset((_KEY << 3 | wire.BYTES, _NESTED_KEY << 3 | wire.BYTES))
_VALUE_TAG = b"\x82\x01"  # _VALUE_JSON << 3 | wire.BYTES, as a varint
# A number in JSON, and NaN, Infinity and -Infinity.
_NUMBER_STARTS = frozenset(bytes([b]) for b in b"-0123456789NI")


@dataclass(eq=False, slots=True)
class _Contents:
    """What a file held."""

    records: Records = field(default_factory=Records)
    config: dict[str, Any] = field(default_factory=dict)
    damage: list[Damage] = field(default_factory=list)
    num_damaged: int = 0

    def damaged(self, where: int, what: str, lost: str) -> None:
        self.num_damaged += 1
        if self.num_damaged <= _MAX_SHOWN_DAMAGE:
            self.damage.append(Damage(f"byte {where}", what, lost))


def _claims(source: Source) -> bool:
    return source.head.startswith(_HEADER[:4])


def _read(source: Source, wanted: Wanted) -> Log:
    data = source.read_bytes()
    if not data.startswith(_HEADER):
        raise GradclipError(f"{source.path}: a damaged header; expected a W&B offline file")
    found = _Contents()
    for at, record in _records(data, found):
        _take(at, record, found)
    if found.num_damaged > _MAX_SHOWN_DAMAGE:
        found.damage.append(Damage("further on", f"{found.num_damaged - _MAX_SHOWN_DAMAGE} more damaged places", "their records"))
    if not found.records.num_rows:
        what = f"nothing readable ({found.damage[0].what} at {found.damage[0].where})" if found.damage else "no logged step"
        raise GradclipError(f"{source.path}: {what}; expected the history of a run", hint="did the run call wandb.log()?")
    history = found.records.found(wanted)
    columns = history.columns
    # W&B counts calls of log() in `_step`: a step of the run's own, where there is one, comes first.
    if "_step" in columns:
        columns["_step"] = columns.pop("_step")
    stage, reason, sampling = NormStage.UNKNOWN, "", {}
    if "transformers_version" in found.config and "train/loss" in columns:
        stage, reason = NormStage.PRE_CLIP, "the Hugging Face Trainer logs what clip_grad_norm_ returned"
        every = found.config.get("logging_steps")
        window = Sampling.UNKNOWN if every is None else Sampling.INSTANT if every == 1 else Sampling.WINDOW_MEAN
        sampling = {LOSS: window, GRAD_NORM: Sampling.INSTANT, LR: Sampling.INSTANT}
    return Log(
        "wandb",
        columns,
        norm_stage=stage,
        stage_reason=reason,
        sampling=sampling,
        max_norm=_max_norm(found.config),
        damage=(*found.damage, *history.damage),
        notes=tuple(history.notes),
        empty=history.empty,
    )


# Framing --------------------------------------------------------------------------------------------------------------


def _records(data: bytes, found: _Contents) -> Iterator[tuple[int, bytes]]:
    """Place and bytes of each record. After damage reading goes on at the next block."""
    parts: list[bytes] = []
    begin = 0
    at = _HEADER_BYTES
    in_step = True
    written = len(data.rstrip(b"\0"))
    while at < len(data):
        block_end = min(at - at % _BLOCK + _BLOCK, len(data))
        if block_end - at < _CHUNK_HEADER.size:
            if block_end == len(data) and any(data[at:block_end]):
                found.damaged(at, "the file ends within a chunk's header", "the last record")
            at = block_end
            continue
        crc, size, kind = _CHUNK_HEADER.unpack_from(data, at)
        start = at + _CHUNK_HEADER.size
        chunk = data[start : start + size]
        if kind not in _TYPE_CRC or start + size > block_end or zlib.crc32(chunk, _TYPE_CRC[kind]) != crc:
            if at >= written:
                found.damaged(at, f"{len(data) - at} zero bytes to the end of the file, expected records", "whatever was logged last")
                return
            if kind in _TYPE_CRC and start + size > len(data):
                if _may_be_history(parts, chunk):
                    found.damaged(at, "the file ends within a record", "that record")
                return
            what = "a wrong checksum" if kind in _TYPE_CRC and start + size <= block_end else "no chunk header"
            found.damaged(at, f"{what}, expected a record", f"the records up to byte {block_end}")
            parts, in_step = [], False
            at = block_end
            continue
        if kind in (_FULL, _FIRST):
            if parts:
                found.damaged(begin, "a record without its end", "that record")
            parts, begin, in_step = [chunk], at, True
        elif parts:
            parts.append(chunk)
        elif in_step:
            found.damaged(at, "the end of a record without its beginning", "that record")
            in_step = False
        if kind in (_FULL, _LAST) and parts:
            yield begin, b"".join(parts)
            parts = []
        at = start + size
    if parts and _may_be_history(parts, b""):
        found.damaged(begin, "the file ends within a record", "that record")


def _may_be_history(parts: list[bytes], chunk: bytes) -> bool:
    """Whether an unfinished record is one that counts. One of console output or of system metrics is no loss."""
    beginning = b"".join(parts) + chunk
    at, tag = 0, 0
    # `num`, a varint, stands before the record proper.
    while at < len(beginning):
        tag = beginning[at] >> 3
        if tag != 1 or beginning[at] & 7:
            break
        at += 1
        while at < len(beginning) and beginning[at] & 0x80:
            at += 1
        at += 1
        tag = 0
    return tag in (0, _HISTORY)


# Records --------------------------------------------------------------------------------------------------------------


def _take(at: int, record: bytes, found: _Contents) -> None:
    try:
        for number, kind, value in wire.fields(record):
            if kind != wire.BYTES or not isinstance(value, bytes):
                continue
            if number == _HISTORY:
                found.records.add(_history(value))
            elif number == _CONFIG:
                _configure(value, found.config)
            elif number == _RUN:
                for run_number, run_kind, run_value in wire.fields(value):
                    if run_number == _RUN_CONFIG and run_kind == wire.BYTES and isinstance(run_value, bytes):
                        _configure(run_value, found.config)
    except wire.WireError as e:
        found.damaged(at, f"a record that is no protocol buffer ({e})", "that record")


def _history(message: bytes) -> dict[str, Any]:
    out: dict[str, Any] = {}
    step: int | None = None
    for number, _, value in wire.fields(message):
        if not isinstance(value, bytes):
            continue
        if number == _HISTORY_ITEM:
            key, item = _item(value)
            if item is not None:
                out[key] = item
        elif number == _HISTORY_STEP:
            step = next((v for n, _, v in wire.fields(value) if n == 1 and isinstance(v, int)), 0)
    if "_step" not in out and step is not None:
        out["_step"] = step
    return out


def _item(message: bytes) -> tuple[str, Any]:
    """Key and value; the value is None where it is neither number, text nor object."""
    # Nearly all are a key or one nested key and a value_json, each shorter than 128 bytes.
    if len(message) > 2 and message[0] in _KEY_TAGS and message[1] < 128:
        end = 2 + message[1]
        tail = message[end + 3 :]
        if message[end : end + 2] == _VALUE_TAG and len(tail) < 128 and message[end + 2 : end + 3] == bytes([len(tail)]):
            return message[2:end].decode("utf-8", "replace"), _loaded(tail)
    key = ""
    nested: list[str] = []
    out: Any = None
    for number, _, value in wire.fields(message):
        if number == _KEY and isinstance(value, bytes):
            key = value.decode("utf-8", "replace")
        elif number == _NESTED_KEY and isinstance(value, bytes):
            nested.append(value.decode("utf-8", "replace"))
        elif number in (_VALUE_JSON, _JSON) and isinstance(value, bytes):
            out = _loaded(value)
        elif number == _NUMBER and isinstance(value, bytes) and len(value) == 8:
            out = struct.unpack("<d", value)[0]
        elif number == _INTEGER and isinstance(value, int):
            out = (value >> 1) ^ -(value & 1)
        elif number == _TEXT and isinstance(value, bytes):
            out = value.decode("utf-8", "replace")
    return key or "/".join(nested), out


def _loaded(text: bytes) -> Any:
    try:
        if text[:1] in _NUMBER_STARTS:
            return float(text)
        return json.loads(text.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _configure(message: bytes, config: dict[str, Any]) -> None:
    for number, _, value in wire.fields(message):
        if number == _CONFIG_UPDATE and isinstance(value, bytes):
            key, item = _item(value)
            config[key] = item


def _max_norm(config: dict[str, Any]) -> float | None:
    """The clipping bound, where the configuration names exactly one."""
    stack = list(config.items())
    bounds = set()
    while stack:
        key, value = stack.pop()
        if isinstance(value, dict) and len(stack) < 10_000:
            stack.extend(value.items())
        elif type(value) in (int, float) and names.rank(MAX_NORM, key) is not None and 0 < value < float("inf"):
            bounds.add(float(value))
    return bounds.pop() if len(bounds) == 1 else None


READER = Reader("wandb", "Weights & Biases offline files (.wandb)", _claims, _read)
