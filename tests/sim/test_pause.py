"""A paused host takes no step, and goes on where it stopped."""

from __future__ import annotations

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import LinkBroken, LocalMisuse
from fleet.sim.history import Event, History
from fleet.sim.runtime import Deadlock, pause, resume
from tests.sim.simulated import simulate, start


class TestPause:
    def test_no_step_until_resume(self) -> None:
        steps: list[float] = []

        async def ticker() -> None:
            while True:
                await trio.sleep(1)
                steps.append(trio.current_time())

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                start(nursery, "a", ticker)
                await trio.sleep(2.5)
                pause("a")
                await trio.sleep(5)
                assert steps == [1, 2]
                resume("a")
                await trio.sleep(1.2)
                nursery.cancel_scope.cancel()

        simulate(main)
        assert steps == [1, 2, 7.5, 8.5]

    @given(st.integers(0, 2**32), st.integers(0, 30))
    @settings(max_examples=40, deadline=None)
    def test_not_even_the_rest_of_the_batch(self, seed: int, after: int) -> None:
        """Whatever the order, once ``pause`` has returned the other tasks of the host stand still."""
        steps = 0

        async def busy() -> None:
            nonlocal steps
            while True:
                await trio.lowlevel.checkpoint()
                steps += 1

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    start(nursery, "a", busy)
                for _ in range(after):
                    await trio.lowlevel.checkpoint()
                pause("a")
                pause("a")
                seen = steps
                for _ in range(20):
                    await trio.lowlevel.checkpoint()
                await trio.sleep(1)
                assert steps == seen
                resume("a")
                resume("a")
                for _ in range(3):
                    await trio.lowlevel.checkpoint()
                assert steps > seen
                nursery.cancel_scope.cancel()

        simulate(main, seed=seed)

    def test_other_hosts_and_children_of_the_paused_one(self) -> None:
        steps: list[str] = []

        async def child(name: str) -> None:
            await trio.sleep(1)
            steps.append(name)

        async def parent() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child, "child of a")

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                start(nursery, "a", parent)
                start(nursery, "b", child, "b")
                await trio.sleep(0.5)
                pause("a")
                await trio.sleep(5)
                assert steps == ["b"]
                resume("a")

        simulate(main)
        assert steps == ["b", "child of a"]

    def test_a_timer_that_expired_meanwhile_takes_effect_at_resume(self) -> None:
        ended: list[tuple[float, bool]] = []

        async def impatient() -> None:
            with trio.move_on_after(1) as scope:
                await trio.sleep(100)
            ended.append((trio.current_time(), scope.cancelled_caught))

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                start(nursery, "a", impatient)
                await trio.sleep(0.5)
                pause("a")
                await trio.sleep(10)
                assert not ended
                resume("a")

        simulate(main)
        assert ended == [(10.5, True)]

    def test_a_host_killed_while_paused(self) -> None:
        ended: list[str] = []

        async def process(scope: trio.CancelScope) -> None:
            with scope:
                try:
                    await trio.sleep_forever()
                finally:
                    ended.append("killed")

        async def main() -> None:
            scope = trio.CancelScope()
            async with trio.open_nursery() as nursery:
                start(nursery, "a", process, scope)
                await trio.sleep(1)
                pause("a")
                scope.cancel()
                await trio.sleep(1)
                assert not ended
                resume("a")

        simulate(main)
        assert ended == ["killed"]

    def test_all_paused_and_nothing_pending_is_a_deadlock(self) -> None:
        async def stop_self() -> None:
            pause("a")
            await trio.lowlevel.checkpoint()

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                start(nursery, "a", stop_self)

        with pytest.raises(Deadlock, match=r"stop_self' of a is paused at .*test_pause"):
            simulate(main)

    def test_an_error_elsewhere_is_not_masked_by_a_paused_host(self) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                start(nursery, "a", trio.sleep_forever)
                await trio.sleep(1)
                pause("a")
                raise LinkBroken("the true cause")

        with pytest.raises(ExceptionGroup) as caught:
            simulate(main)
        assert isinstance(caught.value.exceptions[0], LinkBroken)

    def test_it_is_part_of_the_history(self) -> None:
        seen: list[Event] = []

        async def main() -> None:
            pause("a")
            resume("a")

        simulate(main, history=History(seen.append))
        assert [(event.kind, event.peer) for event in seen] == [("pause", "a"), ("resume", "a")]

    def test_only_in_a_simulated_run(self) -> None:
        with pytest.raises(LocalMisuse, match="simulated run only"):
            pause("a")

    async def test_nor_in_an_ordinary_one(self) -> None:
        with pytest.raises(LocalMisuse, match="simulated run only"):
            resume("a")
