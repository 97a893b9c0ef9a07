"""What the origin of an artifact offers to whom: at first, each piece to one neighbour only.

Super-seeding (BEP 16): the origin's upload is the scarcest resource of a young swarm, so it sends no piece twice before
every piece has gone out once. It reveals to each neighbour a few pieces that it reveals to nobody else, and more as
these are sent. A neighbour that is slow to ask loses its offers to one with nothing left to ask for; one that asks and
does not read loses them after ``STALE_SECONDS``. An offer that has changed hands is left with its new holder for a
while, longer each time, or several idle neighbours would take it from each other faster than any of them could ask.
What a neighbour leaves lying, perhaps because it holds the piece already, does not keep it from being offered others.
When every piece has gone out once everything is revealed to everyone. Pure state: ``now`` is an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
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
MOVED_SECONDS: Final = 0.1
"""For so long an offer that was taken from one neighbour is its new holder's to ask for; doubles with each move."""


@dataclass(slots=True)
class _Offer:
    peer: PeerId
    since: float
    moves: int = 0
    asked: bool = False

    @property
    def stale_at(self) -> float:
        return self.since + STALE_SECONDS

    @property
    def free_at(self) -> float:
        """From when on somebody else may take it."""
        if self.asked:
            return self.stale_at
        return self.since + (min(STALE_SECONDS, MOVED_SECONDS * 2 ** min(self.moves, 8)) if self.moves else 0.0)


class SuperSeed:
    """The offers of an origin until every piece has gone out once."""

    def __init__(self, pieces: int, rng: random.Random) -> None:
        order = list(range(pieces))
        rng.shuffle(order)
        self._pieces = pieces
        self._pool = deque(order)
        self._offers: dict[int, _Offer] = {}
        self._revealed: dict[PeerId, NDArray[np.bool_]] = {}
        self._unsent = np.ones(pieces, dtype=np.bool_)
        self._left = pieces
        self._reveal_at = float("inf")
        self._looked: dict[PeerId, float] = {}
        """When ``more`` was last tried for each neighbour."""

    @property
    def unsent(self) -> NDArray[np.bool_]:
        """The pieces that have not gone out yet, shape (pieces,). Not to be written."""
        return self._unsent

    def done(self, now: float) -> bool:
        """True when every piece has gone out once and the news had time to spread: reveal all, and forget this."""
        return not self._left and now >= self._reveal_at

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
        if self._unsent[piece]:
            self._unsent[piece] = False
            self._left -= 1
            self._reveal_at = now + SPREAD_SECONDS

    def held_elsewhere(self, pieces: Iterable[int], now: float) -> None:
        """A neighbour says that it holds these pieces: they have gone out, whoever sent them.

        Who has resumed never asks for them, and another seeder leaves nothing to spread. A lie costs bytes only: what
        super-seeding would have saved.
        """
        for piece in pieces:
            self.sent(piece, now)

    def more(self, peer: PeerId, neighbours: int, now: float) -> list[int]:
        """Reveal further pieces to ``peer`` until it has enough to ask for; returns the new ones."""
        revealed = self._revealed.get(peer)
        if revealed is None:
            return []
        self._looked[peer] = now
        target = max(1, min(AHEAD, -(-self._pieces // max(1, neighbours))))
        mine = sum(offer.peer == peer and now < offer.stale_at for offer in self._offers.values())
        new: list[int] = []
        while self._pool and mine + len(new) < target:
            piece = self._pool.popleft()
            if self._unsent[piece]:
                new.append(piece)
        if not new and not mine:
            new = self._takeable(peer, target, now)
        for piece in new:
            taken = self._offers.pop(piece, None)
            if taken is not None:
                self._revealed[taken.peer][piece] = False
            self._offers[piece] = _Offer(peer, now, 0 if taken is None else taken.moves + 1)
            revealed[piece] = True
        return new

    def _takeable(self, peer: PeerId, target: int, now: float) -> list[int]:
        """The oldest offers that others may lose to ``peer``: as many stale ones as it can use, else one."""
        free = [(piece, o) for piece, o in self._offers.items() if o.peer != peer and now >= o.free_at]
        stale = [piece for piece, offer in free if now >= offer.stale_at]
        return stale[:target] or [piece for piece, _ in free[:1]]

    def remove(self, peer: PeerId) -> None:
        """A neighbour is gone: what was revealed to it and not sent goes back to the pool, and what was sent to it may
        be gone too, so the end of super-seeding waits no longer than it must.
        """
        self._reveal_at = min(self._reveal_at, 0.0)
        self._revealed.pop(peer, None)
        self._looked.pop(peer, None)
        for piece, offer in list(self._offers.items()):
            if offer.peer == peer:
                del self._offers[piece]
                self._pool.appendleft(piece)

    def next_deadline(self) -> float:
        """When an offer next becomes free or stale and ``more`` is worth a try for everyone, or ``done`` is.

        In the past when ``more`` has not been tried for everyone since then.
        """
        if not self._left:
            return self._reveal_at
        looked = min(self._looked.values(), default=float("inf"))
        changes = (at for offer in self._offers.values() for at in (offer.free_at, offer.stale_at) if at > looked)
        return min(changes, default=float("inf"))
