"""A disk in memory that keeps synced and unsynced changes apart, crashes, and fails on schedule.

What a program sees is the page cache: each change shows at once. What a power cut leaves is another matter:

- ``File.sync`` promises that the bytes of that file, its length and its name are durable, and nothing about any other
  file. A removal is durable only once a new file of that name was synced. A sync that fails loses what it should have
  written: a later one does not make that durable.
- ``crash`` ends the process and, save for "keep", cuts the power. What was promised is there afterwards; of the rest
  nothing is ("drop"), or a prefix of all changes in order with the last one cut at any byte ("torn"), or any part
  of it in any order ("reorder"): sectors of one write apart, a file's length apart from its bytes, a name apart from
  its file. These are the crash states of Pillai et al., "All File Systems Are Not Created Equal" (OSDI '14). As nothing
  promises an order within a sector, a few are harsher than what a drive of whole sectors leaves.

``Mount`` is the disk as one process sees it: a crash ends it, so that what a killed process does in its clean-up
reaches neither the disk nor the process that comes after.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias, get_args

from fleet.errors import LocalMisuse, StorageFailed
from fleet.sim.disk_faults import Fault, Operation, Speed, struck
from fleet.sim.inode import Inode, Link, Redo, bind
from fleet.storage import check_name

if TYPE_CHECKING:
    from fleet.sim.history import History

__all__ = ["Crash", "Fault", "Mount", "Operation", "SimDisk", "SimFile", "Speed"]

Crash: TypeAlias = Literal["keep", "drop", "torn", "reorder"]

_CHECKED_BYTES: Final = 4_096
"""Writes up to here go to the history with a checksum; for longer ones it would take longer than the write."""

_FULL: Final = "the disk is full"


class SimFile:
    """``fleet.storage.File`` of a ``SimDisk``. It outlives its name, as an open file does on Unix, but no crash."""

    def __init__(self, disk: SimDisk, name: str, inode: Inode) -> None:
        self._disk, self._name, self._inode = disk, name, inode
        self._ended: str | None = None

    @property
    def name(self) -> str:
        return self._name

    @property
    def closed(self) -> bool:
        """Whether it was closed, or its process crashed."""
        return self._ended is not None

    def _step(
        self, operation: Operation, offset: int = 0, size: int = 0, data: memoryview | None = None
    ) -> Fault | None:
        if self._ended is not None:
            raise StorageFailed(f"cannot {operation} {self._name}: {self._ended}")
        return self._disk._step(operation, self._name, offset, size, data)

    def _do(self, operation: Operation, offset: int = 0, size: int = 0) -> None:
        _raise_if(self._step(operation, offset, size), self._name)

    def size(self) -> int:
        self._do("size")
        return len(self._inode.data)

    def version(self) -> tuple[int, int]:
        return self.size(), self._inode.changes

    def allocate(self, size: int) -> None:
        self._do("allocate", 0, size)
        missing = size - len(self._inode.data)
        if missing > 0:
            if self._disk._room_for(missing) < missing:
                raise StorageFailed(f"cannot allocate {size:,} bytes for {self._name}: {_FULL}")
            self._inode.resize(self._disk._next_number(), size)

    def read_into(self, view: memoryview, offset: int) -> None:
        end = offset + view.nbytes
        self._do("read", offset, view.nbytes)
        if end > len(self._inode.data) and view.nbytes:
            raise StorageFailed(f"cannot read {self._name} up to {end:,}: it ends at {len(self._inode.data):,}")
        if view.nbytes:
            with memoryview(self._inode.data) as whole:
                view.cast("B")[:] = whole[offset:end]

    def write(self, data: bytes | bytearray | memoryview, offset: int) -> None:
        view = memoryview(data)
        fault = self._step("write", offset, view.nbytes, view)
        reason = None if fault is None else fault.reason
        length = view.nbytes if fault is None else min(fault.partial, view.nbytes)
        growth = offset + length - len(self._inode.data)
        if length and growth > 0 and (room := self._disk._room_for(growth)) < growth:
            # As on Unix, what fits is written before the rest is refused.
            reason = _FULL
            length = max(0, length - (growth - room))
        if length:
            self._inode.write(self._disk._next_number(), offset, view.cast("B")[:length])
        if reason is not None:
            raise StorageFailed(f"cannot write {self._name}: {reason}")

    def truncate(self, size: int) -> None:
        self._do("truncate", 0, size)
        if size != len(self._inode.data):
            self._inode.resize(self._disk._next_number(), size)

    def sync(self) -> None:
        fault = self._step("sync")
        if fault is not None and fault.loses:
            self._inode.drop_dirty()
        _raise_if(fault, self._name)
        self._inode.sync()
        self._disk._make_durable(self._name, self._inode)

    def fileno(self) -> None:
        if self._ended is not None:
            raise StorageFailed(f"{self._name}: {self._ended}")

    def close(self) -> None:
        """Release it. Like every disk's, it raises nothing, after a crash either."""
        if self._ended is None:
            self._ended = "it is closed"
            self._disk._open.pop(self)

    def _die(self) -> None:
        self._ended = "its process crashed"


