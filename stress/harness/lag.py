"""How late the event loop is: to what precision a latency that was measured on it can be believed.

All peers of a run share one loop in one process. A task whose turn has come waits for the tasks before it, for threads
that hold the interpreter's lock, and for whoever else uses the processor; where that takes long, a latency measured on
the loop tells of the harness and not of the peers.

The probe is a task that wakes by a fixed timetable, every ``PERIOD_SECONDS``, and notes by how much it was late. It
waits as any task of a peer does, which trio's instruments do not show: they see how long a batch of steps held the
loop, and neither the second batch that a woken task waits for nor a processor that another process has taken. The
timetable does not shift when the loop is late: of a loop that was held for a second every missed tick is noted, with
its own lateness, so a percentile is over time and not over how often the loop got round to looking.

A hold shows as up to one period shorter than it was, and an idle loop as up to 1 ms late, since polls are timed in
whole milliseconds.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

import trio

from fleet.metrics import Histogram
from stress.harness.metric_names import LOOP_LAG_MAX, LOOP_LAG_P99

PERIOD_SECONDS: Final = 0.005
"""Between two ticks. They cost a busy loop half a percent of its time at the most, and less where its batches are
longer than a period; ticks closer to the millisecond of a poll would measure the poll."""
BOUND_SHARE: Final = 0.1
"""Of a latency's bound: by more than this the loop must not be late."""


def too_late(late_ms: float, bound_ms: float) -> str | None:
    """Why a latency with this bound cannot be judged on a loop that was late by so much at the most, or None.

    What fails there may be the harness, and what passes was not measured to the bound's precision. The largest
    lateness is what counts, since one late moment is enough to make a longest stall or a slow answer.
    """
    if late_ms <= BOUND_SHARE * bound_ms:
        return None
    late = f"{late_ms:,.0f}" if late_ms >= 10 else f"{late_ms:.1f}"
    return (
        f"the event loop itself was late by up to {late} ms, more than a tenth of the bound: "
        "use fewer peers or a quieter machine"
    )


class LoopLag:
    """The probe of one run and what it found. In a simulated run nobody starts it, and it finds nothing."""

    def __init__(self) -> None:
        self._late_ms = Histogram()
        self._due = math.inf
        """Of the next tick."""
        self._counting = True
        self._confined = False

    async def beside(self, main: Callable[[], Awaitable[None]]) -> None:
        """Await ``main()`` with the probe beside it."""
        trio.lowlevel.spawn_system_task(self._tick)
        try:
            await main()
        finally:
            self._note()

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """The part of the run that latencies are measured in: around it, a late loop does no harm.

        A scenario may have several, also one in another. Of one that has none, the whole run is looked at.
        """
        self._note()
        if not self._confined:
            self._confined, self._counting = True, False
            self._late_ms = Histogram()
        before, self._counting = self._counting, True
        try:
            yield
        finally:
            self._note()
            self._counting = before

    def metrics(self) -> dict[str, float | None]:
        """How late the loop was at the 99th percentile and at the most, in ms; None when it was not looked at."""
        return {LOOP_LAG_P99: self._late_ms.percentile(99), LOOP_LAG_MAX: self._late_ms.max}

    def told(self) -> str:
        """The same in one line."""
        p99, most = self.metrics().values()
        if p99 is None or most is None:
            return "event loop: the run was too short to see how late it was"
        return f"event loop: late by {p99:,.1f} ms at the 99th percentile, by {most:,.1f} ms at the most"

    async def _tick(self) -> None:
        self._due = trio.current_time() + PERIOD_SECONDS
        while True:
            await trio.sleep_until(self._due)
            self._note()

    def _note(self) -> None:
        """Record each tick that is due by now, also one that the loop has not come to yet."""
        now = trio.current_time()
        while self._due <= now:
            if self._counting:
                self._late_ms.record(1e3 * (now - self._due))
            self._due += PERIOD_SECONDS
