"""A simulated run from the outside: results, errors and how it ends."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
import warnings

import pytest
import trio

from fleet.errors import DeadlineExceeded, LinkBroken, LocalMisuse
from fleet.sim import loop
from fleet.sim.runtime import Deadlock, LoopBlocked, inline
from tests.sim.simulated import simulate, start


class TestResults:
    def test_what_the_function_returns(self) -> None:
        async def main() -> int:
            await trio.sleep(3600)
            return 5

        assert simulate(main) == 5

    def test_no_real_time_passes(self) -> None:
        async def main() -> None:
            for _ in range(100):
                await trio.sleep(10_000)

        before = time.perf_counter()
        simulate(main)
        assert time.perf_counter() - before < 1

    def test_errors_pass_through(self) -> None:
        error = LinkBroken("gone")

        async def main() -> None:
            await trio.sleep(1)
            raise error

        with pytest.raises(LinkBroken) as caught:
            simulate(main)
        assert caught.value is error
        assert caught.value.__cause__ is None

    def test_errors_of_child_tasks_come_as_groups(self) -> None:
        async def child() -> None:
            raise LinkBroken("gone")

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(child)

        with pytest.raises(ExceptionGroup) as caught:
            simulate(main)
        assert isinstance(caught.value.exceptions[0], LinkBroken)

    def test_inline_work_returns_and_is_a_checkpoint(self) -> None:
        async def main() -> int:
            with trio.CancelScope() as scope:
                scope.cancel()
                await inline(lambda: pytest.fail("cancelled before it began"))
            assert scope.cancelled_caught
            return await inline(lambda: 3)

        assert simulate(main) == 3

    @pytest.mark.parametrize("options", [{"deadline": 0}, {"deadline": float("nan")}, {"watchdog_seconds": 0}])
    def test_senseless_options(self, options: dict[str, float]) -> None:
        with pytest.raises(LocalMisuse):
            simulate(trio.lowlevel.checkpoint, **options)  # type: ignore[arg-type]

    async def test_not_from_within_trio(self) -> None:
        with pytest.raises(LocalMisuse, match="from within trio"):
            simulate(trio.lowlevel.checkpoint)

    def test_one_at_a_time(self) -> None:
        refused: list[str] = []

        def second() -> None:
            try:
                simulate(trio.lowlevel.checkpoint)
            except LocalMisuse as error:
                refused.append(str(error))

        ready = threading.Event()

        def second_when_ready() -> None:
            ready.wait()
            second()

        thread = threading.Thread(target=second_when_ready)
        thread.start()

        async def main() -> None:
            ready.set()
            thread.join()

        simulate(main)
        assert len(refused) == 1
        assert "already on" in refused[0]


class TestDeadline:
    def test_names_the_virtual_time_and_the_tasks(self) -> None:
        async def never_quiet() -> None:
            for _ in range(100):
                await trio.sleep(1)

        with pytest.raises(DeadlineExceeded, match=r"12\.5 s of virtual time.*never_quiet.*test_runtime\.py"):
            simulate(never_quiet, deadline=12.5)

    def test_what_happens_at_the_deadline_still_counts(self) -> None:
        async def main() -> float:
            await trio.sleep(10)
            return trio.current_time()

        assert simulate(main, deadline=10) == 10

    def test_cleaning_up_has_a_while(self) -> None:
        cleaned: list[float] = []

        async def main() -> None:
            try:
                await trio.sleep(100)
            finally:
                with trio.CancelScope(shield=True):
                    await trio.sleep(loop.GRACE_SECONDS / 2)
                cleaned.append(trio.current_time())

        with pytest.raises(DeadlineExceeded):
            simulate(main, deadline=10)
        assert cleaned == [10 + loop.GRACE_SECONDS / 2]

    def test_tasks_that_refuse_to_end_are_dropped(self) -> None:
        async def child() -> None:
            with trio.CancelScope(shield=True):
                for _ in range(1000):
                    await trio.sleep(1)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(child)

        with pytest.raises(DeadlineExceeded, match=r"not done at 10 s"):
            simulate(main, deadline=10)
        assert simulate(trio.lowlevel.checkpoint) is None

    def test_tasks_that_wake_each_other_for_ever(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loop, "MAX_STEPS_AN_INSTANT", 5_000)

        async def restless() -> None:
            await trio.sleep(3)
            while True:
                await trio.lowlevel.checkpoint()

        with pytest.raises(DeadlineExceeded, match=r"5,000 steps at 3 s.*restless"):
            simulate(restless, deadline=10)

    def test_many_steps_are_fine_while_time_passes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loop, "MAX_STEPS_AN_INSTANT", 5_000)

        async def main() -> None:
            for _ in range(20):
                for _ in range(2_000):
                    await trio.lowlevel.checkpoint()
                await trio.sleep(0.1)

        simulate(main)


class TestDeadlock:
    def test_at_once_with_the_blocked_tasks(self) -> None:
        async def waiter() -> None:
            await trio.Event().wait()

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                start(nursery, "peer-3", waiter)

        before = time.perf_counter()
        with pytest.raises(
            Deadlock, match=r"at 0 s.*main.*waiter' of peer-3 waits at .*test_runtime\.py:\d+ in .*waiter"
        ):
            simulate(main, deadline=1e9)
        assert time.perf_counter() - before < 1

    def test_no_deadlock_while_a_timer_is_pending(self) -> None:
        async def main() -> None:
            with trio.move_on_after(1e6):
                await trio.sleep_forever()

        simulate(main)

    def test_cleanup_runs_and_its_errors_are_the_cause_chain(self) -> None:
        cleaned: list[str] = []

        async def main() -> None:
            try:
                await trio.sleep_forever()
            finally:
                cleaned.append("yes")
                raise LinkBroken("on the way out")

        with pytest.raises(Deadlock) as caught:
            simulate(main)
        assert cleaned == ["yes"]
        assert isinstance(caught.value.__cause__, LinkBroken)

    def test_a_shielded_one_is_dropped(self) -> None:
        async def main() -> None:
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()

        with pytest.raises(Deadlock):
            simulate(main)

    def test_many_tasks_are_summed_up(self) -> None:
        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(trio.sleep_forever)

        with pytest.raises(Deadlock, match="and 43 more") as caught:
            simulate(main)
        assert "\n" not in str(caught.value)


class TestWatchdog:
    @staticmethod
    def spin() -> None:
        while True:
            pass

    def check(self) -> None:
        async def stubborn() -> None:
            await trio.sleep(1)
            while True:
                with contextlib.suppress(Exception):
                    self.spin()

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                start(nursery, "peer-1", stubborn)
                nursery.start_soon(trio.sleep_forever)

        with pytest.raises(
            LoopBlocked, match=r"stubborn' of peer-1 .* 0\.05 s of real time, at .*test_runtime\.py:\d+ in .*spin"
        ):
            simulate(main, watchdog_seconds=0.05)

    def test_an_endless_loop_in_the_main_thread(self) -> None:
        self.check()
        assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)

    def test_an_endless_loop_in_another_thread(self) -> None:
        failed: list[BaseException] = []

        def work() -> None:
            try:
                self.check()
            except BaseException as error:  # noqa: BLE001 - told to the main thread
                failed.append(error)

        threads = threading.active_count()
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert not failed
        assert threading.active_count() == threads

    def test_where_somebody_else_uses_the_signal(self) -> None:
        def other(_signal: int, _frame: object) -> None:
            pass

        before = signal.signal(signal.SIGALRM, other)
        try:
            self.check()
            assert signal.getsignal(signal.SIGALRM) is other
        finally:
            signal.signal(signal.SIGALRM, before)

    def test_a_swallowed_interruption_still_ends_the_run(self) -> None:
        async def main() -> None:
            with contextlib.suppress(BaseException):
                self.spin()
            for _ in range(100):
                slept.append(trio.current_time())
                await trio.sleep(1)

        slept: list[float] = []
        with pytest.raises(LoopBlocked):
            simulate(main, watchdog_seconds=0.05)
        assert slept == [0]

    def test_many_short_steps_are_fine(self) -> None:
        async def main() -> None:
            for _ in range(60_000):
                await trio.lowlevel.checkpoint()

        simulate(main, watchdog_seconds=0.02)


def test_lost_generators_are_closed_where_they_were_lost() -> None:
    closed: list[float] = []

    async def numbers():  # type: ignore[no-untyped-def]
        try:
            yield 1
        finally:
            closed.append(trio.current_time())

    async def main() -> None:
        await trio.sleep(2)
        generator = numbers()
        await anext(generator)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del generator
            await trio.sleep(1)

    simulate(main)
    assert closed == [2]
