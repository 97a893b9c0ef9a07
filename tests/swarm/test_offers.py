"""Super-seeding: who is offered what, against hostile and idle neighbours, and until when."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fleet.identity.keys import PeerId
from fleet.swarm.offers import AHEAD, SPREAD_SECONDS, STALE_SECONDS, SuperSeed

PEERS = [PeerId(bytes([n]) * 32) for n in range(6)]
A, B, C = PEERS[:3]


def pieces_of(bits: np.ndarray) -> set[int]:
    return {int(piece) for piece in np.flatnonzero(bits)}


def seed_of(pieces: int, seed: int = 0) -> SuperSeed:
    return SuperSeed(pieces, random.Random(seed))


def test_each_neighbour_is_shown_a_few_pieces_of_its_own() -> None:
    seed = seed_of(100)
    shown = [pieces_of(seed.bitfield(peer, 3, 0.0)) for peer in (A, B, C)]
    assert [len(pieces) for pieces in shown] == [AHEAD] * 3
    assert len(set.union(*shown)) == 3 * AHEAD
    assert pieces_of(seed.bitfield(A, 3, 0.0)) == shown[0]


def test_a_small_artifact_is_shared_among_all() -> None:
    seed = seed_of(6)
    assert [len(pieces_of(seed.bitfield(peer, 3, 0.0))) for peer in (A, B, C)] == [2, 2, 2]


def test_nobody_is_served_what_was_not_shown_to_it() -> None:
    seed = seed_of(20)
    shown = pieces_of(seed.bitfield(A, 2, 0.0))
    assert not any(seed.may_serve(B, piece) for piece in range(20))
    assert {piece for piece in range(20) if seed.may_serve(A, piece)} == shown


def test_more_is_shown_as_pieces_go_out() -> None:
    seed = seed_of(100)
    shown = pieces_of(seed.bitfield(A, 1, 0.0))
    assert seed.more(A, 1, 0.0) == []
    first = min(shown)
    assert seed.may_serve(A, first)
    seed.sent(first, 0.1)
    (new,) = seed.more(A, 1, 0.1)
    assert new not in shown
    assert pieces_of(seed.bitfield(A, 1, 0.1)) == shown | {new}
    assert seed.may_serve(A, first)  # it was its to ask for, and may be again


def test_an_idle_neighbour_takes_one_that_nobody_has_asked_for() -> None:
    seed = seed_of(4)
    shown = pieces_of(seed.bitfield(A, 1, 0.0))
    assert len(shown) == 4
    seed.bitfield(B, 2, 0.0)
    (taken,) = pieces_of(seed.bitfield(B, 2, 0.0))
    assert not seed.may_serve(A, taken)
    assert taken not in pieces_of(seed.bitfield(A, 2, 0.0))
    assert seed.may_serve(B, taken)
    assert seed.more(B, 2, 0.0) == []  # it has something to ask for


def test_what_was_asked_for_stays_until_it_is_stale() -> None:
    seed = seed_of(2)
    shown = pieces_of(seed.bitfield(A, 1, 0.0))
    assert all(seed.may_serve(A, piece) for piece in shown)
    assert pieces_of(seed.bitfield(B, 2, 0.5)) == set()
    assert seed.more(B, 2, STALE_SECONDS - 0.01) == []
    assert seed.more(A, 2, STALE_SECONDS - 0.01) == []
    assert seed.next_deadline() == STALE_SECONDS
    assert seed.more(B, 2, STALE_SECONDS) != []


def test_idle_neighbours_do_not_take_an_offer_from_each_other_faster_than_any_can_ask() -> None:
    """Each holder has longer than the one before, until somebody's request comes in time."""
    seed = seed_of(1)
    way = 1.5
    asks: list[tuple[float, PeerId]] = []

    def everyone_but(asker: PeerId | None, now: float) -> None:
        takers = [peer for peer in PEERS if peer != asker and seed.more(peer, len(PEERS), now)]
        asks.extend((now + way, peer) for peer in takers)

    for peer in PEERS:
        seed.bitfield(peer, len(PEERS), 0.0)
    for now in (round_ * 0.05 for round_ in range(1_200)):
        everyone_but(None, now)
        assert len(asks) < 1_000, "it goes from hand to hand without an end"
        for at, peer in list(asks):
            if at <= now:
                asks.remove((at, peer))
                everyone_but(peer, now)  # the worst moment: just before the request arrives
                if seed.may_serve(peer, 0):
                    return
    raise AssertionError("the piece went round for a minute and nobody could ask for it")


