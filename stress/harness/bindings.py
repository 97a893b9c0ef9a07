"""Runs a scenario's main function on what its binding stands for: the machine, or a simulated world."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import trio

from fleet.sim.world import World, simulate
from stress.harness.simulated import links_of
from stress.harness.space_time import SpaceTime

if TYPE_CHECKING:
    from fleet.sim.history import Event, History
    from stress.harness.run import Context, Main


_NAMED: Final = 5


class LeftOpen(Exception):
    """A fleet has ended and left something open: a bug of the fleet or of the scenario, never of the network."""

    def __init__(self, left: Sequence[str]) -> None:
        """``left``: lines as ``World.leftovers`` has them."""
        super().__init__(f"still open when all peers had ended: {', '.join(left[:_NAMED])}")
        self.kinds = sorted({line.partition(": ")[2].split()[0] for line in left})
        """Of what kinds: file, link, listener, socket."""


def run_on_binding(context: Context, main: Main) -> None:
    """On the machine's clock and sockets or, for the binding ``sim``, in a simulated world."""
    if context.binding != "sim":
        try:
            trio.run(context.lag.beside, main)
        finally:
            context.metrics.update(context.lag.metrics())
            context.summary.append(context.lag.told())
        return
    picture = SpaceTime()
    disturbed = bool(context.args["faults"])
    with context.progress.by_events() as tick:

        def log(event: Event) -> None:
            context.events.emit(event.time, event.peer, event.kind, **dict(event.fields))
            if disturbed:
                picture.note(event)
            tick()

        try:
            simulated(context, main, log)
        finally:
            if disturbed:
                context.figures.append(picture.figure(context.failed_at))


def simulated(context: Context, main: Main, sink: Callable[[Event], None] | None) -> None:
    """Run ``main`` in a simulated world, whose events go to ``sink``, and note in ``context`` what the run came to."""
    world: World | None = None

    async def within(made: World) -> None:
        nonlocal world
        world = context.world = made
        try:
            await main()
        finally:
            context.metrics["virtual_seconds"] = trio.current_time()
        if left := made.leftovers():
            raise LeftOpen(left)

    path, rates = links_of(context.args)
    deadline = 2 * context.args["deadline_seconds"]  # the harness's own comes first, with its report
    started = time.perf_counter()
    try:
        simulate(within, seed=context.seed, path=path, rates=rates, deadline=deadline, sink=sink)
    finally:
        if world is not None:
            _note_simulation(context, world.history, time.perf_counter() - started)


def _note_simulation(context: Context, history: History, real: float) -> None:
    virtual = context.metrics.get("virtual_seconds", 0.0)
    assert isinstance(virtual, float | int)  # noqa: S101 - noted above
    context.parameters["replays"] = 1
    context.metrics["virtual_over_real_seconds"] = virtual / real
    context.details["simulation"] = {"trace_hash": history.digest, "events": history.count}
    context.summary.append(
        f"simulated: {virtual:.3f} virtual seconds in {real:.2f} real ones ({virtual / real:.3g} a second), "
        f"{history.count:,} events, trace hash {history.digest[:16]}"
    )
