"""The simulated network: hosts, links and datagrams in memory, in virtual time, and the faults that strike them.

The rule: all chance comes from one ``random.Random``, all time from one task with an agenda, and everything that
happens is in the history; so a seed decides a run. Streams keep every promise of ``fleet.net.link``, as the conformance
suite shows. How they move is in ``fleet.sim.flow``, how access links are shared in ``fleet.sim.line``.

::

    network = SimNetwork(history, rng, path=Path(latency=Constant(0.030)), rates=Rates(up=2 * MIB, down=2 * MIB))
    network.add_host("peer-0", alice.peer_id)
    async with network.running():
        listener = await network.binding.listen(alice)
        network.partition(["peer-0"], ["peer-1"])

Faults may strike at any time, before ``running`` too. Names of hosts that do not exist are ``LocalMisuse``.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio

from fleet.errors import LinkBroken, LocalMisuse
from fleet.net.address import parse_address
from fleet.sim.connect import Dial, SimListener
from fleet.sim.datagram import SimSocket
from fleet.sim.fabric import Fabric, Route
from fleet.sim.path import Path, Rates

if TYPE_CHECKING:
    from fleet.identity.keys import Identity, PeerId
    from fleet.sim.history import History
    from fleet.sim.path import PathBetween
    from fleet.sim.stream import SimLink

__all__ = ["HostTraffic", "SimBinding", "SimNetwork", "Statistics"]


@dataclass(frozen=True, slots=True)
class HostTraffic:
    """What crossed one host's access link: bytes, and segments and datagrams, each way."""

    sent_bytes: int
    sent_units: int
    received_bytes: int
    received_units: int


@dataclass(frozen=True, slots=True)
class Statistics:
    """What the network has moved so far, by host, and how often it lost something, by reason."""

    hosts: dict[str, HostTraffic]
    drops: dict[str, int]


class SimBinding:
    """``fleet.net.link.Binding`` over a ``SimNetwork``. An identity's host is the one that it was added with."""

    def __init__(self, network: SimNetwork, fabric: Fabric) -> None:
        self._network = network
        self._fabric = fabric

    @property
    def name(self) -> str:
        return "sim"

    @property
    def authenticates(self) -> bool:
        return False

    async def listen(self, identity: Identity, address: str = "127.0.0.1:0") -> SimListener:
        """Listen on the identity's host: its own name, 127.0.0.1 and localhost all mean that."""
        await trio.lowlevel.checkpoint()
        host = self._fabric.host_of_peer(identity.peer_id)
        return SimListener(host, host.choose_port(address, host.listeners))

    async def dial(self, address: str, identity: Identity, expected_peer: PeerId | None) -> SimLink:
        """Connect from the identity's host. Takes a round trip, or ``fleet.sim.connect.CONNECT_SECONDS``."""
        self._network.require_running()
        host = self._fabric.host_of_peer(identity.peer_id)
        target, port = self._fabric.find(address, host)
        if target is None or not host.alive:
            await trio.lowlevel.checkpoint()
            reason = f"{host.name} has crashed" if target is not None else "there is no such host"
            raise LinkBroken(f"cannot connect to {address}: {reason}")
        return await Dial(self._fabric.route(host, target), port, address).outcome()


