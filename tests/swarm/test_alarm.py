"""One timer for deadlines that move, and how late it is."""

from __future__ import annotations

from math import inf

import pytest
import trio
import trio.testing

from fleet.swarm.alarm import LAG_DECAY, Alarm


async def test_how_late_it_is_counts_at_once_and_is_forgotten_slowly(mock_clock: trio.testing.MockClock) -> None:
    due = [1.0]
    fired: list[float] = []

    def on_timer(now: float) -> None:
        fired.append(now)
        due[0] = inf

    async def fire(seconds_late: float) -> float:
        due[0] = trio.current_time() + 1.0
        alarm.due_at(due[0])
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(1.0 + seconds_late)
        await trio.testing.wait_all_tasks_blocked()
        return alarm.lag

    alarm = Alarm(lambda: due[0])
    assert alarm.lag == inf  # nobody knows yet
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarm.run, on_timer)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(3.0)
        await trio.testing.wait_all_tasks_blocked()
        assert fired == [3.0]
        assert alarm.lag == pytest.approx(2.0)
        # each round wakes it twice, to set the deadline and at it
        assert await fire(0.0) == pytest.approx(2.0 * (1 - LAG_DECAY) ** 2)
        assert await fire(5.0) == pytest.approx(5.0)
        for _ in range(100):
            await fire(0.0)
        assert alarm.lag < 1e-6
        nursery.cancel_scope.cancel()


async def test_a_deadline_that_moves_shows_how_late_it_is(mock_clock: trio.testing.MockClock) -> None:
    due = [inf]
    alarm = Alarm(lambda: due[0])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarm.run, lambda now: None)
        await trio.testing.wait_all_tasks_blocked()
        due[0] = 50.0
        alarm.due_at(due[0])
        mock_clock.jump(2.0)  # what else there was to do
        alarm.due_at(due[0])
        await trio.testing.wait_all_tasks_blocked()
        assert alarm.lag == pytest.approx(2.0)
        nursery.cancel_scope.cancel()
