"""Short ways to start a simulated run and a host's tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fleet.sim.history import History
from fleet.sim.runtime import current_host, run

if TYPE_CHECKING:
    import trio


def simulate(
    fn: Callable[[], Awaitable[object]],
    seed: int = 0,
    deadline: float | None = None,
    watchdog_seconds: float = 10.0,
    history: History | None = None,
) -> object:
    return run(fn, seed=seed, history=history or History(), deadline=deadline, watchdog_seconds=watchdog_seconds)


def start(nursery: trio.Nursery, host: str, fn: Callable[..., Awaitable[object]], *args: object) -> None:
    """Start a task of a host."""
    token = current_host.set(host)
    nursery.start_soon(fn, *args)
    current_host.reset(token)
