"""How simulated links come to be: listeners, and the handshake of a dial (RFC 9293, 3.5).

A dial takes one round trip. Its first packet is repeated after 1, 2, 4, … seconds; without an answer it fails after
``CONNECT_SECONDS``. The listener gets the link when the dialler's last packet arrives, half a round trip later.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

import trio

from fleet.errors import LinkBroken, LinkClosed, LocalMisuse
from fleet.sim.flow import Flow
from fleet.sim.stream import SimLink

if TYPE_CHECKING:
    from fleet.sim.fabric import Host, Route

CONNECT_SECONDS: Final = 20.0
"""How long a dial that nobody answers takes to fail."""
BACKLOG: Final = 128
"""Links that wait to be accepted; one more is refused."""
_FIRST_REPETITION_SECONDS: Final = 1.0


class SimListener:
    """Accepts simulated links. See ``fleet.net.link.Listener``."""

    def __init__(self, host: Host, port: int) -> None:
        self._host = host
        self._port = port
        self._backlog: deque[SimLink] = deque()
        self._closed = False
        self._accepting = False
        self._accepter: trio.lowlevel.Task | None = None
        host.listeners[port] = self

    @property
    def address(self) -> str:
        return f"{self._host.name}:{self._port}"

    @property
    def full(self) -> bool:
        """Whether one more link would be refused."""
        return len(self._backlog) >= BACKLOG

    async def accept(self) -> SimLink:
        if self._accepting:
            raise LocalMisuse(f"two tasks accept at {self.address} at once: let one task do all the accepting")
        self._accepting = True
        try:
            # First, so that nothing runs between taking a link and returning it.
            await trio.lowlevel.checkpoint()
            while True:
                if self._closed:
                    raise LinkClosed(f"the listener at {self.address} is closed")
                if self._backlog:
                    link = self._backlog.popleft()
                    link.listener = None
                    return link
                self._accepter = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._gave_up)
        finally:
            self._accepting = False

    def _gave_up(self, _: object) -> trio.lowlevel.Abort:
        self._accepter = None
        return trio.lowlevel.Abort.SUCCEEDED

    def _wake(self) -> None:
        task, self._accepter = self._accepter, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def opened(self, link: SimLink) -> None:
        """A dial is complete."""
        if self._closed or self.full:
            link.abort()
        else:
            self._backlog.append(link)
            self._wake()

    def close(self) -> None:
        """Stop listening; who was not accepted yet is reset."""
        if not self._closed:
            self._closed = True
            del self._host.listeners[self._port]
            for link in self._backlog:
                link.abort()
            self._backlog.clear()
            self._wake()

    async def aclose(self) -> None:
        self.close()
        await trio.lowlevel.checkpoint()


class Dial:
    """One attempt to connect; ``await`` its ``outcome`` once."""

    __slots__ = ("_address", "_failure", "_link", "_over", "_port", "_refused", "_route", "_task")

    def __init__(self, route: Route, port: int, address: str) -> None:
        self._route = route
        self._port = port
        self._address = address
        self._task: trio.lowlevel.Task | None = None
        self._link: SimLink | None = None
        self._failure = ""
        self._over = False
        self._refused: str | None = None

    async def outcome(self) -> SimLink:
        """The link. Raises ``LinkBroken`` when there is none to be had."""
        fabric = self._route.fabric
        fabric.pump.at(fabric.pump.time() + CONNECT_SECONDS, self._give_up, None)
        self._knock(_FIRST_REPETITION_SECONDS)
        self._route.source.dials[self] = None
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._cancelled)
        if self._link is None:
            raise LinkBroken(f"cannot connect to {self._address}: {self._failure}")
        return self._link

    def fail(self, reason: str) -> None:
        """End it without a link."""
        if not self._over:
            self._failure = reason
            self._end()

    def _end(self) -> None:
        self._over = True
        del self._route.source.dials[self]
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _cancelled(self, _: object) -> trio.lowlevel.Abort:
        self._task = None
        self._end()
        return trio.lowlevel.Abort.SUCCEEDED

    def _knock(self, patience: float) -> None:
        if not self._over:
            self._route.packet(Dial._arrive, self)
            pump = self._route.fabric.pump
            pump.at(pump.time() + patience, self._knock, 2 * patience)

    def _give_up(self, _: None) -> None:
        if not self._over:
            route = self._route
            route.fabric.record("connect_timeout", route.source.name, target=self._address)
            self.fail(f"no answer for {CONNECT_SECONDS:.0f} s")

    def _arrive(self) -> None:
        """A first packet is there, or a repeated one: answer it."""
        self._refused = self._objection()
        pump = self._route.fabric.pump
        pump.at(pump.time() + self._route.path.connect_seconds, self._answer, None)

    def _objection(self) -> str | None:
        route = self._route
        listener = route.target.listeners.get(self._port)
        if listener is None:
            return "nobody listens there"
        if listener.full:
            return f"{BACKLOG} links wait there already"
        if route.path.refuse and route.fabric.rng.random() < route.path.refuse:
            return "refused by chance"
        return None

    def _answer(self, _: None) -> None:
        self._route.back.packet(Dial._hear, self)

    def _hear(self) -> None:
        if self._over:
            return
        route = self._route
        fabric = route.fabric
        if not route.source.alive:
            self.fail(f"{route.source.name} has crashed")
        elif self._refused is not None:
            fabric.record("refused", route.source.name, target=self._address, reason=self._refused)
            self.fail(f"refused, {self._refused}")
        else:
            self._link = self._connect()
            self._end()

    def _connect(self) -> SimLink:
        route = self._route
        fabric = route.fabric
        number = fabric.next_link()
        there, back = Flow(route, number), Flow(route.back, number)
        port = route.source.free_port(route.source.listeners)
        near = SimLink(number, route, self._address, there, back)
        far = SimLink(number, route.back, f"{route.source.name}:{port}", back, there)
        far.listener = route.target.listeners.get(self._port)
        fabric.record("connect", route.source.name, target=self._address, link=number)
        if far.listener is None or not route.target.alive:
            far.break_off("nobody listens any more")
        there.open()
        return near
