"""The swarm service of one peer: performs what the sans-IO cores decide, and moves the bytes of pieces.

An artifact that this peer takes part in is a ``Holding``: its store once the manifest is known, its download until
every piece is held, and, at the origin, its super-seeding. Each neighbour has a queue of requests to serve. HAVEs are
kept back a little to travel with requests, since on TCP each frame costs a signature and its check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import numpy as np
import trio

from fleet.environment import off_loop_checkpoint
from fleet.errors import FleetError, LimitExceeded, LinkBroken, LocalMisuse, PeerViolation, StorageFailed
from fleet.limits import HAVE_BATCH, MAX_ANSWERS_ADRIFT, MAX_ARTIFACTS
from fleet.swarm.bitfield import from_wire_untrusted, to_wire
from fleet.swarm.download import Download, Effect, Finished, ManifestFound, Say, TimedOut
from fleet.swarm.holding import Holding
from fleet.swarm.intake import Intake
from fleet.swarm.manifest import Manifest, page, pages
from fleet.swarm.news import News
from fleet.swarm.offers import SuperSeed
from fleet.swarm.piece_store import PieceStore
from fleet.swarm.upload import UploadQueue
from fleet.wire.frame import piece_header
from fleet.wire.messages import (
    Bitfield,
    Cancel,
    Choke,
    Have,
    Join,
    Leave,
    ManifestPage,
    Reject,
    Request,
    SwarmMessage,
    Unchoke,
    WantManifest,
)

if TYPE_CHECKING:
    import random

    from numpy.typing import NDArray

    from fleet.environment import Environment
    from fleet.identity.keys import PeerId
    from fleet.net.neighbour import Neighbour
    from fleet.storage import File, Storage

TIMER_SLACK: Final = 0.05
"""Seconds by which a timeout may be late: a timer that ends sooner anyway is not set anew for it."""


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
        self.holdings: dict[bytes, Holding] = {}
        self._environment = environment
        self._storage = storage
        self._name = name
        self._rng = rng
        self._start_soon = start_soon
        self._neighbours: dict[PeerId, Neighbour] = {}
        self._queues: dict[PeerId, UploadQueue] = {}
        self._intake = Intake(self, self.holdings, environment.scratch)
        self._news = News()
        self._next_id = 0
        self._opening = trio.Lock()
        """Held while files are made or reopened: two fetches of one artifact, one after the other, share them."""
        self._closed = False
        self._timer_at = float("inf")
        self._timer = trio.Event()

    # --- for the owner ---

    def share(self, manifest: Manifest, file: File, *, super_seed: bool = True) -> Holding:
        """Serve a file that ``manifest`` was just made from, read in place."""
        store = PieceStore.adopt(file, manifest)
        holding = self._new_holding(manifest.root)
        holding.store = store
        if super_seed and manifest.pieces:
            holding.super_seed = SuperSeed(manifest.pieces, self._rng(f"super-seed {manifest.root.hex()}"))
        holding.settle()
        for neighbour in self._neighbours.values():
            self._introduce(holding, neighbour)
        return holding

    async def fetch(self, root: bytes) -> Holding:
        """Take part in a swarm: resume from this peer's store, fetch what is missing, serve what is held."""
        holding = self._new_holding(root)
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
            if self.holdings.get(root) is holding:
                del self.holdings[root]
            raise
        if not self._current(holding):
            if store is not None:
                store.close()
            return holding
        # Not earlier: it would ask for a manifest, and make the store that is being reopened.
        holding.download = Download(root, self._rng(f"picker {root.hex()}"), self._take_ids)
        if store is not None:
            if store.recovered is not None:
                self._emit(
                    "resumed",
                    root=root.hex(),
                    kept=store.recovered.kept,
                    dropped=store.recovered.dropped,
                    journal_bytes_cut=store.recovered.journal_bytes_cut,
                )
            self._begin(holding, store)
        for neighbour in self._neighbours.values():
            self._introduce(holding, neighbour)
            if store is not None:
                # What it said while the store was reopened met no download, and it will not say it again unasked.
                neighbour.send(Join(root))
        return holding

    def leave(self, root: bytes) -> None:
        """Stop serving and fetching an artifact; its files stay."""
        holding = self.holdings.pop(root, None)
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
                self._reject(peer, self._queues[peer].drop(root))

    def close(self) -> None:
        """Close every store. The peer has stopped."""
        self._closed = True
        for holding in self.holdings.values():
            if holding.store is not None:
                holding.store.close()
            if not holding.complete:
                holding.settle(LinkBroken(f"{self._name} stopped before the artifact was complete"))

    def _current(self, holding: Holding) -> bool:
        """Whether this peer, after a wait, still runs and takes part."""
        return not self._closed and self.holdings.get(holding.root) is holding

    def _new_holding(self, root: bytes) -> Holding:
        if self._closed:
            raise LocalMisuse(f"{self._name} is not running: start it first")
        if root in self.holdings:
            raise LocalMisuse(f"this peer already takes part in {root.hex()[:16]}")
        if len(self.holdings) >= MAX_ARTIFACTS:
            raise LocalMisuse(f"a peer takes part in at most {MAX_ARTIFACTS} artifacts: leave one first")
        holding = self.holdings[root] = Holding(root)
        return holding

    # --- neighbours ---

    def neighbour_up(self, neighbour: Neighbour) -> None:
        """Introduce every artifact to a new neighbour."""
        self._neighbours[neighbour.peer] = neighbour
        self._queues[neighbour.peer] = UploadQueue(neighbour.peer)
        for holding in self.holdings.values():
            self._introduce(holding, neighbour)

    def neighbour_down(self, neighbour: Neighbour) -> None:
        """Forget all that a neighbour owed and was owed."""
        peer = neighbour.peer
        if self._neighbours.get(peer) is not neighbour:
            return
        del self._neighbours[peer], self._queues[peer]
        self._news.forget_neighbour(peer)
        self._intake.neighbour_down(peer)
        for holding in self.holdings.values():
            self._forget_member(holding, peer)

    def _forget_member(self, holding: Holding, peer: PeerId) -> None:
        holding.members.pop(peer, None)
        holding.told.discard(peer)
        if holding.super_seed is not None:
            holding.super_seed.remove(peer)
            self._reveal_all_round(holding)
        if holding.download is not None:
            self.perform(holding, holding.download.neighbour_down(peer, trio.current_time()))

    def _introduce(self, holding: Holding, neighbour: Neighbour) -> None:
        if holding.download is not None:
            self.perform(holding, holding.download.neighbour_up(neighbour.peer))
        if holding.store is not None:
            self._send_bitfield(holding, neighbour)

    def _send_bitfield(self, holding: Holding, neighbour: Neighbour) -> None:
        if holding.store is None or holding.failure is not None:
            return
        have: NDArray[np.bool_] = holding.store.have
        if holding.super_seed is not None:
            # Pieces are revealed to those who take part; everyone else only hears that the manifest is here.
            if neighbour.peer in holding.members:
                have = holding.super_seed.bitfield(neighbour.peer, len(self._neighbours), trio.current_time())
                self._set_timer()  # what was offered just now may turn stale
            else:
                have = have & False
        holding.told.add(neighbour.peer)
        neighbour.send(Bitfield(holding.root, to_wire(have)))
        if holding.choked:
            neighbour.send(Choke(holding.root))

    # --- messages ---

    def handle_untrusted(self, neighbour: Neighbour, message: SwarmMessage) -> None:
        """Take one message. Raises ``PeerViolation`` to cut the neighbour off."""
        if isinstance(message, Cancel):
            self._reject(neighbour.peer, self._queues[neighbour.peer].cancel(message.ids))
            return
        if isinstance(message, Reject):
            self._intake.rejected(neighbour.peer, message.ids)
            for each in self.holdings.values():
                if each.download is not None:
                    now = trio.current_time()
                    self.perform(each, each.download.rejected_untrusted(neighbour.peer, message.ids, now))
            return
        holding = self.holdings.get(message.root)
        if holding is None:
            # Not our swarm: such news is for others, but whoever waits for an answer gets one.
            if isinstance(message, Request):
                self._reject_request(neighbour, message)
            elif isinstance(message, WantManifest):
                neighbour.send(Leave(message.root))
            return
        if isinstance(message, Bitfield):
            self._elsewhere_untrusted(holding, message)
        if neighbour.peer not in holding.members and not isinstance(message, Leave):
            holding.members[neighbour.peer] = None
            self._greet(holding, neighbour, message)
        match message:
            case Join():
                self._send_bitfield(holding, neighbour)
                return
            case Leave():
                self._reject(neighbour.peer, self._queues[neighbour.peer].drop(holding.root))
                adrift = self._intake.cast_adrift(holding, neighbour.peer)
                self._forget_member(holding, neighbour.peer)
                if adrift > MAX_ANSWERS_ADRIFT:
                    raise LimitExceeded(f"left with more than {MAX_ANSWERS_ADRIFT:,} requests unanswered")
                return
            case WantManifest():
                self._send_manifest_untrusted(holding, neighbour, message.page)
                return
            case Request():
                self._request_untrusted(holding, neighbour, message)
                return
            case _:
                pass
        if holding.download is not None and holding.failure is None:
            now = trio.current_time()
            self.perform(holding, holding.download.handle_untrusted(neighbour.peer, message, now))

    def _greet(self, holding: Holding, neighbour: Neighbour, message: SwarmMessage) -> None:
        """Make sure that a neighbour heard of for the first time knows that this peer takes part too.

        It may have come later than what this peer said before. A JOIN is answered anyway, and one that offers pieces
        hears of this peer when it is asked for one.
        """
        if isinstance(message, Join):
            return
        if holding.store is not None:
            self._send_bitfield(holding, neighbour)
        elif isinstance(message, Bitfield) and not any(message.bits):
            neighbour.send(Join(holding.root))

    def _elsewhere_untrusted(self, holding: Holding, message: Bitfield) -> None:
        """What a neighbour holds when it joins has gone out before, perhaps from an earlier run of this origin."""
        if holding.super_seed is None or holding.store is None:
            return
        held = from_wire_untrusted(message.bits, holding.store.manifest.pieces) & holding.super_seed.unsent
        holding.super_seed.held_elsewhere(map(int, np.flatnonzero(held)), trio.current_time())
        self._reveal_all_round(holding)
        self._set_timer()

    def _send_manifest_untrusted(self, holding: Holding, neighbour: Neighbour, number: int) -> None:
        if holding.store is None or holding.failure is not None:
            neighbour.send(Leave(holding.root))
            return
        manifest = holding.store.manifest
        if number >= pages(manifest):
            raise PeerViolation(f"asks for page {number} of a manifest of {pages(manifest)}", neighbour.peer)
        hashes = page(manifest, number)
        neighbour.send(ManifestPage(holding.root, manifest.size, manifest.piece_size, number, hashes))

    def _request_untrusted(self, holding: Holding, neighbour: Neighbour, request: Request) -> None:
        store = holding.store
        if store is None or holding.choked or holding.failure is not None:
            self._reject_request(neighbour, request)
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

    def _reject_request(self, neighbour: Neighbour, request: Request) -> None:
        ids = tuple((request.first_id + number) % 2**32 for number in range(len(request.pieces)))
        self._reject(neighbour.peer, ids)

    def _reject(self, peer: PeerId, ids: tuple[int, ...]) -> None:
        if ids:
            self._neighbours[peer].send(Reject(ids))

    # --- effects ---

    def perform(self, holding: Holding, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Say(peer, message):
                    if peer in self._neighbours:
                        self._neighbours[peer].send(message)
                case ManifestFound(manifest):
                    self._start_soon(self._make_store, holding, manifest)
                case TimedOut(peer, count):
                    self._emit("source_timed_out", source=peer.short, pieces=count)
                case Finished():
                    holding.finished_at = trio.current_time()
                    self._emit("complete", root=holding.root.hex(), pieces=holding.verified)
                    holding.settle()
        self._set_timer()

    async def _make_store(self, holding: Holding, manifest: Manifest) -> None:
        try:
            async with self._opening:
                if not self._current(holding):
                    return  # a later fetch has looked for the store meanwhile, and will make it itself
                store = await self._environment.off_loop(lambda: PieceStore.create(self._storage, manifest))
        except FleetError as error:
            self.fail(holding, error)
            return
        if not self._current(holding):
            store.close()
            return
        self._begin(holding, store)
        if holding.complete:  # no piece will ever be news of an empty artifact
            for neighbour in self._neighbours.values():
                self._send_bitfield(holding, neighbour)

    def _begin(self, holding: Holding, store: PieceStore) -> None:
        holding.store = store
        download = holding.download
        if download is None:
            return
        now = trio.current_time()
        holding.progressed(now)
        effects, violations = download.begin(store.manifest, store.have, now)
        self._emit("manifest", root=holding.root.hex(), pieces=store.manifest.pieces, held=store.verified_count)
        self.perform(holding, effects)
        for violation in violations:
            if violation.peer in self._neighbours:
                self._neighbours[violation.peer].end(violation)

    def fail(self, holding: Holding, error: FleetError) -> None:
        """The artifact cannot go on here; the peer and its other artifacts can."""
        if not self._current(holding) or holding.failure is not None:
            return
        self._emit("failed", root=holding.root.hex(), reason=str(error))
        self._let_go(holding)
        holding.settle(error)

    def _let_go(self, holding: Holding) -> None:
        for peer, queue in self._queues.items():
            self._reject(peer, queue.drop(holding.root))
            self._neighbours[peer].send(Leave(holding.root))
            self._intake.cast_adrift(holding, peer)
        self._news.forget_artifact(holding.root)
        holding.download = None
        holding.let_go = True
        self._close_unless_sending(holding)

    def _close_unless_sending(self, holding: Holding) -> None:
        """A piece that is being sent goes out whole: cut short, it would cost the link."""
        if holding.let_go and holding.sending == 0 and holding.store is not None:
            holding.store.close()

    def _take_ids(self, count: int) -> int:
        first = self._next_id
        self._next_id = (first + count) % 2**32
        return first

    def _emit(self, kind: str, **fields: str | float) -> None:
        self._environment.trace.emit(trio.current_time(), self._name, kind, **fields)

    # --- pieces in, and news of them ---

    def verified(self, holding: Holding, piece: int, source: PeerId, now: float) -> None:
        """See ``intake.Owner``."""
        holding.verified_at.append(now)
        self._emit("piece", piece=piece, source=source.short)
        download = holding.download
        age = now - holding.started_at
        for peer in holding.members:
            if download is not None and download.known_to_hold(peer, piece):
                continue  # no news to it
            busy = len(self._queues[peer]) > 0 or (download is not None and download.waits_for(peer))
            if self._news.add(peer, holding.root, piece, now, age=age, busy=busy) < self._timer_at:
                self._timer.set()

    def before_frame(self, neighbour: Neighbour) -> None:
        """Let the news travel with the frame that is about to go."""
        for root, pieces in self._news.take(neighbour.peer).items():
            holding = self.holdings.get(root)
            if holding is None:
                continue
            if neighbour.peer not in holding.told:
                self._send_bitfield(holding, neighbour)  # the first news: it holds this piece and says all else too
                continue
            for start in range(0, len(pieces), HAVE_BATCH):
                neighbour.send(Have(root, tuple(pieces[start : start + HAVE_BATCH])))

    async def bulk_receive(self, neighbour: Neighbour) -> None:
        """Receive pieces until the link ends."""
        await self._intake.receive(neighbour)

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
            holding = self.holdings.get(owed.root)
            if holding is None or holding.store is None or holding.failure is not None:
                self._reject(neighbour.peer, (owed.request_id,))
                continue
            try:
                holding.store.check_unchanged()
            except StorageFailed as error:
                # Now, while no byte of the piece is out: cut short, it would cost the link, and wrong, a ban.
                self.fail(holding, error)
                self._reject(neighbour.peer, (owed.request_id,))
                continue
            manifest = holding.store.manifest
            length = manifest.piece_length(owed.piece)
            header = piece_header(owed.request_id, length)
            holding.sending += 1
            try:
                await link.send_file(holding.store.file, manifest.piece_offset(owed.piece), length, header)
            except StorageFailed as error:
                self.fail(holding, error)
                raise
            finally:
                holding.sending -= 1
                self._close_unless_sending(holding)
            holding.count_served(neighbour.peer, length)
            if holding.super_seed is not None:
                self._sent_once(holding, neighbour, owed.piece)

    def _sent_once(self, holding: Holding, neighbour: Neighbour, piece: int) -> None:
        seed = holding.super_seed
        if seed is None:
            return
        seed.sent(piece, trio.current_time())
        self._reveal_more(holding, neighbour.peer)
        self._set_timer()

    def _reveal_more(self, holding: Holding, peer: PeerId) -> None:
        if holding.super_seed is not None:
            more = holding.super_seed.more(peer, len(self._neighbours), trio.current_time())
            if more:
                self._neighbours[peer].send(Have(holding.root, tuple(more)))
                self._set_timer()

    def _reveal_all_round(self, holding: Holding) -> None:
        if holding.super_seed is not None and holding.super_seed.done(trio.current_time()):
            holding.super_seed = None
            self._emit("super_seed_done", root=holding.root.hex())
            for peer in holding.members:
                self._send_bitfield(holding, self._neighbours[peer])
        for peer in holding.members:
            self._reveal_more(holding, peer)

    # --- time ---

    def _next_deadline(self) -> float:
        now = trio.current_time()
        due = self._news.next_deadline()
        for holding in self.holdings.values():
            if holding.download is not None:
                due = min(due, holding.download.next_deadline(now))
            if holding.super_seed is not None:
                due = min(due, max(holding.super_seed.next_deadline(), now + TIMER_SLACK))
        return due

    def _set_timer(self) -> None:
        """Wake ``run_timers`` if something is now due before what it waits for; it looks again soon by itself."""
        if self._timer_at > trio.current_time() + TIMER_SLACK and self._next_deadline() < self._timer_at:
            self._timer.set()

    async def run_timers(self) -> None:
        """Run the cores' timers until cancelled."""
        while True:
            self._timer_at = self._next_deadline()
            self._timer = trio.Event()
            with trio.move_on_at(self._timer_at):
                await self._timer.wait()
                continue
            self._on_timer(trio.current_time())

    def _on_timer(self, now: float) -> None:
        for peer in self._news.overdue(now):
            self._neighbours[peer].wake()
        for holding in list(self.holdings.values()):
            if holding.download is not None:
                self.perform(holding, holding.download.on_timer(now))
            if holding.super_seed is not None:
                self._reveal_all_round(holding)
