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
from typing import TYPE_CHECKING, Final, Generic, Literal, TypeAlias, TypeVar

import trio

from fleet.environment import Environment, derive
from fleet.errors import LocalMisuse, lone_error
from fleet.fleet import Fleet
from fleet.sim.disk import Crash, Mount, SimDisk
from fleet.sim.faults import SURVIVALS
from fleet.sim.guard import real_seconds
from fleet.sim.history import History
from fleet.sim.network import SimNetwork
from fleet.sim.path import Path, Rates
from fleet.sim.runtime import current_host, inline, pause, resume, run

if TYPE_CHECKING:
    from fleet.sim.history import Event
    from fleet.sim.path import PathBetween

T = TypeVar("T")

Survival: TypeAlias = Crash | Literal["flip", "wipe"]
"""What a crash leaves of a disk."""

FLIPPED_BITS: Final = 3
START_OF_TIME: Final = 1_767_225_600.0
"""What every wall clock shows at virtual time 0: the first of January 2026, in seconds since 1970."""
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

    def __init__(
        self, seed: int, history: History, path: Path | PathBetween, rates: Rates, nursery: trio.Nursery
    ) -> None:
        self.seed = seed
        self.history = history
        self.disks: dict[str, SimDisk] = {}
        """By host, each made when it is first asked for."""
        self.network = SimNetwork(history, self.rng("network"), path=path, rates=rates)
        self.environment = Environment(
            self.network.binding,
            seed,
            off_loop=inline,
            entropy=self.rng("entropy").randbytes,
            trace=history,
            wall_clock=self.wall_clock,
        )
        self._nursery = nursery
        self._clock_shifts: dict[str, float] = {}
        self._busy_until: dict[str, float] = {}
        """By host, until when its disk keeps it."""
        self._stopped: dict[str, dict[str, None]] = {}
        """By host that takes no step, why."""

    def leftovers(self) -> list[str]:
        """Files, links, listeners and sockets that are still open: what a fleet that has ended must not leave."""
        files = [f"{disk.name}: file {name}" for disk in self.disks.values() for name in disk.open_files]
        return files + self.network.open_ends()

    def rng(self, purpose: str, index: int = 0) -> random.Random:
        """A source of chance of its own for each purpose, decided by the seed."""
        return random.Random(derive(self.seed, f"world {purpose}", index))  # noqa: S311 - decided by the seed

    def disk(self, host: str) -> SimDisk:
        """The disk of a host: it outlives the host's processes."""
        if host not in self.disks:
            rng = self.rng(f"disk {host}")
            self.disks[host] = SimDisk(
                host, history=self.history, rng=rng, on_delay=lambda seconds: self._wait_for_disk(host, seconds)
            )
        return self.disks[host]

    def _wait_for_disk(self, host: str, seconds: float) -> None:
        """As calls of the disk block, a slow one stops the whole process that made them."""
        if current_host.get() != host:  # an onlooker
            return
        idle = host not in self._busy_until
        self._busy_until[host] = max(trio.current_time(), self._busy_until.get(host, 0.0)) + seconds
        self.pause(host, "its disk is slow")
        if idle:
            self.spawn(self._nursery, None, self._until_disk_is_done, host)

    async def _until_disk_is_done(self, host: str) -> None:
        while (until := self._busy_until[host]) > trio.current_time():  # noqa: ASYNC110 - it may have moved on
            await trio.sleep_until(until)
        del self._busy_until[host]
        self.resume(host, "its disk is slow")

    def pause(self, host: str, why: str = "it was paused") -> None:
        """Stop a process: none of its tasks takes a step until ``resume`` for each reason that it was paused for."""
        self._stopped.setdefault(host, {})[why] = None
        pause(host)

    def resume(self, host: str, why: str = "it was paused") -> None:
        """End one reason to stand still. Of a host that has none, or died meanwhile, this changes nothing."""
        reasons = self._stopped.get(host, {})
        reasons.pop(why, None)
        if not reasons:
            self._stopped.pop(host, None)
            resume(host)

    def wall_clock(self) -> float:
        """What the calling task's host takes for the time, in seconds since 1970."""
        return START_OF_TIME + trio.current_time() + self._clock_shifts.get(current_host.get() or "", 0.0)

    def shift_clock(self, host: str, seconds: float) -> None:
        """Move a host's wall clock by so much, forward or back."""
        self._clock_shifts[host] = self._clock_shifts.get(host, 0.0) + seconds
        self.history.record("clock", host, shift=seconds)

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

    async def crash(self, fleet: Fleet, index: int, how: Survival = "keep", *, silent: bool = False) -> None:
        """A peer's process dies, whatever it was doing. ``silent`` as when the power fails: nobody is told.

        ``how`` is what its disk keeps: as ``SimDisk.crash`` has it, all but some flipped bits ("flip"), or nothing
        ("wipe").
        """
        name = f"peer-{index}"
        if not fleet.running(index):
            raise LocalMisuse(f"{name} is not running: it cannot crash")
        if how not in SURVIVALS:
            raise LocalMisuse(f"{how!r} is no way to crash: use {', '.join(SURVIVALS)}")
        self.network.crash(name, silent=silent)
        disk = self.disk(name)
        if how == "wipe":
            disk.wipe()
        elif how == "flip":
            disk.crash("keep")
            disk.flip_bits(None, FLIPPED_BITS)
        else:
            disk.crash(how)
        self._stopped.pop(name, None)
        resume(name)  # dead tasks must not stand still; they see nothing before their end
        await fleet.kill(index)

    async def restart(self, fleet: Fleet, index: int) -> None:
        """A crashed peer comes back with what its disk kept."""
        self.network.restore(f"peer-{index}")
        await fleet.restart(index)

    def spawn(
        self, nursery: trio.Nursery, host: str | None, fn: Callable[..., Awaitable[object]], *args: object
    ) -> None:
        """Start a task that belongs to a host, so that pausing the host stops it; or to none."""
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
    ended_at = 0.0

    async def within() -> T:
        nonlocal ended_at
        with lone_error():
            async with trio.open_nursery() as nursery:
                world = World(seed, history, path, rates, nursery)
                async with world.network.running():
                    value = await fn(world)
                ended_at = trio.current_time()
                nursery.cancel_scope.cancel()
        return value

    started = real_seconds()
    value = run(within, seed=seed, history=history, deadline=deadline, watchdog_seconds=watchdog_seconds)
    return Outcome(value, history.digest, history.count, ended_at, real_seconds() - started)
