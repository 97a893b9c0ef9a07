"""The swarm service of one peer: its artifacts, and who of its neighbours takes part in which.

An artifact that this peer takes part in is a ``Holding``: its store once the manifest is known, its download until
every piece is held, and, at the origin, its super-seeding. What the peer holds it announces (``announcing``); what its
neighbours ask for it serves (``serving``), and what it lacks it fetches (``fetching``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from fleet.environment import PeerTrace
from fleet.errors import FleetError, LimitExceeded, LocalMisuse
from fleet.limits import MAX_ANSWERS_ADRIFT
from fleet.swarm.alarm import Alarm
from fleet.swarm.announcing import Announcing
from fleet.swarm.context import SwarmContext
from fleet.swarm.fetching import Fetching
from fleet.swarm.holding import Holding, Holdings
from fleet.swarm.offers import SuperSeed
from fleet.swarm.piece_store import PieceStore
from fleet.swarm.serving import Serving
from fleet.wire.messages import (
    Bitfield,
    Cancel,
    Choke,
    Join,
    Leave,
    Reject,
    Request,
    SwarmMessage,
    Unchoke,
    WantManifest,
)

if TYPE_CHECKING:
    import random

    from fleet.environment import Environment
    from fleet.identity.keys import PeerId
    from fleet.net.neighbour import Neighbour
    from fleet.storage import File, Storage
    from fleet.swarm.manifest import Manifest


class Transfer:
    """All artifacts of one peer."""

    def __init__(
        self,
        environment: Environment,
        storage: Storage,
        name: str,
        rng: Callable[[str], random.Random],
        start_soon: Callable[..., object],
    ) -> None:
        """``rng(purpose)`` draws on the peer's seed; ``start_soon`` starts a task in the peer's nursery."""
        self._rng = rng
        self._trace = PeerTrace(environment.trace, name)
        self._neighbours: dict[PeerId, Neighbour] = {}
        self._registry = Holdings(name)
        self._alarm = Alarm(self._next_deadline)
        context = SwarmContext(self._registry, self._neighbours, self._trace, self._alarm, self._fail)
        self._announcing = Announcing(context)
        self._serving = Serving(context, self._announcing)
        self._fetching = Fetching(context, self._announcing, self._serving, environment, storage, rng, start_soon)

    # --- artifacts ---

    @property
    def holdings(self) -> dict[bytes, Holding]:
        """Read-only: the artifacts by root."""
        return self._registry.by_root

    def share(self, manifest: Manifest, file: File, *, super_seed: bool = True) -> Holding:
        """Serve a file that ``manifest`` was just made from, read in place."""
        store = PieceStore.adopt(file, manifest)
        holding = self._registry.add(manifest.root)
        holding.store = store
        if super_seed and manifest.pieces:
            holding.super_seed = SuperSeed(manifest.pieces, self._rng(f"super-seed {manifest.root.hex()}"))
        holding.settle()
        for neighbour in self._neighbours.values():
            self._introduce(holding, neighbour)
        return holding

    async def fetch(self, root: bytes) -> Holding:
        """Take part in a swarm: resume from this peer's store, fetch what is missing, serve what is held."""
        holding = self._registry.add(root)
        if await self._fetching.start(holding):
            resumed = holding.store is not None
            for neighbour in self._neighbours.values():
                self._introduce(holding, neighbour)
                if resumed:
                    # What it said while the store was reopened met no download, and it will not say it again unasked.
                    neighbour.send(Join(root))
        return holding

    def leave(self, root: bytes) -> None:
        """Stop serving and fetching an artifact; its files stay."""
        holding = self._registry.pop(root)
        if holding is None:
            return
        self._let_go(holding)
        holding.settle(LocalMisuse("this peer left the swarm before the artifact was complete"))

    def choke(self, root: bytes, choked: bool = True) -> None:
        """Pause serving an artifact to everyone, or resume. What waits is REJECTed, so that nobody waits for it."""
        holding = self.holdings.get(root)
        if holding is None:
            raise LocalMisuse(f"this peer does not hold {root.hex()[:16]}: share or fetch it first")
        if holding.choked == choked:
            return
        holding.choked = choked
        for peer in holding.members:
            self._neighbours[peer].send(Choke(root) if choked else Unchoke(root))
            if choked:
                self._serving.drop(holding, peer)

    def close(self) -> None:
        """Close every store. The peer has stopped."""
        self._registry.close()

    def _fail(self, holding: Holding, error: FleetError) -> None:
        if not self._registry.current(holding) or holding.failure is not None:
            return
        self._trace.emit("failed", root=holding.root.hex(), reason=str(error))
        self._let_go(holding)
        holding.settle(error)

    def _let_go(self, holding: Holding) -> None:
        for peer, neighbour in self._neighbours.items():
            self._serving.drop(holding, peer)
            neighbour.send(Leave(holding.root))
            self._fetching.cast_adrift(holding, peer)
        self._announcing.forget_artifact(holding)
        holding.download = None
        holding.let_go = True
        holding.close_unless_sending()

    # --- neighbours ---

    def neighbour_up(self, neighbour: Neighbour) -> None:
        """Introduce every artifact to a new neighbour."""
        self._neighbours[neighbour.peer] = neighbour
        self._serving.neighbour_up(neighbour.peer)
        for holding in self.holdings.values():
            self._introduce(holding, neighbour)

    def neighbour_down(self, neighbour: Neighbour) -> None:
        """Forget all that a neighbour owed and was owed."""
        peer = neighbour.peer
        if self._neighbours.get(peer) is not neighbour:
            return
        del self._neighbours[peer]
        self._serving.neighbour_down(peer)
        self._announcing.forget_neighbour(peer)
        self._fetching.neighbour_down(peer)
        for holding in self.holdings.values():
            self._forget_member(holding, peer)

    def _forget_member(self, holding: Holding, peer: PeerId) -> None:
        holding.members.pop(peer, None)
        self._announcing.forget_member(holding, peer)
        self._fetching.forget_member(holding, peer)

    def _introduce(self, holding: Holding, neighbour: Neighbour) -> None:
        self._fetching.introduce(holding, neighbour.peer)
        self._announcing.send_bitfield(holding, neighbour)

    # --- messages ---

    def handle_untrusted(self, neighbour: Neighbour, message: SwarmMessage) -> None:
        """Take one message. Raises ``PeerViolation`` to cut the neighbour off."""
        peer = neighbour.peer
        if isinstance(message, Cancel):
            self._serving.cancel(peer, message.ids)
            return
        if isinstance(message, Reject):
            self._fetching.rejected_untrusted(peer, message.ids)
            return
        holding = self.holdings.get(message.root)
        if holding is None:
            # Not our swarm: such news is for others, but whoever waits for an answer gets one.
            if isinstance(message, Request):
                self._serving.refuse(peer, message)
            elif isinstance(message, WantManifest):
                neighbour.send(Leave(message.root))
            return
        if isinstance(message, Bitfield):
            self._announcing.elsewhere_untrusted(holding, message)
        if peer not in holding.members and not isinstance(message, Leave):
            holding.members[peer] = None
            self._announcing.greet(holding, neighbour, message)
        match message:
            case Join():
                self._announcing.send_bitfield(holding, neighbour)
            case Leave():
                self._serving.drop(holding, peer)
                adrift = self._fetching.cast_adrift(holding, peer)
                self._forget_member(holding, peer)
                if adrift > MAX_ANSWERS_ADRIFT:
                    raise LimitExceeded(f"left with more than {MAX_ANSWERS_ADRIFT:,} requests unanswered")
            case WantManifest():
                self._serving.manifest_untrusted(holding, neighbour, message.page)
            case Request():
                self._serving.request_untrusted(holding, neighbour, message)
            case _:
                self._fetching.handle_untrusted(holding, peer, message)

    # --- links ---

    def before_frame(self, neighbour: Neighbour) -> None:
        """Let the news travel with the frame that is about to go."""
        self._announcing.before_frame(neighbour)

    async def bulk_receive(self, neighbour: Neighbour) -> None:
        """Receive pieces until the link ends."""
        await self._fetching.bulk_receive(neighbour)

    async def bulk_send(self, neighbour: Neighbour) -> None:
        """Send what the neighbour asked for, in its order."""
        await self._serving.bulk_send(neighbour)

    # --- time ---

    async def run_timers(self) -> None:
        """Run the cores' timers until cancelled."""
        await self._alarm.run(self._on_timer)

    def _next_deadline(self) -> float:
        return min(self._announcing.next_deadline(), self._fetching.next_deadline())

    def _on_timer(self, now: float) -> None:
        self._announcing.hurry_overdue(now)
        for holding in list(self.holdings.values()):
            self._fetching.on_timer(holding, now)
            self._announcing.reveal_all_round(holding)
