"""Trio's loop, bent to one seed: its clock, its order and its I/O during a simulated run.

The rule: what a run does depends on its function and its seed alone, not on ``PYTHONHASHSEED``, on addresses of
objects, on earlier runs of the process or on the speed of the machine. All that stands in the way of it in trio is
dealt with here, through trio's private parts, and nowhere else; ``tests/sim/test_loop.py`` checks them against the
pinned version:

- the order within a batch of runnable tasks: sorted by age, then shuffled by the seed;
- the order of deadlines at one instant: by when they were set, not by address;
- the order in which a cancellation, the end of the run or a set of tasks visits tasks, scopes and asynchronous
  generators: tasks hash by age, the others are kept in the order they came;
- I/O: none is polled. Signals other than Ctrl-C are not noticed by the loop;
- time: it stands still while any task can run, then jumps to the next deadline;
- garbage: young garbage is collected after a fixed number of steps, and never in between.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import heapq
import itertools
import math
import random
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs
import trio
from trio._core import _asyncgens, _run, _thread_cache

from fleet.environment import current_host
from fleet.errors import DeadlineExceeded, FleetError
from fleet.sim import guard as guards
from fleet.sim.watchdog import LoopBlocked

if TYPE_CHECKING:
    from types import FrameType

    from trio.lowlevel import Task

    from fleet.sim.history import History

T = TypeVar("T")

MAX_STEPS_AN_INSTANT: Final = 2_000_000
"""Steps at one virtual instant: ten seconds and more of real time. Tasks that wake each other without end never let the
clock go on, and no deadline would come."""

GRACE_SECONDS: Final = 60.0
"""Virtual seconds in which the tasks of a run that was given up may clean up; then they are dropped as they stand."""

_COLLECT_EVERY: Final = 10_000
"""Steps between two collections of young garbage."""
_COLLECT_ALL_EVERY: Final = 50
"""Every so many of those, all garbage of the run."""
_CLOSINGS: Final = 100
"""Attempts to close a dropped task: each ``await`` on its way out uses one up."""
_NAMED: Final = 8
"""Blocked tasks that a message names."""


class Deadlock(FleetError):
    """No task can ever run again: none is runnable and no timer is pending. The message lists them."""


class _Abandoned(BaseException):
    """Ends the loop where it stands, as the tasks did not come to an end after the run was given up."""


class _Ordered(dict[Any, None]):
    """A set in the order of insertion, with the methods that trio uses."""

    def __init__(self, items: Any = ()) -> None:
        super().__init__(dict.fromkeys(items))

    def add(self, item: Any) -> None:
        self[item] = None

    def remove(self, item: Any) -> None:
        del self[item]

    def discard(self, item: Any) -> None:
        self.pop(item, None)

    def update(self, items: Any) -> None:  # type: ignore[override]
        super().update(dict.fromkeys(items))


class _Deadlines(_run.Deadlines):
    """Trio's heap of deadlines, where equal ones expire in the order they were set."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count()

    def add(self, deadline: float, cancel_scope: trio.CancelScope) -> None:
        heapq.heappush(self._heap, (deadline, next(self._numbers), cancel_scope))
        self._active += 1


