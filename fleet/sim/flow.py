"""One direction of a stream: from its sender's buffer over two access links and a path into the receiver's.

What it models of TCP (RFC 9293, RFC 6298, RFC 5482):

- Bytes leave in segments of at most 16 KiB, as far as the receiver's window reaches, and arrive in order.
- A segment that is lost (by chance, a partition, a machine without power) is sent again after a timeout that doubles.
  What was sent after it waits for it, then all arrive together. The repetition costs no bandwidth.
- Without any progress for ``USER_TIMEOUT_SECONDS`` while bytes are unacknowledged, the sender's end breaks. The
  receiver hears nothing of that, and an idle link stays up.
- What arrives at an end that is no more is answered by a reset.

Acknowledgements themselves are not simulated, only what follows from their absence; window updates are.
"""

from __future__ import annotations

import zlib
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from fleet.limits import KIB
from fleet.sim.buffer import Buffer
from fleet.sim.line import QUANTUM, Arrivals

if TYPE_CHECKING:
    from fleet.sim.fabric import Route
    from fleet.sim.stream import SimLink

SEGMENT: Final = QUANTUM
SEND_BUFFER: Final = 128 * KIB
"""Bytes of one stream that wait to leave. The buffers of all streams that wait for an uplink share its queue."""
USER_TIMEOUT_SECONDS: Final = 20.0
"""How long bytes may stay unacknowledged before the sender gives up (RFC 5482)."""
_MAX_RETRANSMISSION_SECONDS: Final = 60.0


class Kind(IntEnum):
    """What a segment says."""

    DATA = 0
    OPEN = 1
    """The connection is made: the last step of the handshake."""
    END = 2
    """Nothing more will come."""


class Segment:
    """What travels as a whole."""

    __slots__ = ("chunks", "kind", "sent", "size", "span")

    def __init__(self, kind: Kind, chunks: list[memoryview], size: int) -> None:
        self.kind = kind
        self.chunks = chunks
        self.size = size
        self.sent = 0.0
        """When it left the uplink, for the first time."""
        self.span = 0.0


def _acknowledge_end(source: SimLink) -> None:
    source.end_acknowledged()


