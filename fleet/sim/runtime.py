"""Runs an async function in virtual time, decided by one seed.

``run`` is ``trio.run`` on a clock that jumps (``fleet.sim.loop``) and under watch: what would let the machine decide
is an error (``fleet.sim.guard``), and so are a run that cannot go on, one that does not end, and a task that keeps the
loop (``fleet.sim.watchdog``). Every global switch is put back when the run ends, however it ends.

``pause`` stops a process in the way SIGSTOP does: its tasks stay runnable, and take no step.

The cyclic garbage collector would run finalizers at moments that depend on the process's past, so it is off during a
run, called after a fixed number of steps and at the end. Objects older than the run are left out of that
(``gc.freeze``): their finalizers do not belong to it, and leaving them out keeps a collection cheap.

One simulated run is on at a time in a process, and no ordinary one beside it in another thread.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import math
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from fleet.environment import current_host
from fleet.errors import LocalMisuse
from fleet.sim.guard import guarding
from fleet.sim.loop import Deadlock, Loop, switched
from fleet.sim.watchdog import LoopBlocked, watching

if TYPE_CHECKING:
    from fleet.sim.history import History

__all__ = ["Deadlock", "LoopBlocked", "current_host", "inline", "pause", "resume", "run"]

T = TypeVar("T")

_RUNS_BETWEEN_FULL: Final = 64
"""Runs after which everything is collected, what earlier runs left behind included."""

_runs: Final = itertools.count(1)
_one_at_a_time: Final = threading.Lock()


@contextlib.contextmanager
def _collector_held() -> Iterator[None]:
    """The cyclic garbage collector, out of the way."""
    enabled, frozen = gc.isenabled(), gc.get_freeze_count()
    gc.disable()
    if not frozen:
        gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        if not frozen:
            gc.unfreeze()
        if next(_runs) % _RUNS_BETWEEN_FULL == 0:
            gc.collect()
        if enabled:
            gc.enable()


_ASKED: Final = (KeyboardInterrupt, SystemExit)
"""Whoever asks for the end gets it, whatever else went wrong."""


def _leaves(error: BaseException | None) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    elif error is not None:
        yield error


def run(
    fn: Callable[[], Awaitable[T]],
    *,
    seed: int,
    history: History,
    deadline: float | None = None,
    watchdog_seconds: float = 10.0,
) -> T:
    """Run ``await fn()`` in virtual time from 0, and return what it returns. Errors pass through as from ``trio.run``.

    Raises ``DeadlineExceeded`` when it is not done at ``deadline`` (virtual seconds), ``Deadlock`` when no task can run
    any more, ``LoopBlocked`` when a task keeps the loop for more than ``watchdog_seconds`` of real time, and
    ``LocalMisuse`` when it reaches for what a simulated run forbids (``fleet.sim.guard``).
    """
    if trio.lowlevel.in_trio_run():
        raise LocalMisuse("a simulated run cannot be started from within trio: call it from a plain function")
    if deadline is not None and not deadline > 0:
        raise LocalMisuse(f"deadline {deadline!r} is no time to end at: pass virtual seconds above 0, or None")
    if not 0 < watchdog_seconds < threading.TIMEOUT_MAX:
        raise LocalMisuse(f"watchdog_seconds {watchdog_seconds!r} must be above 0")
    if not _one_at_a_time.acquire(blocking=False):
        raise LocalMisuse("a simulated run is already on in this process: start the next when it has ended")
    loop = Loop(seed, history, math.inf if deadline is None else deadline)
    ended: BaseException | None = None
    try:
        with (
            _collector_held(),
            watching(watchdog_seconds, loop.step, lambda frame: loop.blocked(watchdog_seconds, frame)),
            guarding(run.__code__) as guard,
            switched(loop),
        ):
            try:
                result = trio.run(loop.main, fn, clock=loop)
            except BaseException as error:  # noqa: BLE001 - raised below, unless it followed from another
                ended = error
                if loop.failure is not None and isinstance(error, trio.TrioInternalError):
                    loop.drop_tasks()
        failure = loop.failure or guard.violation
        leaves = list(_leaves(ended))
        if ended is not None and (failure is None or any(isinstance(leaf, _ASKED) for leaf in leaves)):
            raise ended
        if failure is not None:
            if ended is None or failure in leaves:
                raise failure
            raise failure from ended
        return result  # type: ignore[return-value]
    finally:
        _one_at_a_time.release()
        del ended


def _current() -> Loop:
    clock = trio.lowlevel.current_clock() if trio.lowlevel.in_trio_run() else None
    if not isinstance(clock, Loop):
        raise LocalMisuse("hosts can be paused in a simulated run only: start one with fleet.sim.runtime.run")
    return clock


def pause(host: str) -> None:
    """Stop a process: none of its tasks takes a step until ``resume``. The calling task's step ends first.

    Its timers go on and take effect at ``resume``; so does a cancellation from outside. A paused host that is the last
    thing cancelled tasks wait for is resumed. Pausing a paused host changes nothing.
    """
    _current().pause(host)


def resume(host: str) -> None:
    """Let a process go on where it stopped. Resuming one that runs changes nothing, so whoever kills a host may call
    this after cancelling its tasks without asking."""
    _current().resume(host)


async def inline(work: Callable[[], T], /) -> T:
    """The off-loop executor under virtual time: a checkpoint, then the work, which takes no virtual time."""
    await trio.lowlevel.checkpoint()
    return work()