class SimDisk:
    """``fleet.storage.Storage`` in memory.

    ``capacity`` bounds its bytes, ``speed`` makes it slow, ``faults`` are used up as they strike. All may be changed at
    any time. ``operations`` counts what was asked of it, for ``fail_at``. ``on_delay`` is told the seconds that each
    operation of a slow disk takes.
    """

    def __init__(
        self,
        name: str = "disk",
        *,
        history: History | None = None,
        rng: random.Random | None = None,
        capacity: int | None = None,
        on_delay: Callable[[float], None] = lambda _seconds: None,
    ) -> None:
        self.name = name
        self.capacity = capacity
        self.speed = Speed()
        self.faults: list[Fault] = []
        self.operations = 0
        self._history = history
        self._rng = random.Random(0) if rng is None else rng  # noqa: S311 - no secret is drawn from it
        self._on_delay = on_delay
        self._fail_at: int | None = None
        self._fail_after, self._fail_partial = False, 0
        self._changes = 0
        self._crashes = 0
        self._files: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._links: list[Link] = []
        self._open: dict[SimFile, None] = {}  # in order

    # The storage port

    def open(self, name: str, *, create: bool = False) -> SimFile:
        self._do("open", name)
        inode = self._files.get(name)
        if inode is None:
            if not create:
                raise StorageFailed(f"cannot open {name}: no such file")
            inode = Inode()
            self._link(name, inode)
        file = SimFile(self, name, inode)
        self._open[file] = None
        return file

    def exists(self, name: str) -> bool:
        self._do("exists", name)
        return name in self._files

    def names(self) -> list[str]:
        _raise_if(self._step("names", ""), self.name)
        return sorted(self._files)

    def remove(self, name: str) -> None:
        self._do("remove", name)
        if name in self._files:
            self._link(name, None)

    def close(self) -> None:
        for file in list(self._open):
            file.close()

    # What a simulation does to it

    def mount(self) -> Mount:
        """The disk as one process sees it, until the next crash."""
        return Mount(self)

    def crash(self, how: Crash) -> None:
        """End every open file and every mount, and leave of what was not synced what the module says."""
        if how not in get_args(Crash):
            raise LocalMisuse(f"{how!r} is no way to crash: use {', '.join(get_args(Crash))}")
        self._crashes += 1
        for file in self._open:
            file._die()
        self._open.clear()
        if how != "keep":
            self._cut_power(how)
        if self._history is not None:
            self._history.record("disk", self.name, operation="crash", how=how, used=self._used())

    def fail_at(self, n: int, *, partial: int = 0, and_after: bool = False) -> None:
        """Fail the ``n``-th operation of any kind from now (0 is the next), and with ``and_after`` all that follow."""
        self._fail_at = self.operations + n
        self._fail_partial = partial
        self._fail_after = and_after

    def heal(self) -> None:
        """From now on nothing fails and nothing is slow. What is lost stays lost, and a full disk full."""
        self.faults.clear()
        self._fail_at = None
        self.speed = Speed()

    def flip_bits(self, name: str | None, n: int = 1) -> list[int]:
        """Flip ``n`` drawn bits of a file at rest, or all when it has fewer; returns which, ascending.

        None is a drawn file that has any, if there is one.
        """
        if name is None:
            name = self._rng.choice(sorted(each for each, inode in self._files.items() if inode.data) or [""])
        data = self.contents(name) if name else bytearray()
        bits = sorted(self._rng.sample(range(8 * len(data)), min(n, 8 * len(data))))
        for bit in bits:
            data[bit // 8] ^= 1 << bit % 8
        if self._history is not None:
            self._history.record("disk", self.name, operation="flip", file=name, size=len(bits))
        return bits

    def wipe(self) -> None:
        """A crash that leaves an empty disk."""
        self.crash("drop")
        self._files.clear()
        self._durable.clear()

    def fill(self) -> None:
        """From now on nothing more fits, until ``capacity`` says otherwise."""
        self.capacity = self._used()

    def contents(self, name: str) -> bytearray:
        """The file's bytes themselves: changing them tampers with the disk, for good where nothing is unsynced."""
        if name not in self._files:
            raise LocalMisuse(f"{self.name} has no file {name!r}: it has {', '.join(sorted(self._files)) or 'none'}")
        return self._files[name].data

    @property
    def open_files(self) -> list[str]:
        """The names of the files that are open, in the order they were opened."""
        return [file.name for file in self._open]

    def copy(self, *, rng: random.Random | None = None) -> SimDisk:
        """Another disk with the same content, synced and not: no open files, faults, slowness or history."""
        other = SimDisk(self.name, rng=rng, capacity=self.capacity)
        twins = {inode: inode.copy() for inode in self._inodes()}
        other._files = {name: twins[inode] for name, inode in self._files.items()}
        other._durable = {name: twins[inode] for name, inode in self._durable.items()}
        other._links = [
            replace(link, durable=other._durable, inode=None if link.inode is None else twins[link.inode])
            for link in self._links
        ]
        other._changes = self._changes
        return other

    # Within

    def _step(
        self, operation: Operation, file: str, offset: int = 0, size: int = 0, data: memoryview | None = None
    ) -> Fault | None:
        """Count, time and record one operation; returns the fault that it meets."""
        fault = self._due(operation, file)
        self.operations += 1
        speed = self.speed
        delay = speed.operation_seconds + (speed.sync_seconds if operation == "sync" else 0.0)
        if speed.bytes_per_second is not None and operation in ("read", "write"):
            delay += size / speed.bytes_per_second
        if delay:
            self._on_delay(delay)
        if self._history is not None:
            crc = zlib.crc32(data) if data is not None and size <= _CHECKED_BYTES else 0
            self._history.record(
                "disk",
                self.name,
                operation=operation,
                file=file,
                size=size,
                offset=offset,
                crc=crc,
                fault=None if fault is None else fault.reason,
            )
        return fault

    def _do(self, operation: Operation, name: str) -> None:
        _raise_if(self._step(operation, check_name(name)), name)

    def _due(self, operation: Operation, file: str) -> Fault | None:
        if self._fail_at is not None and (
            self.operations == self._fail_at or (self._fail_after and self.operations > self._fail_at)
        ):
            return Fault(operation, partial=self._fail_partial, reason="the disk fails")
        return struck(self.faults, operation, file)

    def _used(self) -> int:
        return sum(len(inode.data) for inode in self._files.values())

    def _room_for(self, growth: int) -> int:
        """How many of these bytes there is room for."""
        return growth if self.capacity is None else max(0, min(growth, self.capacity - self._used()))

    def _next_number(self) -> int:
        self._changes += 1
        return self._changes

    def _link(self, name: str, inode: Inode | None) -> None:
        bind(self._files, name, inode)
        self._links.append(Link(self._next_number(), self._durable, name, inode))

    def _make_durable(self, name: str, inode: Inode) -> None:
        # A file that was removed or replaced meanwhile has no name to be made durable.
        if self._files.get(name) is inode and self._durable.get(name) is not inode:
            self._durable[name] = inode
            self._links = [link for link in self._links if link.name != name]

    def _inodes(self) -> list[Inode]:
        """All files that a crash may leave, each once, in an order that is the same in every run."""
        linked = [link.inode for link in self._links if link.inode is not None]
        return list(dict.fromkeys([*self._durable.values(), *linked]))

    def _cut_power(self, how: Crash) -> None:
        changes: list[Redo | Link] = [redo for inode in self._inodes() for redo in inode.rewind()]
        changes = sorted([*changes, *self._links], key=lambda change: change.number)
        if how == "torn":
            reached = self._rng.randint(0, len(changes))
            for change in changes[:reached]:
                change.apply()
            for change in changes[reached : reached + 1]:
                change.tear(self._rng)
        elif how == "reorder":
            share = self._rng.random()
            parts = [part for change in changes for part in change.parts() if self._rng.random() < share]
            self._rng.shuffle(parts)
            for part in parts:
                part()
        self._files = dict(self._durable)
        self._links.clear()


class Mount:
    """``fleet.storage.Storage`` for one process: after a crash of the disk every call fails and changes nothing."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._crashes = disk._crashes
        self._files: list[SimFile] = []

    def _alive(self) -> SimDisk:
        if self._crashes != self._disk._crashes:
            raise StorageFailed(f"{self._disk.name}: its process crashed")
        return self._disk

    def open(self, name: str, *, create: bool = False) -> SimFile:
        file = self._alive().open(name, create=create)
        self._files = [each for each in self._files if not each.closed]
        self._files.append(file)
        return file

    def exists(self, name: str) -> bool:
        return self._alive().exists(name)

    def names(self) -> list[str]:
        return self._alive().names()

    def remove(self, name: str) -> None:
        self._alive().remove(name)

    def close(self) -> None:
        for file in self._files:
            file.close()
        self._files.clear()


def _raise_if(fault: Fault | None, name: str) -> None:
    if fault is not None:
        raise StorageFailed(f"cannot {fault.operation} {name}: {fault.reason}")