class Flow:
    """One direction of a stream. ``source`` and ``sink`` are its ends."""

    source: SimLink
    sink: SimLink

    def __init__(self, route: Route, number: int) -> None:
        self.route = route
        self._fabric = route.fabric
        self._number = number
        # at the sender
        self.waiting = False
        self.credit = 0
        self._outbox = Buffer()
        self._sent = 0
        self._limit = self._granted = route.path.window
        self._ending = False
        self._end_taken = False
        self._over = False
        # on the way
        self._last_arrival = 0.0
        self._stuck: list[Segment] = []
        self._torn = False
        """A segment is lost for good, as its sender is no more: nothing behind it may arrive."""
        self._tries = 0
        self._retrying = False
        self._waiting_since: float | None = None
        self._stale = False
        self._arrivals: Arrivals[Segment] = Arrivals(self._land)
        # at the receiver
        self.ended = False
        """The other side's end of stream has arrived."""
        self._inbox = Buffer()
        self._delivered = 0
        self._consumed = 0
        self._told = 0

    # the sender's end

    @property
    def backlog(self) -> int:
        """Bytes that wait to leave."""
        return self._outbox.size

    @property
    def capacity(self) -> int:
        """Bytes that may wait to leave, now."""
        line = self.route.source.up
        if line.rate is None or line.backlog < line.queue_bytes:
            return SEND_BUFFER
        return SEGMENT  # so that every stream keeps its place in the round

    @property
    def unacknowledged(self) -> bool:
        """Whether bytes of the sender's have not reached the other end."""
        return self._delivered < self._sent + self.backlog and not self._over

    @property
    def finished(self) -> bool:
        """Nothing of it is left to do."""
        return self._over or self.ended

    def open(self) -> None:
        """The connection's first segment."""
        self.through(Segment(Kind.OPEN, [], 0))

    def push(self, chunk: memoryview) -> None:
        """Send bytes that nobody will change; at most ``capacity - backlog``."""
        self._outbox.append(chunk)
        self._offer()
        self.probe()

    def finish(self) -> None:
        """Send the end of the stream, behind what waits."""
        self._ending = True
        self._offer()

    def kill(self) -> None:
        """Forget what has not left: the sender is no more."""
        self._over = True
        self._outbox.clear()
        self._torn = self._torn or bool(self._stuck)
        self._stuck.clear()

    def probe(self) -> None:
        """Ask a receiver whose window is closed for a sign of life, if there may be none (RFC 9293, 3.8.6.1)."""
        if self.backlog and self._sent >= self._limit:
            back = self.route.back
            if self._stale or self.sink.gone or self.route.target.dark or self.route.cut or back.cut:
                self.unheard()

    def unheard(self) -> None:
        """The other side's answer was lost: ask again, and run out of patience some day."""
        if not self._over:
            self._watch()
            self._arm()

    def _offer(self) -> None:
        if self.route.local:
            while (segment := self.take()) is not None:
                self.through(segment)
        else:
            self.route.source.up.offer(self)

    def take(self) -> Segment | None:
        """See ``fleet.sim.line.Source``."""
        if self._over or self._tries:
            return None
        size = min(self.backlog, SEGMENT, self._limit - self._sent)
        if size <= 0:
            if self._ending and not self.backlog and not self._end_taken:
                self._end_taken = True
                return Segment(Kind.END, [], 0)
            return None
        crumble = self.route.path.crumble
        if crumble and self._fabric.rng.random() < crumble:
            size = self._fabric.rng.randint(1, size)
        chunks = self._outbox.take(size)
        self._sent += size
        if self.source.sender is not None and self.backlog * 2 <= self.capacity:
            self.source.wake_sender()
        return Segment(Kind.DATA, chunks, size)

    # on the way

    def through(self, segment: Segment) -> None:
        """See ``fleet.sim.line.Source``: the segment has left the uplink."""
        route = self.route
        pump = self._fabric.pump
        if segment.size and not route.local:
            route.source.sent.count(segment.size)
        segment.sent = now = pump.time()
        arrival = now + route.delay()
        if arrival < self._last_arrival:
            arrival = self._last_arrival
        else:
            self._last_arrival = arrival
        pump.at(arrival, self._lose if route.lost() else self._arrive, segment)

    def _arrive(self, segment: Segment) -> None:
        route = self.route
        if route.held is not None:  # before all else: who was held first stays first
            route.held.append((self._arrive, segment))
            self._watch()
        elif self._torn:
            self._fabric.drop("torn", route.source.name, route.target.name, segment.size)
        elif route.cut:
            self._stall(segment, "partition")
        elif self._stuck:
            self._stuck.append(segment)
        else:
            self._admit(segment)

    def _lose(self, segment: Segment) -> None:
        if self.route.held is not None:
            self.route.held.append((self._lose, segment))
        else:
            self._stall(segment, "loss")

    def _admit(self, segment: Segment) -> None:
        if self.route.local:
            self._land(segment)
        else:
            self.route.target.down.admit(self._arrivals, segment)

    def _stall(self, segment: Segment, reason: str) -> None:
        self._fabric.drop(reason, self.route.source.name, self.route.target.name, segment.size)
        if self._over:
            self._torn = True
        else:
            self._stuck.append(segment)
            self.unheard()

    def _watch(self) -> None:
        """Something is unacknowledged: from now on the sender's patience runs out."""
        if self._waiting_since is None:
            self._waiting_since = now = self._fabric.pump.time()
            self._fabric.pump.at(now + USER_TIMEOUT_SECONDS, self._expire, now)

    def _expire(self, since: float) -> None:
        if self._waiting_since == since and not self._over:
            self._fabric.record("link_timeout", self.route.source.name, link=self._number)
            self.source.break_off(f"{self.route.target.name} acknowledged nothing for {USER_TIMEOUT_SECONDS:.0f} s")

    def _arm(self) -> None:
        if not self._retrying:
            self._retrying = True
            pause = min(self.route.timeout() * 2**self._tries, _MAX_RETRANSMISSION_SECONDS)
            self._fabric.pump.at(self._fabric.pump.time() + pause, self._retry, None)

    def _retry(self, _: None) -> None:
        self._retrying = False
        if self._over:
            return
        if self._waiting_since is None:  # it has been heard of meanwhile
            self._tries = 0
            self._offer()
        elif self.route.lost():
            self._fail()
        else:
            self._retrying = True
            self._fabric.pump.at(self._fabric.pump.time() + self.route.delay(), self._recover, None)

    def _fail(self) -> None:
        self._retrying = False
        self._tries += 1
        self._arm()

    def _recover(self, _: None) -> None:
        """What was sent again arrives, or a mere question whether the other side is there."""
        route = self.route
        if route.held is not None:
            route.held.append((self._recover, None))
            return
        if route.cut or route.target.dark:
            self._fail()
            return
        self._retrying = False
        self._tries = 0
        stuck, self._stuck = self._stuck, []
        for segment in stuck:
            self._admit(segment)
        if self.sink.gone:
            if not stuck:
                self.sink.answer_with_reset()
        elif route.back.is_open:
            if not stuck:
                self._waiting_since = None
            if self._stale:
                self._stale = False
                self._open_window(self._consumed)
        else:
            self.unheard()
        self._offer()

    # the receiver's end

    def _land(self, segment: Segment) -> None:
        route = self.route
        sink = self.sink
        if route.target.dark:
            self._stall(segment, "host down")
            return
        kind = segment.kind
        size = segment.size
        self._delivered += size
        if sink.gone:
            if kind is Kind.END:
                self._waiting_since = None
                self._end_landed()
            else:
                sink.answer_with_reset()
            return
        if kind is Kind.DATA:
            check = 0
            for chunk in segment.chunks:
                check = zlib.crc32(chunk, check)
            if not route.local:
                route.target.received.count(size)
            self._fabric.record(
                "deliver",
                route.target.name,
                source=route.source.name,
                link=self._number,
                sent=segment.sent,
                size=size,
                check=check,
            )
            self._inbox.extend(segment.chunks, size)
            sink.data_landed()
        elif kind is Kind.END:
            self._fabric.record("end", route.target.name, source=route.source.name, link=self._number)
            self._end_landed()
            sink.wake_receiver()
        else:
            sink.opened()
        if not route.back.is_open:
            self.unheard()
        elif self._waiting_since is not None:
            self._waiting_since = None
            if self._sent > self._delivered and (self._stuck or route.held is not None):
                self._watch()  # for the others

    def _end_landed(self) -> None:
        self.ended = True
        self.route.back.packet(_acknowledge_end, self.source)

    @property
    def ready(self) -> int:
        """Bytes that may be received."""
        return self._inbox.size

    def read_into(self, view: memoryview) -> int:
        """Move bytes that have arrived into ``view``; at least one is ``ready``."""
        count = min(self.ready, len(view))
        crumble = self.route.path.crumble
        if crumble and self._fabric.rng.random() < crumble:
            count = self._fabric.rng.randint(1, count)
        self._inbox.move_into(view, count)
        self._consume(count)
        return count

    def discard(self) -> None:
        """Drop what has arrived: nobody will receive it."""
        size = self.ready
        self._inbox.clear()
        if not self.sink.gone:
            self._consume(size)

    def _consume(self, count: int) -> None:
        self._consumed += count
        if self._consumed - self._told >= max(1, self._granted // 4):  # RFC 9293, 3.8.6.2.2: no silly windows
            self._told = self._consumed
            self._granted = self.route.path.window
            pump = self._fabric.pump
            pump.at(pump.time() + self.route.back.delay(), self._hear_window, self._consumed)

    def _hear_window(self, consumed: int) -> None:
        back = self.route.back
        if back.held is not None:
            back.held.append((self._hear_window, consumed))
        elif back.cut:
            self._stale = True
        else:
            self._open_window(consumed)
            self._offer()

    def _open_window(self, consumed: int) -> None:
        self._limit = max(self._limit, consumed + self.route.path.window)