class Loop(trio.abc.Clock):
    """Stands in for three things in trio's loop: its clock, its source of chance and its I/O."""

    def __init__(self, seed: int, history: History, deadline: float) -> None:
        self._history = history
        self._limit = deadline
        self._now = 0.0
        self._shuffle = random.Random(f"fleet.sim schedule {seed}").shuffle  # noqa: S311 - seeded, and no secret
        self._runner: Any = None
        self._real_io: Any = None
        self._scope = trio.CancelScope()
        self._batch: list[Task] = []
        self._steps = 0
        self._steps_at_jump = 0
        self._collected = 0
        self._chores_at = _COLLECT_EVERY
        self._paused: dict[str, list[Task]] = {}
        self._wakeup_task: Task | None = None
        self.failure: FleetError | None = None

    async def main(self, fn: Callable[[], Awaitable[T]]) -> T | None:
        named: Any = fn.func if isinstance(fn, functools.partial) else fn
        trio.lowlevel.current_task().name = f"{named.__module__}.{getattr(named, '__qualname__', 'main')}"
        with self._scope:
            return await fn()
        return None

    # -- the clock

    def start_clock(self) -> None:
        runner = self._runner = _run.GLOBAL_RUN_CONTEXT.runner
        self._real_io, runner.io_manager = runner.io_manager, self  # type: ignore[assignment]
        runner.deadlines = _Deadlines()
        alive: Any = weakref.WeakSet()
        alive.data = _Ordered()
        runner.asyncgens.alive = alive
        runner.asyncgens.trailing_needs_finalize = _Ordered()  # type: ignore[assignment]
        self._calls = runner.entry_queue.queue
        self._idempotent_calls = runner.entry_queue.idempotent_queue

    def current_time(self) -> float:
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Trio asks when no task is runnable: the moment to jump."""
        if self._calls or self._idempotent_calls:
            return 0.0
        if self._runner.waiting_for_idle:
            return math.inf  # whoever waits for all tasks to block is woken first, and no time passes
        if deadline == math.inf or deadline > self._limit:
            self._nothing_runs(deadline)
        elif deadline > self._now:
            self._now = deadline
            self._steps_at_jump = self._steps
            self._history.emit(deadline, "", "timer", steps=self._steps)
        return 0.0

    def _nothing_runs(self, deadline: float) -> None:
        if any(_cancelled_from_outside(task._cancel_status) for held in self._paused.values() for task in held):
            # Somebody else cancelled them and waits for them: only a stopped process keeps the run from ending.
            self._resume_all()
        elif deadline == math.inf:
            self.give_up(Deadlock(f"deadlock at {self._now:.6g} s: nothing can run any more, {self._blocked_tasks()}"))
        else:
            self._now = self._limit
            self.give_up(
                DeadlineExceeded(
                    f"not done at {self._now:.6g} s of virtual time, the deadline: {self._blocked_tasks()}"
                )
            )

    # -- the order

    def shuffle(self, batch: list[Task]) -> None:
        """Trio hands over every batch of runnable tasks, by age, and runs what is left in it from the end."""
        self._batch = batch
        if self._paused:
            self._hold(batch)
        if len(batch) > 1:
            self._shuffle(batch)
        self._steps += len(batch)
        if self._steps >= self._chores_at:
            self._chores()

    def _chores(self) -> None:
        self._chores_at = self._steps + _COLLECT_EVERY
        self._collected += 1
        gc.collect(1 if self._collected % _COLLECT_ALL_EVERY else 2)
        if self.failure is not None:
            self._scope.cancel()  # the watchdog's: its exception may have been swallowed
        if self._steps - self._steps_at_jump > MAX_STEPS_AN_INSTANT:
            self._steps_at_jump = self._steps
            names = ", ".join(sorted({repr(task.name) for task in self._batch})[:_NAMED])
            self.give_up(
                DeadlineExceeded(
                    f"{MAX_STEPS_AN_INSTANT:,} steps at {self._now:.6g} s of virtual time and no end: tasks wake "
                    f"each other without waiting for time to pass ({names})"
                )
            )

    # -- pausing

    def pause(self, host: str) -> None:
        if self.failure is None and host not in self._paused:
            self._paused[host] = []
            self._hold(self._batch)
            self._history.record("pause", host)

    def resume(self, host: str) -> None:
        held = self._paused.pop(host, None)
        if held is not None:
            self._runner.runq.extend(held)
            self._history.record("resume", host)

    def _hold(self, batch: list[Task]) -> None:
        keep: list[Task] = []
        for task in batch:
            self._paused.get(task.context.get(current_host, None) or "", keep).append(task)
        batch[:] = keep

    def _resume_all(self) -> None:
        for host in list(self._paused):
            self.resume(host)

    # -- the end

    def give_up(self, failure: FleetError) -> None:
        """End the run with ``failure``: cancel everything or, where that was done before, drop everything."""
        if self.failure is not None:
            raise _Abandoned
        self.failure = failure
        self._limit = self._now + GRACE_SECONDS
        self._resume_all()
        self._scope.cancel()

    def step(self) -> tuple[int, int]:
        """Differs from one step to the next."""
        return self._steps, len(self._batch)

    def blocked(self, seconds: float, frame: FrameType | None) -> None:
        """The watchdog's finding. Told at any point of the loop, so it only leaves a note for the next turn."""
        task = getattr(_run.GLOBAL_RUN_CONTEXT, "task", None) or next(iter(self._stepping(frame)), None)
        who = f"task {self._describe(task)}" if task is not None else "the loop itself"
        where = guards.place(frame) if frame is not None else "an unknown place"
        if self.failure is None:
            self.failure = LoopBlocked(
                f"{who} kept the event loop for more than {seconds:g} s of real time, at {where}: "
                "let it wait now and then, or do less at once"
            )
        self._limit = min(self._limit, self._now + GRACE_SECONDS)
        self._chores_at = 0

    def _stepping(self, frame: FrameType | None) -> Iterator[Task]:
        """The task whose code the frame runs, for a watchdog in another thread."""
        frames = []
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
        if self._runner is not None:
            yield from (task for task in list(self._runner.tasks) if task.coro.cr_frame in frames)

    def drop_tasks(self) -> None:
        """Close what an abandoned loop left behind, quietly."""
        for task in sorted(self._runner.tasks, key=lambda task: task._counter):
            for nursery in task._child_nurseries:
                nursery._children.clear()
            for _ in range(_CLOSINGS):
                if task.coro.cr_frame is None:
                    break
                with contextlib.suppress(BaseException):
                    task.coro.close()

    def _describe(self, task: Task) -> str:
        host = task.context.get(current_host)
        return f"{task.name!r} of {host}" if host else repr(task.name)

    def _blocked_tasks(self) -> str:
        system = {self._runner.init_task, self._wakeup_task}
        tasks = sorted((task for task in self._runner.tasks if task not in system), key=lambda task: task._counter)
        held = {task for tasks in self._paused.values() for task in tasks}
        lines = []
        for task in tasks[:_NAMED]:
            frames = [frame for frame, _ in task.iter_await_frames()]
            own = [frame for frame in frames if not guards.is_library(frame) and frame.f_code.co_filename != __file__]
            where = guards.place((own or frames)[-1]) if frames else "its start"
            lines.append(f"{self._describe(task)} {'is paused' if task in held else 'waits'} at {where}")
        if len(tasks) > _NAMED:
            lines.append(f"and {len(tasks) - _NAMED:,} more")
        return "; ".join(lines)

    # -- the I/O that there is none of

    def get_events(self, _timeout: float) -> bool:
        return bool(self._calls or self._idempotent_calls)

    def process_events(self, events: bool) -> None:
        if events and self._wakeup_task is not None:
            task, self._wakeup_task = self._wakeup_task, None
            trio.lowlevel.reschedule(task)

    async def wait_readable(self, fd: object) -> None:
        """Only trio's own task for calls from outside waits so: for Ctrl-C and the ends of lost generators."""
        if fd is not self._runner.entry_queue.wakeup.wakeup_sock:
            self._refuse_io()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._wakeup_task = None
            return trio.lowlevel.Abort.SUCCEEDED

        self._wakeup_task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(abort)

    async def wait_writable(self, _fd: object) -> None:
        self._refuse_io()

    def _refuse_io(self) -> None:
        guards.refuse(guards.SOCKET)

    def notify_closing(self, _fd: object) -> None:
        """A socket made before the run may be closed within it; nobody waits for it here."""

    def force_wakeup(self) -> None:
        """Nothing sleeps."""

    def statistics(self) -> Any:
        return self._real_io.statistics()

    def close(self) -> None:
        self._real_io.close()


