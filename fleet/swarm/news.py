"""News of pieces on its way to the neighbours: kept back a little, to travel with requests. Pure state.

A swarm spreads a piece at the pace of its news. But a frame costs far more than all else about a HAVE, and where the
processor is what everyone waits for, one frame more delays them all. So news waits as interrupts do under load (Mogul
and Ramakrishnan, ACM TOCS 1997): hardly at all while the processor is idle, and for company while it is busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId

HAVE_SOONEST: Final = 0.04
HAVE_LATEST: Final = 0.25
"""Seconds for which news of a piece waits for company: at least the first, and the second where the neighbour's
requests wait here (its choice can wait too) or ours wait there (a request that will carry the news is about to go)."""
HAVE_FRACTION: Final = 1 / 4
"""Else it waits for this part of the time that the download has taken so far."""
HAVE_IDLE: Final = 0.005
HAVE_LAGS: Final = 32
"""But never for more than so many times what is due waits for the processor, or for these seconds, if they are more:
pieces that come together are told together."""


class News:
    """What each neighbour has not heard yet."""

    def __init__(self) -> None:
        self._pieces: dict[PeerId, dict[bytes, list[int]]] = {}
        self._due: dict[PeerId, float] = {}

    def add(
        self, peer: PeerId, root: bytes, piece: int | None, now: float, *, age: float, busy: bool, lag: float
    ) -> float:
        """A piece is news to ``peer``, or with None the manifest; returns when a frame for it is due.

        ``age``: seconds since the download began. ``busy``: requests of either side wait at the other. ``lag``: seconds
        for which what is due waits for the processor.
        """
        pieces = self._pieces.setdefault(peer, {}).setdefault(root, [])
        if piece is not None:
            pieces.append(piece)
        if peer not in self._due:
            patience = HAVE_LATEST if busy else min(HAVE_LATEST, max(HAVE_SOONEST, HAVE_FRACTION * age))
            self._due[peer] = now + min(patience, max(HAVE_IDLE, HAVE_LAGS * lag))
        return self._due[peer]

    def take(self, peer: PeerId) -> dict[bytes, list[int]]:
        """All news for ``peer``, pieces by root (none: the manifest alone is news): a frame is about to go."""
        self._due.pop(peer, None)
        return self._pieces.pop(peer, {})

    def overdue(self, now: float) -> list[PeerId]:
        """Neighbours for whom a frame is due; each is named once for the news it has waiting."""
        late = [peer for peer, due in self._due.items() if due <= now]
        for peer in late:
            del self._due[peer]
        return late

    def forget_neighbour(self, peer: PeerId) -> None:
        """A neighbour is gone."""
        self.take(peer)

    def forget_artifact(self, root: bytes) -> None:
        """There is nothing more to tell of an artifact."""
        for pieces in self._pieces.values():
            pieces.pop(root, None)

    def next_deadline(self) -> float:
        """When a frame is next due; infinity when none is."""
        return min(self._due.values(), default=float("inf"))
