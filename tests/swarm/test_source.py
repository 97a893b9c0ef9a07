"""How a source is judged: its window over a simulated link, its timeouts, its backoff."""

from __future__ import annotations

import heapq
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.identity.keys import PeerId
from fleet.limits import KIB, MAX_REQUESTS_PER_LINK, MIB
from fleet.swarm.source import (
    ENDGAME_PATIENCE,
    INITIAL_TIMEOUT,
    MAX_OWED,
    MAX_TIMEOUT,
    MAX_WINDOW,
    MIN_TIMEOUT,
    MIN_WINDOW,
    PROGRESS_BYTES,
    Ask,
    Source,
)

PEER = PeerId(b"p" * 32)


def source_of(piece_size: int = 256 * KIB) -> Source:
    return Source(PEER, 1, piece_size)


def answer(source: Source, ask: Ask, now: float, length: int | None = None) -> None:
    """The whole answer arrives at once."""
    source.bytes_arrived(ask, source.piece_size if length is None else length, now)
    source.answered(ask, now)


class Wire:
    """A source behind a link: ``latency`` seconds each way, ``rate`` bytes a second, one piece after the other."""

    def __init__(self, source: Source, latency: float, rate: float) -> None:
        self.source, self.latency, self.rate = source, latency, rate
        self.now = 0.0
        self.ids = itertools.count()
        self.free_at = 0.0
        self.busy = 0.0
        self.largest = 0
        self.requests: list[int] = []
        self.due: list[tuple[float, int, str, Ask]] = []

    def fill(self) -> None:
        room = self.source.room()
        if room:
            self.requests.append(room)
        for _ in range(room):
            ask = self.source.ask(next(self.ids), 0, self.now)
            start = max(self.free_at, self.now + self.latency)
            self.free_at = start + self.source.piece_size / self.rate
            self.busy += self.source.piece_size / self.rate
            quarter = self.source.piece_size / self.rate / 4
            for part in range(4):
                at = start + quarter * (part + 1) + self.latency
                heapq.heappush(self.due, (at, next(self.ids), "done" if part == 3 else "part", ask))
        self.largest = max(self.largest, self.source.waiting)

    def run(self, pieces: int) -> None:
        """Fetch so many pieces, asking whenever there is room."""
        self.fill()
        done = 0
        while done < pieces:
            self.now, _, what, ask = heapq.heappop(self.due)
            assert self.now < self.source.times_out_at, "an honest source that keeps delivering timed out"
            self.source.bytes_arrived(ask, self.source.piece_size // 4, self.now)
            if what == "done":
                self.source.answered(ask, self.now)
                done += 1
            self.fill()


@pytest.mark.parametrize(
    ("latency", "rate", "piece_size"),
    [(0.001, 400 * MIB, MIB), (0.02, 100 * MIB, 256 * KIB), (0.1, 20 * MIB, 256 * KIB), (0.3, 5 * MIB, 64 * KIB)],
)
def test_the_window_grows_to_twice_the_bandwidth_delay_product(latency: float, rate: float, piece_size: int) -> None:
    source = source_of(piece_size)
    wire = Wire(source, latency, rate)
    assert source.window == MIN_WINDOW
    wire.run(400)
    product = 2 * latency * rate / piece_size
    assert source.window >= 0.9 * min(MAX_WINDOW, max(MIN_WINDOW, 2 * product))
    assert source.window <= max(MIN_WINDOW, 2 * (product + 2) + 1)  # the first byte comes a quarter of a piece late
    start, busy = wire.now, wire.busy
    wire.run(200)
    assert (wire.busy - busy) / (wire.now - start) > 0.9, "the link stands idle"


@given(st.floats(0, 2), st.floats(1e4, 1e9), st.sampled_from([16 * KIB, MIB, 16 * MIB]))
@settings(max_examples=50)
def test_the_window_stays_within_its_caps(latency: float, rate: float, piece_size: int) -> None:
    source = source_of(piece_size)
    wire = Wire(source, latency, rate)
    if piece_size / 4 / rate + 2 * latency < MIN_TIMEOUT:  # slower ones may time out, which other tests look at
        wire.run(60)
    assert MIN_WINDOW <= source.window <= MAX_WINDOW
    assert wire.largest <= MAX_WINDOW


def test_a_source_is_never_asked_for_more_than_it_refuses() -> None:
    assert MAX_WINDOW <= MAX_REQUESTS_PER_LINK


# --- RFC 6298 ---


def test_before_the_first_answer() -> None:
    source = source_of()
    assert source.timeout == INITIAL_TIMEOUT
    assert source.times_out_at == float("inf")
    source.ask(1, 0, 10.0)
    assert source.times_out_at == 10.0 + INITIAL_TIMEOUT


def test_the_estimate_follows_the_rfc() -> None:
    """RFC 6298, 2.2 and 2.3: R first, then alpha 1/8 and beta 1/4, the deviation with the old estimate."""
    source = source_of()
    smoothed = deviation = 0.0
    now = 0.0
    for number, elapsed in enumerate([4.0, 2.0, 8.0, 8.0, 1.0, 3.0, 3.0, 3.0]):
        ask = source.ask(number, 0, now)
        now += elapsed
        answer(source, ask, now)
        if number == 0:
            smoothed, deviation = elapsed, elapsed / 2
        else:
            deviation = 0.75 * deviation + 0.25 * abs(smoothed - elapsed)
            smoothed = 0.875 * smoothed + 0.125 * elapsed
        assert source.response == pytest.approx(smoothed)
        assert source.timeout == pytest.approx(max(MIN_TIMEOUT, smoothed + 4 * deviation))


@given(st.lists(st.floats(1e-5, 100), min_size=1, max_size=20), st.integers(0, 20))
def test_the_timeout_stays_within_its_bounds(times: list[float], timeouts: int) -> None:
    source = source_of()
    now = 0.0
    for number, elapsed in enumerate(times):
        ask = source.ask(number, 0, now)
        now += elapsed
        answer(source, ask, now)
    for number in range(timeouts):
        source.ask(1_000 + number, 0, now)
        source.timed_out(now)
    assert MIN_TIMEOUT <= source.timeout <= MAX_TIMEOUT


def test_karn_a_late_answer_teaches_nothing_about_time() -> None:
    source = source_of()
    answer(source, source.ask(1, 0, 0.0), 1.0)
    late = source.ask(2, 1, 1.0)
    source.timed_out(20.0)
    before = (source.response, source.window)
    answer(source, late, 50.0)
    assert source.response == before[0] == 1.0
    assert source.timeouts == 0  # but it lives
    assert source.waiting == 0
    assert not source.asks


# --- timeouts ---


def test_progress_puts_the_timeout_off_and_dripping_does_not() -> None:
    source = source_of(MIB)
    ask = source.ask(1, 0, 0.0)
    source.bytes_arrived(ask, PROGRESS_BYTES, 3.0)
    assert source.times_out_at == 3.0 + INITIAL_TIMEOUT
    for second in range(4, 8):
        source.bytes_arrived(ask, 1, float(second))
    assert source.times_out_at == 3.0 + INITIAL_TIMEOUT


def test_drips_add_up_to_progress_in_time() -> None:
    source = source_of(MIB)
    ask = source.ask(1, 0, 0.0)
    for number in range(1, 9):
        source.bytes_arrived(ask, PROGRESS_BYTES // 8, number / 2)
    assert source.times_out_at == 4.0 + INITIAL_TIMEOUT


def test_a_small_piece_is_progress_as_a_whole() -> None:
    source = source_of(1_000)
    first, _ = source.ask(1, 0, 0.0), source.ask(2, 1, 0.0)
    source.bytes_arrived(first, 999, 1.0)
    assert source.times_out_at == INITIAL_TIMEOUT
    source.bytes_arrived(first, 1, 2.0)
    assert source.times_out_at == 2.0 + INITIAL_TIMEOUT


def test_what_dripped_in_long_ago_is_no_progress_for_the_next_request() -> None:
    source = source_of(MIB)
    first = source.ask(1, 0, 0.0)
    source.bytes_arrived(first, PROGRESS_BYTES - 1, 1.0)
    source.refused(first)
    second = source.ask(2, 0, 10.0)
    source.bytes_arrived(second, 1, 14.0)
    assert source.times_out_at == 10.0 + INITIAL_TIMEOUT


def test_backoff_doubles_and_one_piece_is_asked_for() -> None:
    source = source_of()
    now = 0.0
    ids = itertools.count()
    asks = [source.ask(next(ids), piece, now) for piece in range(4)]
    waits = []
    for _ in range(6):
        now = source.times_out_at
        assert source.timed_out(now) == [ask for ask in source.asks.values() if ask in asks]
        assert all(ask.given_up for ask in asks)
        assert source.waiting == 0
        assert source.times_out_at == float("inf")
        waits.append(source.backed_off_until - now)
        now = source.backed_off_until
        assert source.room() == 1
        asks = [source.ask(next(ids), 9, now)]
        assert source.room() == 0
    assert waits == [INITIAL_TIMEOUT * 2**n for n in range(4)] + [MAX_TIMEOUT] * 2


def test_after_an_answer_it_is_asked_for_more_again() -> None:
    source = source_of()
    source.ask(0, 0, 0.0)
    source.timed_out(5.0)
    windows = []
    for number in range(1, 4):
        answer(source, source.ask(number, 0, 10.0), 10.1)
        windows.append(source.room())
    assert windows == [2, 4, MIN_WINDOW]
    assert source.timeout == MIN_TIMEOUT


def test_what_was_cancelled_is_owed_and_not_waited_for() -> None:
    source = source_of()
    ask = source.ask(1, 0, 0.0)
    source.give_up(ask)
    source.give_up(ask)
    assert source.waiting == 0
    assert source.times_out_at == float("inf")
    source.refused(ask)
    assert (source.waiting, source.asks) == (0, {})


# --- how much to ask ---


def test_nothing_is_asked_until_half_the_window_is_free() -> None:
    source = source_of()
    asks = [source.ask(number, number, 0.0) for number in range(MIN_WINDOW)]
    assert source.room() == 0
    source.refused(asks[0])
    assert source.room() == 0
    source.refused(asks[1])
    assert source.room() == 2


def test_requests_travel_together() -> None:
    source = source_of(64 * KIB)
    wire = Wire(source, 0.1, 20 * MIB)
    wire.run(600)
    late = wire.requests[-5:]
    assert min(late) >= source.window // 2


def test_a_choked_source_is_asked_for_nothing() -> None:
    source = source_of()
    source.choked = True
    assert source.room() == 0


def test_a_source_that_owes_too_much_is_asked_for_nothing() -> None:
    source = source_of()
    for number in range(MAX_OWED):
        source.give_up(source.ask(number, number, 0.0))
        assert (source.room() == 0) == (number + 1 == MAX_OWED)
    source.refused(source.asks[0])
    assert source.room() == MIN_WINDOW


# --- the endgame ---


def used_to(seconds: float) -> Source:
    """A source that has always taken so long."""
    source = source_of()
    for number in range(40):
        now = 100.0 * number
        answer(source, source.ask(number, 0, now), now + seconds)
    return source


def test_a_holder_that_is_late_by_its_own_measure_is_beaten() -> None:
    quick, usual = used_to(0.1), used_to(3.0)
    assert not quick.would_beat(quick, 0.5)  # nobody is late before ENDGAME_PATIENCE
    assert quick.would_beat(quick, ENDGAME_PATIENCE + 0.1)
    assert not usual.would_beat(usual, 2.9)
    assert usual.would_beat(usual, 3.2)


def test_a_holder_that_will_take_far_longer_is_beaten_at_once() -> None:
    assert used_to(0.1).would_beat(used_to(9.0), 0.0)
    assert not used_to(0.1).would_beat(used_to(1.2), 0.0)
    assert not used_to(2.5).would_beat(used_to(9.0), 0.0)


def test_a_holder_never_heard_of_is_given_the_benefit_of_time() -> None:
    assert not used_to(0.1).would_beat(source_of(), 0.9)
    assert used_to(0.1).would_beat(source_of(), 1.1)
    assert not used_to(1.0).would_beat(source_of(), 3.9)
    assert not source_of().would_beat(source_of(), 4 * INITIAL_TIMEOUT)
    assert source_of().would_beat(source_of(), 4 * INITIAL_TIMEOUT + 0.1)


def test_a_piece_that_crawls_in_is_outrun() -> None:
    holder = source_of(MIB)
    ask = holder.ask(1, 0, 0.0)
    holder.bytes_arrived(ask, MIB // 10, 5.0)
    assert not used_to(0.1).would_outrun(holder, ask, MIB, 5.0 + ENDGAME_PATIENCE)  # too early to tell
    assert used_to(0.1).would_outrun(holder, ask, MIB, 6.5)
    assert not used_to(9.0).would_outrun(holder, ask, MIB, 6.5)
    assert not source_of().would_outrun(holder, ask, MIB, 6.5)  # nobody knows how fast that one is
    holder.bytes_arrived(ask, MIB // 10 * 8, 6.5)
    assert not used_to(0.1).would_outrun(holder, ask, MIB, 6.5)  # it is nearly there


def test_a_source_that_has_yet_to_answer_after_a_timeout_outruns_nobody() -> None:
    holder, other = source_of(MIB), used_to(0.1)
    ask = holder.ask(1, 0, 0.0)
    holder.bytes_arrived(ask, 1, 5.0)
    assert other.would_outrun(holder, ask, MIB, 9.0)
    other.ask(99, 0, 9_000.0)
    other.timed_out(9_100.0)
    assert not other.would_outrun(holder, ask, MIB, 9.0)
