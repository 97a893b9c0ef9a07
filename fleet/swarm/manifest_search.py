"""Finding the manifest of an artifact of which only the root is known. Sans-IO.

Each neighbour is sent a JOIN. Of those that answer with a BITFIELD one at a time is asked for the manifest's pages, so
that a forged page has one author; who has timed out is asked after those that have not. What neighbours offer meanwhile
is kept for the download: it cannot be checked before the manifest is here.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

from fleet.errors import PeerViolation
from fleet.swarm.effects import Effect, ManifestFound, Say, TimedOut
from fleet.swarm.manifest import ManifestAssembler
from fleet.swarm.source import MAX_TIMEOUT
from fleet.wire.messages import Bitfield, Choke, Have, Join, Leave, ManifestPage, Message, Unchoke, WantManifest

if TYPE_CHECKING:
    import random

    from fleet.identity.keys import PeerId

MANIFEST_TIMEOUT: Final = 5.0
"""Seconds a neighbour has for one page of the manifest before the next neighbour is asked; doubles each time."""


@dataclass(slots=True)
class Early:
    """What a neighbour said before the manifest was known."""

    bits: bytearray | None = None
    """Its BITFIELD, with its later HAVEs marked in it."""
    choked: bool = False


class ManifestSearch:
    """One artifact's manifest, from its root. Methods take ``now`` and return effects."""

    def __init__(self, root: bytes, rng: random.Random) -> None:
        self.asked: PeerId | None = None
        """Who is asked for pages now."""
        self._root = root
        self._rng = rng
        self._early: dict[PeerId, Early] = {}
        self._assembler: ManifestAssembler | None = None
        self._found = False
        self._due = inf
        self._strikes: Counter[PeerId] = Counter()

    # --- neighbours ---

    def neighbour_up(self, peer: PeerId) -> list[Effect]:
        """A neighbour appeared: it is asked whether it takes part."""
        self._early[peer] = Early()
        return [Say(peer, Join(self._root))]

    def neighbour_down(self, peer: PeerId, now: float) -> list[Effect]:
        """A neighbour is gone."""
        self._early.pop(peer, None)
        self._strikes.pop(peer, None)
        return self._without(peer, now)

    def _without(self, peer: PeerId, now: float) -> list[Effect]:
        if self.asked != peer:
            return []
        self.asked = None
        return self._ask(now)

    def end(self) -> dict[PeerId, Early]:
        """Hand over what neighbours have said. The search is over."""
        self._found = True
        self.asked = None
        self._due = inf
        early, self._early = self._early, {}
        return early

    # --- messages ---

    def handle_untrusted(self, peer: PeerId, message: Message, now: float) -> list[Effect]:
        """Take a message about this artifact from a neighbour; wrong input raises ``PeerViolation``."""
        match message:
            case Bitfield():
                # Its length cannot be checked before the manifest is here; the registry has capped it.
                early = self._early.setdefault(peer, Early())
                early.bits = bytearray(message.bits)
                return self._ask(now)
            case Have():
                self._have_untrusted(peer, message.pieces)
            case Choke() | Unchoke():
                self._early.setdefault(peer, Early()).choked = isinstance(message, Choke)
            case ManifestPage():
                return self._page_untrusted(peer, message, now)
            case Leave():
                self._early[peer] = Early()
                return self._without(peer, now)
            case _:
                pass
        return []

    def _have_untrusted(self, peer: PeerId, pieces: tuple[int, ...]) -> None:
        early = self._early.get(peer)
        if early is None or early.bits is None:
            return  # on its way since before this side left and came back: its BITFIELD will say it again
        if max(pieces) >= 8 * len(early.bits):
            raise PeerViolation(f"a HAVE of piece {max(pieces)}, beyond its BITFIELD", peer)
        for piece in pieces:
            early.bits[piece // 8] |= 0x80 >> piece % 8

    def _page_untrusted(self, peer: PeerId, page: ManifestPage, now: float) -> list[Effect]:
        if peer != self.asked or self._assembler is None or page.page != self._assembler.next_page:
            return []  # late: it was given up, or answers an earlier request for the same pages
        try:
            manifest = self._assembler.add_page_untrusted(page.size, page.piece_size, page.page, page.hashes)
        except PeerViolation as violation:
            violation.peer = peer
            raise
        self._due = now + self._patience(peer)
        if manifest is None:
            return [Say(peer, WantManifest(self._root, self._assembler.next_page))]
        self._assembler = None
        self._found = True
        self.asked = None
        self._due = inf
        return [ManifestFound(manifest)]

    # --- asking ---

    def _ask(self, now: float) -> list[Effect]:
        if self.asked is not None or self._found:
            return []
        holders = [peer for peer, early in self._early.items() if early.bits is not None]
        if not holders:
            self._due = inf
            return []
        least = min(self._strikes[peer] for peer in holders)
        best = [peer for peer in holders if self._strikes[peer] == least]
        self.asked = best[self._rng.randrange(len(best))]
        self._assembler = ManifestAssembler(self._root)
        self._due = now + self._patience(self.asked)
        return [Say(self.asked, WantManifest(self._root, 0))]

    def _patience(self, peer: PeerId) -> float:
        """Doubles, as a neighbour that needs longer for each page would else never get through with them all."""
        return float(min(MANIFEST_TIMEOUT * 2 ** min(self._strikes[peer], 8), MAX_TIMEOUT))

    # --- time ---

    def next_deadline(self) -> float:
        """When ``on_timer`` is next due."""
        return self._due

    def on_timer(self, now: float) -> list[Effect]:
        """Ask the next neighbour when the one that is asked takes too long."""
        late = self.asked
        if late is None or now < self._due:
            return []
        self._strikes[late] += 1
        return [TimedOut(late, 0), *self._without(late, now)]