def test_done_only_after_the_news_had_time_to_spread() -> None:
    seed = seed_of(3)
    shown = pieces_of(seed.bitfield(A, 1, 0.0))
    for number, piece in enumerate(sorted(shown)):
        assert not seed.done(1e9)
        seed.sent(piece, float(number))
    assert seed.next_deadline() == 2.0 + SPREAD_SECONDS
    assert not seed.done(2.0 + SPREAD_SECONDS - 0.001)
    seed.sent(0, 9.0)  # a second time: that is no news
    assert seed.done(2.0 + SPREAD_SECONDS)


def test_a_leaving_neighbour_gives_its_offers_back() -> None:
    seed = seed_of(20)
    shown = pieces_of(seed.bitfield(A, 2, 0.0))
    assert seed.may_serve(A, min(shown))
    seed.remove(A)
    assert not any(seed.may_serve(A, piece) for piece in range(20))
    assert pieces_of(seed.bitfield(B, 1, 0.0)) == shown  # first in line again
    seed.remove(C)  # nobody: no error


def test_the_end_waits_for_no_news_of_one_who_is_gone() -> None:
    seed = seed_of(1)
    seed.bitfield(A, 1, 0.0)
    seed.sent(0, 5.0)
    assert not seed.done(5.0)
    seed.remove(A)
    assert seed.done(5.0)


def test_a_lone_neighbour_that_holds_what_it_is_shown_gets_the_rest() -> None:
    """It resumed: it will never ask for those. They must not keep it from the pieces that it lacks."""
    seed = seed_of(40)
    held = set(range(0, 40, 2))
    todo = set(range(40)) - held
    shown = pieces_of(seed.bitfield(A, 1, 0.0))
    now = 0.0
    while todo:
        for piece in sorted(shown & todo):
            assert seed.may_serve(A, piece)
            seed.sent(piece, now)
            todo.discard(piece)
            shown |= set(seed.more(A, 1, now))
        if not shown & todo:
            due = seed.next_deadline()
            assert now < due < 60.0
            now = due
            shown |= set(seed.more(A, 1, now))


def test_pieces_that_somebody_holds_have_gone_out() -> None:
    """After a restart of the origin nobody is shown what it holds, and nothing waits for it to be asked for."""
    seed = seed_of(40)
    before = pieces_of(seed.bitfield(B, 2, 0.0))
    held = set(range(0, 40, 2)) | before
    seed.held_elsewhere(sorted(held), 0.1)
    shown = pieces_of(seed.bitfield(A, 2, 0.1)) | set(seed.more(B, 2, 0.1))
    assert not shown & held
    while not seed.done(1.0):
        assert shown
        for piece in shown:
            seed.sent(piece, 0.2)
        shown = set(seed.more(A, 2, 0.2))


def test_next_deadline_lies_ahead_once_everyone_has_been_looked_at() -> None:
    """In the past, its caller would come back again and again for nothing."""
    seed = seed_of(3)
    for peer in PEERS:
        seed.bitfield(peer, len(PEERS), 0.0)
    now = 0.0
    for _ in range(30):
        for peer in PEERS:
            seed.more(peer, len(PEERS), now)
        assert seed.next_deadline() > now
        now = min(seed.next_deadline(), now + 1.0)


@pytest.mark.parametrize("hostile", ["silent", "asks and does not read", "comes and goes"])
@pytest.mark.parametrize("pieces", [1, 7, 60])
def test_a_hostile_holder_of_offers_cannot_stall(hostile: str, pieces: int) -> None:
    """Of six neighbours one asks for nothing, or reads nothing, or joins and leaves: every piece still goes out."""
    seed = seed_of(pieces, 3)
    bad, good = PEERS[0], PEERS[1:]
    sent: Counter[int] = Counter()
    shown = {peer: pieces_of(seed.bitfield(peer, 6, 0.0)) for peer in PEERS}
    now = 0.0
    while not seed.done(now):
        now += 0.05
        assert now < 60.0, f"{pieces - len(sent)} pieces never went out"
        if hostile == "comes and goes":
            seed.remove(bad)
            seed.bitfield(bad, 6, now)
        elif hostile == "asks and does not read":
            for piece in range(pieces):
                seed.may_serve(bad, piece)
        for peer in PEERS:
            shown[peer] |= set(seed.more(peer, 6, now))
        for peer in good:  # each takes one piece a round
            for piece in sorted(shown[peer]):
                if not sent[piece] and seed.may_serve(peer, piece):
                    seed.sent(piece, now)
                    sent[piece] += 1
                    break
    assert sent == Counter(range(pieces))


