"""The pieces and manifests that neighbours ask of a peer: one queue for each neighbour, answered in its order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleet.errors import PeerViolation, StorageFailed
from fleet.swarm.manifest import page, pages
from fleet.swarm.upload import UploadQueue
from fleet.wire.frame import piece_header
from fleet.wire.messages import Leave, ManifestPage, Reject, Request

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.net.neighbour import Neighbour
    from fleet.swarm.announcing import Announcing
    from fleet.swarm.context import SwarmContext
    from fleet.swarm.holding import Holding


class Serving:
    """All that one peer serves."""

    def __init__(self, context: SwarmContext, announcing: Announcing) -> None:
        self._context = context
        self._announcing = announcing
        self._queues: dict[PeerId, UploadQueue] = {}

    # --- neighbours ---

    def neighbour_up(self, peer: PeerId) -> None:
        """A new neighbour may ask."""
        self._queues[peer] = UploadQueue(peer)

    def neighbour_down(self, peer: PeerId) -> None:
        """A neighbour is gone, and what it asked for is owed to nobody."""
        del self._queues[peer]

    def owes(self, peer: PeerId) -> bool:
        """Whether requests of this neighbour wait."""
        return len(self._queues[peer]) > 0

    # --- what they ask ---

    def manifest_untrusted(self, holding: Holding, neighbour: Neighbour, number: int) -> None:
        """Answer a request for a page of the manifest."""
        if holding.store is None or holding.failure is not None:
            neighbour.send(Leave(holding.root))
            return
        manifest = holding.store.manifest
        if number >= pages(manifest):
            raise PeerViolation(f"asks for page {number} of a manifest of {pages(manifest)}", neighbour.peer)
        hashes = page(manifest, number)
        neighbour.send(ManifestPage(holding.root, manifest.size, manifest.piece_size, number, hashes))

    def request_untrusted(self, holding: Holding, neighbour: Neighbour, request: Request) -> None:
        """Queue what can be served, and refuse the rest."""
        store = holding.store
        if store is None or holding.choked or holding.failure is not None:
            self.refuse(neighbour.peer, request)
            return
        if max(request.pieces) >= store.manifest.pieces:
            raise PeerViolation(
                f"asks for piece {max(request.pieces)} of {store.manifest.pieces}",
                neighbour.peer,
            )
        queue = self._queues[neighbour.peer]
        refused: list[int] = []
        for number, piece in enumerate(request.pieces):
            request_id = (request.first_id + number) % 2**32
            seed = holding.super_seed
            if store.have[piece] and (seed is None or seed.may_serve(neighbour.peer, piece)):
                queue.request_untrusted(request.root, request_id, (piece,))
            else:
                refused.append(request_id)
        self._reject(neighbour.peer, tuple(refused))
        neighbour.wake_upload()

    def refuse(self, peer: PeerId, request: Request) -> None:
        """Answer a request with no."""
        ids = tuple((request.first_id + number) % 2**32 for number in range(len(request.pieces)))
        self._reject(peer, ids)

    def cancel(self, peer: PeerId, ids: tuple[int, ...]) -> None:
        """A neighbour takes requests back; those that still wait are answered with a REJECT."""
        self._reject(peer, self._queues[peer].cancel(ids))

    def drop(self, holding: Holding, peer: PeerId) -> None:
        """REJECT all that waits of an artifact, so that nobody waits for it."""
        self._reject(peer, self._queues[peer].drop(holding.root))

    def _reject(self, peer: PeerId, ids: tuple[int, ...]) -> None:
        if ids:
            self._context.neighbours[peer].send(Reject(ids))

    # --- pieces out ---

    async def bulk_send(self, neighbour: Neighbour) -> None:
        """Send what the neighbour asked for, in its order."""
        queue = self._queues[neighbour.peer]
        link = neighbour.bulk_link
        while True:
            owed = queue.next()
            if owed is None:
                await neighbour.upload_wanted()
                continue
            holding = self._context.holdings.by_root.get(owed.root)
            if holding is None or holding.store is None or holding.failure is not None:
                self._reject(neighbour.peer, (owed.request_id,))
                continue
            try:
                holding.store.check_unchanged()
            except StorageFailed as error:
                # Now, while no byte of the piece is out: cut short, it would cost the link, and wrong, a ban.
                self._context.fail(holding, error)
                self._reject(neighbour.peer, (owed.request_id,))
                continue
            manifest = holding.store.manifest
            length = manifest.piece_length(owed.piece)
            header = piece_header(owed.request_id, length)
            holding.sending += 1
            try:
                await link.send_file(holding.store.file, manifest.piece_offset(owed.piece), length, header)
            except StorageFailed as error:
                self._context.fail(holding, error)
                raise
            finally:
                holding.sending -= 1
                holding.close_unless_sending()
            holding.count_served(neighbour.peer, length)
            self._announcing.sent(holding, neighbour.peer, owed.piece)
