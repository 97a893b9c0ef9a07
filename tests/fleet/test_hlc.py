"""``fleet.hlc``: the order of stamps, the clock's rules, and what a wall clock or a remote one may do to it."""

from __future__ import annotations

import ast
import dataclasses
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fleet.hlc
from fleet.errors import LimitExceeded, LocalMisuse, PeerViolation
from fleet.hlc import STAMP_SIZE, HybridLogicalClock, Stamp
from fleet.identity.keys import PeerId
from fleet.limits import MAX_STAMP_AHEAD_MILLIS

LAST_MILLIS = 2**48 - 1
LAST_COUNTER = 2**16 - 1
LOW, MIDDLE, HIGH = (PeerId(bytes([first]) + bytes(30) + bytes([last])) for first, last in ((0, 1), (1, 0), (255, 0)))
NOON = 1_700_000_000_000


class Wall:
    """A wall clock that a test sets."""

    def __init__(self, millis: int) -> None:
        self.millis = millis

    def __call__(self) -> int:
        return self.millis


def clock_at(millis: int, peer: PeerId = MIDDLE) -> tuple[HybridLogicalClock, Wall]:
    wall = Wall(millis)
    return HybridLogicalClock(peer, wall), wall


def reading(stamp: Stamp) -> tuple[int, int]:
    return stamp.millis, stamp.counter


stamps = st.builds(
    Stamp,
    st.one_of(st.integers(0, LAST_MILLIS), st.sampled_from([0, 255, 256, LAST_MILLIS])),
    st.one_of(st.integers(0, LAST_COUNTER), st.sampled_from([0, 255, 256, LAST_COUNTER])),
    st.one_of(st.binary(min_size=32, max_size=32).map(PeerId), st.sampled_from([LOW, MIDDLE, HIGH])),
)


# Stamps


def test_stamps_are_ordered_by_millis_then_counter_then_peer_and_so_are_their_bytes() -> None:
    ordered = [
        Stamp(millis, counter, peer)
        for millis, counter, peer in product(
            (0, 1, 255, 256, 2**40, LAST_MILLIS), (0, 1, 255, 256, LAST_COUNTER), (LOW, MIDDLE, HIGH)
        )
    ]
    for earlier, later in pairwise(ordered):
        assert earlier < later
        assert earlier.to_bytes() < later.to_bytes()


@given(stamps, stamps)
def test_any_two_stamps_compare_as_their_bytes_do(one: Stamp, other: Stamp) -> None:
    assert (one < other) == (one.to_bytes() < other.to_bytes())
    assert (one == other) == (one.to_bytes() == other.to_bytes())


@given(stamps)
def test_a_stamp_round_trips(stamp: Stamp) -> None:
    again = Stamp.from_bytes_untrusted(stamp.to_bytes())
    assert again == stamp
    assert type(again.peer) is PeerId


@given(st.binary(min_size=STAMP_SIZE, max_size=STAMP_SIZE))
def test_any_bytes_of_the_right_size_are_one_stamp(data: bytes) -> None:
    assert Stamp.from_bytes_untrusted(data).to_bytes() == data


def test_the_layout_is_fixed() -> None:
    stamp = Stamp(0x010203040506, 0x0708, HIGH)
    assert stamp.to_bytes() == b"\1\2\3\4\5\6\7\x08" + bytes(HIGH)
    assert STAMP_SIZE == 40


@pytest.mark.parametrize("size", [0, 1, STAMP_SIZE - 1, STAMP_SIZE + 1, 2 * STAMP_SIZE])
def test_bytes_of_another_size_are_refused(size: int) -> None:
    with pytest.raises(PeerViolation, match=f"{size} bytes"):
        Stamp.from_bytes_untrusted(bytes(size))


def test_numbers_out_of_range_are_refused() -> None:
    Stamp(LAST_MILLIS, LAST_COUNTER, LOW)
    for millis, counter in ((-1, 0), (LAST_MILLIS + 1, 0), (0, -1), (0, LAST_COUNTER + 1)):
        with pytest.raises(LocalMisuse):
            Stamp(millis, counter, LOW)


