"""A download among simulated neighbours in virtual time: the honest, the slow, the broken and the hostile.

``World`` performs the download's effects as the swarm service does and checks at every step what must always hold.
Each kind of neighbour is a small class that overrides what it does otherwise than ``Remote``, the honest one.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from fleet.errors import PeerViolation
from fleet.identity.keys import PeerId
from fleet.limits import MAX_REQUESTS_PER_LINK
from fleet.swarm.bitfield import to_wire
from fleet.swarm.download import Download
from fleet.swarm.effects import Effect, Finished, ManifestFound, Say, TimedOut
from fleet.swarm.manifest import Manifest, page
from fleet.wire.messages import (
    Bitfield,
    Cancel,
    Choke,
    Have,
    Join,
    Leave,
    ManifestPage,
    Message,
    Reject,
    Request,
    Unchoke,
    WantManifest,
)

if TYPE_CHECKING:
    from fleet.swarm.pens import Incoming

PIECE = 64


def artifact(pieces: int) -> tuple[Manifest, bytes]:
    """An artifact of so many pieces, the last one shorter, and its bytes."""
    data = random.Random(pieces).randbytes(pieces * PIECE - 7)
    hashes = b"".join(blake3(data[start : start + PIECE]).digest() for start in range(0, len(data), PIECE))
    return Manifest(len(data), PIECE, hashes), data


class World:
    """One download, its neighbours and the clock."""

    def __init__(
        self,
        remotes: list[Remote],
        pieces: int = 12,
        *,
        seed: int = 0,
        first_id: int = 2**32 - 5,
        know_manifest: bool = False,
        have: set[int] | None = None,
    ) -> None:
        self.manifest, self.data = artifact(pieces)
        self.now = 100.0
        self.rng = random.Random(seed)
        self.next_id = first_id
        self.download = Download(self.manifest.root, random.Random(seed), self._take_ids)
        self.remotes = {PeerId(bytes([number + 1]) * 32): remote for number, remote in enumerate(remotes)}
        self.store: dict[int, bytearray] = {}
        self.verified = set(have or ())
        self.received = 0
        """Bytes of pieces that arrived for the download, wanted or not."""
        self.requests: Counter[int] = Counter()
        """How often each piece was asked for."""
        self.duplicates: list[int] = []
        """Pieces that were asked for while another request was out."""
        self.timeouts: Counter[PeerId] = Counter()
        self.banned: dict[PeerId, str] = {}
        self.finished_at: float | None = None
        self.finishes = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        for peer, remote in self.remotes.items():
            remote.enter(self, peer)
        if know_manifest:
            self._begin()
        for remote in self.remotes.values():
            remote.up()

    def _take_ids(self, count: int) -> int:
        first = self.next_id
        self.next_id = (first + count) % 2**32
        return first

    # --- time ---

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self.now + seconds, next(self._numbers), do))

    def run(self, limit: float = 600.0, until: Callable[[], bool] | None = None) -> World:
        """Until the download is finished, or ``until`` holds, or ``limit`` seconds have passed."""
        end = self.now + limit
        while not (until() if until is not None else self.finished_at is not None):
            due = self.download.next_deadline(self.now)
            at = min(due, self._events[0][0] if self._events else float("inf"))
            if at > end:
                self.now = end
                break
            assert due > self.now or at == due, "a deadline in the past is due now"
            self.now = max(self.now, at)
            if self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            else:
                self.perform(self.download.on_timer(self.now))
                assert self.download.next_deadline(self.now) > self.now, "the timer would fire for ever"
            self.check()
        return self

    # --- effects ---

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Say(peer, message):
                    self._said(self.remotes[peer], message)
                case ManifestFound(manifest):
                    assert manifest.root == self.manifest.root
                    self.later(0.01, self._begin)
                case TimedOut(peer, _):
                    self.timeouts[peer] += 1
                case Finished():
                    self.finishes += 1
                    self.finished_at = self.now

    def _begin(self) -> None:
        have = np.zeros(self.manifest.pieces, np.bool_)
        have[sorted(self.verified)] = True
        effects, violations = self.download.begin(self.manifest, have, self.now)
        self.perform(effects)
        for violation in violations:
            assert violation.peer is not None
            self.ban(self.remotes[violation.peer], violation)

    def _said(self, remote: Remote, message: Message) -> None:
        if not remote.is_up:
            return
        if isinstance(message, Request):
            for number, piece in enumerate(message.pieces):
                request_id = (message.first_id + number) % 2**32
                assert piece in remote.said, "it never offered this piece"
                assert piece not in self.verified, "this piece is held"
                assert not remote.choked, "it said that it serves nothing"
                assert request_id not in remote.live | remote.owed
                if any(piece in other.live.values() for other in self.remotes.values()):
                    self.duplicates.append(piece)
                    asked = {p for other in self.remotes.values() for p in other.live.values()}
                    missing = set(range(self.manifest.pieces)) - self.verified
                    assert missing <= asked, "asked for twice while another piece was asked of nobody"
                remote.live[request_id] = piece
                self.requests[piece] += 1
            assert len(remote.live) <= MAX_REQUESTS_PER_LINK
        elif isinstance(message, Cancel):
            for request_id in message.ids:
                remote.owed[request_id] = remote.live.pop(request_id)
        remote.later(remote.latency, lambda: remote.receive(message))

    # --- what arrives ---

    def control(self, remote: Remote, message: Message) -> None:
        """A message from a neighbour."""
        download = self.download
        try:
            match message:
                case Reject(ids):
                    for request_id in ids:
                        remote.settle(request_id)
                    self.perform(download.rejected_untrusted(remote.peer, ids, self.now))
                case Leave():
                    self._gone(remote, adrift=True)
                case _:
                    if isinstance(message, Bitfield):
                        remote.said = set(remote.stated)
                        remote.introduced = True
                    elif isinstance(message, Have) and remote.introduced:
                        remote.said = remote.said | set(message.pieces)
                    elif isinstance(message, Choke | Unchoke):
                        remote.choked = isinstance(message, Choke)
                    self.perform(download.handle_untrusted(remote.peer, message, self.now))
        except PeerViolation as violation:
            self.ban(remote, violation)

    def _gone(self, remote: Remote, *, adrift: bool = False) -> None:
        source = self.download.sources.get(remote.peer)
        remote.adrift |= set(source.asks) if adrift and source is not None else set()
        if remote.incoming is not None:
            self.download.spoiled(remote.incoming, remote.incoming.ask.received)
            remote.incoming = None
        remote.live, remote.owed, remote.said, remote.choked = {}, {}, set(), False
        remote.introduced = False
        self.perform(self.download.neighbour_down(remote.peer, self.now))

    def down(self, remote: Remote) -> None:
        """The links to a neighbour end."""
        if remote.is_up:
            remote.is_up = False
            remote.epoch += 1
            remote.adrift = set()
            remote.draining = 0
            self._gone(remote)

    def ban(self, remote: Remote, violation: PeerViolation) -> None:
        """A neighbour broke the protocol."""
        assert remote.hostile, f"an honest neighbour is blamed: {violation}"
        assert violation.peer == remote.peer
        self.banned[remote.peer] = str(violation)
        self.down(remote)

    def header(self, remote: Remote, request_id: int, length: int) -> None:
        """The header of a piece arrives."""
        try:
            incoming = self.download.incoming_untrusted(remote.peer, request_id, length)
            if incoming is None:
                if request_id not in remote.adrift:
                    raise PeerViolation("unsolicited", remote.peer)
                remote.adrift.discard(request_id)
                remote.draining = length
            remote.incoming = incoming
            remote.arrived = bytearray()
        except PeerViolation as violation:
            self.ban(remote, violation)

    def body(self, remote: Remote, data: bytes) -> None:
        """Bytes of a piece arrive."""
        incoming = remote.incoming
        if remote.draining or incoming is None:
            remote.draining = max(0, remote.draining - len(data))
            return
        self.received += len(data)
        if incoming.holds_pen:
            assert len(remote.arrived) == incoming.ask.received, "a gap in what is written"
            remote.arrived += data
            at = incoming.ask.received
            stored = self.store.setdefault(incoming.piece, bytearray(self.manifest.piece_length(incoming.piece)))
            stored[at : at + len(data)] = data
        self.download.bytes_arrived(incoming, len(data), self.now)
        if incoming.ask.received < incoming.length:
            return
        remote.incoming = None
        if incoming.holds_pen:
            if blake3(remote.arrived).digest() != self.manifest.piece_hash(incoming.piece):
                self.download.spoiled(incoming, incoming.length)
                self.ban(remote, PeerViolation("wrong hash", remote.peer))
                return
            self.verified.add(incoming.piece)
        remote.settle(incoming.ask.id)
        self.perform(self.download.completed(incoming, self.now))

    # --- what always holds ---

    def check(self) -> None:
        writers = Counter(r.incoming.piece for r in self.remotes.values() if r.incoming and r.incoming.holds_pen)
        assert not writers or max(writers.values()) == 1, "two answers write to one piece"
        for piece in self.verified & self.store.keys():
            start = piece * PIECE
            assert self.store[piece] == self.data[start : start + PIECE], "a verified piece was written to again"
        for peer, source in self.download.sources.items():
            remote = self.remotes[peer]
            assert {i: a.piece for i, a in source.asks.items() if not a.given_up} == remote.live
            assert source.waiting == len(remote.live)
        counted = sum(self.download.bytes_from.values()) + self.download.duplicate_bytes + self.download.wasted_bytes
        on_the_way = sum(r.incoming.ask.received for r in self.remotes.values() if r.incoming is not None)
        assert counted + on_the_way == self.received, "bytes that are counted twice or not at all"
        assert self.finishes == (self.finished_at is not None)
        if self.download.manifest is not None and not self.finished_at:
            missing = set(range(self.manifest.pieces)) - self.verified
            asked = {piece for remote in self.remotes.values() for piece in remote.live.values()}
            picker = self.download._picker
            assert picker is not None
            assert missing - asked == {p for p in range(self.manifest.pieces) if picker._wanted[p]}


class Remote:
    """An honest neighbour: it offers ``offers`` (all pieces by default) and sends what it is asked for, in order."""

    hostile = False
    latency = 0.01
    seconds = 0.05
    """For one piece."""
    parts = 4

    def __init__(self, offers: set[int] | None = None) -> None:
        self.wanted_offers = offers

    def enter(self, world: World, peer: PeerId) -> None:
        """Become part of a world; called once."""
        self.world, self.peer = world, peer
        pieces = set(range(world.manifest.pieces))
        self.offers = pieces if self.wanted_offers is None else self.wanted_offers & pieces
        self.is_up = False
        self.epoch = 0
        self.said: set[int] = set()
        """What the download has heard of its offers."""
        self.stated: set[int] = set()
        self.introduced = False
        """Whether the download has heard a BITFIELD."""
        self.choked = False
        self.live: dict[int, int] = {}
        """Requests of the download that it waits for, and their pieces."""
        self.owed: dict[int, int] = {}
        """Requests that it has cancelled and that are not answered yet."""
        self.adrift: set[int] = set()
        self.draining = 0
        self.incoming: Incoming | None = None
        self.arrived = bytearray()
        self.queue: list[tuple[int, int]] = []
        self.sending: int | None = None
        self.answered: Counter[int] = Counter()

    def settle(self, request_id: int) -> None:
        """The download has been answered."""
        self.live.pop(request_id, None)
        self.owed.pop(request_id, None)

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        """Do it then, unless the link has ended meanwhile."""
        epoch = self.epoch
        self.world.later(seconds, lambda: do() if self.epoch == epoch and self.is_up else None)

    # --- what it does ---

    def up(self) -> None:
        """The links to it are up."""
        if self.peer in self.world.banned or self.is_up:
            return
        self.is_up = True
        self.queue, self.sending = [], None
        self.world.perform(self.world.download.neighbour_up(self.peer))
        self.introduce()

    def introduce(self) -> None:
        self.state(self.offers)

    def state(self, offers: set[int]) -> None:
        """Say BITFIELD."""
        bits = np.zeros(self.world.manifest.pieces, np.bool_)
        bits[sorted(offers)] = True

        def arrive() -> None:
            self.stated = set(offers)
            self.world.control(self, Bitfield(self.world.manifest.root, to_wire(bits)))

        self.later(self.latency, arrive)

    def say(self, message: Message) -> None:
        """Send a message."""
        if isinstance(message, Reject):
            self.answered.update(message.ids)
        self.later(self.latency, lambda: self.world.control(self, message))

    def receive(self, message: Message) -> None:
        """A message from the download."""
        match message:
            case Join():
                pass
            case WantManifest(_, number):
                self.give_manifest(number)
            case Request(_, first_id, pieces):
                self.requested([((first_id + n) % 2**32, piece) for n, piece in enumerate(pieces)])
            case Cancel(ids):
                self.cancelled(set(ids))

    def give_manifest(self, number: int) -> None:
        manifest = self.world.manifest
        self.say(ManifestPage(manifest.root, manifest.size, manifest.piece_size, number, page(manifest, number)))

    def requested(self, asked: list[tuple[int, int]]) -> None:
        self.queue += asked
        self.pump()

    def cancelled(self, ids: set[int]) -> None:
        found = tuple(request_id for request_id, _ in self.queue if request_id in ids)
        self.queue = [owed for owed in self.queue if owed[0] not in ids]
        if found:
            self.say(Reject(found))

    def pump(self) -> None:
        """Send the next piece, if there is one and none is being sent."""
        if self.sending is None and self.queue:
            self.sending, piece = self.queue.pop(0)
            self.send(self.sending, piece)

    def send(self, request_id: int, piece: int) -> None:
        data = self.bytes_of(piece)
        self.later(self.latency, lambda: self.world.header(self, request_id, len(data)))
        size = -(-len(data) // self.parts)
        for number in range(self.parts):
            part = data[number * size : (number + 1) * size]
            self.later(
                self.latency + self.seconds * (number + 1) / self.parts,
                lambda part=part: self.world.body(self, part),  # type: ignore[misc]
            )
        self.later(self.seconds, lambda: self.sent(request_id))

    def bytes_of(self, piece: int) -> bytes:
        return self.world.data[piece * PIECE : (piece + 1) * PIECE]

    def sent(self, request_id: int) -> None:
        self.answered[request_id] += 1
        self.sending = None
        self.pump()


class Slow(Remote):
    """Honest, two seconds a piece."""

    seconds = 2.0


class Late(Remote):
    """Honest, but everything takes so long that it is given up for a while each time."""

    def requested(self, asked: list[tuple[int, int]]) -> None:
        self.later(7.0, lambda: super(Late, self).requested(asked))

    def give_manifest(self, number: int) -> None:
        self.later(7.0, lambda: super(Late, self).give_manifest(number))


class Choking(Remote):
    """Honest, and out of breath every other second; it offers even then."""

    def introduce(self) -> None:
        super().introduce()
        self.breath = True
        self.toggle()

    def toggle(self) -> None:
        self.breath = not self.breath
        root = self.world.manifest.root
        self.say(Unchoke(root) if self.breath else Choke(root))
        if not self.breath:
            self.cancelled({request_id for request_id, _ in self.queue})
        self.later(1.0, self.toggle)

    def requested(self, asked: list[tuple[int, int]]) -> None:
        if self.breath:
            super().requested(asked)
        else:
            self.say(Reject(tuple(request_id for request_id, _ in asked)))


class Leaving(Remote):
    """Leaves the swarm in the middle of every third piece, which still arrives, and comes back."""

    count = 0
    away = False

    def send(self, request_id: int, piece: int) -> None:
        super().send(request_id, piece)
        self.count += 1
        if self.count % 3 == 0:
            self.later(self.seconds / 2, self.leave)

    def leave(self) -> None:
        self.away = True
        self.cancelled({request_id for request_id, _ in self.queue})
        self.say(Leave(self.world.manifest.root))
        self.later(1.0, self.come_back)

    def come_back(self) -> None:
        self.away = False
        self.state(self.offers)

    def requested(self, asked: list[tuple[int, int]]) -> None:
        if self.away:
            self.say(Reject(tuple(request_id for request_id, _ in asked)))
        else:
            super().requested(asked)

    def give_manifest(self, number: int) -> None:
        if self.away:
            self.say(Leave(self.world.manifest.root))
        else:
            super().give_manifest(number)


class Vanishing(Remote):
    """Its links break in the middle of every third piece, and it is back two seconds later."""

    count = 0

    def send(self, request_id: int, piece: int) -> None:
        super().send(request_id, piece)
        self.count += 1
        if self.count % 3 == 0:
            self.later(self.seconds / 2, lambda: self.world.down(self))
            self.world.later(2.0, self.up)


class Restating(Remote):
    """Says anew what it offers, sometimes less, sometimes more; what it no longer offers it rejects."""

    def introduce(self) -> None:
        self.restate()

    def restate(self) -> None:
        self.now_offered = {piece for piece in sorted(self.offers) if self.world.rng.random() < 0.6}
        self.state(self.now_offered)
        self.say(Have(self.world.manifest.root, tuple(sorted(self.now_offered)) or (0,)))
        self.now_offered |= set() if self.now_offered else {0}
        self.later(0.4, self.restate)


class Growing(Remote):
    """A fetcher like us: it begins with nothing and says HAVE of a piece now and then."""

    def introduce(self) -> None:
        self.order = self.world.rng.sample(sorted(self.offers), len(self.offers))
        self.state(set())
        self.grow()

    def grow(self) -> None:
        if self.order:
            self.say(Have(self.world.manifest.root, (self.order.pop(),)))
            self.later(0.3, self.grow)


class Silent(Remote):
    """Offers everything and answers nothing."""

    hostile = True

    def requested(self, asked: list[tuple[int, int]]) -> None:
        pass

    def cancelled(self, ids: set[int]) -> None:
        pass

    def give_manifest(self, number: int) -> None:
        pass


class Rejecting(Remote):
    """Offers everything and rejects every request."""

    hostile = True

    def requested(self, asked: list[tuple[int, int]]) -> None:
        self.say(Reject(tuple(request_id for request_id, _ in asked)))


class Dripping(Remote):
    """Sends a byte a second."""

    hostile = True
    seconds = float(PIECE)
    parts = PIECE


class Stalling(Remote):
    """Answers the moment it has been given up, then stops in the middle: it would hold the piece for ever."""

    hostile = True

    def requested(self, asked: list[tuple[int, int]]) -> None:
        self.queue += asked

    def cancelled(self, ids: set[int]) -> None:
        if self.sending is None and self.queue:
            self.sending, piece = self.queue.pop(0)
            data = self.bytes_of(piece)
            request_id = self.sending
            self.later(self.latency, lambda: self.world.header(self, request_id, len(data)))
            self.later(self.latency, lambda: self.world.body(self, data[: len(data) // 2]))


class Stuck(Remote):
    """Starts a piece at once and never ends it."""

    hostile = True

    def send(self, request_id: int, piece: int) -> None:
        data = self.bytes_of(piece)
        self.later(self.latency, lambda: self.world.header(self, request_id, len(data)))
        self.later(self.latency, lambda: self.world.body(self, data[:5]))

    def cancelled(self, ids: set[int]) -> None:
        pass


class RejectingWhatItSends(Remote):
    """Starts a piece, then rejects the request: two answers to one."""

    hostile = True

    def send(self, request_id: int, piece: int) -> None:
        super().send(request_id, piece)
        self.later(self.seconds / 2, lambda: self.say(Reject((request_id,))))


class AnsweringTwice(Remote):
    """Sends every piece a second time."""

    hostile = True

    def sent(self, request_id: int) -> None:
        self.later(self.latency, lambda: self.world.header(self, request_id, PIECE))


class WrongLength(Remote):
    """Sends a byte too many."""

    hostile = True

    def bytes_of(self, piece: int) -> bytes:
        return super().bytes_of(piece) + b"x"


class WrongBytes(Remote):
    """Sends something else."""

    hostile = True

    def bytes_of(self, piece: int) -> bytes:
        return bytes(len(super().bytes_of(piece)))


class Forging(Remote):
    """Gives out a manifest of its own."""

    hostile = True

    def give_manifest(self, number: int) -> None:
        manifest = self.world.manifest
        self.say(ManifestPage(manifest.root, manifest.size, manifest.piece_size, number, bytes(len(manifest.hashes))))


class Misfit(Remote):
    """Its BITFIELD is of another artifact's length."""

    hostile = True

    def introduce(self) -> None:
        self.say(Bitfield(self.world.manifest.root, bytes(99)))


class Flooding(Silent):
    """Says HAVE of everything, over and over."""

    def introduce(self) -> None:
        super().introduce()
        self.flood()

    def flood(self) -> None:
        pieces = self.world.manifest.pieces
        self.say(Have(self.world.manifest.root, tuple(range(pieces)) * 3))
        self.later(0.1, self.flood)


class ChokedForEver(Remote):
    """Offers everything, is choked before anybody can ask, and stays so; it rejects what is asked all the same."""

    hostile = True

    def introduce(self) -> None:
        super().introduce()
        self.say(Choke(self.world.manifest.root))

    def requested(self, asked: list[tuple[int, int]]) -> None:
        self.say(Reject(tuple(request_id for request_id, _ in asked)))


HONEST: list[type[Remote]] = [Remote, Slow, Late, Choking, Leaving, Vanishing, Restating, Growing]
HOSTILE: list[type[Remote]] = [
    Silent,
    Rejecting,
    Dripping,
    Stalling,
    Stuck,
    RejectingWhatItSends,
    AnsweringTwice,
    WrongLength,
    WrongBytes,
    Forging,
    Misfit,
    Flooding,
    ChokedForEver,
]
