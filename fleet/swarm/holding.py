"""The artifacts that a peer takes part in: of each the store, the download, the offers, and counters for reports."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import trio

from fleet.errors import LinkBroken, LocalMisuse
from fleet.limits import MAX_ARTIFACTS, MAX_REMEMBERED_PEERS

if TYPE_CHECKING:
    from fleet.errors import FleetError
    from fleet.identity.keys import PeerId
    from fleet.swarm.download import Download
    from fleet.swarm.offers import SuperSeed
    from fleet.swarm.piece_store import PieceStore


class Holding:
    """One artifact that this peer takes part in. Wait for it with ``wait``; the counters are for reports."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.store: PieceStore | None = None
        self.download: Download | None = None
        self.super_seed: SuperSeed | None = None
        self.failure: FleetError | None = None
        self.choked = False
        self.let_go = False
        """Left or failed: the store closes once no piece of it is being sent."""
        self.sending = 0
        """Pieces being sent at this moment."""
        self.members: dict[PeerId, None] = {}
        """Neighbours known to take part, in the order in which they said so."""
        self.told: set[PeerId] = set()
        """Neighbours that have had a BITFIELD: to the others the first news of a piece is one. Never iterated."""
        self.started_at = 0.0
        self.finished_at: float | None = None
        self.progress_at = 0.0
        self.longest_stall = 0.0
        """Seconds: the longest time without progress while unfinished."""
        self.served: Counter[PeerId] = Counter()
        """Payload bytes sent, by neighbour; the oldest are forgotten beyond ``MAX_REMEMBERED_PEERS``."""
        self.received_bytes = 0
        """Payload bytes received, wanted or not."""
        self.verified_at: list[float] = []
        """When each verified piece became so, in order."""
        self._over = trio.Event()
        self._failed = trio.Event()

    @property
    def pieces(self) -> int | None:
        """How many pieces the artifact has; None while the manifest is unknown."""
        return None if self.store is None else self.store.manifest.pieces

    @property
    def verified(self) -> int:
        """How many pieces are held."""
        return 0 if self.store is None else self.store.verified_count

    @property
    def complete(self) -> bool:
        """Whether every piece is held."""
        return self.store is not None and self.store.complete

    def progressed(self, now: float) -> None:
        """Something came forward: the manifest, or bytes of a missing piece. While unfinished, this ends a stall."""
        if self.finished_at is None:
            self.longest_stall = max(self.longest_stall, now - self.progress_at)
            self.progress_at = now

    def count_served(self, peer: PeerId, count: int) -> None:
        """Note payload bytes sent. Whoever comes under ever new identities cannot grow this without end."""
        self.served[peer] += count
        if len(self.served) > MAX_REMEMBERED_PEERS:
            del self.served[next(iter(self.served))]

    def close_unless_sending(self) -> None:
        """Close the store of what was let go. A piece that is being sent goes out whole: cut short, it would cost the
        link.
        """
        if self.let_go and self.sending == 0 and self.store is not None:
            self.store.close()

    def settle(self, failure: FleetError | None = None) -> None:
        """The download is over, or failed."""
        self.failure = self.failure or failure
        if self.failure is not None:
            self._failed.set()
        self._over.set()

    async def fails(self) -> FleetError:
        """Return what made it impossible to go on with this artifact, once something has."""
        await self._failed.wait()
        assert self.failure is not None, "set before the event"  # noqa: S101
        return self.failure

    async def wait(self) -> None:
        """Return when every piece is held; raises what made that impossible (``StorageFailed``, ``LocalMisuse``)."""
        await self._over.wait()
        if self.failure is not None:
            raise self.failure

    def state(self) -> str:
        """One line for people: how far it is, and what it lacks."""
        if self.failure is not None:
            return f"failed: {self.failure}"
        if self.store is None:
            return "has no manifest: no neighbour has offered it"
        if self.complete:
            return f"complete, {self.pieces} pieces"
        nowhere = [] if self.download is None else self.download.nowhere()
        told = f"holds {self.verified} of {self.pieces} pieces"
        if not nowhere:
            return f"{told}; a neighbour offers each of the rest"
        some = ", ".join(map(str, nowhere[:12])) + (", …" if len(nowhere) > 12 else "")
        return f"{told}; no neighbour has {len(nowhere)} of the rest: {some}"


class Holdings:
    """The artifacts that one peer takes part in, until it stops."""

    def __init__(self, peer: str) -> None:
        self.by_root: dict[bytes, Holding] = {}
        self._peer = peer
        self._closed = False

    def add(self, root: bytes) -> Holding:
        """Take part in one more. ``LocalMisuse`` when the peer does so already, or in too many, or has stopped."""
        if self._closed:
            raise LocalMisuse(f"{self._peer} is not running: start it first")
        if root in self.by_root:
            raise LocalMisuse(f"this peer already takes part in {root.hex()[:16]}")
        if len(self.by_root) >= MAX_ARTIFACTS:
            raise LocalMisuse(f"a peer takes part in at most {MAX_ARTIFACTS} artifacts: leave one first")
        holding = self.by_root[root] = Holding(root)
        return holding

    def pop(self, root: bytes) -> Holding | None:
        """Take part in it no longer; returns what there was to leave."""
        return self.by_root.pop(root, None)

    def forget(self, holding: Holding) -> None:
        """Take no part in it after all."""
        if self.by_root.get(holding.root) is holding:
            del self.by_root[holding.root]

    def current(self, holding: Holding) -> bool:
        """Whether this peer, after a wait, still runs and takes part."""
        return not self._closed and self.by_root.get(holding.root) is holding

    def close(self) -> None:
        """Close every store. The peer has stopped."""
        self._closed = True
        for holding in self.by_root.values():
            if holding.store is not None:
                holding.store.close()
            if not holding.complete:
                holding.settle(LinkBroken(f"{self._peer} stopped before the artifact was complete"))
