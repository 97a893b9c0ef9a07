"""What links and datagrams run over: hosts, the routes between them, and the count of what was lost.

A *host* is a process on a machine of its own, with one access link. Its name is its address: ``peer-3:40000``. A
*route* is one direction between two hosts, with its path and the faults that strike it. What arrives while a route is
clogged is held, in order; while it is cut, it is lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypeVar

from fleet.errors import LocalMisuse
from fleet.net.address import parse_address
from fleet.sim.line import Line
from fleet.sim.path import Constant, Path
from fleet.sim.pump import Pump

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.sim.connect import Dial, SimListener
    from fleet.sim.datagram import SimSocket
    from fleet.sim.history import History
    from fleet.sim.path import PathBetween, Rates
    from fleet.sim.stream import SimLink

T = TypeVar("T")

MIN_RETRANSMISSION_SECONDS: Final = 0.2
"""The least a sender waits before it sends again: Linux's choice; RFC 6298 asks for a second."""
_MAX_HELD_DATAGRAMS: Final = 10_000
_FIRST_PORT: Final = 40_000
_LAST_PORT: Final = 65_535
_LOOPBACK: Final = Path(latency=Constant(0.00002))
_SELF: Final = frozenset({"127.0.0.1", "localhost", "0.0.0.0"})  # noqa: S104 - a name that callers may say


@dataclass(slots=True)
class Traffic:
    """What crossed one direction of a host's access link. ``units`` are segments of streams, and datagrams."""

    size: int = 0
    units: int = 0

    def count(self, size: int) -> None:
        """One more unit."""
        self.size += size
        self.units += 1


@dataclass(slots=True, eq=False)
class Host:
    """One process and its access link."""

    name: str
    up: Line
    down: Line
    alive: bool = True
    """False from a crash until ``restore``."""
    dark: bool = False
    """The machine is gone too: nothing answers."""
    sent: Traffic = field(default_factory=Traffic)
    received: Traffic = field(default_factory=Traffic)
    listeners: dict[int, SimListener] = field(default_factory=dict)
    sockets: dict[int, SimSocket] = field(default_factory=dict)
    dials: dict[Dial, None] = field(default_factory=dict)
    """Those under way from this host."""
    links: dict[SimLink, None] = field(default_factory=dict)
    """Ends on this host that are part of the protocol, in the order they came to be."""
    _port: int = _LAST_PORT

    def free_port(self, taken: dict[int, Any]) -> int:
        """The next port that is not ``taken``; a port comes again only after all others."""
        for _ in range(_FIRST_PORT, _LAST_PORT + 1):
            self._port = self._port + 1 if self._port < _LAST_PORT else _FIRST_PORT
            if self._port not in taken:
                return self._port
        raise LocalMisuse(f"every port of {self.name} is taken: close a listener or a socket")

    def choose_port(self, address: str, taken: dict[int, Any]) -> int:
        """The port that ``address``, one of this host's own, asks for; port 0 is any free one."""
        name, port = parse_address(address, port_zero=True)
        reason = None
        if name not in _SELF and name != self.name:
            reason = f"it is no address of {self.name}"
        elif not self.alive:
            reason = f"{self.name} has crashed, restore it first"
        elif port in taken:
            reason = "it is in use"
        if reason is not None:
            raise LocalMisuse(f"cannot listen at {address} ({reason}): choose a free port, or 0, of {self.name} itself")
        return port or self.free_port(taken)


