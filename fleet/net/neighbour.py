"""A neighbour: one proved peer with its two links, and the tasks that move bytes over them.

The control link carries batches of messages, the bulk link the bytes of pieces, so that a message never waits
behind a mebibyte. Whichever of the tasks ends first ends the neighbour, and its error says why.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from math import inf
from typing import TYPE_CHECKING, Protocol

import trio

from fleet.errors import FleetError, LimitExceeded, LinkBroken, LinkClosed, PeerViolation
from fleet.limits import CLOSE_SECONDS, LIVENESS_SECONDS
from fleet.net.session import Closed, Received, Session

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.net.hello import Hello
    from fleet.net.link import Link
    from fleet.wire.messages import Message


class Service(Protocol):
    """What a neighbour's owner does with what arrives, and gives it to send."""

    def handle_untrusted(self, neighbour: Neighbour, messages: list[Message]) -> None:
        """Messages arrived, in order. Raises ``PeerViolation`` to cut the neighbour off."""
        ...

    def before_frame(self, neighbour: Neighbour) -> None:
        """A frame is about to go: the time to add what was kept back to travel with others."""
        ...

    async def bulk_receive(self, neighbour: Neighbour) -> None:
        """Receive pieces until the bulk link ends."""
        ...

    async def bulk_send(self, neighbour: Neighbour) -> None:
        """Send pieces until cancelled."""
        ...


