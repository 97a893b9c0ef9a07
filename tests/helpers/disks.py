"""A disk in memory that fails on schedule, loses what it likes at a power cut, and can be tampered with."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.errors import StorageFailed
from fleet.storage import check_name

_OPERATIONS = frozenset({"open", "size", "allocate", "read", "write", "truncate", "sync", "remove", "exists", "names"})


@dataclass
class Fault:
    """Fail the ``operation`` on files whose name ends in ``suffix``: once, after ``skip`` that succeed.

    A failing write leaves its first ``partial`` bytes behind, as a full disk does.
    """

    operation: str
    suffix: str = ""
    skip: int = 0
    partial: int = 0
    reason: str = "the disk is full"

    def __post_init__(self) -> None:
        assert self.operation in _OPERATIONS


@dataclass
class _Inode:
    data: bytearray = field(default_factory=bytearray)


class MemoryFile:
    """``fleet.storage.File`` in memory. It outlives its name, as an open file does on Unix."""

    def __init__(self, disk: MemoryDisk, name: str, inode: _Inode) -> None:
        self._disk = disk
        self._name = name
        self._inode = inode
        self._closed = False

    @property
    def name(self) -> str:
        return self._name

    def version(self) -> tuple[int, int]:
        return self.size(), 0

    def _step(self, operation: str) -> Fault | None:
        if self._closed:
            raise StorageFailed(f"{self._name} is closed")
        return self._disk._step(operation, self._name)

    def _fail_if_due(self, operation: str) -> None:
        fault = self._step(operation)
        if fault is not None:
            raise StorageFailed(f"cannot {operation} {self._name}: {fault.reason}")

    def size(self) -> int:
        self._fail_if_due("size")
        return len(self._inode.data)

    def allocate(self, size: int) -> None:
        self._fail_if_due("allocate")
        missing = size - len(self._inode.data)
        if missing > 0:
            self._disk._reserve(missing, self._name)
            self._disk._apply(self._inode, self._name, lambda data: data.extend(bytes(max(0, size - len(data)))))

    def read_into(self, view: memoryview, offset: int) -> None:
        self._fail_if_due("read")
        found = self._inode.data[offset : offset + view.nbytes]
        if len(found) < view.nbytes:
            raise StorageFailed(f"{self._name} ends early")
        view[:] = found

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        fault = self._step("write")
        whole = bytes(data)
        written = whole if fault is None else whole[: fault.partial]
        if written:
            self._disk._reserve(max(0, offset + len(written) - len(self._inode.data)), self._name)
            self._disk._apply(self._inode, self._name, lambda content: _put(content, written, offset))
        if fault is not None:
            raise StorageFailed(f"cannot write {self._name}: {fault.reason}")

    def truncate(self, size: int) -> None:
        self._fail_if_due("truncate")
        self._disk._apply(self._inode, self._name, lambda data: data.__delitem__(slice(size, None)))

    def sync(self) -> None:
        self._fail_if_due("sync")

    def fileno(self) -> None:
        if self._closed:
            raise StorageFailed(f"{self._name} is closed")

    def close(self) -> None:
        self._closed = True


def _put(content: bytearray, data: bytes, offset: int) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class MemoryDisk:
    """``fleet.storage.Storage`` in memory.

    ``capacity`` bounds its bytes. ``faults`` are used up as they strike. ``fail_at`` fails the n-th operation of any
    kind from now (0 is the next one), and every later one too with ``and_after``: for trying each operation in turn.
    ``operations`` counts them.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self.faults: list[Fault] = []
        self.operations = 0
        self._fail_at: int | None = None
        self._fail_on = False
        self._partial = 0
        self._files: dict[str, _Inode] = {}
        self._open: list[MemoryFile] = []
        # What was done, in order, as changes to a file of that name (None: it was removed).
        self._log: list[tuple[str, Callable[[bytearray], object] | None]] = []

    def fail_at(self, n: int, *, partial: int = 0, and_after: bool = False) -> None:
        self._fail_at = self.operations + n
        self._fail_on = and_after
        self._partial = partial

    def heal(self) -> None:
        """No more failures."""
        self.faults.clear()
        self._fail_at = None

    def contents(self, name: str) -> bytearray:
        """The file's bytes themselves: changing them tampers with the disk."""
        return self._files[name].data

    def copy(self) -> MemoryDisk:
        """What another machine would see if it were given this disk now: no open files, no faults, no history."""
        other = MemoryDisk(self.capacity)
        other._files = {name: _Inode(bytearray(inode.data)) for name, inode in self._files.items()}
        return other

    def after_power_cut(self, rng: random.Random, keep: float) -> MemoryDisk:
        """A disk on which each change since the beginning arrived with probability ``keep``, whatever its order.

        A file exists there when any change to it arrived. The changes that did arrive are applied in a drawn order.
        """
        arrived = [change for change in self._log if rng.random() < keep]
        rng.shuffle(arrived)
        other = MemoryDisk(self.capacity)
        for name, change in arrived:
            if change is None:
                other._files.pop(name, None)
            else:
                change(other._files.setdefault(name, _Inode()).data)
        return other

    def _step(self, operation: str, name: str) -> Fault | None:
        number = self.operations
        self.operations += 1
        if self._fail_at is not None and (number == self._fail_at or (self._fail_on and number > self._fail_at)):
            return Fault(operation, partial=self._partial, reason="the disk fails")
        for index, fault in enumerate(self.faults):
            if fault.operation == operation and name.endswith(fault.suffix):
                if fault.skip > 0:
                    fault.skip -= 1
                    continue
                return self.faults.pop(index)
        return None

    def _fail_if_due(self, operation: str, name: str) -> None:
        fault = self._step(operation, name)
        if fault is not None:
            raise StorageFailed(f"cannot {operation} {name}: {fault.reason}")

    def _reserve(self, extra: int, name: str) -> None:
        used = sum(len(inode.data) for inode in self._files.values())
        if self.capacity is not None and used + extra > self.capacity:
            raise StorageFailed(f"cannot write {name}: the disk is full")

    def _apply(self, inode: _Inode, name: str, change: Callable[[bytearray], object]) -> None:
        change(inode.data)
        self._log.append((name, change))

    def open(self, name: str, *, create: bool = False) -> MemoryFile:
        self._fail_if_due("open", check_name(name))
        inode = self._files.get(name)
        if inode is None:
            if not create:
                raise StorageFailed(f"cannot open {name}: no such file")
            inode = self._files[name] = _Inode()
            self._log.append((name, len))  # creating it changes no byte
        file = MemoryFile(self, name, inode)
        self._open.append(file)
        return file

    def exists(self, name: str) -> bool:
        self._fail_if_due("exists", check_name(name))
        return name in self._files

    def names(self) -> list[str]:
        self._fail_if_due("names", "")
        return sorted(self._files)

    def remove(self, name: str) -> None:
        self._fail_if_due("remove", check_name(name))
        if self._files.pop(name, None) is not None:
            self._log.append((name, None))

    def close(self) -> None:
        for file in self._open:
            file.close()
        self._open.clear()
