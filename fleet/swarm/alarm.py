"""One timer for many deadlines that move: it sleeps until the nearest, and is woken only where that pays."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

import trio

TIMER_SLACK: Final = 0.05
"""Seconds by which a timeout may be late: a timer that ends sooner anyway is not set anew for it."""


class Alarm:
    """Wakes ``run`` when the nearest deadline is due."""

    def __init__(self, next_deadline: Callable[[], float]) -> None:
        self._next_deadline = next_deadline
        self._at = inf
        self._moved = trio.Event()

    def reconsider(self) -> None:
        """Wake ``run`` if something is now due before what it waits for; it looks again soon by itself."""
        if self._at > trio.current_time() + TIMER_SLACK and self._next_deadline() < self._at:
            self._moved.set()

    def due_at(self, deadline: float) -> None:
        """Something is due then, to the point."""
        if deadline < self._at:
            self._moved.set()

    async def run(self, on_timer: Callable[[float], None]) -> None:
        """Call ``on_timer(now)`` at each deadline until cancelled."""
        while True:
            self._at = self._next_deadline()
            self._moved = trio.Event()
            with trio.move_on_at(self._at):
                await self._moved.wait()
                continue
            on_timer(trio.current_time())
