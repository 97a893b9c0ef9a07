"""Performs a schedule of faults on a fleet in a simulated world, and mends everything afterwards.

Two phases: while strikes begin and end, nothing may be expected of the fleet but that it does no harm; after ``heal``
everybody runs, everybody reaches everybody, and the fleet must come to its goal. Every strike goes to the history as an
event ``fault`` with ``phase`` begin, end or skipped; a strike is skipped when it makes no sense any more, such as a
crash of a peer that is down.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, cast

import trio

from fleet.errors import StorageFailed
from fleet.sim.disk_faults import Fault, Operation, Speed

if TYPE_CHECKING:
    from fleet.fleet import Fleet
    from fleet.sim.faults import Strike
    from fleet.sim.path import Path
    from fleet.sim.world import Survival, World

SLOW_DISK: Final = Speed(operation_seconds=0.005, sync_seconds=0.1, bytes_per_second=1e6)


class Chaos:
    """One schedule on one fleet.

    ``going_down(index, survival)`` is called just before a peer dies, ``came_back(index)`` once it runs again.
    """

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        strikes: Sequence[Strike],
        *,
        going_down: Callable[[int, Survival], None],
        came_back: Callable[[int], None],
    ) -> None:
        self._world = world
        self._fleet = fleet
        self._strikes = strikes
        self._going_down = going_down
        self._came_back = came_back
        self._active: dict[Strike, None] = {}  # in order
        self._begun = 0
        self._healthy: dict[tuple[str, str], Path] = {}
        """The paths as they were, of those that were degraded."""

    async def run(self) -> int:
        """Perform every strike, then heal. Returns, once all peers run again, how many did strike."""
        started = trio.current_time()
        self._world.history.record("phase", "", name="faults")
        async with trio.open_nursery() as nursery:
            for strike in self._strikes:
                nursery.start_soon(self._perform, strike, started)
        self._world.network.heal()
        for disk in self._world.disks.values():
            disk.heal()
        self._world.history.record("phase", "", name="heal")
        return self._begun

    async def _perform(self, strike: Strike, started: float) -> None:
        await trio.sleep_until(started + strike.at)
        if not self._possible(strike):
            self._record(strike, "skipped")
            return
        self._active[strike] = None
        self._begun += 1
        self._record(strike, "begin")
        await self._begin(strike)
        await trio.sleep(strike.seconds)
        del self._active[strike]
        self._record(strike, "end")
        await self._end(strike)

    def _record(self, strike: Strike, phase: str) -> None:
        self._world.history.record(
            "fault",
            "",
            fault=strike.kind,
            phase=phase,
            hosts=" ".join(map(_host, strike.hosts)),
            others=" ".join(map(_host, strike.others)),
            detail=strike.detail,
        )

    def _possible(self, strike: Strike) -> bool:
        """A crash, pause or full disk needs a running peer, and one that the same does not befall yet."""
        if strike in self._active:
            return False
        if strike.kind not in ("crash", "pause", "full"):
            return True
        return all(
            self._fleet.running(index) and not any(index in other.hosts for other in self._active if other.kind == kind)
            for index in strike.hosts
            for kind in ("crash", strike.kind)
        )

    async def _begin(self, strike: Strike) -> None:
        network = self._world.network
        hosts, others = [*map(_host, strike.hosts)], [*map(_host, strike.others)]
        match strike.kind:
            case "crash":
                for index in strike.hosts:
                    await self._crash(index, strike.detail)
            case "pause":
                for host in hosts:
                    self._world.pause(host)
            case "partition":
                network.partition(hosts, others, one_way=strike.detail == "one-way")
            case "clog":
                for here, there in _pairs(hosts, others):
                    network.clog(here, there)
            case "reset":
                for here, there in _pairs(hosts, others):
                    network.reset(here, there)
            case "degrade":
                self._set_paths(hosts)
            case "skew" | "jump":
                for host in hosts:
                    self._world.shift_clock(host, strike.number)
            case "io":
                for host in hosts:
                    self._world.disk(host).faults.append(_io_fault(strike))
            case "full":
                for host in hosts:
                    self._world.disk(host).fill()
            case _:
                for host in hosts:
                    self._world.disk(host).speed = SLOW_DISK

    async def _end(self, strike: Strike) -> None:
        network = self._world.network
        hosts, others = [*map(_host, strike.hosts)], [*map(_host, strike.others)]
        match strike.kind:
            case "crash":
                for index in strike.hosts:
                    await self._restart(index)
            case "pause":
                for host in hosts:
                    self._world.resume(host)
            case "partition":
                network.heal()
                for other in self._others("partition"):
                    await self._begin(other)
            case "clog":
                held = {pair for other in self._others("clog") for pair in _pairs_of(other)}
                for here, there in _pairs(hosts, others):
                    if (here, there) not in held:
                        network.unclog(here, there)
            case "degrade":
                self._set_paths(hosts)
            case "full":
                for host in hosts:
                    self._world.disk(host).capacity = None
            case "io":
                for host in hosts:
                    faults = self._world.disk(host).faults
                    if _io_fault(strike) in faults:  # nothing met it
                        faults.remove(_io_fault(strike))
            case "slow":
                for host in hosts:
                    if not any(host in map(_host, other.hosts) for other in self._others("slow")):
                        self._world.disk(host).speed = Speed()
            case _:
                pass

    def _others(self, kind: str) -> list[Strike]:
        return [strike for strike in self._active if strike.kind == kind]

    async def _crash(self, index: int, detail: str) -> None:
        how, _, silent = detail.partition("/")
        survival = cast("Survival", how)
        self._going_down(index, survival)
        await self._world.crash(self._fleet, index, survival, silent=bool(silent))

    async def _restart(self, index: int) -> None:
        self._world.network.restore(_host(index))
        while True:
            try:
                await self._fleet.start(index)
                break
            except StorageFailed:  # its disk fails at this moment: whoever runs a peer tries again
                await trio.sleep(1)
        self._came_back(index)
        await self._fleet.join(index, whole=False)

    def _set_paths(self, hosts: Sequence[str]) -> None:
        """Give every path of these hosts what the degradations that strike it now make of it."""
        network = self._world.network
        everyone = [_host(index) for index in range(len(self._fleet))]
        for host in hosts:
            for other in everyone:
                for pair in ((host, other), (other, host)) if other != host else ():
                    healthy = self._healthy.setdefault(pair, network.path(*pair))
                    path = healthy
                    for strike in self._others("degrade"):
                        if any(_host(index) in pair for index in strike.hosts):
                            factor, loss = strike.degradation
                            path = path.degraded(factor, loss)
                    network.set_path(*pair, path)


def _io_fault(strike: Strike) -> Fault:
    return Fault(cast("Operation", strike.detail))


def _host(index: int) -> str:
    return f"peer-{index}"


def _pairs(hosts: Sequence[str], others: Sequence[str]) -> list[tuple[str, str]]:
    return [(here, there) for here in hosts for there in others]


def _pairs_of(strike: Strike) -> list[tuple[str, str]]:
    return _pairs([*map(_host, strike.hosts)], [*map(_host, strike.others)])
