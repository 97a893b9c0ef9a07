"""The probe of the event loop's lateness, on a clock that the test moves: a jump between checkpoints is a late loop."""

from __future__ import annotations

import functools

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fleet.metrics import Histogram
from stress.harness.lag import PERIOD_SECONDS, LoopLag, too_late

PERIOD_MS = 1e3 * PERIOD_SECONDS
WORST, P99 = "loop_lag_max_ms", "loop_lag_p99_ms"


def run(main):
    """What the probe found while ``main(hold, lag)`` ran; ``hold`` keeps the loop for so many ms."""
    clock = trio.testing.MockClock(autojump_threshold=0)
    lag = LoopLag()
    trio.run(lag.beside, functools.partial(main, lambda ms: clock.jump(ms / 1e3), lag), clock=clock)
    return lag.metrics()


async def idle(ms):
    await trio.sleep(ms / 1e3)


def test_an_idle_loop_is_not_late():
    async def main(_hold, _lag):
        await idle(1000)

    assert run(main) == {P99: pytest.approx(0, abs=1e-6), WORST: pytest.approx(0, abs=1e-6)}


def test_a_loop_that_is_held_is_late_for_each_tick_that_it_missed():
    async def main(hold, _lag):
        await idle(2.5)
        hold(31)  # to 33.5: six ticks, from 5 to 30
        await idle(1)

    assert run(main) == {P99: pytest.approx(28.5), WORST: pytest.approx(28.5)}


# quarters of a millisecond that are no multiple of a tick's, whatever they add up to: an odd one first, then even ones
@given(st.lists(st.tuples(st.integers(1, 400), st.integers(0, 400)), min_size=1, max_size=8))
def test_every_tick_of_the_timetable_counts_with_its_own_lateness(spans):
    async def main(hold, _lag):
        await idle(0.25)
        for rest, held in spans:
            await idle(rest / 2)
            hold(held / 2)
        await idle(1)

    expected, now, tick = Histogram(), 0.25, PERIOD_MS
    for rest, held in [*spans, (2, 0)]:
        for until, loop_held in ((now + rest / 2, False), (now + rest / 2 + held / 2, True)):
            now = until
            while tick <= now:
                expected.record(now - tick if loop_held else 0)
                tick += PERIOD_MS
    assert run(main) == {
        P99: expected.max if expected.max is None else pytest.approx(expected.percentile(99), rel=0.02, abs=1e-6),
        WORST: expected.max if expected.max is None else pytest.approx(expected.max, abs=1e-6),
    }


def test_a_hold_that_lasts_to_the_end_counts():
    async def main(hold, _lag):
        await idle(2.5)
        hold(100)

    assert run(main)[WORST] == pytest.approx(97.5)


def test_only_what_is_measured_counts():
    async def main(hold, lag):
        await idle(2.5)
        hold(500)
        with lag.measured():
            hold(10)
            await idle(20)
        hold(400)
        await idle(20)
        with lag.measured():
            await idle(20)
            hold(41)
        hold(300)

    found = run(main)
    assert 41 - PERIOD_MS <= found[WORST] <= 41


def test_what_is_measured_within_what_is_measured_ends_nothing():
    async def main(hold, lag):
        await idle(2.5)
        with lag.measured():
            with lag.measured():
                await idle(20)
            hold(41)
        hold(300)

    found = run(main)
    assert 41 - PERIOD_MS <= found[WORST] <= 41


def test_a_scenario_that_fails_while_it_measures_leaves_what_was_found():
    clock = trio.testing.MockClock(autojump_threshold=0)
    lag = LoopLag()

    async def main():
        await idle(2.5)
        with lag.measured():
            clock.jump(0.1)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        trio.run(lag.beside, main, clock=clock)
    assert lag.metrics()[WORST] == pytest.approx(97.5)


def test_where_nothing_was_looked_at_nothing_is_claimed():
    async def main(hold, _lag):
        hold(4)

    assert run(main) == {P99: None, WORST: None}
    assert LoopLag().told() == "event loop: the run was too short to see how late it was"


async def test_nobody_has_to_start_it(autojump_clock):
    lag = LoopLag()
    with lag.measured():
        await idle(100)
    assert lag.metrics() == {P99: None, WORST: None}


def test_it_is_told_in_one_line():
    async def main(hold, _lag):
        await idle(2.5)
        hold(31)
        await idle(2000)

    clock = trio.testing.MockClock(autojump_threshold=0)
    lag = LoopLag()
    trio.run(lag.beside, functools.partial(main, lambda ms: clock.jump(ms / 1e3), lag), clock=clock)
    # the tick that was 8.5 ms late, as the histogram's bucket has it
    assert lag.told() == "event loop: late by 8.6 ms at the 99th percentile, by 28.5 ms at the most"


@pytest.mark.parametrize(
    ("late", "bound", "says"),
    [
        (0, 0, None),
        (10, 100, None),
        (10.01, 100, "10 ms"),
        (31.2, 100, "31 ms"),
        (2.04, 20, "2.0 ms"),
        (8000, 2000, "8,000 ms"),
        (200, 2000, None),
    ],
)
def test_more_than_a_tenth_of_the_bound_is_too_late(late, bound, says):
    assert too_late(late, bound) == (
        says
        and f"the event loop itself was late by up to {says}, more than a tenth of the bound: "
        "use fewer peers or a quieter machine"
    )
