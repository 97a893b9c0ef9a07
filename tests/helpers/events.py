"""A trace that tests wait on and assert on: ``fleet.trace.Trace`` in memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from fleet.trace import Field


@dataclass(frozen=True)
class TraceEvent:
    """One event; ``fields["reason"]`` and the like are its own."""

    peer: str
    kind: str
    fields: dict[str, Field]


class Recorder:
    """Keeps every event, and wakes whoever waits for one."""

    def __init__(self) -> None:
        self.events: list[TraceEvent] = []
        self._changed = trio.Event()

    def emit(self, time: float, peer: str, kind: str, **fields: Field) -> None:
        self.events.append(TraceEvent(peer, kind, fields))
        self._changed.set()
        self._changed = trio.Event()

    def of(self, kind: str, peer: str | None = None, **fields: Field) -> list[TraceEvent]:
        """The events of this kind (of one peer, with these fields), in order."""
        return [
            event
            for event in self.events
            if event.kind == kind
            and peer in (None, event.peer)
            and all(event.fields.get(name) == value for name, value in fields.items())
        ]

    async def wait_for(self, kind: str, peer: str | None = None, count: int = 1, **fields: Field) -> TraceEvent:
        """The ``count``-th such event, now or later."""
        await self.until(lambda: len(self.of(kind, peer, **fields)) >= count)
        return self.of(kind, peer, **fields)[count - 1]

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()``, looked at whenever an event is noted."""
        while not ready():
            await self._changed.wait()
