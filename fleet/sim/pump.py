"""The network's agenda: what happens when, performed by one task.

The rule: actions happen in the order of (time, order of arrangement), everything due at one instant in one step of the
task, and each sees its own time as the present. So neither trio's choice among runnable tasks nor a clock that is read
a little late changes anything.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from math import inf
from typing import Any, TypeVar

import trio

T = TypeVar("T")


def _wait_no_more(_: object) -> trio.lowlevel.Abort:
    return trio.lowlevel.Abort.SUCCEEDED


class Pump:
    """A heap of actions, and the task that waits for the earliest."""

    __slots__ = ("_heap", "_next", "_order", "_present", "_scope")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = 0
        self._next = inf
        self._present: float | None = None
        self._scope: trio.CancelScope | None = None

    def time(self) -> float:
        """The present: that of the action being performed, else trio's."""
        return self._present if self._present is not None else trio.current_time()

    def at(self, time: float, action: Callable[[T], None], argument: T) -> None:
        """Call ``action(argument)`` at ``time``, after everything arranged for then so far."""
        self._order = order = self._order + 1
        heapq.heappush(self._heap, (time, order, action, argument))
        if time < self._next and self._scope is not None:
            self._next = self._scope.deadline = time

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Perform actions until cancelled."""
        task_status.started()
        try:
            while True:
                self._perform(trio.current_time())
                self._next = self._heap[0][0] if self._heap else inf
                with trio.CancelScope(deadline=self._next) as self._scope:
                    await trio.lowlevel.wait_task_rescheduled(_wait_no_more)
        finally:
            self._scope = None

    @property
    def running(self) -> bool:
        """Whether its task waits for something to do."""
        return self._scope is not None

    def _perform(self, now: float) -> None:
        heap = self._heap
        pop = heapq.heappop
        self._next = -inf  # what an action arranges moves no deadline
        try:
            while heap and heap[0][0] <= now:
                self._present, _, action, argument = pop(heap)
                action(argument)
        finally:
            self._present = None
