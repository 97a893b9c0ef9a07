"""What the origin of an artifact offers to whom: at first, each piece to one neighbour only.

Super-seeding (BEP 16): the origin's upload is the scarcest resource of a young swarm, so it sends no piece twice before
every piece has gone out once. It reveals to each neighbour a few pieces that it reveals to nobody else, and more as
these are sent. A neighbour that is slow to ask loses its offers to one with nothing left to ask for; one that asks and
does not read loses them after ``STALE_SECONDS``. When every piece has gone out once everything is revealed to everyone.
Pure state: ``now`` is an argument.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import random

    from numpy.typing import NDArray

    from fleet.identity.keys import PeerId

AHEAD: Final = 8
"""Unsent pieces revealed to one neighbour at a time: twice the least window of requests."""
SPREAD_SECONDS: Final = 0.2
"""From the last piece's first sending until everything is revealed: its receiver's HAVE must come first, or everyone
would ask the origin for it once more."""
STALE_SECONDS: Final = 2.0
"""A revealed piece that has not been sent for so long is revealed to someone else too."""


@dataclass(slots=True)
class _Offer:
    peer: PeerId
    since: float
    asked: bool = False


class SuperSeed:
    """The offers of an origin until every piece has gone out once."""

    def __init__(self, pieces: int, rng: random.Random) -> None:
        order = list(range(pieces))
        rng.shuffle(order)
        self._pieces = pieces
        self._pool = deque(order)
        self._offers: dict[int, _Offer] = {}
        self._revealed: dict[PeerId, NDArray[np.bool_]] = {}
        self._unsent = set(order)
        self._reveal_at = float("inf")

    def done(self, now: float) -> bool:
        """True when every piece has gone out once and the news had time to spread: reveal everything, and forget this."""
        return not self._unsent and now >= self._reveal_at

    def bitfield(self, peer: PeerId, neighbours: int, now: float) -> NDArray[np.bool_]:
        """What ``peer`` is told at first: shape (pieces,). ``neighbours`` is how many there are to share the pieces."""
        if peer not in self._revealed:
            self._revealed[peer] = np.zeros(self._pieces, dtype=np.bool_)
            self.more(peer, neighbours, now)
        return self._revealed[peer].copy()

    def may_serve(self, peer: PeerId, piece: int) -> bool:
        """Whether this piece has been revealed to ``peer`` and is still its to ask for. Notes that it asked."""
        revealed = self._revealed.get(peer)
        if revealed is None or not revealed[piece]:
            return False
        offer = self._offers.get(piece)
        if offer is None:
            return True
        offer.asked = offer.asked or offer.peer == peer
        return offer.peer == peer

    def sent(self, piece: int, now: float) -> None:
        """The piece has gone out."""
        self._offers.pop(piece, None)
        if piece in self._unsent:
            self._unsent.remove(piece)
            self._reveal_at = now + SPREAD_SECONDS

    def more(self, peer: PeerId, neighbours: int, now: float) -> list[int]:
        """Reveal further pieces to ``peer`` until it has enough to ask for; returns the new ones."""
        revealed = self._revealed.get(peer)
        if revealed is None:
            return []
        target = max(1, min(AHEAD, -(-self._pieces // max(1, neighbours))))
        mine = sum(offer.peer == peer for offer in self._offers.values())
        new: list[int] = []
        while self._pool and mine + len(new) < target:
            new.append(self._pool.popleft())
        if not new and not mine:
            new = [piece for piece, offer in self._offers.items() if not offer.asked or self._stale(offer, now)][:1]
        for piece in new:
            self._offers[piece] = _Offer(peer, now)
            revealed[piece] = True
        return new

    def _stale(self, offer: _Offer, now: float) -> bool:
        return now >= offer.since + STALE_SECONDS

    def remove(self, peer: PeerId) -> None:
        """A neighbour is gone: what was revealed to it and not sent goes back to the pool, and what was sent to it may
        be gone too, so the end of super-seeding waits no longer than it must.
        """
        self._reveal_at = min(self._reveal_at, 0.0)
        self._revealed.pop(peer, None)
        for piece, offer in list(self._offers.items()):
            if offer.peer == peer:
                del self._offers[piece]
                self._pool.appendleft(piece)

    def next_deadline(self) -> float:
        """When an offer next turns stale and ``more`` is worth a try for everyone, or ``done`` is."""
        if not self._unsent:
            return self._reveal_at
        return min((offer.since for offer in self._offers.values()), default=float("inf")) + STALE_SECONDS