class Route:
    """One direction between two hosts."""

    __slots__ = ("back", "cut", "fabric", "held", "path", "source", "target")

    def __init__(self, fabric: Fabric, source: Host, target: Host, path: Path) -> None:
        self.fabric = fabric
        self.source = source
        self.target = target
        self.path = path
        self.cut = False
        self.held: list[tuple[Callable[[Any], None], Any]] | None = None
        """What waits for the end of a clog, when there is one."""
        self.back: Route = self

    @property
    def is_open(self) -> bool:
        """Neither cut nor clogged."""
        return not self.cut and self.held is None

    @property
    def local(self) -> bool:
        """From a host to itself: no access link in between."""
        return self.source is self.target

    def delay(self) -> float:
        """How long one packet takes."""
        return self.path.delay(self.fabric.rng)

    def lost(self) -> bool:
        """Whether chance loses a packet now."""
        loss = self.path.loss
        return loss > 0 and self.fabric.rng.random() < loss

    def timeout(self) -> float:
        """How long a sender waits for an acknowledgement: after RFC 6298, two round trips and a minimum."""
        return max(
            MIN_RETRANSMISSION_SECONDS,
            2 * (self.path.latency.typical + self.path.jitter + self.back.path.latency.typical + self.back.path.jitter),
        )

    def packet(self, action: Callable[[T], None], argument: T, otherwise: Callable[[T], None] | None = None) -> None:
        """Send one control packet: ``action(argument)`` when it arrives, ``otherwise`` when it is lost on its way."""
        if self.source.dark:
            return
        pump = self.fabric.pump
        arrival = pump.time() + self.delay()
        pump.at(arrival, self._packet, (action, argument, otherwise, self.lost()))

    def _packet(self, packet: tuple[Callable[[Any], None], Any, Callable[[Any], None] | None, bool]) -> None:
        if self.held is not None:
            self.held.append((self._packet, packet))
            return
        action, argument, otherwise, lost = packet
        if lost or self.cut or self.target.dark:
            reason = "loss" if lost else "partition" if self.cut else "host down"
            self.fabric.drop(reason, self.source.name, self.target.name, 0)
            if otherwise is not None:
                otherwise(argument)
            return
        action(argument)

    def has_room_for_datagram(self) -> bool:
        """Whether a clog may hold one more."""
        return self.held is None or len(self.held) < _MAX_HELD_DATAGRAMS

    def unclog(self) -> None:
        """Release what was held, in order."""
        held, self.held = self.held, None
        for action, argument in held or ():
            action(argument)


class Fabric:
    """Hosts by name and by identity, routes, and what all of them share."""

    def __init__(self, history: History, rng: random.Random, path: Path | PathBetween, rates: Rates) -> None:
        self.pump = Pump()
        self.rng = rng
        self.record = history.record
        self.hosts: dict[str, Host] = {}
        self.drops: dict[str, int] = {}
        self._path = path
        self._rates = rates
        self._routes: dict[tuple[str, str], Route] = {}
        self._of_peer: dict[PeerId, Host] = {}
        self._links = 0

    def add_host(self, name: str, peer_id: PeerId | None) -> Host:
        """Make a host; its name must be one that an address can hold."""
        if name in self.hosts or name in _SELF:
            raise LocalMisuse(f"there is a host {name} already: choose another name")
        if peer_id is not None and peer_id in self._of_peer:
            raise LocalMisuse(f"{peer_id.short} is at home on {self._of_peer[peer_id].name}: a peer has one host")
        parse_address(f"{name}:1")
        rates = self._rates
        host = Host(name, Line(self.pump, rates.up, rates.queue_bytes), Line(self.pump, rates.down, rates.queue_bytes))
        self.hosts[name] = host
        if peer_id is not None:
            self._of_peer[peer_id] = host
        return host

    def host(self, name: str) -> Host:
        """The host of that name."""
        try:
            return self.hosts[name]
        except KeyError:
            known = ", ".join(self.hosts) or "none"
            raise LocalMisuse(f"there is no host {name!r}: there are {known}") from None

    def host_of_peer(self, peer_id: PeerId) -> Host:
        """Where a peer lives; one that nobody placed gets a host of its own."""
        host = self._of_peer.get(peer_id)
        return self.add_host(f"host-{peer_id.short}", peer_id) if host is None else host

    def find(self, address: str, source: Host) -> tuple[Host | None, int]:
        """The host (None if there is no such) and port that ``address`` means to a program on ``source``."""
        name, port = parse_address(address)
        return (source if name in _SELF else self.hosts.get(name)), port

    def route(self, source: Host, target: Host) -> Route:
        """The direction from ``source`` to ``target``."""
        route = self._routes.get((source.name, target.name))
        if route is None:
            route = self._make(source, target)
            if source is not target:
                route.back = self._make(target, source)
                route.back.back = route
        return route

    def _make(self, source: Host, target: Host) -> Route:
        if source is target:
            path = _LOOPBACK
        else:
            path = self._path if isinstance(self._path, Path) else self._path(source.name, target.name)
        route = self._routes[source.name, target.name] = Route(self, source, target, path)
        return route

    def routes(self) -> list[Route]:
        """All that were ever used."""
        return list(self._routes.values())

    def next_link(self) -> int:
        """A number for one more link."""
        self._links += 1
        return self._links

    def drop(self, reason: str, source: str, target: str, size: int) -> None:
        """Count and record something that was lost."""
        self.drops[reason] = self.drops.get(reason, 0) + 1
        self.record("drop", source, target=target, reason=reason, size=size)
