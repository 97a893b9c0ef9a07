"""A run that shows every order trio leaves open: of tasks, deadlines, cancellations, generators, sets and garbage."""

from __future__ import annotations

import gc
import warnings
from collections.abc import AsyncIterator

import trio
import trio.testing

from fleet.sim.history import Event, History
from fleet.sim.runtime import run


class Cycle:
    """Garbage that only the cyclic collector finds, and that says so."""

    def __init__(self, history: History, number: int) -> None:
        self.history, self.number, self.me = history, number, self

    def __del__(self) -> None:
        self.history.record("collected", "", number=self.number)


async def blocked(history: History, name: str) -> None:
    def abort(_: object) -> trio.lowlevel.Abort:
        history.record("abort", name)
        return trio.lowlevel.Abort.SUCCEEDED

    try:
        await trio.lowlevel.wait_task_rescheduled(abort)
    except trio.Cancelled as error:
        history.record("cancelled", name, why=str(error))
        raise


async def numbers(history: History, name: str) -> AsyncIterator[int]:
    try:
        for number in range(100):
            yield number
    finally:
        history.record("generator closed", name)


async def deadlines(history: History) -> None:
    """Forty scopes that expire at one instant, and as many that were moved there."""

    async def one(name: str) -> None:
        with trio.move_on_at(5 if int(name) % 2 else 4 + int(name)) as scope:
            scope.deadline = 5
            await blocked(history, name)

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(one, str(number))


async def cancellation(history: History) -> None:
    """A cancellation that visits tasks and scopes of several depths."""

    async def scoped(name: str) -> None:
        with trio.CancelScope():
            await blocked(history, name)

    async with trio.open_nursery() as nursery:
        for number in range(30):
            nursery.start_soon(
                scoped if number % 2 else blocked, *((f"s{number}",) if number % 2 else (history, f"d{number}"))
            )
        await trio.testing.wait_all_tasks_blocked()
        history.record("children", "", names=" ".join(repr(task) for task in nursery.child_tasks))
        nursery.cancel_scope.cancel()


async def race(history: History) -> None:
    """Tasks that compete for a channel and wake from an event."""
    event = trio.Event()
    send, receive = trio.open_memory_channel[int](0)

    async def take(name: str) -> None:
        await event.wait()
        async for number in receive:
            history.record("took", name, number=number)
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(take, f"taker {number}")
        await trio.sleep(1)
        event.set()
        with send:
            for number in range(60):
                await send.send(number)


async def everything(history: History, kept: list[object]) -> None:
    for number in range(50):
        Cycle(history, number)
    for number in range(10):
        generator = numbers(history, f"kept {number}")
        await anext(generator)
        kept.append(generator)
    lost = numbers(history, "lost")
    await anext(lost)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del lost
    trio.lowlevel.current_trio_token().run_sync_soon(history.record, "soon", "")
    await deadlines(history)
    await cancellation(history)
    await race(history)

    async def spin() -> None:
        grown = []
        for number in range(6_000):
            if number % 100 == 0:
                Cycle(history, number)
            grown.append([number])  # enough for the collector to want to run
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(spin)
        nursery.start_soon(spin)


def events_of(seed: int) -> tuple[str, list[Event]]:
    """The digest and the events of one run."""
    events: list[Event] = []
    history = History(events.append)
    kept: list[object] = []
    run(lambda: everything(history, kept), seed=seed, history=history, deadline=100)
    digest = history.digest
    kept.clear()
    gc.collect()
    return digest, events