def test_a_stamp_is_a_frozen_value() -> None:
    stamp = Stamp(1, 2, LOW)
    with pytest.raises(dataclasses.FrozenInstanceError):
        stamp.millis = 3  # type: ignore[misc]
    assert len({stamp, Stamp(1, 2, LOW), Stamp(1, 2, HIGH)}) == 2


# The clock


def test_a_wall_clock_that_moves_on_is_followed() -> None:
    clock, wall = clock_at(NOON)
    assert clock.tick() == Stamp(NOON, 0, MIDDLE)
    assert reading(clock.tick()) == (NOON, 1)
    wall.millis += 5
    assert reading(clock.tick()) == (NOON + 5, 0)


def test_a_wall_clock_that_jumps_back_is_not() -> None:
    clock, wall = clock_at(NOON)
    clock.tick()
    for back in (NOON - 1, NOON - 10**9, 0, -1, -(10**15)):
        wall.millis = back
        before = clock.tick()
        assert before.millis == NOON
        assert clock.tick() > before
    wall.millis = NOON + 1
    assert reading(clock.tick()) == (NOON + 1, 0)


def test_a_wall_clock_that_starts_before_1970() -> None:
    clock, _ = clock_at(-5)
    assert reading(clock.tick()) == (0, 1)


def test_the_counters_of_a_receipt() -> None:
    # The four cases of the algorithm's receive event.
    clock, wall = clock_at(100)
    assert reading(clock.observe(Stamp(50, 9, LOW))) == (100, 0)  # the wall clock is ahead of both
    assert reading(clock.observe(Stamp(100, 7, LOW))) == (100, 8)  # all equal: after the larger counter
    assert reading(clock.observe(Stamp(100, 3, LOW))) == (100, 9)
    assert reading(clock.observe(Stamp(120, 4, LOW))) == (120, 5)  # the remote is ahead
    assert reading(clock.observe(Stamp(110, 99, LOW))) == (120, 6)  # its own past is ahead
    wall.millis = 121
    assert reading(clock.observe(Stamp(120, 50, LOW))) == (121, 0)


def test_a_message_passed_round_slow_clocks_keeps_its_order() -> None:
    # As in the paper's figure 6: the first clock stands at 10, the others lag behind at 0 and 1.
    first, second, third = (HybridLogicalClock(peer, Wall(wall)) for peer, wall in ((LOW, 10), (MIDDLE, 0), (HIGH, 1)))
    sent = first.tick()
    received = second.observe(sent)
    relayed = second.tick()
    arrived = third.observe(relayed)
    answered = first.observe(third.tick())
    assert [reading(stamp) for stamp in (sent, received, relayed, arrived, answered)] == [
        (10, 0),
        (10, 1),
        (10, 2),
        (10, 3),
        (10, 5),
    ]


def test_ten_minutes_ahead_is_the_most_that_is_believed() -> None:
    clock, _ = clock_at(NOON)
    twin, _ = clock_at(NOON)
    assert clock.tick() == twin.tick()
    for millis in (NOON + MAX_STAMP_AHEAD_MILLIS + 1, LAST_MILLIS):
        with pytest.raises(PeerViolation, match="ahead"):
            clock.observe(Stamp(millis, 0, LOW))
    assert clock.tick() == twin.tick(), "a refused stamp left a trace"
    assert reading(clock.observe(Stamp(NOON + MAX_STAMP_AHEAD_MILLIS, 0, LOW))) == (NOON + MAX_STAMP_AHEAD_MILLIS, 1)


def test_the_wall_clock_is_the_measure_not_the_clock_that_followed_a_remote() -> None:
    clock, wall = clock_at(NOON)
    ahead = clock.observe(Stamp(NOON + MAX_STAMP_AHEAD_MILLIS, 0, LOW))
    for more in (1, 2, 60_000):  # else colluding peers would push it on step by step
        with pytest.raises(PeerViolation):
            clock.observe(Stamp(ahead.millis + more, 0, LOW))
    wall.millis += 1
    clock.observe(Stamp(ahead.millis + 1, 0, LOW))


def test_a_stamp_from_long_ago_is_no_violation() -> None:
    clock, _ = clock_at(NOON)
    assert reading(clock.observe(Stamp(0, 0, LOW))) == (NOON, 0)


