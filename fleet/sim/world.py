"""A simulated world: a network, disks, seeded chance and a history, and the ports that a fleet is built on.

``simulate`` runs a function in one, in virtual time; the seed decides all that happens::

    async def swarm(world: World) -> int:
        async with world.fleet(5) as fleet:
            ...

    outcome = simulate(swarm, seed=7)
    assert outcome.digest == simulate(swarm, seed=7).digest

What can run on the ports of ``fleet.environment``, ``fleet.net.link`` and ``fleet.storage`` runs here unchanged: peers,
fleets, and protocols of one's own, whose tasks ``World.spawn`` puts on a host.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import trio

from fleet.environment import Environment, derive
from fleet.fleet import Fleet
from fleet.sim.disk import Crash, Mount, SimDisk
from fleet.sim.guard import real_seconds
from fleet.sim.history import History
from fleet.sim.network import SimNetwork
from fleet.sim.path import Path, Rates
from fleet.sim.runtime import current_host, inline, run

if TYPE_CHECKING:
    from fleet.sim.history import Event
    from fleet.sim.path import PathBetween

T = TypeVar("T")

VIRTUAL_DEADLINE: Final = 3_600.0
"""Virtual seconds after which a run that has not ended is one that never will."""


@dataclass(frozen=True, slots=True)
class Outcome(Generic[T]):
    """What a simulated run returned and came to."""

    value: T
    digest: str
    """BLAKE3 of everything that happened, hexadecimal: equal for equal seeds."""
    events: int
    virtual_seconds: float
    real_seconds: float


class World:
    """One simulated world, while its run is on. Hosts are named as peers are: ``peer-0``, ``peer-1``, …"""

    def __init__(self, seed: int, history: History, path: Path | PathBetween, rates: Rates) -> None:
        self.seed = seed
        self.history = history
        self.disks: dict[str, SimDisk] = {}
        """By host, each made when it is first asked for."""
        self.network = SimNetwork(history, self.rng("network"), path=path, rates=rates)
        self.environment = Environment(
            self.network.binding, seed, off_loop=inline, entropy=self.rng("entropy").randbytes, trace=history
        )

    def rng(self, purpose: str, index: int = 0) -> random.Random:
        """A source of chance of its own for each purpose, decided by the seed."""
        return random.Random(derive(self.seed, f"world {purpose}", index))  # noqa: S311 - decided by the seed

    def disk(self, host: str) -> SimDisk:
        """The disk of a host: it outlives the host's processes."""
        if host not in self.disks:
            rng = self.rng(f"disk {host}")
            self.disks[host] = SimDisk(host, history=self.history, rng=rng)
        return self.disks[host]

    def storage(self, index: int) -> Mount:
        """The disk of ``peer-<index>`` as its next process sees it."""
        return self.disk(f"peer-{index}").mount()

    def fleet(self, peers: int, *, degree: int | None = None) -> Fleet:
        """A fleet whose peers live on hosts of this world's network, with their stores on its disks."""
        self.place(peers)
        return Fleet(peers, environment=self.environment, storage=self.storage, degree=degree)

    def place(self, peers: int) -> None:
        """Give each of a fleet's peers its host; ``fleet`` does it too."""
        for index in range(peers):
            name = f"peer-{index}"
            if name not in self.network.hosts:
                self.network.add_host(name, self.environment.identity(index).peer_id)

    async def crash(self, fleet: Fleet, index: int, how: Crash = "keep", *, silent: bool = False) -> None:
        """A peer's process dies, whatever it was doing. ``how`` is what becomes of its disk (``fleet.sim.disk``);
        ``silent`` as when the power fails: nobody is told."""
        name = f"peer-{index}"
        self.network.crash(name, silent=silent)
        self.disk(name).crash(how)
        await fleet.kill(index)

    async def restart(self, fleet: Fleet, index: int) -> None:
        """A crashed peer comes back with what its disk kept."""
        self.network.restore(f"peer-{index}")
        await fleet.restart(index)

    def spawn(self, nursery: trio.Nursery, host: str, fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task that belongs to a host, so that pausing the host stops it."""
        token = current_host.set(host)
        try:
            nursery.start_soon(fn, *args)
        finally:
            current_host.reset(token)


def simulate(
    fn: Callable[[World], Awaitable[T]],
    *,
    seed: int = 1,
    path: Path | PathBetween = Path(),  # noqa: B008 - frozen
    rates: Rates = Rates(),  # noqa: B008 - frozen
    deadline: float = VIRTUAL_DEADLINE,
    watchdog_seconds: float = 10.0,
    sink: Callable[[Event], None] | None = None,
) -> Outcome[T]:
    """Run ``await fn(world)`` in virtual time, in a world that ``seed`` decides. ``sink`` takes every event.

    Raises what ``fn`` raises, and as ``fleet.sim.runtime.run`` does: ``DeadlineExceeded`` after ``deadline`` virtual
    seconds, ``Deadlock`` when nothing can happen any more, ``LoopBlocked`` when a task keeps the loop for
    ``watchdog_seconds`` of real time, ``LocalMisuse`` for a call that the seed could not decide.
    """
    history = History(sink)
    world = World(seed, history, path, rates)
    ended_at = 0.0

    async def within() -> T:
        nonlocal ended_at
        async with world.network.running():
            value = await fn(world)
        ended_at = trio.current_time()
        return value

    started = real_seconds()
    value = run(within, seed=seed, history=history, deadline=deadline, watchdog_seconds=watchdog_seconds)
    return Outcome(value, history.digest, history.count, ended_at, real_seconds() - started)
