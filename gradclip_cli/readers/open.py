"""Getting at the bytes of a source: gzip, byte-order marks, UTF-16, files that are not files."""

from __future__ import annotations

import codecs
import os
import stat
import zlib
from pathlib import Path

from gradclip_cli.errors import GradclipError
from gradclip_cli.readers.log import Source

HEAD_BYTES = 1 << 16
# gzip of a repetitive log reaches some 30:1; far beyond that is a bomb.
_MAX_GZIP_RATIO = 200
_MIN_GZIP_LIMIT = 1 << 28
# What no text holds: all but backspace, tab, the line ends and escape.
_CONTROLS = tuple(c for c in range(1, 32) if c not in b"\b\t\n\v\f\r\x1b")


def open_source(path: Path) -> Source:
    """Look at the beginning of a file.

    Raises:
        GradclipError: Where it is missing, empty, not a regular file, or cannot be opened.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
            raise GradclipError(f"{path}: expected a file, found {kind}")
        if path.stat().st_size == 0:
            raise GradclipError(f"{path}: the file is empty", hint="check that the run wrote anything before it stopped")
        with path.open("rb") as f:
            head = f.read(HEAD_BYTES)
        if head[:2] == b"\x1f\x8b":
            head = _gunzip(path, limit=HEAD_BYTES)
    except OSError as e:
        raise _cannot_open(path, e) from e
    return Source(path, head, _decode_head(head))


def read_bytes(path: Path) -> bytes:
    """The whole file, decompressed where it is gzip."""
    try:
        with path.open("rb") as f:
            data = f.read()
    except OSError as e:
        raise _cannot_open(path, e) from e
    if data[:2] == b"\x1f\x8b":
        limit = max(_MIN_GZIP_LIMIT, len(data) * _MAX_GZIP_RATIO)
        data = _gunzip(path, limit=limit + 1)
        if len(data) > limit:
            raise GradclipError(
                f"{path}: unpacks to more than {limit >> 20} MiB, {_MAX_GZIP_RATIO} times its size; expected a compressed log"
            )
    return data


def read_utf8(path: Path) -> bytes:
    """The whole file as UTF-8 bytes, without a byte-order mark. Undecodable bytes stay as they are."""
    return to_utf8(read_bytes(path))


def to_utf8(data: bytes) -> bytes:
    """UTF-8 bytes from text in UTF-8, UTF-16 or UTF-32 (found by byte-order mark, UTF-16 also by its zero bytes)."""
    if encoding := _encoding(data[:4096]):
        return data.decode(encoding, "replace").lstrip("\ufeff").encode("utf-8", "replace")
    return data[3:] if data.startswith(codecs.BOM_UTF8) else data


def _encoding(head: bytes) -> str | None:
    """The encoding of a text that is not UTF-8, or None."""
    if head.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16"
    # UTF-16 of plain ASCII without a mark: every other byte is zero.
    if len(head) >= 16 and head[1::2].count(0) > 0.9 * len(head[1::2]) and head[0::2].count(0) < 0.1 * len(head[0::2]):
        return "utf-16-le"
    return None


def _decode_head(head: bytes) -> str:
    if _encoding(head) is None:
        # A machine that lost power leaves blocks of zeros in a text log; a binary file has other control codes too.
        zeros, controls = head.count(0), sum(head.count(c) for c in _CONTROLS)
        if zeros > 0.9 * len(head) or controls > 0.02 * (len(head) - zeros):
            return ""
        head = head.replace(b"\x00", b"")
    text = to_utf8(head).decode("utf-8", "replace")
    # A binary file without control codes: mostly undecodable.
    return "" if text.count("\ufffd") > 0.1 * len(text) else text


def _gunzip(path: Path, limit: int) -> bytes:
    """At most `limit` decompressed bytes; of a truncated or damaged file what comes before the damage."""
    out = bytearray()
    with path.open("rb") as f:
        member = zlib.decompressobj(wbits=31)
        while len(out) < limit and (block := f.read(1 << 18)):
            try:
                while block and len(out) < limit:
                    out += member.decompress(block, limit - len(out))
                    block = member.unconsumed_tail
                    if member.eof:
                        # Rotated logs are often several members one behind the other.
                        block = member.unused_data
                        member = zlib.decompressobj(wbits=31)
            except zlib.error as e:
                if not out:
                    raise GradclipError(f"{path}: damaged gzip file ({e}); expected a compressed log") from e
                break
    return bytes(out)


def _cannot_open(path: Path, e: OSError) -> GradclipError:
    if isinstance(e, FileNotFoundError):
        return GradclipError(f"{path}: no such file or directory")
    if isinstance(e, PermissionError) or not os.access(path, os.R_OK):
        return GradclipError(f"{path}: cannot be read ({e.strerror})", hint="check its permissions, or copy it to a place of your own")
    return GradclipError(f"{path}: cannot be read ({e.strerror or e})")
