"""What a peer fetches: performs what the downloads decide, makes their stores, takes their pieces in."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

import trio

from fleet.environment import off_loop_checkpoint
from fleet.errors import FleetError
from fleet.swarm.download import Download
from fleet.swarm.effects import Effect, Finished, ManifestFound, Say, TimedOut
from fleet.swarm.intake import Intake
from fleet.swarm.piece_store import PieceStore

if TYPE_CHECKING:
    import random

    from fleet.environment import Environment
    from fleet.identity.keys import PeerId
    from fleet.net.neighbour import Neighbour
    from fleet.storage import Storage
    from fleet.swarm.announcing import Announcing
    from fleet.swarm.context import SwarmContext
    from fleet.swarm.holding import Holding
    from fleet.swarm.manifest import Manifest
    from fleet.swarm.serving import Serving
    from fleet.wire.messages import SwarmMessage


class Fetching:
    """All that one peer fetches."""

    def __init__(
        self,
        context: SwarmContext,
        announcing: Announcing,
        serving: Serving,
        environment: Environment,
        storage: Storage,
        rng: Callable[[str], random.Random],
        start_soon: Callable[..., object],
    ) -> None:
        """``rng(purpose)`` draws on the peer's seed; ``start_soon`` starts a task in the peer's nursery."""
        self._context = context
        self._announcing = announcing
        self._serving = serving
        self._environment = environment
        self._storage = storage
        self._rng = rng
        self._start_soon = start_soon
        self._intake = Intake(self, context.holdings.by_root, environment.scratch)
        self._next_id = 0
        self._opening = trio.Lock()
        """Held while files are made or reopened: two fetches of one artifact, one after the other, share them."""

    # --- artifacts ---

    async def start(self, holding: Holding) -> bool:
        """Resume from this peer's store, or begin anew. False when the peer has left or stopped meanwhile."""
        root = holding.root
        now = trio.current_time()
        holding.started_at = holding.progress_at = now
        try:
            async with self._opening:
                store = None
                if PieceStore.is_stored(self._storage, root):
                    store = await self._environment.off_loop(
                        lambda: PieceStore.reopen(self._storage, root, lambda _: off_loop_checkpoint())
                    )
        except BaseException:
            self._context.holdings.forget(holding)
            raise
        if not self._context.holdings.current(holding):
            if store is not None:
                store.close()
            return False
        # Not earlier: it would ask for a manifest, and make the store that is being reopened.
        holding.download = Download(root, self._rng(f"picker {root.hex()}"), self._take_ids)
        if store is not None:
            if store.recovered is not None:
                self._context.trace.emit(
                    "resumed",
                    root=root.hex(),
                    kept=store.recovered.kept,
                    dropped=store.recovered.dropped,
                    journal_bytes_cut=store.recovered.journal_bytes_cut,
                )
            self._begin(holding, store)
        return True

    async def _make_store(self, holding: Holding, manifest: Manifest) -> None:
        try:
            async with self._opening:
                if not self._context.holdings.current(holding):
                    return  # a later fetch has looked for the store meanwhile, and will make it itself
                store = await self._environment.off_loop(lambda: PieceStore.create(self._storage, manifest))
        except FleetError as error:
            self.fail(holding, error)
            return
        if not self._context.holdings.current(holding):
            store.close()
            return
        self._begin(holding, store)
        if holding.complete:  # no piece will ever be news of an empty artifact
            for neighbour in self._context.neighbours.values():
                self._announcing.send_bitfield(holding, neighbour)

    def _begin(self, holding: Holding, store: PieceStore) -> None:
        holding.store = store
        download = holding.download
        if download is None:
            return
        now = trio.current_time()
        holding.progressed(now)
        effects, violations = download.begin(store.manifest, store.have, now)
        root, manifest = holding.root.hex(), store.manifest
        self._context.trace.emit("manifest", root=root, pieces=manifest.pieces, held=store.verified_count)
        self.perform(holding, effects)
        for peer in holding.members:
            if peer not in holding.told and peer not in download.sources:
                # It may lack the manifest, and without it can ask for nothing: its wait is the whole swarm's.
                self._announcing.add_news(holding, peer, None, now, busy=False)
        for violation in violations:
            if violation.peer in self._context.neighbours:
                self._context.neighbours[violation.peer].end(violation)

    def _take_ids(self, count: int) -> int:
        first = self._next_id
        self._next_id = (first + count) % 2**32
        return first

    # --- neighbours ---

    def introduce(self, holding: Holding, peer: PeerId) -> None:
        """Tell the download of a neighbour."""
        if holding.download is not None:
            self.perform(holding, holding.download.neighbour_up(peer))

    def forget_member(self, holding: Holding, peer: PeerId) -> None:
        """A neighbour takes no part any more."""
        if holding.download is not None:
            self.perform(holding, holding.download.neighbour_down(peer, trio.current_time()))

    def neighbour_down(self, peer: PeerId) -> None:
        """Nothing more will come from a neighbour."""
        self._intake.neighbour_down(peer)

    def cast_adrift(self, holding: Holding, peer: PeerId) -> int:
        """Nobody waits any more for what ``peer`` owes for this artifact; returns how much it owes so by now."""
        return self._intake.cast_adrift(holding, peer)

    # --- messages ---

    def handle_untrusted(self, holding: Holding, peer: PeerId, message: SwarmMessage) -> None:
        """Take a message about an artifact."""
        if holding.download is not None and holding.failure is None:
            self.perform(holding, holding.download.handle_untrusted(peer, message, trio.current_time()))

    def rejected_untrusted(self, peer: PeerId, ids: tuple[int, ...]) -> None:
        """A neighbour refuses requests, of whichever artifact."""
        self._intake.rejected(peer, ids)
        for holding in self._context.holdings.by_root.values():
            if holding.download is not None:
                now = trio.current_time()
                self.perform(holding, holding.download.rejected_untrusted(peer, ids, now))

    # --- pieces in ---

    async def bulk_receive(self, neighbour: Neighbour) -> None:
        """Receive pieces until the link ends."""
        await self._intake.receive(neighbour)

    def verified(self, holding: Holding, piece: int, source: PeerId, now: float) -> None:
        """See ``intake.Owner``."""
        holding.verified_at.append(now)
        self._context.trace.emit("piece", piece=piece, source=source.short)
        download = holding.download
        for peer in holding.members:
            if download is not None and download.known_to_hold(peer, piece):
                continue  # no news to it
            busy = self._serving.owes(peer) or (download is not None and download.waits_for(peer))
            self._announcing.add_news(holding, peer, piece, now, busy=busy)

    def fail(self, holding: Holding, error: FleetError) -> None:
        """See ``intake.Owner``."""
        self._context.fail(holding, error)

    def perform(self, holding: Holding, effects: list[Effect]) -> None:
        """See ``intake.Owner``."""
        for effect in effects:
            match effect:
                case Say(peer, message):
                    if peer in self._context.neighbours:
                        self._context.neighbours[peer].send(message)
                case ManifestFound(manifest):
                    self._start_soon(self._make_store, holding, manifest)
                case TimedOut(peer, count):
                    self._context.trace.emit("source_timed_out", source=peer.short, pieces=count)
                case Finished():
                    holding.finished_at = trio.current_time()
                    self._context.trace.emit("complete", root=holding.root.hex(), pieces=holding.verified)
                    holding.settle()
        self._context.alarm.reconsider()

    # --- time ---

    def next_deadline(self) -> float:
        """When ``on_timer`` is next due for some artifact."""
        now = trio.current_time()
        downloads = (holding.download for holding in self._context.holdings.by_root.values())
        return min((download.next_deadline(now) for download in downloads if download is not None), default=inf)

    def on_timer(self, holding: Holding, now: float) -> None:
        """Let its download give up what is overdue."""
        if holding.download is not None:
            self.perform(holding, holding.download.on_timer(now))