class SimNetwork:
    """Hosts and what lies between them."""

    def __init__(
        self,
        history: History,
        rng: random.Random,
        *,
        path: Path | PathBetween = Path(),  # noqa: B008 - frozen
        rates: Rates = Rates(),  # noqa: B008 - frozen
    ) -> None:
        """``path`` holds between any two hosts (``fleet.sim.path.regions`` makes one for each pair), ``rates`` for
        every access link, until ``set_path`` and ``set_rates`` say otherwise."""
        self._fabric = Fabric(history, rng, path, rates)
        self.binding = SimBinding(self, self._fabric)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[SimNetwork]:
        """Things happen within this block; at its end whatever is still on its way is forgotten."""
        if self._fabric.pump.running:
            raise LocalMisuse("this network runs already: enter network.running() once")
        error: BaseException | None = None
        async with trio.open_nursery() as nursery:
            await nursery.start(self._fabric.pump.run)
            try:
                yield self
            except BaseException as caught:  # noqa: BLE001 - raised below, as itself: callers know of no nursery
                error = caught
            nursery.cancel_scope.cancel()
        if error is not None:
            raise error

    def require_running(self) -> None:
        """Raise ``LocalMisuse`` outside of ``running``."""
        if not self._fabric.pump.running:
            raise LocalMisuse("the network stands still: enter network.running() first")

    # hosts

    def add_host(self, name: str, peer_id: PeerId | None = None) -> None:
        """A host, on which ``peer_id`` lives. A peer that nobody placed gets one called ``host-`` and its short id."""
        self._fabric.add_host(name, peer_id)

    @property
    def hosts(self) -> list[str]:
        """Every host's name, in the order they were added."""
        return list(self._fabric.hosts)

    def host_of(self, where: str | PeerId) -> str:
        """The name of the host at an address, or where a peer lives."""
        if isinstance(where, str):
            return self._fabric.host(parse_address(where, port_zero=True)[0]).name
        return self._fabric.host_of_peer(where).name

    def datagrams(self, host: str, port: int = 0) -> SimSocket:
        """A socket for datagrams on ``host``; port 0 is any free one."""
        there = self._fabric.host(host)
        return SimSocket(self._fabric, there, there.choose_port(f"{host}:{port}", there.sockets))

    def statistics(self) -> Statistics:
        """What has been moved and lost so far."""
        traffic = {
            host.name: HostTraffic(host.sent.size, host.sent.units, host.received.size, host.received.units)
            for host in self._fabric.hosts.values()
        }
        return Statistics(traffic, dict(self._fabric.drops))

    def open_ends(self) -> list[str]:
        """What processes hold open: links, listeners and sockets, by host."""
        return [
            f"{host.name}: {kind} {end}"
            for host in self._fabric.hosts.values()
            for kind, ends in (
                (
                    "link to",
                    [link.remote_host.name for link in host.links if not link.closed and link.listener is None],
                ),
                ("listener at", list(host.listeners)),
                ("socket at", list(host.sockets)),
            )
            for end in ends
        ]

    # paths and rates

    def set_path(self, source: str, target: str, path: Path) -> None:
        """Change one direction. Streams in flight keep their order; what is on its way arrives as it would have."""
        self._route(source, target).path = path
        self._fabric.record("path", source, target=target, path=repr(path))

    def path(self, source: str, target: str) -> Path:
        """What holds in one direction now."""
        return self._route(source, target).path

    def set_rates(self, host: str, rates: Rates) -> None:
        """Change an access link. What is being sent is sent at the old rate."""
        there = self._fabric.host(host)
        there.up.rate, there.down.rate = rates.up, rates.down
        there.up.queue_bytes = there.down.queue_bytes = rates.queue_bytes
        self._fabric.record("rates", host, up=rates.up, down=rates.down, queue_bytes=rates.queue_bytes)

    # faults

    def partition(self, a: Iterable[str], b: Iterable[str], *, one_way: bool = False) -> None:
        """Lose everything between hosts of ``a`` and hosts of ``b``; ``one_way`` what goes from ``a`` to ``b`` alone.

        Streams notice once they have something unacknowledged for ``fleet.sim.flow.USER_TIMEOUT_SECONDS``.
        """
        left, right = list(a), list(b)
        for name in left + right:
            self._fabric.host(name)
        self._fabric.record("partition", "", a=" ".join(left), b=" ".join(right), one_way=one_way)
        routes = [self._route(here, there) for here in left for there in right if here != there]
        if not one_way:
            routes += [route.back for route in routes]
        for route in routes:
            route.cut = True
        for route in routes:
            self._probe(route)
            self._probe(route.back)

    def heal(self) -> None:
        """End every partition. Streams go on when their senders next try again."""
        self._fabric.record("heal", "")
        for route in self._fabric.routes():
            route.cut = False

    def clog(self, source: str, target: str) -> None:
        """Hold whatever arrives in one direction until ``unclog``. Senders lose patience as with a partition."""
        route = self._route(source, target)
        self._fabric.record("clog", source, target=target)
        if route.held is None:
            route.held = []

    def unclog(self, source: str, target: str) -> None:
        """Let what was held arrive now, in order."""
        self._fabric.record("unclog", source, target=target)
        self._route(source, target).unclog()

    def reset(self, a: str, b: str) -> None:
        """Break every stream between two hosts, at both ends at once."""
        here, there = self._fabric.host(a), self._fabric.host(b)
        self._fabric.record("reset_all", a, target=b)
        for host, other in ((here, there), (there, here)):
            for link in list(host.links):
                if link.remote_host is other:
                    link.break_off("it was reset on its way")

    def crash(self, host: str, *, silent: bool = False) -> None:
        """End a process: its links, listeners and sockets die at once.

        Its machine resets the other ends, and answers whatever still arrives with a reset; ``silent``, the machine
        has lost its power and answers nothing before ``restore``.
        """
        there = self._fabric.host(host)
        self._fabric.record("crash", host, silent=silent)
        there.alive = False
        there.dark = silent
        for listener in list(there.listeners.values()):
            listener.close()
        for socket in list(there.sockets.values()):
            socket.close()
        for dial in list(there.dials):
            dial.fail(f"{host} has crashed")
        for link in list(there.links):
            link.tell_reset()
            link.die()
        for route in self._fabric.routes():
            if route.target is there:
                self._probe(route)

    def restore(self, host: str) -> None:
        """The machine is up: a process may listen and dial, and what belongs to older streams is answered by resets."""
        there = self._fabric.host(host)
        self._fabric.record("restore", host)
        there.alive = True
        there.dark = False

    def _route(self, source: str, target: str) -> Route:
        return self._fabric.route(self._fabric.host(source), self._fabric.host(target))

    @staticmethod
    def _probe(route: Route) -> None:
        for link in _links(route):
            link.outflow.probe()


def _links(route: Route) -> Iterator[SimLink]:
    """The ends at the source of a route whose other end is at its target."""
    return (link for link in list(route.source.links) if link.remote_host is route.target)
