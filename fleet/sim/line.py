"""One direction of a host's access link: a serialiser, shared fairly.

Units (a stream's segment, a datagram) leave one after the other, each in size / rate seconds. Sources that have
something take turns, of ``QUANTUM`` bytes or a little more, which they owe the next round (deficit round robin,
Shreedhar and Varghese, SIGCOMM '95). So a stream's share depends neither on the size of its units nor on how much
others have waiting, and a new message waits for one round at most.

A downlink works while the unit's bytes still arrive (cut-through): what comes from an uplink of the same rate, with
nobody else around, is through as its last byte arrives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from fleet.limits import KIB

if TYPE_CHECKING:
    from fleet.sim.pump import Pump

QUANTUM: Final = 16 * KIB
"""Bytes of one turn: a stream's segment."""
_ROUNDING: Final = 1e-9
"""Seconds by which sums of floating-point times may be off."""


class Unit(Protocol):
    """What is serialised as a whole."""

    size: int
    span: float
    """How long the uplink took to send it."""


U = TypeVar("U", bound=Unit)


class Source(Protocol[U]):
    """What takes turns on a line."""

    waiting: bool
    """In the line's round: kept by the line."""
    credit: int
    """Bytes that are left of its turn, or that it owes: kept by the line."""

    @property
    def backlog(self) -> int:
        """Bytes that it has for the line."""
        ...

    def take(self) -> U | None:
        """Hand over the next unit, or None for now."""
        ...

    def through(self, unit: U) -> None:
        """The last byte of ``unit`` has left the line."""
        ...


class Line:
    """A serialiser of ``rate`` bytes a second, or of no limit."""

    __slots__ = ("_busy", "_free_since", "_pump", "_round", "queue_bytes", "rate")

    def __init__(self, pump: Pump, rate: float | None, queue_bytes: int) -> None:
        self.rate = rate
        self.queue_bytes = queue_bytes
        self._pump = pump
        self._busy = False
        self._free_since = -inf
        self._round: deque[Source[Any]] = deque()

    @property
    def backlog(self) -> int:
        """Bytes of all sources in the round."""
        return sum(source.backlog for source in self._round)

    def offer(self, source: Source[Any]) -> None:
        """``source`` has something. It stays in the round until it has nothing."""
        if source.waiting:
            return
        if self.rate is None and not self._busy:
            while (unit := source.take()) is not None:
                source.through(unit)
            return
        source.waiting = True
        self._round.append(source)
        if not self._busy:
            self._serve()

    def admit(self, arrivals: Arrivals[U], unit: U) -> None:
        """The last byte of ``unit`` has arrived at this downlink."""
        if self._busy:
            arrivals.append(unit)
            self.offer(arrivals)
            return
        rate = self.rate
        if rate is not None:
            now = self._pump.time()
            finish = max(self._free_since, now - unit.span) + unit.size / rate
            if finish > now + _ROUNDING:
                self._busy = True
                self._pump.at(finish, self._finished, (arrivals, unit))
                return
            self._free_since = finish
        arrivals.through(unit)

    def _serve(self) -> None:
        turn = self._round
        while turn:
            source = turn[0]
            if source.credit <= 0:
                source.credit += QUANTUM
                if source.credit <= 0:
                    turn.rotate(-1)
                    continue
            unit = source.take()
            if unit is None:
                turn.popleft()
                source.waiting = False
                source.credit = 0
                continue
            source.credit -= unit.size
            if source.credit <= 0:
                turn.rotate(-1)
            if self.rate is None:
                source.through(unit)
                continue
            unit.span = unit.size / self.rate
            self._busy = True
            self._pump.at(self._pump.time() + unit.span, self._finished, (source, unit))
            return

    def _finished(self, served: tuple[Source[Any], Any]) -> None:
        source, unit = served
        self._busy = False
        self._free_since = self._pump.time()
        source.through(unit)
        if not self._busy:
            self._serve()


class Arrivals(Generic[U]):
    """What waits for a downlink on behalf of one stream or socket."""

    __slots__ = ("_units", "backlog", "credit", "through", "waiting")

    def __init__(self, through: Callable[[U], None]) -> None:
        self.waiting = False
        self.credit = 0
        self.backlog = 0
        self.through = through
        self._units: deque[U] = deque()

    def append(self, unit: U) -> None:
        """One more, behind the others."""
        self._units.append(unit)
        self.backlog += unit.size

    def take(self) -> U | None:
        """The first, or None."""
        if not self._units:
            return None
        unit = self._units.popleft()
        self.backlog -= unit.size
        return unit
