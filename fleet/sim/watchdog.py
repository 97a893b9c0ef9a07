"""Interrupts a task that keeps the event loop for too long in real time: an endless loop, a heavy computation.

A timer looks now and then whether the loop is still in the same step as before, so steps themselves pay nothing. In the
main thread the timer is a signal (SIGALRM), elsewhere, or where somebody else uses that signal, a thread. What the
timer does leaves no mark on the run unless it fires: no chance is drawn, no task woken.
"""

from __future__ import annotations

import _thread
import ctypes
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from fleet.errors import FleetError

if TYPE_CHECKING:
    from types import FrameType

_LOOKS: Final = 2
"""Looks within the time allowed: a step is interrupted after at least that time, and at most half as much again."""


class LoopBlocked(FleetError):
    """A task kept the event loop for longer than the watchdog allows; the message names it and where it was."""


class Interrupted(BaseException):
    """Thrown into the blocking task. No ``Exception``, so that ``except Exception`` in its loop does not stop it."""


class _Looks:
    """Notices when nothing changed for ``_LOOKS`` looks in a row."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step
        self._last: object = None
        self._same = 0

    def stuck(self) -> bool:
        step = self._step()
        if step != self._last:
            self._last, self._same = step, 0
            return False
        self._same += 1
        return self._same >= _LOOKS


@contextmanager
def watching(seconds: float, step: Callable[[], object], blocked: Callable[[FrameType | None], None]) -> Iterator[None]:
    """Watch this thread. ``step()`` differs from one step of the loop to the next; ``blocked(frame)`` is told of the
    innermost frame just before ``Interrupted`` is thrown into it."""
    looks = _Looks(step)
    if (
        threading.current_thread() is threading.main_thread()
        and hasattr(signal, "setitimer")
        and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    ):
        with _by_signal(seconds / _LOOKS, looks, blocked):
            yield
    else:
        with _by_thread(seconds / _LOOKS, looks, blocked):
            yield


@contextmanager
def _by_signal(period: float, looks: _Looks, blocked: Callable[[FrameType | None], None]) -> Iterator[None]:
    def look(_signal: int, frame: FrameType | None) -> None:
        if looks.stuck():
            blocked(frame)
            raise Interrupted

    signal.signal(signal.SIGALRM, look)
    try:
        signal.setitimer(signal.ITIMER_REAL, period, period)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


@contextmanager
def _by_thread(period: float, looks: _Looks, blocked: Callable[[FrameType | None], None]) -> Iterator[None]:
    watched = threading.get_ident()
    over = _thread.allocate_lock()
    over.acquire()

    def look() -> None:
        while not over.acquire(timeout=period):
            if looks.stuck():
                blocked(sys._current_frames().get(watched))
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(watched), ctypes.py_object(Interrupted))

    thread = threading.Thread(target=look, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.release()
        thread.join()