def test_a_full_counter_carries_into_the_millis() -> None:
    clock, wall = clock_at(NOON)
    assert reading(clock.observe(Stamp(NOON, LAST_COUNTER - 1, LOW))) == (NOON, LAST_COUNTER)
    assert reading(clock.tick()) == (NOON + 1, 0)
    assert reading(clock.observe(Stamp(NOON + 1, LAST_COUNTER, LOW))) == (NOON + 2, 0)
    wall.millis = NOON + 2
    assert reading(clock.tick()) == (NOON + 2, 1)


def test_the_last_stamp_of_all_is_the_last() -> None:
    clock, _ = clock_at(LAST_MILLIS)
    assert reading(clock.observe(Stamp(LAST_MILLIS, LAST_COUNTER - 1, LOW))) == (LAST_MILLIS, LAST_COUNTER)
    for _ in range(2):
        with pytest.raises(LimitExceeded):
            clock.tick()
    with pytest.raises(LimitExceeded):
        clock.observe(Stamp(LAST_MILLIS, LAST_COUNTER, LOW))


def test_a_wall_clock_beyond_48_bits_is_refused_and_changes_nothing() -> None:
    clock, wall = clock_at(NOON)
    clock.tick()
    wall.millis = LAST_MILLIS + 1
    for use in (clock.tick, lambda: clock.observe(Stamp(0, 0, LOW))):
        with pytest.raises(LocalMisuse):
            use()
    wall.millis = NOON
    assert reading(clock.tick()) == (NOON, 1)


def test_the_wall_clock_is_read_once_an_event() -> None:
    # Two readings could straddle a jump, and one of them would then be judged by the other.
    reads = 0

    def wall() -> int:
        nonlocal reads
        reads += 1
        return NOON

    clock = HybridLogicalClock(MIDDLE, wall)
    clock.tick()
    clock.observe(Stamp(NOON, 0, LOW))
    assert reads == 2


events = st.lists(
    st.tuples(
        st.integers(-20, 20),  # how far the wall clock moves first
        st.one_of(
            st.none(), st.tuples(st.integers(-30, 30), st.sampled_from([0, 1, 7, LAST_COUNTER - 1, LAST_COUNTER]))
        ),
    ),
    max_size=60,
)


@given(events)
def test_stamps_only_go_up_whatever_the_wall_clock_and_the_remotes_do(
    events: list[tuple[int, tuple[int, int] | None]],
) -> None:
    clock, wall = clock_at(NOON)
    latest = Stamp(0, 0, LOW)
    highest = NOON
    for move, received in events:
        wall.millis += move
        highest = max(highest, wall.millis)
        if received is None:
            stamp = clock.tick()
        else:
            remote = Stamp(wall.millis + received[0], received[1], HIGH)
            highest = max(highest, remote.millis)
            stamp = clock.observe(remote)
            assert reading(stamp) > reading(remote)
        assert reading(stamp) > reading(latest)
        assert wall.millis <= stamp.millis <= highest + len(events)  # a carry adds at most 1 ms an event
        assert stamp.peer == MIDDLE
        latest = stamp


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(-50, 50)), max_size=40))
def test_what_was_caused_is_later_than_its_cause(sends: list[tuple[int, int, int]]) -> None:
    walls = [Wall(NOON), Wall(NOON - 300_000), Wall(NOON + 200_000)]
    clocks = [HybridLogicalClock(peer, wall) for peer, wall in zip((LOW, MIDDLE, HIGH), walls, strict=True)]
    known: list[list[Stamp]] = [[], [], []]  # all that each peer did or heard of
    for sender, receiver, move in sends:
        walls[sender].millis += move
        sent = clocks[sender].tick()
        assert all(cause < sent for cause in known[sender])
        known[sender].append(sent)
        received = clocks[receiver].observe(sent)
        assert all(cause < received for cause in known[sender] + known[receiver])
        known[receiver] += [*known[sender], received]


def test_the_clock_takes_no_time_of_its_own() -> None:
    with open(fleet.hlc.__file__, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert "dataclasses" in imported
    assert imported.isdisjoint({"time", "datetime", "trio", "os", "random", "socket"})
