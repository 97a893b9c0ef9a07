"""The storage port, and the real one: named files in a directory.

Every call is synchronous and short (the page cache answers); only ``File.sync`` takes milliseconds and belongs off
the event loop. A simulated disk implements the same two protocols and keeps synced and unsynced bytes apart, so
nothing above may rely on more than what is promised here.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fleet.errors import LocalMisuse, StorageFailed

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self


class File(Protocol):
    """One open file. Raises ``StorageFailed`` for every failure of the disk."""

    @property
    def name(self) -> str:
        """Its name for people."""
        ...

    def size(self) -> int:
        """Current length in bytes."""
        ...

    def version(self) -> tuple[int, int]:
        """Something that differs once the content was written to since: for noticing that a shared file changed."""
        ...

    def allocate(self, size: int) -> None:
        """Make the file at least ``size`` bytes long, with the space reserved: a full disk fails here, not later."""
        ...

    def read_into(self, view: memoryview, offset: int) -> None:
        """Fill ``view`` from ``offset``; a file that ends early is ``StorageFailed``."""
        ...

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        """Write all of ``data`` at ``offset``."""
        ...

    def truncate(self, size: int) -> None:
        """Cut the file to ``size`` bytes."""
        ...

    def sync(self) -> None:
        """Return once what was written has reached the disk. Milliseconds: run it off the event loop."""
        ...

    def fileno(self) -> int | None:
        """The kernel's descriptor where there is one (for sendfile), else None."""
        ...

    def close(self) -> None:
        """Release the file; safe to call twice."""
        ...


class Storage(Protocol):
    """A flat namespace of files that one peer owns."""

    def open(self, name: str, *, create: bool = False) -> File:
        """Open a file for reading and writing; ``create`` makes it when it does not exist."""
        ...

    def exists(self, name: str) -> bool: ...

    def names(self) -> list[str]:
        """Every file's name, sorted."""
        ...

    def remove(self, name: str) -> None:
        """Delete a file; a missing one is no error."""
        ...

    def close(self) -> None:
        """Close every file still open; the files themselves stay."""
        ...


def check_name(name: str) -> str:
    """Return ``name`` when it is one plain path component, else raise ``LocalMisuse``."""
    if (
        not name
        or len(name) > 200
        or name.startswith(".")
        or not all(c.isascii() and (c.isalnum() or c in "._-") for c in name)
    ):
        raise LocalMisuse(f"{name!r} cannot name a stored file: use letters, digits, dots, dashes and underscores")
    return name


def _failed(action: str, path: Path, error: OSError) -> StorageFailed:
    reason = error.strerror or str(error)
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason = "the disk is full; free some space or choose another folder"
    return StorageFailed(f"cannot {action} {path}: {reason}")


class DirectoryFile:
    """A file of a ``Directory``, read and written at offsets (pread, pwrite)."""

    def __init__(self, path: Path, *, create: bool = False, writable: bool = True) -> None:
        self._path = path
        # Without waiting, should this be a pipe that nobody writes to.
        flags = (os.O_RDWR if writable else os.O_RDONLY) | (os.O_CREAT if create else 0) | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            self._fd: int | None = os.open(path, flags, 0o644)
        except OSError as error:
            raise _failed("open", path, error) from None
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            raise LocalMisuse(f"{path} is no regular file: copy its content to one, and name that")

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._fd is None

    def _open_fd(self) -> int:
        if self._fd is None:
            raise StorageFailed(f"{self._path} is closed")
        return self._fd

    def size(self) -> int:
        try:
            return os.fstat(self._open_fd()).st_size
        except OSError as error:
            raise _failed("stat", self._path, error) from None

    def version(self) -> tuple[int, int]:
        try:
            status = os.fstat(self._open_fd())
        except OSError as error:
            raise _failed("stat", self._path, error) from None
        return status.st_size, status.st_mtime_ns

    def allocate(self, size: int) -> None:
        if size <= self.size():
            return
        try:
            os.posix_fallocate(self._open_fd(), 0, size)
        except OSError as error:
            raise _failed(f"reserve {size:,} bytes for", self._path, error) from None

    def read_into(self, view: memoryview, offset: int) -> None:
        fd = self._open_fd()
        while view:
            try:
                count = os.preadv(fd, [view], offset)
            except OSError as error:
                raise _failed("read", self._path, error) from None
            if count == 0:
                raise StorageFailed(f"{self._path} ends at {offset:,}, {len(view):,} bytes early: it was cut meanwhile")
            view = view[count:]
            offset += count

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        fd = self._open_fd()
        view = memoryview(data)
        while view:
            try:
                count = os.pwrite(fd, view, offset)
            except OSError as error:
                raise _failed("write", self._path, error) from None
            view = view[count:]
            offset += count

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._open_fd(), size)
        except OSError as error:
            raise _failed("cut", self._path, error) from None

    def sync(self) -> None:
        try:
            os.fdatasync(self._open_fd())
        except OSError as error:
            raise _failed("sync", self._path, error) from None

    def fileno(self) -> int | None:
        return self._open_fd()

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            os.close(fd)


class Directory:
    """``Storage`` in a directory of the file system, made when missing."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._open: list[DirectoryFile] = []
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _failed("make the folder", self._path, error) from None

    def open(self, name: str, *, create: bool = False) -> DirectoryFile:
        file = DirectoryFile(self._path / check_name(name), create=create)
        self._open = [each for each in self._open if not each.closed]
        self._open.append(file)
        return file

    def exists(self, name: str) -> bool:
        path = self._path / check_name(name)
        try:
            path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _failed("look for", path, error) from None
        return True

    def names(self) -> list[str]:
        try:
            return sorted(entry.name for entry in self._path.iterdir() if entry.is_file())
        except OSError as error:
            raise _failed("list", self._path, error) from None

    def remove(self, name: str) -> None:
        path = self._path / check_name(name)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _failed("remove", path, error) from None

    def close(self) -> None:
        for file in self._open:
            file.close()
        self._open.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
