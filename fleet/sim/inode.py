"""A file of the simulated disk, its names, and the undo log of what was done to it since it was last durable.

``data`` is the page cache, in which each change shows at once. The log holds what each change replaced, and nothing
where that was zeros, so an artifact written once into reserved space costs its own size. What a change wrote is read
back while rewinding, and from there its sectors and its length can be applied again, in part and in any order.

A sync that fails drops the dirty pages, as on Linux (Rebello et al., "Can Applications Recover from fsync Failures?",
ATC '20): the bytes still read back, and no later sync makes them durable. The file's length may become so, as it
travels apart from the bytes. While such bytes are in the log, durable changes after them have to stay there too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

__all__ = ["Inode", "Link", "Redo", "bind"]

_SECTOR: Final = 512


@dataclass(slots=True)
class _Change:
    """One change to a file: ``length`` bytes written at ``offset``, or another size, or both."""

    number: int  # its place among all changes to the disk
    offset: int
    length: int
    replaced: bytes | None  # what was at ``offset``, or None for zeros
    size_before: int
    size_after: int
    lost: bool = False  # a failed sync dropped the bytes
    synced: bool = False  # durable, save for lost bytes


@dataclass(eq=False, slots=True)
class Inode:
    """A file apart from its name."""

    data: bytearray = field(default_factory=bytearray)
    changes: int = 0
    """How many there ever were: tells whether the content was written to since."""
    _log: list[_Change] = field(default_factory=list)
    _lossy: bool = False

    def write(self, number: int, offset: int, data: memoryview) -> None:
        """Write at least one byte; ``number`` is the change's place among all changes to the disk."""
        size, end = len(self.data), offset + len(data)
        self._note(number, offset, len(data), min(end, size), max(size, end))
        self.put(offset, data)

    def resize(self, number: int, size: int) -> None:
        self._note(number, size, 0, len(self.data), size)
        self.grow(size)
        self.cut(size)

    def sync(self) -> None:
        """Make every change durable whose bytes are not lost."""
        if not self._lossy:
            self._log.clear()
        for change in self._unsynced():
            change.synced = True

    def drop_dirty(self) -> None:
        """Lose the bytes of every change that is not durable; they still read back."""
        for change in self._unsynced():
            if change.length:
                change.lost = self._lossy = True

    def rewind(self) -> list[Redo]:
        """Go back to what is durable; returns what was done since, in order."""
        redos = []
        for change in reversed(self._log):
            with memoryview(self.data) as whole:
                written = b"" if change.lost else whole[change.offset : change.offset + change.length].tobytes()
            redos.append(Redo(self, change, memoryview(written)))
            self.grow(change.size_before)
            self.cut(change.size_before)
            replaced = change.replaced
            if replaced is None:
                replaced = bytes(max(0, min(change.offset + change.length, change.size_before) - change.offset))
            self.put(change.offset, replaced)
        redos.reverse()
        self._log.clear()
        self._lossy = False
        for redo in redos:
            if redo.change.synced:
                redo.apply()
        return [redo for redo in redos if not redo.change.synced]

    def copy(self) -> Inode:
        return Inode(bytearray(self.data), self.changes, [replace(change) for change in self._log], self._lossy)

    # Without a note in the log

    def put(self, offset: int, data: bytes | memoryview) -> None:
        if len(data):
            end = offset + len(data)
            self.grow(end)
            with memoryview(self.data) as whole:
                whole[offset:end] = data

    def grow(self, size: int) -> None:
        if size > len(self.data):
            self.data.extend(bytes(size - len(self.data)))

    def cut(self, size: int) -> None:
        if size < len(self.data):
            del self.data[size:]

    def _note(self, number: int, offset: int, length: int, replaced_end: int, size_after: int) -> None:
        with memoryview(self.data) as whole:
            replaced: bytes | None = whole[offset:replaced_end].tobytes() if replaced_end > offset else None
        if replaced is not None and replaced == bytes(len(replaced)):
            replaced = None
        self._log.append(_Change(number, offset, length, replaced, len(self.data), size_after))
        self.changes += 1

    def _unsynced(self) -> Iterator[_Change]:
        for change in reversed(self._log):
            if change.synced:
                return
            yield change


@dataclass(frozen=True, slots=True)
class Redo:
    """A change that was undone, with what it wrote."""

    inode: Inode
    change: _Change
    written: memoryview

    @property
    def number(self) -> int:
        return self.change.number

    def apply(self) -> None:
        for resize in self._resize():
            resize()
        self.inode.put(self.change.offset, self.written)

    def tear(self, rng: random.Random) -> None:
        """Apply it up to a drawn byte."""
        before, after = self.change.size_before, self.change.size_after
        if len(self.written):
            self.inode.put(self.change.offset, self.written[: rng.randrange(len(self.written))])
        elif after > before:
            self.inode.grow(rng.randrange(before, after))
        elif after < before:
            self.inode.cut(rng.randrange(after + 1, before + 1))

    def parts(self) -> Iterator[Callable[[], None]]:
        """What may reach the disk apart from the rest: the size, and the bytes of each sector."""
        yield from self._resize()
        start = at = self.change.offset
        while at < start + len(self.written):
            stop = min(start + len(self.written), (at // _SECTOR + 1) * _SECTOR)
            yield partial(self.inode.put, at, self.written[at - start : stop - start])
            at = stop

    def _resize(self) -> Iterator[Callable[[], None]]:
        if self.change.size_after > self.change.size_before:
            yield partial(self.inode.grow, self.change.size_after)
        elif self.change.size_after < self.change.size_before:
            yield partial(self.inode.cut, self.change.size_after)


@dataclass(frozen=True, slots=True)
class Link:
    """A change to the namespace that is not durable: the name means this file now, or none. It arrives or does not."""

    number: int
    durable: dict[str, Inode]
    name: str
    inode: Inode | None

    def apply(self) -> None:
        bind(self.durable, self.name, self.inode)

    def tear(self, rng: random.Random) -> None:
        pass

    def parts(self) -> Iterator[Callable[[], None]]:
        yield self.apply


def bind(names: dict[str, Inode], name: str, inode: Inode | None) -> None:
    """Let the name mean this file, or nothing."""
    if inode is None:
        names.pop(name, None)
    else:
        names[name] = inode
