"""The download among simulated neighbours. ``World`` checks at every step what must always hold: see there."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleet.errors import PeerViolation
from fleet.identity.keys import PeerId
from fleet.swarm.bitfield import to_wire
from fleet.swarm.download import Download
from fleet.swarm.effects import Effect, Finished, ManifestFound, Say, TimedOut
from fleet.swarm.endgame import MAX_COPIES
from fleet.swarm.manifest import page
from fleet.swarm.manifest_search import MANIFEST_TIMEOUT
from fleet.swarm.refusals import RETRY_SECONDS
from fleet.wire.messages import (
    Bitfield,
    Cancel,
    Choke,
    Have,
    Join,
    Leave,
    ManifestPage,
    Message,
    Request,
    Unchoke,
    WantManifest,
)
from tests.helpers.remotes import (
    HONEST,
    HOSTILE,
    PIECE,
    ChokedForEver,
    Dripping,
    Forging,
    Late,
    Remote,
    Silent,
    Slow,
    Stalling,
    Vanishing,
    World,
    artifact,
)

if TYPE_CHECKING:
    from fleet.swarm.pens import Incoming

A, B, C = (PeerId(bytes([n]) * 32) for n in (1, 2, 3))


# --- it completes whenever some honest source has every piece ---


@pytest.mark.parametrize("kind", HONEST, ids=lambda kind: kind.__name__)
def test_one_honest_neighbour_is_enough(kind: type[Remote]) -> None:
    world = World([kind()]).run()
    assert world.finished_at is not None
    assert not world.banned
    assert world.download.nowhere() == []


@pytest.mark.parametrize("kind", HOSTILE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("partial", [False, True])
def test_a_hostile_one_beside_it_stops_nothing(kind: type[Remote], partial: bool) -> None:
    bad = kind(set(range(11)) if partial else None)
    world = World([bad, Remote(), kind()]).run(120.0)
    assert world.finished_at is not None, world.download.nowhere()


@given(
    st.lists(st.sampled_from(HONEST + HOSTILE), max_size=5),
    st.lists(st.sets(st.integers(0, 11)) | st.none(), min_size=5, max_size=5),
    st.integers(0, 5),
    st.integers(1, 14),
    st.integers(0, 1_000),
    st.booleans(),
)
@settings(max_examples=150)
def test_any_company(
    kinds: list[type[Remote]], offers: list[set[int] | None], place: int, pieces: int, seed: int, known: bool
) -> None:
    remotes = [kind(some) for kind, some in zip(kinds, offers, strict=False)]
    good = Remote()
    remotes.insert(min(place, len(remotes)), good)
    world = World(remotes, pieces, seed=seed, know_manifest=known).run(400.0)
    assert world.finished_at is not None, [type(remote).__name__ for remote in remotes]
    # Once it is over, what is still owed drains, and every request has had its answer.
    world.run(30.0, until=lambda: False)
    source = world.download.sources[good.peer]
    assert (source.asks, source.waiting) == ({}, 0)
    assert set(good.answered.values()) <= {1}
    assert world.download.next_deadline(world.now) == float("inf")


@given(st.lists(st.sampled_from([Remote, Slow, Vanishing]), min_size=2, max_size=4), st.integers(0, 9))
@settings(max_examples=30)
def test_partial_neighbours_that_together_have_every_piece(kinds: list[type[Remote]], seed: int) -> None:
    remotes = [kind({piece for piece in range(12) if piece % len(kinds) == n}) for n, kind in enumerate(kinds)]
    world = World(remotes, seed=seed).run()
    assert world.finished_at is not None


def test_one_seed_decides_everything() -> None:
    def story(seed: int) -> tuple[float | None, dict[PeerId, int], list[int]]:
        world = World([Slow(), Vanishing(), Remote(), Silent()], seed=seed).run()
        return world.finished_at, dict(world.download.bytes_from), list(world.requests)

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_what_is_held_already_is_not_asked_for() -> None:
    world = World([Remote()], know_manifest=True, have=set(range(0, 12, 2)))
    assert world.download.needed_bytes == 6 * PIECE - 7
    world.run()
    assert set(world.requests) == set(range(1, 12, 2))


def test_everything_is_held_already() -> None:
    world = World([Remote()], know_manifest=True, have=set(range(12)))
    assert world.finished_at is not None
    world.run(10.0, until=lambda: False)
    assert world.finishes == 1
    assert not world.requests


# --- duplicates and the endgame ---


def test_honest_neighbours_of_one_pace_send_nothing_twice() -> None:
    world = World([Remote(), Remote(), Remote()], 60).run()
    assert world.download.duplicate_bytes == 0
    assert world.duplicates == []


def test_the_endgame_asks_elsewhere_for_what_a_slow_one_sits_on() -> None:
    """A source that takes a minute does not hold up the end, and is told."""
    slow = Slow()
    slow.seconds = 60.0
    world = World([slow, Remote()], 20).run()
    assert world.finished_at is not None
    assert world.finished_at < 100.0 + 20.0
    assert world.duplicates
    assert max(world.requests.values()) <= MAX_COPIES + 1


@pytest.mark.parametrize("pieces", [1, 2, 20])
def test_a_dripping_source_does_not_hold_up_the_end(pieces: int) -> None:
    world = World([Dripping(), Remote()], pieces).run()
    assert world.finished_at is not None
    assert world.finished_at < 100.0 + 12.0


def test_a_silent_partial_neighbour_does_not_keep_the_full_one_idle_for_long() -> None:
    """The full one is spared for the sake of those who pass pieces on, and not of one that has yet to answer at all."""
    world = World([Silent(set(range(199))), Remote()], 200, know_manifest=True).run()
    assert world.finished_at is not None
    assert world.finished_at < 100.0 + 5.0 + 200 * Remote.seconds + 1.0


def test_a_piece_that_crawls_in_is_taken_from_its_source_in_the_endgame() -> None:
    """It makes progress by its own measure and does not time out. The quick one sends the whole before it the rest."""
    bench = Bench(2)
    by_piece = {piece: request_id for request_id, piece in bench.offer(A).items()}
    bench.serve(A, by_piece[0], 0, 4.9)  # a timeout of 14.7 seconds from here on
    bench.download.handle_untrusted(B, Bitfield(bench.root, bench.bits()), 5.0)
    source = bench.download.sources[B]
    source.response = 0.1
    crawling = bench.header(A, by_piece[1], 1)
    bench.download.bytes_arrived(crawling, 5, 5.0)
    assert bench.download.on_timer(5.5) == []  # too early to tell
    effects = bench.download.on_timer(7.0)
    assert said(effects, A) == [Cancel((by_piece[1],))]
    ((second, piece),) = asked(effects, B).items()
    assert piece == 1
    assert not crawling.holds_pen
    assert bench.serve(B, second, 1, 7.1) == [Finished()]
    bench.finish(crawling, 7.2)
    assert bench.download.wasted_bytes == crawling.length


def test_nothing_is_asked_for_twice_while_a_missing_piece_is_asked_of_nobody() -> None:
    bench = Bench(3)
    by_piece = {piece: request_id for request_id, piece in bench.offer(A, 0, 1).items()}
    bench.offer(B, 0)
    bench.serve(A, by_piece[1], 1, 0.1)
    assert bench.download.on_timer(1.9) == []  # A is late, but piece 2 is nowhere: this is not the endgame
    effects = bench.download.handle_untrusted(A, Have(bench.root, (2,)), 1.95)
    assert set(asked(effects, A).values()) == {2}
    assert set(asked(bench.download.on_timer(1.96), B).values()) == {0}


# --- one step at a time ---


class Bench:
    """A download in the hands of a test."""

    def __init__(self, pieces: int = 4, *, begin: bool = True, first_id: int = 0) -> None:
        self.manifest, self.data = artifact(pieces)
        self.root = self.manifest.root
        self.next_id = first_id
        self.download = Download(self.root, random.Random(0), self._take_ids)
        if begin:
            self.download.begin(self.manifest, np.zeros(pieces, np.bool_), 0.0)

    def _take_ids(self, count: int) -> int:
        first = self.next_id
        self.next_id = (first + count) % 2**32
        return first

    def bits(self, *pieces: int) -> bytes:
        have = np.zeros(self.manifest.pieces, np.bool_)
        have[list(pieces) if pieces else slice(None)] = True
        return to_wire(have)

    def offer(self, peer: PeerId, *pieces: int, now: float = 0.0) -> dict[int, int]:
        """A BITFIELD; the requests that it leads to, piece by id. Without pieces it offers all."""
        return asked(self.download.handle_untrusted(peer, Bitfield(self.root, self.bits(*pieces)), now), peer)

    def page(self, number: int = 0) -> ManifestPage:
        return ManifestPage(self.root, self.manifest.size, PIECE, number, page(self.manifest, number))

    def header(self, peer: PeerId, request_id: int, piece: int) -> Incoming:
        incoming = self.download.incoming_untrusted(peer, request_id, self.manifest.piece_length(piece))
        assert incoming is not None
        assert incoming.piece == piece
        return incoming

    def finish(self, incoming: Incoming, now: float) -> list[Effect]:
        self.download.bytes_arrived(incoming, incoming.length - incoming.ask.received, now)
        return self.download.completed(incoming, now)

    def serve(self, peer: PeerId, request_id: int, piece: int, now: float) -> list[Effect]:
        return self.finish(self.header(peer, request_id, piece), now)


def said(effects: list[Effect], peer: PeerId) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Say) and effect.peer == peer]


def asked(effects: list[Effect], peer: PeerId) -> dict[int, int]:
    return {
        (message.first_id + number) % 2**32: piece
        for message in said(effects, peer)
        if isinstance(message, Request)
        for number, piece in enumerate(message.pieces)
    }


def test_request_ids_wrap() -> None:
    bench = Bench(4, first_id=2**32 - 2)
    requests = bench.offer(A)
    assert list(requests) == [2**32 - 2, 2**32 - 1, 0, 1]
    effects = [effect for i, piece in requests.items() for effect in bench.serve(A, i, piece, 1.0)]
    assert effects[-1] == Finished()
    assert bench.download.finished


def test_a_wrong_length_is_blamed_on_its_source() -> None:
    bench = Bench()
    ((request_id, piece), *_) = bench.offer(A).items()
    for length in (bench.manifest.piece_length(piece) + 1, 1, PIECE * 2):
        with pytest.raises(PeerViolation, match="which has") as caught:
            bench.download.incoming_untrusted(A, request_id, length)
        assert caught.value.peer == A


def test_what_was_not_asked_of_this_neighbour_is_not_this_downloads() -> None:
    bench = Bench()
    requests = bench.offer(A, 0, 1)
    bench.offer(B, 2)
    assert bench.download.incoming_untrusted(A, 99, PIECE) is None
    assert bench.download.incoming_untrusted(B, min(requests), PIECE) is None
    assert bench.download.incoming_untrusted(C, 0, PIECE) is None
    assert bench.download.rejected_untrusted(C, (0, 1), 0.0) == []
    assert asked(bench.download.rejected_untrusted(B, tuple(requests), 0.0), A) == {}


def test_a_reject_of_a_piece_that_is_arriving() -> None:
    """Taken at its word it would free the piece while its writer lives on: one request has one answer."""
    bench = Bench()
    ((request_id, piece), *_) = bench.offer(A).items()
    incoming = bench.header(A, request_id, piece)
    bench.download.bytes_arrived(incoming, 5, 0.1)
    with pytest.raises(PeerViolation, match="is arriving") as caught:
        bench.download.rejected_untrusted(A, (request_id,), 0.2)
    assert caught.value.peer == A
    bench.download.spoiled(incoming, 5)
    bench.download.neighbour_down(A, 0.2)
    assert piece in bench.offer(B, now=0.3).values()


def test_a_rejected_piece_is_asked_for_again_after_a_while() -> None:
    """The last source that has a piece is never dropped."""
    bench = Bench(1)
    ((request_id, _),) = bench.offer(A).items()
    assert bench.download.rejected_untrusted(A, (request_id,), 1.0) == []
    assert bench.download.nowhere() == [0]
    assert bench.download.next_deadline(1.0) == 1.0 + RETRY_SECONDS
    assert asked(bench.download.on_timer(1.0 + RETRY_SECONDS), A) == {1: 0}
    assert bench.download.nowhere() == []


def test_a_rejected_piece_is_asked_for_at_once_when_it_is_offered_anew() -> None:
    bench = Bench(1)
    ((request_id, _),) = bench.offer(A).items()
    bench.download.rejected_untrusted(A, (request_id,), 1.0)
    assert asked(bench.download.handle_untrusted(A, Have(bench.root, (0,)), 1.1), A) == {1: 0}


@pytest.mark.parametrize("leaves", [False, True])
def test_a_rejected_piece_that_is_no_longer_offered_stays_so(leaves: bool) -> None:
    """A BITFIELD replaces what was said before, refusals and their retries too."""
    bench = Bench(2)
    requests = bench.offer(A)
    bench.download.rejected_untrusted(A, tuple(requests), 1.0)
    if leaves:
        bench.download.handle_untrusted(A, Leave(bench.root), 1.1)
    bench.offer(A, 1, now=1.2)
    assert bench.download.nowhere() == [0]
    assert 0 not in asked(bench.download.on_timer(5.0), A).values()
    assert bench.download.nowhere() == [0]


def test_a_reject_of_what_is_not_offered_any_more_brings_no_offer_back() -> None:
    bench = Bench(2)
    by_piece = {piece: request_id for request_id, piece in bench.offer(A).items()}
    bench.offer(A, 1, now=0.5)
    bench.download.rejected_untrusted(A, (by_piece[0],), 1.0)
    assert bench.download.on_timer(1.0 + RETRY_SECONDS) == []
    assert bench.download.nowhere() == [0]


def test_a_timed_out_source_is_asked_again_after_its_backoff_and_only_for_one_piece() -> None:
    bench = Bench()
    requests = bench.offer(A)
    due = bench.download.next_deadline(0.0)
    while due < 5.0:  # the endgame looks now and then
        assert bench.download.on_timer(due) == []
        due = bench.download.next_deadline(due)
    effects = bench.download.on_timer(5.0)
    assert effects == [TimedOut(A, 4), Say(A, Cancel(tuple(requests)))]
    assert bench.download.next_deadline(5.0) == 10.0
    assert len(asked(bench.download.on_timer(10.0), A)) == 1


def test_a_timed_out_writer_loses_its_piece_and_its_late_bytes_do_not_touch_it() -> None:
    bench = Bench(1)
    ((first, _),) = bench.offer(A).items()
    slow = bench.header(A, first, 0)
    bench.download.bytes_arrived(slow, 5, 1.0)
    assert slow.holds_pen
    bench.download.on_timer(5.0)
    assert not slow.holds_pen
    ((second, _),) = bench.offer(B, now=5.1).items()
    quick = bench.header(B, second, 0)
    assert quick.holds_pen
    bench.download.bytes_arrived(quick, 9, 5.2)
    bench.finish(slow, 5.3)
    assert not slow.holds_pen
    assert quick.holds_pen
    assert not bench.download.finished
    assert bench.finish(quick, 5.4) == [Finished()]
    assert bench.download.wasted_bytes == slow.length
    assert bench.download.duplicate_bytes == 0
    assert bench.download.bytes_from == {B: slow.length}


def test_a_late_answer_counts_while_nobody_else_sends_the_piece() -> None:
    bench = Bench(1)
    ((first, _),) = bench.offer(A).items()
    bench.download.on_timer(5.0)
    ((second, _),) = bench.offer(B, now=5.1).items()
    effects = bench.serve(A, first, 0, 5.2)
    assert effects == [Say(B, Cancel((second,))), Finished()]
    assert bench.serve(B, second, 0, 5.3) == []
    assert bench.download.duplicate_bytes == bench.manifest.piece_length(0)


def test_a_late_answer_gives_the_piece_up_to_one_that_is_waited_for() -> None:
    """Else whoever lets itself time out and then begins to send could hold a piece for ever: nobody waits for it, so it
    never times out again."""
    bench = Bench(1)
    ((first, _),) = bench.offer(A).items()
    bench.download.on_timer(5.0)
    ((second, _),) = bench.offer(B, now=5.1).items()
    late = bench.header(A, first, 0)
    assert late.holds_pen
    bench.download.bytes_arrived(late, 5, 5.2)
    awaited = bench.header(B, second, 0)
    assert awaited.holds_pen
    assert not late.holds_pen
    assert bench.finish(awaited, 5.3) == [Finished()]
    bench.finish(late, 5.4)
    assert bench.download.wasted_bytes == late.length


def test_a_piece_thrown_away_because_another_was_writing_is_wanted_again_when_that_one_fails() -> None:
    """Between the two the piece would be asked of nobody, and nobody would notice."""
    bench = Bench(2)
    by_piece = {piece: request_id for request_id, piece in bench.offer(A).items()}
    bench.serve(A, by_piece[1], 1, 0.1)
    assert bench.offer(B, 0, now=0.2) == {}
    ((second, _),) = asked(bench.download.on_timer(1.2), B).items()  # the endgame: A is late
    writer = bench.header(A, by_piece[0], 0)
    bench.download.bytes_arrived(writer, 1, 1.3)
    other = bench.header(B, second, 0)
    assert (writer.holds_pen, other.holds_pen) == (True, False)
    bench.download.on_timer(2.1)  # A has timed out, and B's answer cannot become the writer half-way
    assert (writer.holds_pen, other.holds_pen) == (False, False)
    effects = bench.finish(other, 2.2)
    assert bench.download.duplicate_bytes == other.length
    assert 0 in asked(effects, B).values()


def test_a_neighbour_that_leaves_while_its_piece_arrives() -> None:
    """Its bytes go nowhere, the count of them included, and the end of the piece is no surprise."""
    bench = Bench(1)
    ((first, _),) = bench.offer(A).items()
    incoming = bench.header(A, first, 0)
    bench.download.bytes_arrived(incoming, 5, 0.1)
    bench.download.handle_untrusted(A, Leave(bench.root), 0.2)
    assert not incoming.holds_pen
    bench.download.bytes_arrived(incoming, 5, 0.3)
    assert incoming.ask.received == 10
    again = bench.offer(A, now=0.4)
    assert set(again.values()) == {0}
    bench.finish(incoming, 0.5)
    assert bench.download.wasted_bytes == incoming.length
    assert not bench.download.finished
    ((second, _),) = again.items()
    assert bench.serve(A, second, 0, 0.6) == [Finished()]


def test_a_cancel_that_crosses_its_piece() -> None:
    bench = Bench(1)
    ((first, _),) = bench.offer(A).items()
    bench.download.on_timer(5.0)
    assert bench.serve(A, first, 0, 5.01) == [Finished()]
    assert bench.download.sources[A].asks == {}


def test_rejects_of_what_was_given_up() -> None:
    bench = Bench()
    requests = bench.offer(A)
    bench.download.on_timer(5.0)
    assert bench.download.rejected_untrusted(A, tuple(requests), 5.1) == []
    assert bench.download.nowhere() == []  # nobody wanted them any more: that is no refusal
    assert bench.download.sources[A].asks == {}
    bench.download.rejected_untrusted(A, (*requests, *requests), 5.2)


def test_choke_while_requests_are_out() -> None:
    bench = Bench()
    requests = bench.offer(A)
    first, *others = requests
    assert bench.download.handle_untrusted(A, Choke(bench.root), 1.0) == []
    bench.serve(A, first, requests[first], 1.1)  # it was sending that one
    assert bench.download.rejected_untrusted(A, tuple(others), 1.2) == []
    assert bench.download.nowhere() == []  # a choked source offers what it offered
    again = asked(bench.download.handle_untrusted(A, Unchoke(bench.root), 1.4), A)
    assert not set(again.values()) & {requests[first]}


def test_a_choke_before_the_manifest_counts() -> None:
    bench = Bench(begin=False)
    bench.download.neighbour_up(A)
    bench.download.handle_untrusted(A, Bitfield(bench.root, bench.bits()), 0.0)
    bench.download.handle_untrusted(A, Choke(bench.root), 0.1)
    bench.download.handle_untrusted(A, bench.page(), 0.2)
    effects, violations = bench.download.begin(bench.manifest, np.zeros(4, np.bool_), 0.3)
    assert (effects, violations) == ([], [])
    assert bench.download.handle_untrusted(A, Unchoke(bench.root), 0.4) == []
    assert bench.download.next_deadline(0.4) == 0.4  # at once, and once for all that one frame says
    assert len(asked(bench.download.on_timer(0.4), A)) == 4


def test_a_bitfield_in_mid_course_replaces_what_was_offered() -> None:
    bench = Bench(8)
    bench.offer(A, 0, 1)
    assert bench.download.nowhere() == [2, 3, 4, 5, 6, 7]
    assert set(bench.offer(A, 0, 2).values()) == {2}
    assert bench.download.nowhere() == [1, 3, 4, 5, 6, 7]
    assert len(bench.download.sources) == 1


def test_nowhere_is_exact() -> None:
    bench = Bench(6)
    rng = random.Random(1)
    offers: dict[PeerId, set[int]] = {}
    for _ in range(300):
        peer = rng.choice([A, B, C])
        pieces = set(rng.sample(range(6), rng.randint(1, 3)))
        match rng.randrange(4):
            case 0:
                bench.offer(peer, *pieces)
                offers[peer] = pieces
            case 1:
                bench.download.handle_untrusted(peer, Have(bench.root, tuple(pieces)), 0.0)
                if peer in offers:
                    offers[peer] |= pieces
            case 2:
                bench.download.neighbour_down(peer, 0.0)
                offers.pop(peer, None)
            case 3:
                choked = rng.random() < 0.5
                bench.download.handle_untrusted(peer, Choke(bench.root) if choked else Unchoke(bench.root), 0.0)
        everywhere = set().union(*offers.values())
        assert bench.download.nowhere() == sorted(set(range(6)) - everywhere)
        bench.download.on_timer(0.0)


@pytest.mark.parametrize("piece", [4, 7, 262_143])
def test_a_have_of_a_piece_that_is_not(piece: int) -> None:
    bench = Bench(4)
    bench.offer(A)
    with pytest.raises(PeerViolation, match="HAVE of piece") as caught:
        bench.download.handle_untrusted(A, Have(bench.root, (0, piece)), 0.0)
    assert caught.value.peer == A


def test_a_bitfield_of_the_wrong_length() -> None:
    bench = Bench(4)
    with pytest.raises(PeerViolation, match="bitfield"):
        bench.download.handle_untrusted(A, Bitfield(bench.root, bytes(2)), 0.0)
    assert not bench.download.sources


@pytest.mark.parametrize("begin", [False, True])
def test_a_have_that_was_on_its_way_since_before_this_side_came_back(begin: bool) -> None:
    """Whoever left a swarm and came back has forgotten the BITFIELD; the sender has not seen that yet. No violation."""
    bench = Bench(4, begin=begin)
    bench.download.neighbour_up(A)
    assert bench.download.handle_untrusted(A, Have(bench.root, (1,)), 0.0) == []
    assert not bench.download.sources


# --- the manifest ---


def test_the_manifest_comes_from_one_of_those_who_offer_it() -> None:
    bench = Bench(begin=False)
    assert bench.download.neighbour_up(A) == [Say(A, Join(bench.root))]
    assert bench.download.nowhere() == []
    bench.download.neighbour_up(B)
    effects = bench.download.handle_untrusted(B, Bitfield(bench.root, bench.bits()), 0.0)
    assert effects == [Say(B, WantManifest(bench.root, 0))]
    assert bench.download.handle_untrusted(A, Bitfield(bench.root, bench.bits()), 0.1) == []
    assert bench.download.handle_untrusted(A, bench.page(), 0.2) == []  # nobody asked A
    assert bench.download.handle_untrusted(B, bench.page(), 0.3) == [ManifestFound(bench.manifest)]
    assert bench.download.handle_untrusted(B, bench.page(), 0.4) == []
    effects, _ = bench.download.begin(bench.manifest, np.zeros(4, np.bool_), 0.5)
    assert asked(effects, A) or asked(effects, B)


@pytest.mark.parametrize("others", [[Silent], [Forging], [Silent, Forging, Late], [Silent, Silent, Silent]])
@pytest.mark.parametrize("seed", range(4))
def test_the_manifest_is_found_beside_those_who_do_not_answer_or_forge(others: list[type[Remote]], seed: int) -> None:
    world = World([*(kind() for kind in others), Remote()], seed=seed).run(100.0)
    assert world.finished_at is not None
    assert all(isinstance(world.remotes[peer], Forging) for peer in world.banned)


def large() -> Bench:
    """An artifact whose manifest takes three pages."""
    return Bench(40_000, begin=False)


def test_a_slow_lone_neighbour_gets_through_with_all_pages() -> None:
    """Each page takes it longer than the first timeout. What it sends late is an answer all the same, no violation."""
    bench = large()
    bench.download.neighbour_up(A)
    owed: list[tuple[float, int]] = []
    free_at = 0.0
    found = False

    def take(effects: list[Effect], now: float) -> None:
        nonlocal free_at, found
        for message in said(effects, A):
            if isinstance(message, WantManifest):
                free_at = max(free_at, now) + 8.0
                owed.append((free_at, message.page))
        found = found or any(isinstance(effect, ManifestFound) for effect in effects)

    take(bench.download.handle_untrusted(A, Bitfield(bench.root, bench.bits()), 0.0), 0.0)
    while not found:
        due = bench.download.next_deadline(0.0)
        if owed and owed[0][0] <= due:
            now, number = owed.pop(0)
            take(bench.download.handle_untrusted(A, bench.page(number), now), now)
        else:
            now = due
            take(bench.download.on_timer(now), now)
        assert now < 300.0
    assert found


def test_a_neighbour_that_answers_is_asked_before_one_that_did_not() -> None:
    bench = Bench(begin=False)
    for peer in (A, B):
        bench.download.neighbour_up(peer)
        bench.download.handle_untrusted(peer, Bitfield(bench.root, bench.bits()), 0.0)
    asked_first = A if bench.download._search.asked == A else B
    other = B if asked_first == A else A
    now = MANIFEST_TIMEOUT
    assert said(bench.download.on_timer(now), other) == [WantManifest(bench.root, 0)]
    assert bench.download.handle_untrusted(other, Leave(bench.root), now) == [
        Say(asked_first, WantManifest(bench.root, 0))
    ]
    assert bench.download.next_deadline(now) == now + 2 * MANIFEST_TIMEOUT


@pytest.mark.parametrize("how", ["down", "leave"])
def test_the_neighbour_that_was_giving_the_manifest_goes(how: str) -> None:
    bench = large()
    for peer in (A, B):
        bench.download.neighbour_up(peer)
    bench.download.handle_untrusted(A, Bitfield(bench.root, bench.bits()), 0.0)
    bench.download.handle_untrusted(B, Bitfield(bench.root, bench.bits()), 0.0)
    assert said(bench.download.handle_untrusted(A, bench.page(0), 0.1), A) == [WantManifest(bench.root, 1)]
    if how == "down":
        effects = bench.download.neighbour_down(A, 0.2)
    else:
        effects = bench.download.handle_untrusted(A, Leave(bench.root), 0.2)
    assert effects == [Say(B, WantManifest(bench.root, 0))]  # from the start: pages of two sources do not mix
    assert bench.download.handle_untrusted(A, bench.page(1), 0.3) == []


def test_early_news_that_does_not_fit_the_manifest_is_blamed_on_its_sender() -> None:
    bench = Bench(begin=False)
    for peer in (A, B, C):
        bench.download.neighbour_up(peer)
    bench.download.handle_untrusted(A, Bitfield(bench.root, bytes(77)), 0.0)
    bench.download.handle_untrusted(B, Bitfield(bench.root, bench.bits(1)), 0.0)
    with pytest.raises(PeerViolation) as caught:
        bench.download.handle_untrusted(B, Have(bench.root, (2, 99)), 0.0)
    assert caught.value.peer == B
    bench.download.neighbour_down(B, 0.0)
    bench.download.handle_untrusted(C, Bitfield(bench.root, bench.bits(1)), 0.0)
    bench.download.handle_untrusted(C, Have(bench.root, (2,)), 0.0)
    effects, violations = bench.download.begin(bench.manifest, np.zeros(4, np.bool_), 1.0)
    assert [violation.peer for violation in violations] == [A]
    assert set(asked(effects, C).values()) == {1, 2}


# --- any sequence of events ---


class AgainstTheModel(RuleBasedStateMachine):
    """The test plays the neighbours and the wire, event by event, and keeps its own account of every request."""

    PEERS = (A, B, C)

    @initialize(pieces=st.integers(1, 6), known=st.booleans())
    def start(self, pieces: int, known: bool) -> None:
        self.bench = Bench(pieces, begin=False, first_id=2**32 - 3)
        self.download = self.bench.download
        self.pieces = pieces
        self.now = 0.0
        self.owned: set[int] = set()
        self.live: dict[PeerId, dict[int, int]] = {peer: {} for peer in self.PEERS}
        self.owed: dict[PeerId, dict[int, int]] = {peer: {} for peer in self.PEERS}
        self.incoming: dict[PeerId, Incoming] = {}
        self.offers: dict[PeerId, set[int]] = {}
        self.finished = 0
        self.begun = False
        for peer in self.PEERS:
            self.take(self.download.neighbour_up(peer))
        if known:
            self.begin()

    def begin(self) -> None:
        self.begun = True
        effects, violations = self.download.begin(self.bench.manifest, np.zeros(self.pieces, np.bool_), self.now)
        assert not violations
        self.take(effects)

    def take(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Say(peer, Request() as request):
                    for number, piece in enumerate(request.pieces):
                        request_id = (request.first_id + number) % 2**32
                        assert request_id not in itertools.chain(*self.live.values(), *self.owed.values())
                        assert piece not in self.owned
                        assert piece in self.offers[peer]
                        self.live[peer][request_id] = piece
                case Say(peer, Cancel(ids)):
                    for request_id in ids:
                        self.owed[peer][request_id] = self.live[peer].pop(request_id)
                case ManifestFound():
                    self.begin()
                case Finished():
                    self.finished += 1

    @rule(peer=st.sampled_from(PEERS), data=st.data())
    def bitfield(self, peer: PeerId, data: st.DataObject) -> None:
        pieces = data.draw(st.sets(st.integers(0, self.pieces - 1), min_size=1))
        self.offers[peer] = pieces
        bits = Bitfield(self.bench.root, self.bench.bits(*sorted(pieces)))
        self.take(self.download.handle_untrusted(peer, bits, self.now))

    @rule(peer=st.sampled_from(PEERS), data=st.data())
    def have(self, peer: PeerId, data: st.DataObject) -> None:
        pieces = data.draw(st.lists(st.integers(0, self.pieces - 1), min_size=1, max_size=4))
        if peer in self.offers:
            self.offers[peer] |= set(pieces)
        self.take(self.download.handle_untrusted(peer, Have(self.bench.root, tuple(pieces)), self.now))

    @rule(peer=st.sampled_from(PEERS))
    def give_manifest(self, peer: PeerId) -> None:
        self.take(self.download.handle_untrusted(peer, self.bench.page(), self.now))

    @rule(peer=st.sampled_from(PEERS), choked=st.booleans())
    def choke(self, peer: PeerId, choked: bool) -> None:
        message = Choke(self.bench.root) if choked else Unchoke(self.bench.root)
        self.take(self.download.handle_untrusted(peer, message, self.now))

    @rule(peer=st.sampled_from(PEERS), leave=st.booleans(), spoil=st.booleans())
    def go(self, peer: PeerId, leave: bool, spoil: bool) -> None:
        incoming = self.incoming.pop(peer, None)
        if incoming is not None and (spoil or not leave):
            self.download.spoiled(incoming, incoming.ask.received)
            incoming = None
        self.offers.pop(peer, None)
        self.live[peer], self.owed[peer] = {}, {}
        if leave:
            self.take(self.download.handle_untrusted(peer, Leave(self.bench.root), self.now))
        else:
            self.take(self.download.neighbour_down(peer, self.now))
            self.take(self.download.neighbour_up(peer))
        if incoming is not None:  # its piece comes to its end all the same
            assert not incoming.holds_pen
            self.take(self.bench.finish(incoming, self.now))

    @precondition(lambda self: self.begun)
    @rule(peer=st.sampled_from(PEERS), number=st.integers(0, 9))
    def header(self, peer: PeerId, number: int) -> None:
        open_requests = sorted((self.live[peer] | self.owed[peer]).items())
        if peer in self.incoming or not open_requests:
            return
        request_id, piece = open_requests[number % len(open_requests)]
        self.incoming[peer] = self.bench.header(peer, request_id, piece)

    @precondition(lambda self: self.begun)
    @rule(peer=st.sampled_from(PEERS), part=st.integers(1, PIECE), good=st.booleans())
    def body(self, peer: PeerId, part: int, good: bool) -> None:
        incoming = self.incoming.get(peer)
        if incoming is None:
            return
        part = min(part, incoming.length - incoming.ask.received)
        self.download.bytes_arrived(incoming, part, self.now)
        if incoming.ask.received < incoming.length:
            return
        del self.incoming[peer]
        if incoming.holds_pen and not good:
            self.download.spoiled(incoming, incoming.length)
            self.go(peer, leave=False, spoil=False)
            return
        if incoming.holds_pen:
            self.owned.add(incoming.piece)
        self.live[peer].pop(incoming.ask.id, None)
        self.owed[peer].pop(incoming.ask.id, None)
        self.take(self.download.completed(incoming, self.now))

    @rule(peer=st.sampled_from(PEERS), data=st.data())
    def reject(self, peer: PeerId, data: st.DataObject) -> None:
        arriving = self.incoming[peer].ask.id if peer in self.incoming else None
        known = sorted((self.live[peer].keys() | self.owed[peer].keys()) - {arriving})
        ids = data.draw(st.lists(st.sampled_from([*known, 77]), min_size=1, max_size=4))
        for request_id in ids:
            self.live[peer].pop(request_id, None)
            self.owed[peer].pop(request_id, None)
        self.take(self.download.rejected_untrusted(peer, tuple(ids), self.now))

    @rule(seconds=st.sampled_from([0.05, 1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.download.next_deadline(self.now)) <= end:
            self.now = max(self.now, due)
            self.take(self.download.on_timer(self.now))
            assert self.download.next_deadline(self.now) > self.now
        self.now = end

    @invariant()
    def one_writer_a_piece(self) -> None:
        writing = [incoming.piece for incoming in self.incoming.values() if incoming.holds_pen]
        assert len(writing) == len(set(writing))
        assert not set(writing) & self.owned

    @invariant()
    def every_request_is_accounted_for(self) -> None:
        for peer, source in self.download.sources.items():
            assert {i: a.piece for i, a in source.asks.items() if not a.given_up} == self.live[peer]
            assert {i: a.piece for i, a in source.asks.items() if a.given_up} == self.owed[peer]
            assert source.waiting == len(self.live[peer])

    @invariant()
    def every_missing_piece_is_wanted_or_waited_for(self) -> None:
        if not self.begun:
            return
        picker = self.download._picker
        assert picker is not None
        waited_for = {piece for live in self.live.values() for piece in live.values()}
        missing = set(range(self.pieces)) - self.owned
        assert {piece for piece in missing if picker.is_missing(piece)} == missing
        assert {piece for piece in range(self.pieces) if picker._wanted[piece]} == missing - waited_for

    @invariant()
    def it_is_finished_exactly_when_every_piece_is_held(self) -> None:
        assert self.download.finished == (self.begun and len(self.owned) == self.pieces)
        assert self.finished == self.download.finished

    def teardown(self) -> None:
        """Whatever happened: one honest neighbour that has everything brings it to an end."""
        if not self.begun:
            self.begin()
        for peer in self.PEERS:
            self.go(peer, leave=False, spoil=True)
        self.bitfield_of_all(A)
        for _ in range(100):
            if self.download.finished:
                return
            for request_id, piece in list((self.live[A] | self.owed[A]).items()):
                self.incoming[A] = self.bench.header(A, request_id, piece)
                self.body(A, PIECE, good=True)
            self.wait(1.0)
        raise AssertionError("an honest neighbour has every piece, and still some are missing")

    def bitfield_of_all(self, peer: PeerId) -> None:
        self.offers[peer] = set(range(self.pieces))
        self.take(self.download.handle_untrusted(peer, Bitfield(self.bench.root, self.bench.bits()), self.now))


TestAgainstTheModel = AgainstTheModel.TestCase
TestAgainstTheModel.settings = settings(max_examples=120, stateful_step_count=40)


# --- particular company ---


def test_a_piece_that_a_stalling_source_began_late_comes_from_elsewhere() -> None:
    world = World([Stalling(), Stalling(), Remote()], 3).run(60.0)
    assert world.finished_at is not None


def test_one_that_is_choked_from_the_start_is_not_asked() -> None:
    choked = ChokedForEver()
    world = World([choked, Remote()]).run()
    assert world.finished_at is not None
    assert not choked.answered
