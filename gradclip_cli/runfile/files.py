"""Opening files of a run directory that may come from anywhere: no link is followed, nothing but a regular file is read or written."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

# Missing on Windows, where opening a link for writing needs rights of its own.
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def make_folder(path: Path) -> None:
    """Make a folder, or take the one that is there.

    Raises:
        OSError: Where a link or a file stands in its place, or it cannot be made.
    """
    try:
        os.mkdir(path)
    except FileExistsError:
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise


def create(path: Path) -> int:
    """A descriptor of a new file that is only appended to.

    Raises:
        OSError: Where something of that name is there already, if only a link that leads nowhere, or it cannot be made.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | _NO_LINK | _BINARY, 0o666)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Every byte, or none that stays: a part that still fitted on a full disk is taken back.

    Raises:
        OSError: Where the disk is full, or gone.
    """
    size = os.fstat(fd).st_size
    left = memoryview(data)
    try:
        while left:
            left = left[os.write(fd, left) :]
    except OSError:
        os.ftruncate(fd, size)
        raise


class Opened:
    """A file that stays open while a script runs, which may close descriptors that are not its own, and open others in their place.

    Attributes:
        fd: The descriptor.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._file = _identity(fd)
        # Not every file system counts them.
        self._has_name = os.fstat(fd).st_nlink > 0

    def append(self, data: bytes | memoryview) -> None:
        """See `write_all`.

        Raises:
            OSError: Also where the descriptor is another file's by now, or the file was removed.
        """
        self._check()
        if self._has_name and not os.fstat(self.fd).st_nlink:
            raise OSError(errno.ENOENT, "its files were removed")
        write_all(self.fd, data)

    def close(self) -> None:
        """Close it.

        Raises:
            OSError: Where the descriptor is another file's by now.
        """
        self._check()
        os.close(self.fd)

    def _check(self) -> None:
        if _identity(self.fd) != self._file:
            raise OSError(errno.EBADF, "the script closed our file")


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def replace(path: Path, data: bytes) -> None:
    """The whole content at once: a reader sees the old one or the new one.

    Raises:
        OSError: Where it cannot be written; the old content stays.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    fd = create(beside)
    try:
        write_all(fd, data)
    except OSError:
        beside.unlink()
        raise
    finally:
        os.close(fd)
    os.replace(beside, path)


def open_to_read(path: Path) -> int:
    """A descriptor of a regular file.

    Raises:
        OSError: Where it is missing, a link, or no file: a pipe would wait for ever.
    """
    fd = os.open(path, os.O_RDONLY | _NO_LINK | _BINARY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path}: expected a file")
    return fd


def read(path: Path, most: int) -> tuple[bytes, int]:
    """At most `most` bytes, and how many there are in all.

    Raises:
        OSError: See `open_to_read`.
    """
    with os.fdopen(open_to_read(path), "rb") as f:
        return f.read(most), os.fstat(f.fileno()).st_size