def _cancelled_from_outside(status: _run.CancelStatus) -> bool:
    reason = status._scope._cancel_reason
    return status.effectively_cancelled and (reason is None or reason.source != "deadline")


# Trio keeps idle threads, so not every use of one starts one.
_start_thread_soon: Final = guards.checked_method(guards.THREAD, _thread_cache.ThreadCache.start_thread_soon)


def _add_cancel_status(self: Any, *, _real: Any = _run.CancelStatus.__attrs_post_init__) -> None:
    self._children = _Ordered()
    _real(self)


@contextlib.contextmanager
def switched(loop: Loop) -> Iterator[None]:
    """Trio's private switches, set for one run."""
    patches = guards.Patches()
    # Takes one number, so that the run's own tasks count from zero whatever ran before.
    counter: Any = attrs.fields(_run.Task)._counter.default
    first = counter.factory() + 1

    def hash_by_age(task: Any) -> int:
        return task._counter - first  # type: ignore[no-any-return]

    def name_by_age(task: Any) -> str:
        return f"<Task {task.name!r} number {task._counter - first}>"

    try:
        patches.replace(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)
        patches.replace(_run, "_r", loop)
        patches.replace(_run.Task, "__hash__", hash_by_age)
        patches.replace(_run.Task, "__repr__", name_by_age)  # it becomes part of messages
        patches.replace(_run.CancelStatus, "__attrs_post_init__", _add_cancel_status)
        patches.replace(_asyncgens, "_ASYNC_GEN_SET", _Ordered)
        patches.add(_asyncgens, "set", _Ordered)  # what the generators still alive at the end are gathered in
        patches.replace(_thread_cache.ThreadCache, "start_thread_soon", _start_thread_soon)
        yield
    finally:
        patches.undo()
