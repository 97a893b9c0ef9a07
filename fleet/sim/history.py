"""Everything that happened in a simulated run, as one running BLAKE3 hash and, for whoever asks, as events.

The rule: two runs of the same seed record the same events in the same order, so their digests are equal. Whoever makes
something happen (a delivery, a timer, a write, a fault) records it; a peer's own trace goes the same way, as
``History`` is a ``fleet.trace.Trace``. Fields may hold only what the seed decides: no addresses of objects, no wall
time, nothing taken from a set's order.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio
from blake3 import blake3

if TYPE_CHECKING:
    from fleet.trace import Field

_BLOCK: Final = 16 * 1024
"""Bytes gathered before they are hashed: one call of the hash for each small event would cost a third of the whole."""

_PLAIN: Final = 2
"""The version of the marshal format that writes equal values as equal bytes; later ones note shared objects."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. ``number`` counts from 0 within the run, ``time`` is virtual seconds."""

    number: int
    time: float
    peer: str
    kind: str
    fields: tuple[tuple[str, Field], ...]


class History:
    """The running hash of a run, and its events to ``sink`` where one is given. Belongs to one run in one thread."""

    def __init__(self, sink: Callable[[Event], None] | None = None) -> None:
        self._sink = sink
        self._hash = blake3(derive_key_context="peerfleet simulated history 1")
        self._block = bytearray()
        self._count = 0

    @property
    def count(self) -> int:
        """Events so far."""
        return self._count

    @property
    def digest(self) -> str:
        """BLAKE3 of everything so far, hexadecimal."""
        self._flush()
        return self._hash.hexdigest()

    def record(self, kind: str, peer: str, **fields: Field) -> None:
        """Note that something happened now (at time 0 outside of a run)."""
        try:
            now = trio.current_time()
        except RuntimeError:
            now = 0.0
        self._add(now, peer, kind, fields)

    def emit(self, time: float, peer: str, kind: str, **fields: Field) -> None:
        """Note one event at ``time``."""
        self._add(time, peer, kind, fields)

    def _add(self, time: float, peer: str, kind: str, fields: dict[str, Field]) -> None:
        try:
            self._block += marshal.dumps((time, peer, kind, fields), _PLAIN)
        except ValueError:  # a subclass of a plain type, such as an enumeration's member or a scalar of numpy's
            plain = {name: repr(value) for name, value in fields.items()}
            self._block += marshal.dumps((float(time), str(peer), str(kind), plain), _PLAIN)
        if len(self._block) > _BLOCK:
            self._flush()
        number = self._count
        self._count = number + 1
        if self._sink is not None:
            self._sink(Event(number, time, peer, kind, tuple(fields.items())))

    def _flush(self) -> None:
        self._hash.update(self._block)
        self._block = bytearray()
