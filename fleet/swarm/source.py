"""What a fetcher knows of one source: what it asked for, how fast it answers, how much to ask next. Pure, no clock.

The window of requests is twice the bandwidth-delay product: the best delivery rate of the last requests times the
least time to a first byte (the model of BBR, Cardwell et al., ACM Queue 2016), so that a source always has the next
request when it has sent a piece. The timeout follows RFC 6298 with Karn's rule on whole response times; a source that
keeps delivering never times out. A timed-out source backs off, doubling, and is asked for one piece until it answers
again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId

MIN_WINDOW: Final = 4
"""Pieces: one being sent, one waiting behind it, and two that travel together in the next request frame."""
MAX_WINDOW: Final = 96
"""Pieces: with the cancelled and the late still owed, far below what a source refuses (MAX_REQUESTS_PER_LINK)."""
MAX_OWED: Final = 192
"""Answers a source may owe before it is asked for nothing more."""
INITIAL_TIMEOUT: Final = 5.0
MIN_TIMEOUT: Final = 2.0
MAX_TIMEOUT: Final = 60.0
ENDGAME_PATIENCE: Final = 1.0
"""Seconds for which nobody is called late in the endgame, however quick it usually is."""
PROGRESS_BYTES: Final = 65_536
"""What counts as progress, unless the piece is smaller: a source that drips single bytes times out all the same."""
_RATE_SAMPLES: Final = 8


@dataclass(slots=True, eq=False)
class Ask:
    """One request that is out."""

    id: int
    piece: int
    sent_at: float
    delivered_before: int
    received: int = 0
    given_up: bool = False
    """Cancelled or timed out: its answer is still owed, but nobody waits for it."""
    begun: bool = False
    """Its piece is arriving, so that no REJECT can answer it any more."""
    first_at: float = 0.0
    """When the first bytes of its answer arrived."""


@dataclass(slots=True, eq=False)
class Source:
    """One neighbour that takes part in the swarm."""

    peer: PeerId
    number: int
    piece_size: int
    choked: bool = False
    bitfields: int = 0
    """How often it has said all that it offers."""
    backed_off_until: float = 0.0
    asks: dict[int, Ask] = field(default_factory=dict)
    waiting: int = 0
    """Asks that are out and not given up."""
    delivered: int = 0
    timeouts: int = 0
    """In a row."""
    response: float | None = None
    """Smoothed response time, seconds (RFC 6298's SRTT)."""
    _deviation: float = 0.0
    _latency: float | None = None
    _rates: deque[float] = field(default_factory=lambda: deque(maxlen=_RATE_SAMPLES))
    _progress_at: float = 0.0
    _progress: int = 0
    _cap: int = MAX_WINDOW

    def ask(self, request_id: int, piece: int, now: float) -> Ask:
        """Note a request as sent."""
        if self.waiting == 0:
            self._progress_at = now
            self._progress = 0
        ask = Ask(request_id, piece, now, self.delivered)
        self.asks[request_id] = ask
        self.waiting += 1
        return ask

    def bytes_arrived(self, ask: Ask, count: int, now: float) -> None:
        """Some bytes of an answer arrived."""
        if ask.received == 0:
            ask.first_at = now
            if not ask.given_up:
                latency = now - ask.sent_at
                self._latency = latency if self._latency is None else min(self._latency, latency)
        ask.received += count
        self.delivered += count
        self._progress += count
        if self._progress >= min(PROGRESS_BYTES, self.piece_size):
            self._progress = 0
            self._progress_at = now

    def answered(self, ask: Ask, now: float) -> None:
        """The whole answer arrived."""
        self._forget(ask)
        self._progress_at = now
        self.timeouts = 0
        self._cap = min(self._cap * 2, MAX_WINDOW)
        if ask.given_up:
            return
        elapsed = max(now - ask.sent_at, 1e-6)
        self._rates.append((self.delivered - ask.delivered_before) / elapsed)
        if self.response is None:
            self.response = elapsed
            self._deviation = elapsed / 2
        else:
            self._deviation += (abs(self.response - elapsed) - self._deviation) / 4
            self.response += (elapsed - self.response) / 8

    def refused(self, ask: Ask) -> None:
        """The source said no."""
        self._forget(ask)

    def _forget(self, ask: Ask) -> None:
        del self.asks[ask.id]
        if not ask.given_up:
            self.waiting -= 1

    def give_up(self, ask: Ask) -> None:
        """Nobody waits for this answer any more."""
        if not ask.given_up:
            ask.given_up = True
            self.waiting -= 1

    @property
    def timeout(self) -> float:
        """Seconds without progress after which the source counts as stuck."""
        base = INITIAL_TIMEOUT if self.response is None else max(MIN_TIMEOUT, self.response + 4 * self._deviation)
        return float(min(MAX_TIMEOUT, base * 2**self.timeouts))

    @property
    def times_out_at(self) -> float:
        """When the source will count as stuck unless something arrives; infinity when nothing is awaited."""
        return self._progress_at + self.timeout if self.waiting else float("inf")

    def timed_out(self, now: float) -> list[Ask]:
        """Back off; returns the asks that are given up by that."""
        lost = [ask for ask in self.asks.values() if not ask.given_up]
        for ask in lost:
            self.give_up(ask)
        self.backed_off_until = now + self.timeout
        self.timeouts = min(self.timeouts + 1, 8)
        self._cap = 1
        return lost

    def would_beat(self, holder: Source, age: float) -> bool:
        """Whether this source, idle now, would likely answer before ``holder`` does a request ``age`` seconds old.

        Either the holder is late by its own measure, or asking here saves more than ``ENDGAME_PATIENCE``. In between a
        repeated request only moves bytes twice.
        """
        own = self.response if self.response is not None else INITIAL_TIMEOUT
        if holder.response is None:
            return age > max(ENDGAME_PATIENCE, 4 * own)
        return age > max(ENDGAME_PATIENCE, holder.response + 4 * holder._deviation) or (
            holder.response - age > 4 * own + ENDGAME_PATIENCE
        )

    def would_outrun(self, holder: Source, ask: Ask, length: int, now: float) -> bool:
        """Whether the rest of a piece that crawls in from ``holder`` takes far longer than the whole from here."""
        elapsed = now - ask.first_at
        if self.response is None or self.timeouts or not ask.received or elapsed <= ENDGAME_PATIENCE:
            return False
        rest = (length - ask.received) * elapsed / ask.received
        return rest > 2 * self.response + ENDGAME_PATIENCE

    def much_quicker_than(self, others: Iterable[Source]) -> bool:
        """Whether each of the others takes more than twice its time, as far as that is known of them."""
        if self.response is None:
            return False
        times = [other.response for other in others if other.response is not None and not other.choked]
        return bool(times) and self.response * 2 < min(times)

    @property
    def window(self) -> int:
        """How many pieces to keep asked for."""
        if not self._rates or self._latency is None:
            return min(MIN_WINDOW, self._cap)
        product = max(self._rates) * self._latency / self.piece_size
        return min(self._cap, max(MIN_WINDOW, min(MAX_WINDOW, 1 + int(2 * product))))

    def room(self) -> int:
        """How many pieces to ask for now. Zero until half the window is free, so that requests travel together."""
        window = self.window
        if self.choked or len(self.asks) >= MAX_OWED or (self.waiting > window // 2):
            return 0
        return window - self.waiting
