"""Datagrams between simulated hosts: what UDP promises (RFC 768), which is nothing.

They may be lost, doubled, overtaken, or vanish for their size; every loss is counted by its reason. They take turns
with the host's streams at its access link, and a queue that is full drops the newest. Sending never waits.
"""

from __future__ import annotations

import zlib
from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from fleet.errors import LinkClosed, LocalMisuse
from fleet.limits import MIB
from fleet.sim.line import Arrivals
from fleet.sim.path import MAX_DATAGRAM

if TYPE_CHECKING:
    from fleet.net.link import Bytes
    from fleet.sim.fabric import Fabric, Host, Route

RECEIVE_QUEUE: Final = 1 * MIB
"""Bytes that wait in a socket to be received; beyond it datagrams are dropped."""
_PER_DATAGRAM: Final = 64
"""What each one counts beyond its bytes, so that empty ones fill a queue too."""
_LEAST_HOLD_SECONDS: Final = 0.001


class Datagram:
    """What travels as a whole."""

    __slots__ = ("data", "port", "route", "sender", "sent", "size", "span")

    def __init__(self, route: Route, sender: str, port: int, data: bytes) -> None:
        self.route = route
        self.sender = sender
        self.port = port
        self.data = data
        self.size = len(data)
        self.sent = 0.0
        """When it left the uplink."""
        self.span = 0.0


class SimSocket:
    """A port of a host, for datagrams. One task receives at a time."""

    def __init__(self, fabric: Fabric, host: Host, port: int) -> None:
        self.waiting = False
        self.credit = 0
        self.backlog = 0
        """Bytes that wait for the uplink."""
        self._fabric = fabric
        self._host = host
        self._port = port
        self._leaving: deque[Datagram] = deque()
        self._arrivals: Arrivals[Datagram] = Arrivals(self._land)
        self._inbox: list[tuple[bytes, str]] = []
        self._inbox_size = 0
        self._closed = False
        self._receiving = False
        self._receiver: trio.lowlevel.Task | None = None
        host.sockets[port] = self

    @property
    def address(self) -> str:
        """What others send to."""
        return f"{self._host.name}:{self._port}"

    # sending

    def send_to(self, data: Bytes, address: str) -> None:
        """Send one datagram, and never know. Raises ``LocalMisuse`` for one that no network carries."""
        self._check_open()
        if len(data) > MAX_DATAGRAM:
            raise LocalMisuse(f"a datagram has at most {MAX_DATAGRAM:,} bytes, not {len(data):,}: send several")
        target, port = self._fabric.find(address, self._host)
        if target is None:
            self._fabric.drop("no such host", self._host.name, address, len(data))
            return
        datagram = Datagram(self._fabric.route(self._host, target), self.address, port, bytes(data))
        line = self._host.up
        if target is self._host:
            self.through(datagram)
        elif self.backlog + datagram.size > line.queue_bytes:
            self._drop(datagram, "uplink full")
        else:
            self._leaving.append(datagram)
            self.backlog += datagram.size
            line.offer(self)

    def take(self) -> Datagram | None:
        """See ``fleet.sim.line.Source``."""
        if not self._leaving:
            return None
        datagram = self._leaving.popleft()
        self.backlog -= datagram.size
        return datagram

    def through(self, datagram: Datagram) -> None:
        """See ``fleet.sim.line.Source``: it has left the uplink."""
        route = datagram.route
        path = route.path
        rng = self._fabric.rng
        if not route.local:
            self._host.sent.count(datagram.size)
        if datagram.size > path.max_datagram:
            self._drop(datagram, "too large")
            return
        datagram.sent = now = self._fabric.pump.time()
        copies = 1
        if path.duplication and rng.random() < path.duplication:
            copies = 2
        for _ in range(copies):
            if route.lost():
                self._drop(datagram, "loss")
                continue
            delay = route.delay()
            if path.reordering and rng.random() < path.reordering:
                delay += 2 * max(path.latency.typical, _LEAST_HOLD_SECONDS) * rng.random()
            self._fabric.pump.at(now + delay, self._arrive, datagram)

    def _drop(self, datagram: Datagram, reason: str) -> None:
        route = datagram.route
        self._fabric.drop(reason, route.source.name, route.target.name, datagram.size)

    # at the other host

    def _arrive(self, datagram: Datagram) -> None:
        route = datagram.route
        target = route.target
        if route.held is not None:
            if route.has_room_for_datagram():
                route.held.append((self._arrive, datagram))
            else:
                self._drop(datagram, "clog full")
        elif route.cut:
            self._drop(datagram, "partition")
        elif not target.alive:
            self._drop(datagram, "host down")
        elif datagram.port not in target.sockets:
            self._drop(datagram, "no socket")
        else:
            target.sockets[datagram.port].approach(datagram)

    def approach(self, datagram: Datagram) -> None:
        """One has come as far as this host's downlink."""
        line = self._host.down
        if datagram.route.local:
            self._land(datagram)
        elif self._arrivals.backlog + datagram.size > line.queue_bytes:
            self._drop(datagram, "downlink full")
        else:
            line.admit(self._arrivals, datagram)

    def _land(self, datagram: Datagram) -> None:
        cost = datagram.size + _PER_DATAGRAM
        if self._closed:
            self._drop(datagram, "no socket")
            return
        if self._inbox_size + cost > RECEIVE_QUEUE:
            self._drop(datagram, "receive queue full")
            return
        if not datagram.route.local:
            self._host.received.count(datagram.size)
        self._fabric.record(
            "datagram",
            self._host.name,
            source=datagram.sender,
            sent=datagram.sent,
            size=datagram.size,
            check=zlib.crc32(datagram.data),
        )
        self._inbox_size += cost
        self._inbox.append((datagram.data, datagram.sender))
        self._wake()

    # receiving

    async def receive_from(self) -> list[tuple[bytes, str]]:
        """Every datagram that has arrived, with its sender's address: at least one, after waiting if need be.

        Always a checkpoint; a cancelled call has consumed nothing. Raises ``LinkClosed`` once the socket is closed.
        """
        self._check_open()
        if self._receiving:
            raise LocalMisuse(f"two tasks receive at {self.address} at once: let one task do all the receiving")
        self._receiving = True
        try:
            if self._inbox:
                await trio.lowlevel.checkpoint()
            while not self._inbox:
                self._receiver = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._gave_up)
                self._check_open()
            self._check_open()
            inbox, self._inbox, self._inbox_size = self._inbox, [], 0
            return inbox
        finally:
            self._receiving = False

    def _gave_up(self, _: object) -> trio.lowlevel.Abort:
        self._receiver = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        task, self._receiver = self._receiver, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    # ending

    def close(self) -> None:
        """Release the port; what waits is dropped. Safe to call twice."""
        if not self._closed:
            self._closed = True
            del self._host.sockets[self._port]
            self._leaving.clear()
            self.backlog = 0
            self._inbox.clear()
            self._wake()

    def _check_open(self) -> None:
        if self._closed:
            raise LinkClosed(f"the socket at {self.address} is closed")