class NobodyIsShownAnothersPiece(RuleBasedStateMachine):
    """Until all went out once, an unsent piece is one neighbour's to ask for, or nobody's; and none is lost."""

    @initialize(pieces=st.integers(1, 20), seed=st.integers(0, 3))
    def start(self, pieces: int, seed: int) -> None:
        self.pieces = pieces
        self.seed = seed_of(pieces, seed)
        self.now = 0.0
        self.there: set[PeerId] = set()
        self.sent_to: dict[int, set[PeerId]] = {piece: set() for piece in range(pieces)}
        self.shown_at: dict[int, tuple[PeerId, float]] = {}
        self.asked: set[int] = set()

    def shown(self, peer: PeerId, pieces: set[int]) -> None:
        for piece in pieces:
            assert not self.sent_to[piece], "a piece that went out is not shown to another before all have"
            before = self.shown_at.get(piece)
            if before is not None:
                stale = self.now >= before[1] + STALE_SECONDS
                assert before[0] != peer
                assert stale or piece not in self.asked
            self.shown_at[piece] = (peer, self.now)
            self.asked.discard(piece)

    @rule(peer=st.sampled_from(PEERS))
    def come(self, peer: PeerId) -> None:
        if peer not in self.there:
            self.there.add(peer)
            self.shown(peer, pieces_of(self.seed.bitfield(peer, len(self.there), self.now)))

    @rule(peer=st.sampled_from(PEERS))
    def go(self, peer: PeerId) -> None:
        self.there.discard(peer)
        self.seed.remove(peer)
        self.shown_at = {piece: at for piece, at in self.shown_at.items() if at[0] != peer}
        for receivers in self.sent_to.values():
            if peer in receivers:
                receivers.discard(peer)
                receivers.add(PEERS[-1])  # it went out all the same

    @rule(peer=st.sampled_from(PEERS))
    def more(self, peer: PeerId) -> None:
        new = self.seed.more(peer, len(self.there), self.now)
        assert len(new) == len(set(new)) <= AHEAD
        assert not new or peer in self.there
        self.shown(peer, set(new))

    @rule(peer=st.sampled_from(PEERS), number=st.integers(0, 19))
    def ask(self, peer: PeerId, number: int) -> None:
        piece = number % self.pieces
        mine = self.shown_at.get(piece, (None, 0.0))[0] == peer
        if not self.sent_to[piece]:
            assert self.seed.may_serve(peer, piece) == (mine and peer in self.there)
            if mine:
                self.asked.add(piece)
        elif self.seed.may_serve(peer, piece):
            assert peer in self.there

    @rule(number=st.integers(0, 19))
    def send(self, number: int) -> None:
        piece = number % self.pieces
        if piece in self.asked and piece in self.shown_at:
            self.seed.sent(piece, self.now)
            self.sent_to[piece].add(self.shown_at.pop(piece)[0])

    @rule(seconds=st.sampled_from([0.01, 0.3, STALE_SECONDS]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def done_only_when_all_went_out(self) -> None:
        if self.seed.done(self.now):
            assert all(self.sent_to.values())


TestNobodyIsShownAnothersPiece = NobodyIsShownAnothersPiece.TestCase
TestNobodyIsShownAnothersPiece.settings = settings(max_examples=60, stateful_step_count=40)


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 9))
@settings(max_examples=40)
def test_honest_neighbours_are_sent_every_piece_once(pieces: int, neighbours: int, chance: int) -> None:
    seed = seed_of(pieces, chance)
    rng = random.Random(chance)
    peers = PEERS[:neighbours]
    shown = {peer: pieces_of(seed.bitfield(peer, neighbours, 0.0)) for peer in peers}
    sent: list[int] = []
    now = 0.0
    while not seed.done(now):
        now += 0.01
        assert now < 60.0
        peer = rng.choice(peers)
        for piece in sorted(shown[peer])[:2]:
            if piece not in sent and seed.may_serve(peer, piece):
                seed.sent(piece, now)
                sent.append(piece)
            shown[peer].discard(piece)
        shown[peer] |= set(seed.more(peer, neighbours, now))
    assert sorted(sent) == list(range(pieces))


def test_one_seed_decides_the_order() -> None:
    fields = [pieces_of(seed_of(100, chance).bitfield(A, 1, 0.0)) for chance in (1, 1, 2)]
    assert fields[0] == fields[1] != fields[2]
