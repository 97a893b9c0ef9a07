"""Pieces on their way in, at one peer: from the bulk links into the stores.

Each block is hashed and written as it arrives, while it is still in the processor's cache; nothing holds a piece. The
two links of a neighbour are not in step, so an answer may arrive after the download that asked for it is over, or after
the neighbour said LEAVE: it is *adrift*, known and drained, not unsolicited.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import blake3
import trio

from fleet.errors import FleetError, LinkBroken, PeerViolation, StorageFailed
from fleet.swarm.pens import Incoming
from fleet.wire.frame import PieceReader

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.net.neighbour import Neighbour
    from fleet.swarm.effects import Effect
    from fleet.swarm.holding import Holding
    from fleet.swarm.source import Ask


class Owner(Protocol):
    """What the intake tells the transfer that it serves."""

    def fail(self, holding: Holding, error: FleetError) -> None:
        """The artifact's disk failed."""
        ...

    def verified(self, holding: Holding, piece: int, source: PeerId, now: float) -> None:
        """A piece matched its hash and is in the journal."""
        ...

    def perform(self, holding: Holding, effects: list[Effect]) -> None:
        """The download has decided."""
        ...


class Intake:
    """The pieces that all neighbours of one peer are sending to it."""

    def __init__(self, owner: Owner, holdings: dict[bytes, Holding], scratch: memoryview) -> None:
        """``holdings`` is the owner's own, by root; ``scratch`` is where links receive into."""
        self._owner = owner
        self._holdings = holdings
        self._scratch = scratch
        self._incoming: dict[PeerId, tuple[Holding, Incoming]] = {}
        self._adrift: dict[PeerId, dict[int, tuple[Holding, Ask, int]]] = {}

    # --- what is owed ---

    def cast_adrift(self, holding: Holding, peer: PeerId) -> int:
        """Nobody waits any more for what ``peer`` owes for this artifact; returns how much it owes so by now."""
        download = holding.download
        source = None if download is None else download.sources.get(peer)
        if download is not None and download.manifest is not None and source is not None:
            adrift = self._adrift.setdefault(peer, {})
            for ask in source.asks.values():
                if not ask.begun:
                    adrift[ask.id] = (holding, ask, download.manifest.piece_length(ask.piece))
        return len(self._adrift.get(peer, ()))

    def rejected(self, peer: PeerId, ids: tuple[int, ...]) -> None:
        """These answers are not on their way after all."""
        adrift = self._adrift.get(peer, {})
        for request_id in ids:
            adrift.pop(request_id, None)

    def neighbour_down(self, peer: PeerId) -> None:
        """Nothing more will come from a neighbour."""
        self._adrift.pop(peer, None)
        interrupted = self._incoming.pop(peer, None)
        if interrupted is not None:
            holding, incoming = interrupted
            if holding.download is not None:
                holding.download.spoiled(incoming, incoming.ask.received)

    # --- what comes ---

    async def receive(self, neighbour: Neighbour) -> None:
        """Receive pieces until the bulk link ends."""
        link = neighbour.bulk_link
        reader = PieceReader()
        data = memoryview(neighbour.bulk_rest)
        hasher = blake3.blake3()
        holding: Holding | None = None
        incoming: Incoming | None = None
        while True:
            while data:
                if holding is None or incoming is None:
                    header = reader.header_untrusted(data)
                    if header is None:
                        break
                    request_id, length, data = header
                    holding, incoming = self._begin_untrusted(neighbour.peer, request_id, length)
                    hasher = blake3.blake3()
                run, data = reader.body(data)
                self._take(holding, incoming, run, hasher)
                if reader.remaining == 0:
                    self._finish_untrusted(holding, incoming, hasher)
                    holding = incoming = None
            count = await link.receive_into(self._scratch)
            if count == 0:
                raise LinkBroken(f"{neighbour.peer.short} ended its bulk stream")
            data = self._scratch[:count]

    def _begin_untrusted(self, peer: PeerId, request_id: int, length: int) -> tuple[Holding, Incoming]:
        for holding in self._holdings.values():
            if holding.download is not None:
                incoming = holding.download.incoming_untrusted(peer, request_id, length)
                if incoming is not None:
                    self._incoming[peer] = (holding, incoming)
                    return holding, incoming
        if request_id in (adrift := self._adrift.get(peer, {})):
            holding, ask, expected = adrift.pop(request_id)
            if length != expected:
                raise PeerViolation(f"{length:,} bytes for piece {ask.piece}, which has {expected:,}", peer)
            return holding, Incoming(peer, ask, ask.piece, length, holds_pen=False)
        raise PeerViolation(f"an unsolicited piece (request {request_id})", peer)

    def _take(self, holding: Holding, incoming: Incoming, run: memoryview, hasher: blake3.blake3) -> None:
        now = trio.current_time()
        download, store = holding.download, holding.store
        holding.received_bytes += len(run)
        if download is None or store is None:
            return  # left or failed meanwhile: the rest of the piece drains
        if incoming.holds_pen:
            holding.progressed(now)
            hasher.update(run)
            try:
                store.write(incoming.piece, incoming.ask.received, run)
            except StorageFailed as error:
                self._owner.fail(holding, error)
                return
        download.bytes_arrived(incoming, len(run), now)

    def _finish_untrusted(self, holding: Holding, incoming: Incoming, hasher: blake3.blake3) -> None:
        self._incoming.pop(incoming.peer, None)
        download, store = holding.download, holding.store
        if download is None or store is None:
            return
        now = trio.current_time()
        if incoming.holds_pen:
            if hasher.digest() != store.manifest.piece_hash(incoming.piece):
                download.spoiled(incoming, incoming.length)
                raise PeerViolation(f"piece {incoming.piece} does not match its hash", incoming.peer)
            try:
                store.mark_verified(incoming.piece)
            except StorageFailed as error:
                self._owner.fail(holding, error)
                return
            self._owner.verified(holding, incoming.piece, incoming.peer, now)
        self._owner.perform(holding, download.completed(incoming, now))