class Neighbour:
    """One proved peer. ``run`` moves its bytes until it ends."""

    def __init__(self, session: Session, control: Link, *, dialled: bool) -> None:
        """``session`` is proved; ``dialled`` says that this side opened the link."""
        assert session.peer is not None and session.their_hello is not None, "the session is proved"  # noqa: S101, PT018
        self.peer: PeerId = session.peer
        self.hello: Hello = session.their_hello
        self.session = session
        self.control = control
        self.bulk: Link | None = None
        self.bulk_promised = False
        """A bulk link has been accepted, so that there is no room for a second one."""
        self.bulk_rest = b""
        self.dialled = dialled
        self.dialling = trio.CancelScope()
        """Around the dial of the bulk link: there is no use in it once the neighbour has ended."""
        self.early: list[Message] = []
        """Messages that came with the end of the handshake."""
        self.attached = trio.Event()
        """Set when the bulk link is there too, or the neighbour has ended."""
        self.ended = trio.Event()
        """Set by the owner once it has forgotten this neighbour."""
        self.reason: FleetError | None = None
        """Why it ended."""
        self._frame_due = False
        self._wake = trio.Event()
        self._upload_wake = trio.Event()
        self._scope = trio.CancelScope()
        self._last_send = trio.CancelScope()
        self._cut = False
        """A control frame went out in part, or not at all: nothing may follow it, as frames are numbered."""

    @property
    def bulk_link(self) -> Link:
        """The bulk link of an attached neighbour."""
        assert self.bulk is not None, "only used once attached"  # noqa: S101
        return self.bulk

    def attach(self, bulk: Link, rest: bytes) -> None:
        """The bulk link is there; ``rest`` are bytes of pieces that came with its handshake."""
        self.bulk = bulk
        self.bulk_rest = rest
        self.attached.set()

    # --- sending ---

    def send(self, message: Message) -> None:
        """Queue a message. A neighbour that does not read is cut off, by the cap on what waits for it."""
        if self.reason is not None:
            return  # ending already: what a flood asked for is not even encoded
        try:
            self.session.send(message)
        except LinkClosed:
            return  # ending already
        except FleetError as error:
            self.end(error)
            return
        self._wake.set()

    def wake(self) -> None:
        """A frame is due, though nothing was queued: ``before_frame`` will add to it."""
        self._frame_due = True
        self._wake.set()

    def wake_upload(self) -> None:
        """There is a piece to send."""
        self._upload_wake.set()

    async def upload_wanted(self) -> None:
        """Wait for ``wake_upload``."""
        await self._upload_wake.wait()
        self._upload_wake = trio.Event()

    def end(self, reason: FleetError) -> None:
        """End the neighbour from outside, at the next checkpoint of its tasks."""
        if self.reason is not None:
            return
        self.reason = reason
        self.attached.set()
        self.dialling.cancel()
        self._scope.cancel()
        hopeless = isinstance(reason, LinkBroken | LimitExceeded)
        self._last_send.deadline = -inf if hopeless else trio.current_time() + CLOSE_SECONDS

    # --- tasks ---

    async def until_attached(self, scratch: memoryview) -> None:
        """Wait for the bulk link, or the end: the other side may refuse the session, or be gone, before it has both."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen_early, scratch)
            await self.attached.wait()
            nursery.cancel_scope.cancel()

    async def _listen_early(self, scratch: memoryview) -> None:
        try:
            while not self.early:  # whoever says more than a goodbye before it is time to waits to be read
                count = await self.control.receive_into(scratch)
                if count == 0:
                    raise self._silent_end()
                for event in self.session.receive_untrusted(scratch[:count], trio.current_time()):
                    if isinstance(event, Received):
                        self.early += event.messages
                    elif isinstance(event, Closed):
                        raise self._goodbye(event)
        except FleetError as error:
            self.end(error)

    def _silent_end(self) -> LinkBroken:
        return LinkBroken(f"{self.peer.short} ended its stream without a goodbye")

    def _goodbye(self, event: Closed) -> LinkClosed:
        return LinkClosed(f"{self.peer.short} said goodbye: {event.reason}")

    async def run(self, service: Service, scratch: memoryview) -> None:
        """Serve both links until either ends; ``reason`` then says why. The owner calls ``close`` next.

        Only for a neighbour that is attached and has not ended: the tasks take their first steps even when cancelled.
        """
        with self._scope:
            async with trio.open_nursery() as nursery:

                async def guarded(task: Callable[[], Awaitable[None]]) -> None:
                    try:
                        await task()
                    except FleetError as error:
                        self.end(error)
                    except trio.Cancelled:
                        self.end(LinkClosed("this side is stopping"))  # unless it has ended already
                        raise

                nursery.start_soon(guarded, lambda: self._receive(service, scratch))
                nursery.start_soon(guarded, lambda: self._send(service))
                nursery.start_soon(guarded, lambda: service.bulk_receive(self))
                nursery.start_soon(guarded, lambda: service.bulk_send(self))
                nursery.start_soon(guarded, self._watch)

    async def _receive(self, service: Service, scratch: memoryview) -> None:
        if self.early:
            service.handle_untrusted(self, self.early)
        while True:
            count = await self.control.receive_into(scratch)
            if count == 0:
                raise self._silent_end()
            for event in self.session.receive_untrusted(scratch[:count], trio.current_time()):
                if isinstance(event, Received):
                    service.handle_untrusted(self, event.messages)
                elif isinstance(event, Closed):
                    raise self._goodbye(event)
            if self.session.has_output:
                self._wake.set()

    async def _send(self, service: Service) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            # Woken again by a message that the last round already took: nothing is due, so nothing is added.
            while (self.session.has_output or self._frame_due) and self.reason is None:
                self._frame_due = False
                service.before_frame(self)
                if self._scope.cancel_called:
                    return  # that was too much for what waits already
                # Whole even when this is cancelled, for a moment, so that a goodbye can follow.
                self._cut = True
                with trio.CancelScope(shield=True) as self._last_send:
                    await self.control.send_all([self.session.take_output()])
                    self._cut = False

    async def _watch(self) -> None:
        """Ping a silent neighbour, and break with one that has been silent for too long."""
        while True:
            await trio.sleep_until(self.session.next_deadline())
            if not self.session.on_timer(trio.current_time()):
                raise LinkBroken(f"{self.peer.short} has been silent for {LIVENESS_SECONDS:.0f} s")
            if self.session.has_output:
                self._wake.set()

    async def close(self) -> None:
        """Close both links: in order if the reason was orderly. ``end`` was called, and no task uses them any more."""
        links = [link for link in (self.control, self.bulk) if link is not None]
        if not isinstance(self.reason, LinkBroken) and not self._cut:
            # What is this side's own trouble (a disk, a path) is no business of the other side's.
            told = isinstance(self.reason, LinkClosed | PeerViolation | LimitExceeded)
            with trio.move_on_after(CLOSE_SECONDS, shield=True):
                try:
                    self.session.close(str(self.reason) if told else "this side cannot go on")
                    await self.control.send_all([self.session.take_output()])
                    for link in links:
                        await link.aclose()
                except FleetError:
                    pass  # the goodbye is a courtesy, and the other side is gone already
        for link in links:
            link.abort()

    def abort(self) -> None:
        """Drop both links at once, without a goodbye: what a killed process does."""
        self.end(LinkBroken("killed"))
        for link in (self.control, self.bulk):
            if link is not None:
                link.abort()
