"""Bytes that wait, as views of buffers that nobody changes: moved whole, cut where need be, copied only at the ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleet.net.link import Bytes


class Buffer:
    """A queue of bytes."""

    __slots__ = ("_chunks", "size")

    def __init__(self) -> None:
        self.size = 0
        self._chunks: deque[memoryview] = deque()

    def append(self, chunk: memoryview) -> None:
        """Add bytes that nobody will change, behind the others."""
        self._chunks.append(chunk)
        self.size += len(chunk)

    def extend(self, chunks: list[memoryview], size: int) -> None:
        """Add several, ``size`` bytes together."""
        self._chunks.extend(chunks)
        self.size += size

    def take(self, count: int) -> list[memoryview]:
        """Remove the first ``count`` bytes, of at least so many."""
        self.size -= count
        chunks = self._chunks
        taken = []
        while count:
            head = chunks[0]
            if len(head) > count:
                taken.append(head[:count])
                chunks[0] = head[count:]
                break
            taken.append(chunks.popleft())
            count -= len(head)
        return taken

    def move_into(self, view: memoryview, count: int) -> None:
        """Remove the first ``count`` bytes, of at least so many, into the start of ``view``."""
        filled = 0
        for chunk in self.take(count):
            end = filled + len(chunk)
            view[filled:end] = chunk
            filled = end

    def clear(self) -> None:
        """Forget everything."""
        self._chunks.clear()
        self.size = 0


def stable(buffers: Sequence[Bytes], large: int) -> Iterator[memoryview]:
    """The bytes of ``buffers`` in pieces that nobody will change, each copied at most once.

    ``bytes`` of ``large`` and more are taken as they are, whatever may change is copied in pieces of ``large``, and
    small buffers are copied together.
    """
    small: list[Bytes] = []
    size = 0
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        if len(view) < large:
            small.append(buffer)
            size += len(view)
            if size < large:
                continue
        if size:
            yield memoryview(b"".join(small))
            small = []
            size = 0
        if len(view) >= large:
            if type(view.obj) is bytes:
                yield view
            else:
                for start in range(0, len(view), large):
                    yield memoryview(bytes(view[start : start + large]))
    if size:
        yield memoryview(b"".join(small))
