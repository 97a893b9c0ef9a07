"""Fetching one artifact: from its root to every piece verified. Sans-IO.

While the manifest is unknown it is searched for (``manifest_search``). With it, each neighbour is a source: it is asked
for pieces (``picker``) as its pace allows (``source``), and each answer is one piece or a REJECT.

Every piece arrives whole from one source, so a wrong hash has one author. Of several answers with one piece only one
writes to it (``pens``), the others are counted as duplicate and thrown away. A source that times out, leaves or is
cancelled loses its pens for good. In the ``endgame`` requests are repeated elsewhere; the loser is sent a CANCEL.

A piece that is missing is always wanted, or asked for by a request that somebody waits for, and every such request can
time out. So no source can keep a piece from the fetcher for good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from fleet.errors import PeerViolation
from fleet.swarm.bitfield import from_wire_untrusted
from fleet.swarm.effects import Effect, Finished, Say, TimedOut
from fleet.swarm.endgame import ENDGAME_SECONDS, Requests, worth_repeating
from fleet.swarm.manifest_search import ManifestSearch
from fleet.swarm.pens import Incoming, Pens
from fleet.swarm.picker import Picker
from fleet.swarm.refusals import Refusals
from fleet.swarm.source import Ask, Source
from fleet.wire.messages import Bitfield, Cancel, Choke, Have, Leave, Message, Request, Unchoke

if TYPE_CHECKING:
    import random

    import numpy as np
    from numpy.typing import NDArray

    from fleet.identity.keys import PeerId
    from fleet.swarm.manifest import Manifest


class Download:
    """One fetcher of one artifact. Methods take ``now`` and return effects; wrong input raises ``PeerViolation``."""

    def __init__(self, root: bytes, rng: random.Random, take_ids: Callable[[int], int]) -> None:
        """``take_ids(n)`` reserves n consecutive request ids (mod 2^32) and returns the first: a peer's downloads share
        them, so that an id alone names a request.
        """
        self.root = root
        self.manifest: Manifest | None = None
        self.finished = False
        self.duplicate_bytes = 0
        """Bytes that arrived for a piece already held or being written."""
        self.wasted_bytes = 0
        """Bytes of pieces that failed their hash, or whose source went away or was given up half-way."""
        self.bytes_from: Counter[PeerId] = Counter()
        """Bytes of verified pieces, by source."""
        self.needed_bytes = 0
        self._rng = rng
        self._search = ManifestSearch(root, rng)
        self._choke_due = float("inf")
        self._picker: Picker | None = None
        self._sources: dict[PeerId, Source] = {}
        self._numbers = 0
        self._take_ids = take_ids
        self._pens = Pens()
        self._awaited: Counter[int] = Counter()
        """For each piece, the requests that are out and not given up."""
        self._refusals = Refusals()

    # --- neighbours ---

    def neighbour_up(self, peer: PeerId) -> list[Effect]:
        """A neighbour appeared; without the manifest it is asked whether it takes part."""
        return self._search.neighbour_up(peer) if self.manifest is None else []

    def neighbour_down(self, peer: PeerId, now: float) -> list[Effect]:
        """A neighbour is gone, and all that it owed with it."""
        if self.manifest is None:
            return self._search.neighbour_down(peer, now)
        source = self._sources.pop(peer, None)
        if source is not None:
            _, picker = self._ready()
            picker.remove_source(source.number)
            for ask in source.asks.values():
                self._give_up(source, ask)
        return self._fill_all(now)

    # --- messages ---

    def handle_untrusted(self, peer: PeerId, message: Message, now: float) -> list[Effect]:
        """Take a message about this artifact from a neighbour."""
        if self.manifest is None:
            return self._search.handle_untrusted(peer, message, now)
        match message:
            case Bitfield():
                return self._bitfield_untrusted(peer, message.bits, now)
            case Have():
                return self._have_untrusted(peer, message.pieces, now)
            case Choke() | Unchoke():
                return self._choke(peer, isinstance(message, Choke), now)
            case Leave():
                return self.neighbour_down(peer, now)
            case _:
                return []

    # --- pieces ---

    def begin(
        self, manifest: Manifest, have: NDArray[np.bool_], now: float
    ) -> tuple[list[Effect], list[PeerViolation]]:
        """Start on the pieces that ``have`` (shape (pieces,)) lacks.

        Returns the effects and the violations of neighbours whose early messages do not fit the manifest.
        """
        self.manifest = manifest
        self._picker = Picker(have, self._rng)
        self.needed_bytes = sum(manifest.piece_length(p) for p in range(manifest.pieces) if not have[p])
        effects: list[Effect] = []
        violations: list[PeerViolation] = []
        for peer, said in self._search.end().items():
            if said.bits is None:
                continue
            try:
                effects += self._bitfield_untrusted(peer, bytes(said.bits), now, choked=said.choked)
            except PeerViolation as violation:
                violations.append(violation)
        if bool(have.all()):
            self.finished = True
            effects.append(Finished())
        return effects, violations

    def _ready(self) -> tuple[Manifest, Picker]:
        assert self.manifest is not None and self._picker is not None, "only called after begin"  # noqa: S101, PT018
        return self.manifest, self._picker

    def _bitfield_untrusted(self, peer: PeerId, bits: bytes, now: float, *, choked: bool = False) -> list[Effect]:
        manifest, picker = self._ready()
        try:
            offers = from_wire_untrusted(bits, manifest.pieces)
        except PeerViolation as violation:
            violation.peer = peer
            raise
        source = self._sources.get(peer)
        if source is None:
            self._numbers += 1
            source = self._sources[peer] = Source(peer, self._numbers, manifest.piece_size, choked)
        source.bitfields += 1
        picker.set_source(source.number, offers, usable=self._spares_others(source, now))
        return self._fill(source, now)

    def _have_untrusted(self, peer: PeerId, pieces: tuple[int, ...], now: float) -> list[Effect]:
        manifest, picker = self._ready()
        source = self._sources.get(peer)
        if source is None:
            return []  # on its way since before a LEAVE of either side: a BITFIELD will say it again
        if max(pieces) >= manifest.pieces:
            raise PeerViolation(f"a HAVE of piece {max(pieces)} of {manifest.pieces}", peer)
        picker.add_offers(source.number, pieces)
        return self._fill(source, now)

    def _choke(self, peer: PeerId, choked: bool, now: float) -> list[Effect]:
        source = self._sources.get(peer)
        if source is None or source.choked == choked:
            return []
        source.choked = choked
        # What is out stays out: the source answers each with the piece it was sending, or a REJECT. What follows for
        # the others is worked out by the timer, once for however many changes of mind a frame holds.
        self._choke_due = now
        return []

    def _usable(self, source: Source, now: float) -> bool:
        return not source.choked and now >= source.backed_off_until

    def _spares_others(self, source: Source, now: float) -> bool:
        """Whether full sources are spared what this one offers: not while it has yet to answer after a timeout."""
        return self._usable(source, now) and not source.timeouts

    # --- asking ---

    def _fill_all(self, now: float) -> list[Effect]:
        if self._picker is None or self.finished:
            return []
        return [effect for source in self._sources.values() for effect in self._fill(source, now)]

    def _fill(self, source: Source, now: float) -> list[Effect]:
        """Ask one source for as much as its pace allows."""
        _, picker = self._ready()
        effects: list[Effect] = []
        room = 0 if self.finished or not self._usable(source, now) else source.room()
        if room == 0:
            return []
        partial = (other for other in self._sources.values() if not picker.is_full(other.number))
        pieces = picker.choose(source.number, room, also_common=source.much_quicker_than(partial))
        if not pieces and source.waiting == 0 and picker.all_asked():
            pieces, effects = self._endgame(source, now)
        if not pieces:
            return []
        first_id = self._take_ids(len(pieces))
        for number, piece in enumerate(pieces):
            picker.asked(piece)
            self._awaited[piece] += 1
            source.ask((first_id + number) % 2**32, piece, now)
        return [*effects, Say(source.peer, Request(self.root, first_id, tuple(pieces)))]

    def _endgame(self, source: Source, now: float) -> tuple[list[int], list[Effect]]:
        """A piece to repeat the request for, and what to say to who has it now."""
        manifest, picker = self._ready()
        requests = Requests(manifest, picker, self._pens, self._sources.values(), self._awaited)
        found = worth_repeating(requests, source, now)
        if found is None:
            return [], []
        holder, ask = found
        if not ask.begun:
            return [ask.piece], []
        self._give_up(holder, ask)
        return [ask.piece], [Say(holder.peer, Cancel((ask.id,)))]

    # --- answers ---

    def incoming_untrusted(self, peer: PeerId, request_id: int, length: int) -> Incoming | None:
        """A piece's header arrived. None when this download did not ask for it; ``PeerViolation`` when its length is
        not the piece's.
        """
        source = self._sources.get(peer)
        if source is None or (ask := source.asks.get(request_id)) is None:
            return None
        manifest, picker = self._ready()
        expected = manifest.piece_length(ask.piece)
        if length != expected:
            raise PeerViolation(f"{length:,} bytes for piece {ask.piece}, which has {expected:,}", peer)
        ask.begun = True
        return self._pens.begin(peer, ask, length, missing=picker.is_missing(ask.piece))

    def bytes_arrived(self, incoming: Incoming, count: int, now: float) -> None:
        """``count`` more bytes of an incoming piece arrived."""
        source = self._source_of(incoming)
        if source is not None:
            source.bytes_arrived(incoming.ask, count, now)
        else:
            incoming.ask.received += count

    def _source_of(self, incoming: Incoming) -> Source | None:
        """Who owes this answer; None when it has left the swarm meanwhile, and perhaps come back."""
        source = self._sources.get(incoming.peer)
        return source if source is not None and source.asks.get(incoming.ask.id) is incoming.ask else None

    def completed(self, incoming: Incoming, now: float) -> list[Effect]:
        """The piece arrived whole, and, if it holds the pen, matched its hash and is in the journal."""
        _, picker = self._ready()
        ask, piece = incoming.ask, incoming.piece
        source = self._source_of(incoming)
        if source is not None:
            source.answered(ask, now)
            picker.set_usable(source.number, self._spares_others(source, now))
        if incoming.holds_pen:
            self._pens.put_down(incoming)
            self.bytes_from[incoming.peer] += incoming.length
            picker.verified(piece)
        elif incoming.lost_pen:
            self.wasted_bytes += incoming.length
        else:
            self.duplicate_bytes += incoming.length
        if not ask.given_up:
            ask.given_up = True
            self._unask(piece)
        effects = self._cancel_copies(piece) if incoming.holds_pen else []
        if picker.complete:
            if not self.finished:
                self.finished = True
                effects.append(Finished())
        elif effects or not incoming.holds_pen:
            effects += self._fill_all(now)  # others have room now, or the piece is wanted again
        elif source is not None:
            effects += self._fill(source, now)
        return effects

    def _cancel_copies(self, piece: int) -> list[Effect]:
        """The piece is held: whoever else was asked for it need not send it."""
        if not self._awaited[piece]:
            return []
        effects: list[Effect] = []
        for other in self._sources.values():
            asks = [ask for ask in other.asks.values() if ask.piece == piece and not ask.given_up]
            for ask in asks:
                self._give_up(other, ask)
            if asks:
                effects.append(Say(other.peer, Cancel(tuple(ask.id for ask in asks))))
        return effects

    def spoiled(self, incoming: Incoming, received: int) -> None:
        """The piece will never be whole: its link ended, or its hash was wrong. Call before ``neighbour_down``."""
        self.wasted_bytes += received
        self._pens.take(incoming.ask)

    def rejected_untrusted(self, peer: PeerId, ids: tuple[int, ...], now: float) -> list[Effect]:
        """A neighbour answered REJECT; unknown ids belong to other artifacts and are passed over.

        ``PeerViolation`` for a request whose piece is arriving: one request has one answer.
        """
        source = self._sources.get(peer)
        if source is None or self._picker is None:
            return []
        for request_id in ids:
            ask = source.asks.get(request_id)
            if ask is None:
                continue
            if ask.begun:
                raise PeerViolation(f"REJECT of request {request_id}, whose piece is arriving", peer)
            given_up = ask.given_up
            self._give_up(source, ask)
            source.refused(ask)
            if not given_up and not source.choked and self._picker.offers(source.number, ask.piece):
                # It does not serve this piece now; without a new HAVE from it, ask it again only after a while.
                self._picker.withdraw_offer(source.number, ask.piece)
                self._refusals.add(source, ask.piece, now)
        return self._fill_all(now)

    def _give_up(self, source: Source, ask: Ask) -> None:
        """Nobody waits for this answer any more."""
        self._pens.take(ask)
        if not ask.given_up:
            source.give_up(ask)
            self._unask(ask.piece)

    def _unask(self, piece: int) -> None:
        """One request fewer that somebody waits for is out; after the last of them the piece is wanted again."""
        _, picker = self._ready()
        self._awaited[piece] -= 1
        if not self._awaited[piece]:
            del self._awaited[piece]
            picker.wanted(piece)

    # --- time ---

    def next_deadline(self, now: float) -> float:
        """When ``on_timer`` is next due."""
        if self.finished:
            return float("inf")
        due = min(self._search.next_deadline(), self._choke_due, self._refusals.next_deadline())
        for source in self._sources.values():
            due = min(due, source.times_out_at)
            if source.backed_off_until > now:
                due = min(due, source.backed_off_until)
        if self._picker is not None and self._awaited and self._picker.all_asked():
            due = min(due, now + ENDGAME_SECONDS)
        return due

    def on_timer(self, now: float) -> list[Effect]:
        """Give up what is overdue, and ask elsewhere."""
        if self.manifest is None:
            return self._search.on_timer(now)
        if self._picker is None or self.finished:
            return []
        effects: list[Effect] = []
        self._choke_due = float("inf")
        for source in self._sources.values():
            if now >= source.times_out_at:
                effects += self._source_timed_out(source, now)
            self._picker.set_usable(source.number, self._spares_others(source, now))
        for source, piece in self._refusals.take_due(self._sources, now):
            self._picker.add_offers(source.number, (piece,))
        return effects + self._fill_all(now)

    def _source_timed_out(self, source: Source, now: float) -> list[Effect]:
        lost = source.timed_out(now)
        for ask in lost:
            self._pens.take(ask)
            self._unask(ask.piece)
        return [
            TimedOut(source.peer, len(lost)),
            Say(source.peer, Cancel(tuple(ask.id for ask in lost))),
        ]

    # --- what is known of neighbours ---

    def known_to_hold(self, peer: PeerId, piece: int) -> bool:
        """Whether the neighbour has offered this piece."""
        source = self._sources.get(peer)
        return source is not None and self._picker is not None and self._picker.offers(source.number, piece)

    def waits_for(self, peer: PeerId) -> bool:
        """Whether a request to the neighbour is out."""
        source = self._sources.get(peer)
        return source is not None and source.waiting > 0

    # --- for people ---

    def nowhere(self) -> list[int]:
        """The missing pieces that no neighbour offers; all of them are unknown while there is no manifest."""
        return [] if self._picker is None else self._picker.nowhere()

    @property
    def sources(self) -> dict[PeerId, Source]:
        """Read-only, for reports."""
        return self._sources
