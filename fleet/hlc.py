"""The hybrid logical clock: stamps that follow cause and effect and stay near the wall clock.

Each peer keeps the largest (millis, counter) that it has issued or seen. An event takes the wall clock's millis where
they are ahead of that, with counter 0, else the largest millis with the next counter. So a stamp is later than every
stamp its writer had issued or heard of, wherever the wall clocks stand, and it runs ahead of the true time only as
far as the fastest clock heard of; a peer refuses to hear of one more than ten minutes ahead of its own. The peer's
id breaks ties, so that all stamps of a fleet are in one total order.

After Kulkarni, Demirbas, Madappa, Avva and Leone, "Logical Physical Clocks" (OPODIS 2014), figure 5, with a counter of
fixed width that carries into the millis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from fleet.errors import LimitExceeded, LocalMisuse, PeerViolation
from fleet.identity.keys import PeerId
from fleet.limits import MAX_STAMP_AHEAD_MILLIS

__all__ = ["STAMP_SIZE", "HybridLogicalClock", "Stamp"]


_MILLIS_SIZE: Final = 6
_COUNTER_SIZE: Final = 2
_PEER_SIZE: Final = 32
_MAX_MILLIS: Final = 2 ** (8 * _MILLIS_SIZE) - 1
_MAX_COUNTER: Final = 2 ** (8 * _COUNTER_SIZE) - 1

STAMP_SIZE: Final = _MILLIS_SIZE + _COUNTER_SIZE + _PEER_SIZE
"""Bytes of an encoded stamp."""


@dataclass(frozen=True, order=True, slots=True)
class Stamp:
    """When something happened, in an order that all peers agree on: by millis, then counter, then peer.

    ``millis``: milliseconds since 1970, 48 bits. ``counter``: events within one millisecond, 16 bits. ``peer``: whose
    clock it was. Numbers outside these ranges raise ``LocalMisuse``.
    """

    millis: int
    counter: int
    peer: PeerId

    def __post_init__(self) -> None:
        if not 0 <= self.millis <= _MAX_MILLIS:
            raise LocalMisuse(f"a stamp's millis are within 0 and 2^48 - 1, unlike {self.millis}")
        if not 0 <= self.counter <= _MAX_COUNTER:
            raise LocalMisuse(f"a stamp's counter is within 0 and 65,535, unlike {self.counter}")

    def to_bytes(self) -> bytes:
        """``STAMP_SIZE`` bytes, big-endian, whose order as bytes is the stamps' order."""
        return self.millis.to_bytes(_MILLIS_SIZE, "big") + self.counter.to_bytes(_COUNTER_SIZE, "big") + self.peer

    @classmethod
    def from_bytes_untrusted(cls, data: bytes) -> Self:
        """The stamp that ``data`` encodes; ``PeerViolation`` if it is not ``STAMP_SIZE`` bytes long.

        Any bytes of that size are some stamp: whether its time is credible is for ``HybridLogicalClock.observe``.
        """
        if len(data) != STAMP_SIZE:
            raise PeerViolation(f"a stamp has {len(data)} bytes, not {STAMP_SIZE}")
        counter_at, peer_at = _MILLIS_SIZE, _MILLIS_SIZE + _COUNTER_SIZE
        return cls(
            int.from_bytes(data[:counter_at], "big"),
            int.from_bytes(data[counter_at:peer_at], "big"),
            PeerId(data[peer_at:]),
        )


class HybridLogicalClock:
    """One peer's clock. Every stamp it returns is later than every one it returned or observed before."""

    __slots__ = ("_counter", "_millis", "_now_millis", "_peer")

    def __init__(self, peer: PeerId, now_millis: Callable[[], int]) -> None:
        """``now_millis``: the wall clock, in milliseconds since 1970. It may jump, backwards too."""
        self._peer = peer
        self._now_millis = now_millis
        self._millis = 0
        self._counter = 0

    def tick(self) -> Stamp:
        """The stamp of a local event or of a message about to be sent.

        Raises ``LocalMisuse`` where the wall clock shows more than 48 bits, ``LimitExceeded`` where all stamps are used
        up.
        """
        return self._advance(self._wall_millis(), self._millis, self._counter)

    def observe(self, remote: Stamp) -> Stamp:
        """The stamp of the receipt of something stamped ``remote``: later than it, and than all stamps before.

        Raises ``PeerViolation``, and changes nothing, where ``remote`` is more than ``MAX_STAMP_AHEAD_MILLIS`` ahead of
        the wall clock; otherwise what ``tick`` raises.
        """
        wall = self._wall_millis()
        ahead = remote.millis - wall
        if ahead > MAX_STAMP_AHEAD_MILLIS:
            raise PeerViolation(
                f"a stamp of {remote.peer.short} is {ahead:,} ms ahead of this peer's clock; "
                f"at most {MAX_STAMP_AHEAD_MILLIS:,} are allowed: set the clocks by NTP"
            )
        millis, counter = max((self._millis, self._counter), (remote.millis, remote.counter))
        return self._advance(wall, millis, counter)

    def _wall_millis(self) -> int:
        wall = self._now_millis()
        if wall > _MAX_MILLIS:
            raise LocalMisuse(f"the wall clock shows {wall} ms since 1970, more than 48 bits hold: set it right")
        return wall

    def _advance(self, wall: int, millis: int, counter: int) -> Stamp:
        """The first stamp that is neither before ``wall`` nor at or before (``millis``, ``counter``)."""
        if wall > millis:
            millis, counter = wall, 0
        elif counter < _MAX_COUNTER:
            counter += 1
        elif millis < _MAX_MILLIS:
            millis, counter = millis + 1, 0
        else:
            raise LimitExceeded("the hybrid logical clock has no later stamp: every millisecond of 48 bits is used up")
        self._millis, self._counter = millis, counter
        return Stamp(millis, counter, self._peer)
