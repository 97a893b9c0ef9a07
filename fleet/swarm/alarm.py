"""One timer for many deadlines that move: it sleeps until the nearest, and is woken only where that pays.

How late it runs each time shows how busy the processor is.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Final

import trio

TIMER_SLACK: Final = 0.05
"""Seconds by which a timeout may be late: a timer that ends sooner anyway is not set anew for it."""

LAG_DECAY: Final = 1 / 8
"""How much of the lag is forgotten with each time that it is less. Once it is more, that counts at once."""


class Alarm:
    """Wakes ``run`` when the nearest deadline is due."""

    def __init__(self, next_deadline: Callable[[], float]) -> None:
        self._next_deadline = next_deadline
        self._at = inf
        self._moved = trio.Event()
        self._moved_at = inf
        self._lag = inf

    @property
    def lag(self) -> float:
        """Seconds for which whatever is due waits for the processor; infinity before that is known."""
        return self._lag

    def reconsider(self) -> None:
        """Wake ``run`` if something is now due before what it waits for; it looks again soon by itself."""
        if self._at > trio.current_time() + TIMER_SLACK and self._next_deadline() < self._at:
            self._move()

    def due_at(self, deadline: float) -> None:
        """Something is due then, to the point."""
        if deadline < self._at:
            self._move()

    def _move(self) -> None:
        if not self._moved.is_set():
            self._moved_at = trio.current_time()
            self._moved.set()

    async def run(self, on_timer: Callable[[float], None]) -> None:
        """Call ``on_timer(now)`` at each deadline until cancelled."""
        while True:
            self._at = self._next_deadline()
            self._moved = trio.Event()
            with trio.move_on_at(self._at):
                await self._moved.wait()
                self._woke(self._moved_at)
                continue
            self._woke(self._at)
            on_timer(trio.current_time())

    def _woke(self, due: float) -> None:
        late = max(0.0, trio.current_time() - due)
        known = 0.0 if self._lag == inf else self._lag
        self._lag = max(late, known + (late - known) * LAG_DECAY)
