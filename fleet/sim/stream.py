"""The link of the sim binding: one end of a simulated stream.

Its two directions are ``fleet.sim.flow``. An end is *closed* once this side has no more use for it, and *gone* once it
answers what arrives for it with a reset: after ``aclose`` has said what there was to say, an ``abort``, a break, or the
crash of its host. What was sent before ``aclose`` still travels when the end is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import trio

from fleet.errors import LinkBroken
from fleet.limits import CLOSE_SECONDS
from fleet.net.usage import Usage, check_range
from fleet.sim.buffer import stable
from fleet.sim.flow import SEGMENT, Flow

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.net.link import Bytes
    from fleet.sim.connect import SimListener
    from fleet.sim.fabric import Host, Route
    from fleet.storage import File

_SUCCEEDED: Final = trio.lowlevel.Abort.SUCCEEDED


class SimLink:
    """One end of a simulated stream. See ``fleet.net.link.Link`` for what its methods promise."""

    __slots__ = (
        "_end_acknowledged",
        "_lingerer",
        "_number",
        "_receiver",
        "_route",
        "_use",
        "gone",
        "inflow",
        "listener",
        "outflow",
        "sender",
    )

    def __init__(self, number: int, route: Route, remote_address: str, outflow: Flow, inflow: Flow) -> None:
        """``route`` leads from this end to the other."""
        self._number = number
        self._route = route
        self._use = Usage(remote_address)
        self.outflow = outflow
        self.inflow = inflow
        self.listener: SimListener | None = None
        """Whose backlog it joins once it is open."""
        self.gone = False
        self.sender: trio.lowlevel.Task | None = None
        """Who waits for room to send."""
        self._receiver: trio.lowlevel.Task | None = None
        self._lingerer: trio.lowlevel.Task | None = None
        self._end_acknowledged = False
        outflow.source = inflow.sink = self
        self.host.links[self] = None

    @property
    def host(self) -> Host:
        """Where this end is."""
        return self._route.source

    @property
    def remote_host(self) -> Host:
        """Where the other end is."""
        return self._route.target

    @property
    def remote_address(self) -> str:
        return self._use.remote

    @property
    def channel_peer(self) -> PeerId | None:
        return None

    @property
    def closed(self) -> bool:
        """Whether its owner has closed or aborted it."""
        return self._use.closed

    def __repr__(self) -> str:
        return f"SimLink({self.host.name}, {self._use.remote}, {self._number})"

    async def handshake(self) -> None:
        await trio.lowlevel.checkpoint()
        self._use.check_open()

    # sending

    async def send_all(self, buffers: Sequence[Bytes]) -> None:
        self._use.begin_sending()
        try:
            await trio.lowlevel.checkpoint()
            self._check_usable()
            self._use.cut = True
            for chunk in stable(buffers, SEGMENT):
                while chunk:
                    room = await self._room()
                    self.outflow.push(chunk[:room])
                    chunk = chunk[room:]
            self._use.cut = False
        finally:
            self._use.sending = False

    async def send_file(self, file: File, offset: int, size: int, prefix: bytes = b"") -> None:
        check_range(offset, size, prefix)
        self._use.begin_sending()
        try:
            await trio.lowlevel.checkpoint()
            self._check_usable()
            self._use.cut = True
            end = offset + size
            head = len(prefix)
            while offset < end or head:
                length = max(0, min(await self._room() - head, end - offset))
                block = memoryview(bytearray(head + length))
                block[:head] = prefix
                file.read_into(block[head:], offset)
                self.outflow.push(block)
                offset += length
                prefix, head = b"", 0
            self._use.cut = False
        finally:
            self._use.sending = False

    async def _room(self) -> int:
        """How many bytes may be pushed: at least one, after waiting if need be."""
        flow = self.outflow
        while (room := flow.capacity - flow.backlog) <= 0:
            self.sender = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._sender_gave_up)
            self._check_usable()
        return room

    def _sender_gave_up(self, _: object) -> trio.lowlevel.Abort:
        self.sender = None
        return _SUCCEEDED

    async def send_eof(self) -> None:
        if self._use.eof_sent:
            await trio.lowlevel.checkpoint()
            self._use.check_open()
            return
        self._use.begin_sending()
        try:
            await trio.lowlevel.checkpoint()
            self._check_usable()
            self._use.eof_sent = True
            self.outflow.finish()
        finally:
            self._use.sending = False

    # receiving

    async def receive_into(self, view: memoryview) -> int:
        self._use.begin_receiving(view)
        flow = self.inflow
        try:
            if flow.ready or flow.ended or self._use.broken is not None:
                await trio.lowlevel.checkpoint()
            while not flow.ready:
                self._use.check_open()
                if self._use.broken is not None:
                    raise LinkBroken(self._use.broken)
                if flow.ended:
                    return 0
                self._receiver = trio.lowlevel.current_task()
                await trio.lowlevel.wait_task_rescheduled(self._receiver_gave_up)
            self._use.check_open()
            return flow.read_into(view)
        finally:
            self._use.receiving = False

    def _receiver_gave_up(self, _: object) -> trio.lowlevel.Abort:
        self._receiver = None
        return _SUCCEEDED

    # ending

    async def aclose(self) -> None:
        if self._use.closed:
            await trio.lowlevel.checkpoint()
            return
        if self._use.cut or self._use.sending or self._use.broken is not None:
            self.abort()
            await trio.lowlevel.checkpoint()
            return
        self._use.closed = True
        self.wake_receiver()
        self.inflow.discard()
        self.outflow.finish()
        try:
            if self.outflow.unacknowledged:
                with trio.move_on_after(CLOSE_SECONDS):
                    await self._linger()
            else:
                await trio.lowlevel.checkpoint()
        finally:
            self.gone = True
            self._forget_if_done()

    async def _linger(self) -> None:
        """Wait until the other side has what was sent, or there is no other side."""
        while not self.gone and not self._end_acknowledged:
            self._lingerer = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._lingerer_gave_up)

    def _lingerer_gave_up(self, _: object) -> trio.lowlevel.Abort:
        self._lingerer = None
        return _SUCCEEDED

    def abort(self) -> None:
        self._use.closed = True
        if not self.gone:
            self._leave()
            self._send_reset()

    def _leave(self) -> None:
        """No part of the protocol any more: whoever waits is told, what has not left is lost."""
        self.gone = True
        self.outflow.kill()
        if self._use.closed:
            self.inflow.discard()
        self._forget_if_done()
        self.wake_sender()
        self.wake_receiver()
        self._wake_lingerer()

    def _forget_if_done(self) -> None:
        if self.gone and self.outflow.finished:
            self.host.links.pop(self, None)

    # what the network tells it

    def wake_sender(self) -> None:
        """There is room to send, or no use in waiting for it."""
        task, self.sender = self.sender, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def wake_receiver(self) -> None:
        """There is something to receive, or no use in waiting for it."""
        task, self._receiver = self._receiver, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _wake_lingerer(self) -> None:
        task, self._lingerer = self._lingerer, None
        if task is not None:
            trio.lowlevel.reschedule(task)

    def data_landed(self) -> None:
        """Bytes have arrived."""
        if self._use.closed:
            self.inflow.discard()
        else:
            self.wake_receiver()

    def opened(self) -> None:
        """The dialler's last word of the handshake has arrived."""
        if self.listener is not None:
            self.listener.opened(self)

    def end_acknowledged(self) -> None:
        """The other side has everything, and knows that it is everything."""
        self._end_acknowledged = True
        self._wake_lingerer()
        self._forget_if_done()

    def hear_reset(self) -> None:
        """The other side says that it knows of no such stream."""
        if self.gone:
            self.outflow.kill()
            self._forget_if_done()
        else:
            self._route.fabric.record("reset", self.host.name, source=self.remote_host.name, link=self._number)
            self.break_off(f"{self.remote_host.name} reset it")

    def miss_reset(self) -> None:
        """The other side is gone, and its reset was lost."""
        self.outflow.probe()

    def answer_with_reset(self) -> None:
        """Something arrived for this end, which is no more."""
        other = self.outflow.sink
        self._route.packet(SimLink.hear_reset, other, lambda _: other.outflow.unheard())

    def break_off(self, reason: str) -> None:
        """The stream is over for this end, without a goodbye. What has arrived may still be received."""
        if self.gone:
            self.outflow.kill()
            self._forget_if_done()
        else:
            self._use.broken = f"the link to {self._use.remote} is broken: {reason}"
            self._leave()

    def die(self) -> None:
        """This end's process has crashed."""
        self.break_off(f"{self.host.name} has crashed")
        self.inflow.discard()

    def tell_reset(self) -> None:
        """This end's process has crashed: its machine, if it still has power, resets the other end."""
        if not self.gone:
            self._send_reset()

    def _send_reset(self) -> None:
        self._route.packet(SimLink.hear_reset, self.outflow.sink, SimLink.miss_reset)

    # errors

    def _check_usable(self) -> None:
        self._use.check_open()
        if self._use.broken is not None:
            raise LinkBroken(self._use.broken)
