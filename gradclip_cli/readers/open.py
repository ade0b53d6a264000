"""Getting at the bytes of a source: gzip, byte-order marks, UTF-16, files that are not files."""

from __future__ import annotations

import codecs
import os
import stat
import zlib
from pathlib import Path
from typing import Any

from gradclip_cli.errors import GradclipError
from gradclip_cli.model.run import Damage
from gradclip_cli.readers.log import Source

HEAD_BYTES = 1 << 16
# gzip of a repetitive log reaches some 30:1; far beyond that is a bomb.
_MAX_GZIP_RATIO = 100
_MIN_GZIP_LIMIT = 1 << 26
# So much that was never written may stand in a file: a reader would fill the memory with it.
_MAX_HOLES = 1 << 28
# What no text holds: all but bell, backspace, tab, the line ends and escape.
_CONTROLS = bytes(c for c in range(1, 32) if c not in b"\a\b\t\n\v\f\r\x1b")


def open_source(path: Path) -> Source:
    """Look at the beginning of a file.

    Raises:
        GradclipError: Where it is missing, empty, not a regular file, mostly a hole, or cannot be opened.
    """
    try:
        status = path.stat()
        mode = status.st_mode
        if not stat.S_ISREG(mode):
            kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or socket"
            raise GradclipError(f"{path}: expected a file, found {kind}", hint="write what comes out of it into a file, and name that")
        if status.st_size == 0:
            raise GradclipError(f"{path}: the file is empty", hint="check that the run wrote anything before it stopped")
        with path.open("rb") as f:
            if hasattr(os, "SEEK_DATA") and status.st_size - 512 * status.st_blocks > _MAX_HOLES:
                _refuse_holes(path, f.fileno(), status.st_size)
            head = f.read(HEAD_BYTES)
        if head[:2] == b"\x1f\x8b":
            head, _ = _gunzip(path, limit=HEAD_BYTES)
    except OSError as e:
        raise _cannot_open(path, e) from e
    return Source(path, head, _decode_head(head))


def _refuse_holes(path: Path, fd: int, size: int) -> None:
    """Raises GradclipError where most of a file was never written; one on a file system that compresses is another matter."""
    written = end = 0
    while end < size:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError:  # nothing but a hole to the end
            break
        end = os.lseek(fd, start, os.SEEK_HOLE)
        written += end - start
    os.lseek(fd, 0, os.SEEK_SET)
    if size - written > _MAX_HOLES:
        raise GradclipError(
            f"{path}: only {written:,} of its {size:,} bytes were ever written (a sparse file); expected a log",
            hint="copy it again from where it was written, or cut it behind its last record",
        )


def read_bytes(path: Path) -> tuple[bytes, tuple[Damage, ...]]:
    """The whole file, decompressed where it is gzip, and what of it could not be decompressed."""
    try:
        with path.open("rb") as f:
            data = f.read()
    except OSError as e:
        raise _cannot_open(path, e) from e
    if data[:2] != b"\x1f\x8b":
        return data, ()
    limit = max(_MIN_GZIP_LIMIT, len(data) * _MAX_GZIP_RATIO)
    text, problem = _gunzip(path, limit=limit + 1)
    if len(text) > limit:
        raise GradclipError(f"{path}: unpacks to more than {limit >> 20} MiB, {_MAX_GZIP_RATIO} times its size; expected a compressed log")
    where = f"byte {len(text):,} of the unpacked text"
    return text, (Damage(where, problem, "everything after it"),) if problem else ()


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
    if len(head) >= 16 and head[0::2].count(0) > 0.9 * len(head[0::2]) and head[1::2].count(0) < 0.1 * len(head[1::2]):
        return "utf-16-be"
    return None


def _decode_head(head: bytes) -> str:
    if _encoding(head) is None:
        # A machine that lost power leaves blocks of zeros in a text log; a binary file has other control codes too.
        zeros, controls = head.count(0), len(head) - len(head.translate(None, _CONTROLS))
        if zeros > 0.9 * len(head) or controls > 0.02 * (len(head) - zeros):
            return ""
        head = head.replace(b"\x00", b"")
    text = to_utf8(head).decode("utf-8", "replace")
    # A binary file without control codes: mostly undecodable.
    return "" if text.count("\ufffd") > 0.1 * len(text) else text


def _gunzip(path: Path, limit: int) -> tuple[bytes, str]:
    """At most `limit` decompressed bytes, and what is wrong behind them ("" where nothing is).

    Raises:
        GradclipError: Where nothing can be decompressed.
    """
    out = bytearray()
    problem = ""
    with path.open("rb") as f:
        member = zlib.decompressobj(wbits=31)
        started = False
        while len(out) < limit and (block := f.read(1 << 18)):
            while block and len(out) < limit and not problem:
                before = member.copy()
                try:
                    out += member.decompress(block, limit - len(out))
                except zlib.error as e:
                    problem = (
                        f"damaged gzip data ({e}), so that what came before may be wrong too"
                        if started or not out
                        else "bytes that are no gzip data"
                    )
                    out += _up_to_damage(before, block)
                    break
                started = True
                block = member.unconsumed_tail
                if member.eof:
                    # Rotated logs are often several members one behind the other; some writers pad with zeros.
                    block = member.unused_data.lstrip(b"\x00")
                    member = zlib.decompressobj(wbits=31)
                    started = False
            if problem:
                break
        else:
            if started and len(out) < limit:
                problem = "the gzip data end too soon"
    if not out and problem:
        raise GradclipError(f"{path}: {problem}; expected a compressed log")
    return bytes(out), problem


def _up_to_damage(member: Any, block: bytes) -> bytes:
    """What a block yields before the decompressor gives up."""
    out = bytearray()
    try:
        for i in range(len(block)):
            out += member.decompress(block[i : i + 1])
    except zlib.error:
        pass
    return bytes(out)


def _cannot_open(path: Path, e: OSError) -> GradclipError:
    if isinstance(e, FileNotFoundError):
        return GradclipError(f"{path}: no such file or directory")
    if isinstance(e, PermissionError) or not os.access(path, os.R_OK):
        return GradclipError(f"{path}: cannot be read ({e.strerror})", hint="check its permissions, or copy it to a place of your own")
    return GradclipError(f"{path}: cannot be read ({e.strerror or e})")
