"""One seed decides everything: trio's private parts as the loop expects them, and runs that repeat exactly."""

from __future__ import annotations

import functools
import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
import trio
from trio._core import _asyncgens, _entry_queue, _run, _thread_cache

from fleet.sim import loop
from fleet.sim.history import History
from fleet.sim.runtime import run
from tests.sim.workload import events_of

ROOT = Path(__file__).parents[2]


class TestTrioIsAsPinned:
    """When one of these fails, a new trio changed what ``fleet.sim.loop`` builds on: read what changed, mend the loop,
    then move the pin."""

    def test_version(self) -> None:
        assert trio.__version__.startswith("0.35."), "fleet.sim.loop was checked against trio 0.35 only"

    def test_the_batch_is_sorted_by_age_then_handed_over(self) -> None:
        source = inspect.getsource(_run.unrolled_run)
        assert "batch = list(runner.runq)" in source
        assert "if _ALLOW_DETERMINISTIC_SCHEDULING:" in source
        assert "batch.sort(key=lambda t: t._counter)" in source
        assert source.index("_r.shuffle(batch)") < source.index("while batch:\n                task = batch.pop()")
        assert _run._ALLOW_DETERMINISTIC_SCHEDULING in (True, False)
        assert hasattr(_run._r, "shuffle")

    def test_the_clock_is_asked_when_no_task_is_runnable(self) -> None:
        source = inspect.getsource(_run.unrolled_run)
        assert "if runner.runq:\n                timeout: float = 0\n            else:" in source
        assert source.index("timeout = runner.clock.deadline_to_sleep_time(deadline)") < source.index(
            "if runner.waiting_for_idle:"
        )
        assert source.index("runner.clock.start_clock()") < source.index("runner.init_task = runner.spawn_impl(")

    def test_events_come_from_the_runners_own_io_manager(self) -> None:
        assert "next_send = runner.io_manager.get_events(timeout)" in inspect.getsource(_run.run)
        assert "runner.io_manager.process_events(events)" in inspect.getsource(_run.unrolled_run)
        assert "self.io_manager.close()" in inspect.getsource(_run.Runner.close)

    def test_fields(self) -> None:
        runner = {field.name for field in attrs.fields(_run.Runner)}
        assert {"io_manager", "deadlines", "asyncgens", "runq", "tasks", "entry_queue", "waiting_for_idle"} <= runner
        assert {"queue", "idempotent_queue", "wakeup"} <= {f.name for f in attrs.fields(_entry_queue.EntryQueue)}
        assert {"_heap", "_active"} == {field.name for field in attrs.fields(_run.Deadlines)}
        assert {"_children", "_tasks"} <= {field.name for field in attrs.fields(_run.CancelStatus)}
        assert {"alive", "trailing_needs_finalize"} <= {f.name for f in attrs.fields(_asyncgens.AsyncGenerators)}
        assert "__hash__" not in vars(_run.Task), "tasks hash by address, until a run makes them hash by age"
        assert isinstance(next(iter([attrs.fields(_run.Task)._counter.default.factory()])), int)
        assert hasattr(_thread_cache.ThreadCache, "start_thread_soon")

    def test_deadlines_break_ties_by_the_second_item_alone(self) -> None:
        assert "heappush(self._heap, (deadline, id(cancel_scope), cancel_scope))" in inspect.getsource(
            _run.Deadlines.add
        )
        assert "self.alive = set(self.alive)" in inspect.getsource(_asyncgens.AsyncGenerators.finalize_remaining)


@pytest.mark.slow
def test_every_order_repeats_in_one_process_whatever_ran_before() -> None:
    first, events = events_of(7)
    kinds = {event.kind for event in events}
    assert kinds >= {"timer", "abort", "cancelled", "generator closed", "children", "took", "collected", "soon"}
    kept = []
    for other in range(12):
        events_of(100 + other)
        kept.append([[] for _ in range(1 + other * 977)])  # shifts what the next run finds in memory
        assert events_of(7)[0] == first


@pytest.mark.slow
def test_different_seeds_take_different_orders() -> None:
    assert len({events_of(seed)[0] for seed in range(8)}) == 8
    one, other = events_of(1)[1], events_of(2)[1]
    took = [[event.peer for event in events if event.kind == "took"] for events in (one, other)]
    assert took[0] != took[1]


@pytest.mark.slow
def test_every_order_repeats_in_fresh_processes_with_other_hash_seeds() -> None:
    digests = {
        subprocess.run(
            [sys.executable, "-c", "from tests.sim.workload import events_of; print(events_of(7)[0])"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("0", "1", "4242")
    }
    assert digests == {events_of(7)[0]}


def test_a_signal_leaves_no_mark() -> None:
    """The watchdog's own: each writes to the descriptor that wakes an ordinary loop."""

    async def main(looks: bool) -> None:
        for number in range(2_000):
            await trio.lowlevel.checkpoint()
            if looks and number % 20 == 0 and callable(signal.getsignal(signal.SIGALRM)):
                signal.raise_signal(signal.SIGALRM)  # as its timer does
        await trio.sleep(1)

    digests = set()
    for looks in (True, False):
        history = History()
        run(functools.partial(main, looks), seed=1, history=history, watchdog_seconds=100)
        digests.add(history.digest)
    assert len(digests) == 1


def test_a_jump_lands_on_the_deadline_exactly_and_is_recorded() -> None:
    seen = []
    history = History(seen.append)
    moments: list[float] = []

    async def main() -> None:
        assert trio.current_time() == 0.0
        for moment in (0.1, 0.30000000000000004, 1e9):
            await trio.sleep_until(moment)
            moments.append(trio.current_time())

    run(main, seed=0, history=history)
    assert moments == [0.1, 0.30000000000000004, 1e9]
    assert [event.time for event in seen if event.kind == "timer"] == moments


def test_waiting_for_all_tasks_to_block_takes_no_time_and_comes_before_a_jump() -> None:
    order: list[str] = []

    async def sleeper() -> None:
        await trio.sleep(0.001)
        order.append("slept")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeper)
            await trio.testing.wait_all_tasks_blocked(cushion=5)
            order.append(f"blocked at {trio.current_time()}")

    run(main, seed=0, history=History())
    assert order == ["blocked at 0.0", "slept"]


def test_a_deadline_moved_into_the_past_expires_at_once() -> None:
    async def main() -> float:
        await trio.sleep(5)
        with trio.CancelScope() as scope:
            scope.deadline = 1
            await trio.sleep_forever()
        return trio.current_time()

    assert run(main, seed=0, history=History()) == 5


def test_garbage_is_collected_during_a_long_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "_COLLECT_EVERY", 500)
    alive: set[int] = set()
    most = 0

    class Cycle:
        def __init__(self, number: int) -> None:
            self.me, self.number = self, number
            alive.add(number)

        def __del__(self) -> None:
            alive.discard(self.number)

    async def main() -> None:
        nonlocal most
        for number in range(20_000):
            Cycle(number)
            most = max(most, len(alive))
            await trio.lowlevel.checkpoint()

    run(main, seed=0, history=History())
    assert most < 12_000  # the first collection comes at the default's time
    assert not alive
