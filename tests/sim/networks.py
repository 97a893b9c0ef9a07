"""What the tests of the simulated network share: three hosts in a run of their own, and links between them."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from fleet.errors import FleetError
from fleet.identity.keys import Identity
from fleet.sim.history import Event, History
from fleet.sim.network import SimNetwork
from fleet.sim.path import Constant, Path, PathBetween, Rates
from fleet.sim.runtime import run

if TYPE_CHECKING:
    from fleet.sim.stream import SimLink

PEERS = {name: Identity(bytes([number]) * 32) for number, name in enumerate("abc", 1)}

LATENCY = 0.03
EXACT = Path(latency=Constant(LATENCY), crumble=0)


@dataclass
class Played:
    """What became of a run."""

    digest: str
    events: list[Event]

    def of_kind(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


def play(
    scenario: Callable[[SimNetwork], Awaitable[None]],
    *,
    path: Path | PathBetween = EXACT,
    rates: Rates | None = None,
    seed: int = 1,
) -> Played:
    """Run ``scenario`` on a network of the hosts a, b and c."""
    events: list[Event] = []
    history = History(events.append)

    async def main() -> None:
        network = SimNetwork(history, random.Random(seed), path=path, rates=rates or Rates())
        for name, identity in PEERS.items():
            network.add_host(name, identity.peer_id)
        async with network.running():
            await scenario(network)

    run(main, seed=seed, history=history, deadline=10_000)
    return Played(history.digest, events)


@asynccontextmanager
async def linked(network: SimNetwork, near: str = "a", far: str = "b") -> AsyncIterator[tuple[SimLink, SimLink]]:
    """A link that ``near`` has dialled, both ends."""
    listener = await network.binding.listen(PEERS[far])
    ends = await network.binding.dial(listener.address, PEERS[near], None), await listener.accept()
    try:
        yield ends
    finally:
        for end in ends:
            end.abort()
        await listener.aclose()


async def receive(link: SimLink, size: int) -> bytes:
    """Exactly ``size`` bytes."""
    got = bytearray(size)
    view = memoryview(got)
    while view:
        count = await link.receive_into(view)
        assert count, f"the stream ended {len(view)} bytes early"
        view = view[count:]
    return bytes(got)


async def drain(link: SimLink) -> tuple[bytes, FleetError | None]:
    """Everything up to the end of the stream, and the error that ended it, if one did."""
    got = bytearray()
    block = memoryview(bytearray(1 << 17))
    try:
        while count := await link.receive_into(block):
            got += block[:count]
    except FleetError as error:
        return bytes(got), error
    return bytes(got), None


class Stopwatch:
    """Virtual seconds since it was made."""

    def __init__(self) -> None:
        self._start = trio.current_time()

    @property
    def seconds(self) -> float:
        return trio.current_time() - self._start
