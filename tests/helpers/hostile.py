"""A hostile peer: real links of a real binding and real sessions, up to the point where it stops behaving.

``hostile(binding, peer)`` dials an honest peer and does both of its links' handshakes as an honest one would. From
there on the test says what goes over the wire: messages, payloads that were never encoded by us, bytes, pieces, or
nothing, and whether anything is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import trio

from fleet.errors import FleetError, LinkBroken, LinkClosed
from fleet.identity.keys import Identity, PeerId
from fleet.net.authentication import Role
from fleet.net.hello import NONCE_SIZE, Hello, Purpose
from fleet.net.session import Closed, Established, Proved, Received, Session
from fleet.swarm.bitfield import to_wire
from fleet.swarm.manifest import page
from fleet.wire.frame import piece_header
from fleet.wire.messages import Bitfield, Join, ManifestPage, Message, Request, WantManifest
from tests.helpers.pair import session_of

if TYPE_CHECKING:
    from fleet.net.link import Binding, Link
    from fleet.peer import Peer
    from tests.helpers.toy import Artifact

M = TypeVar("M", bound=Message)


def invent(number: int, *, below: PeerId | None = None, above: PeerId | None = None) -> Identity:
    """The ``number``-th identity whose id is below or above another: the lower of two decides about control links."""
    found = 0
    for seed in range(1 << 20):
        identity = Identity(b"hostile" + seed.to_bytes(25, "big"))
        if (below is None or identity.peer_id < below) and (above is None or identity.peer_id > above):
            if found == number:
                return identity
            found += 1
    raise AssertionError("no such identity")


def hello(
    identity: Identity,
    purpose: Purpose = Purpose.CONTROL,
    *,
    session: bytes = b"",
    incarnation: int = 1,
    generation: int = 0,
    nonce: int = 0,
) -> Hello:
    nonce_bytes = nonce.to_bytes(NONCE_SIZE, "big")
    return Hello(purpose, identity.peer_id, nonce_bytes, incarnation, generation, "127.0.0.1:9", session)


class HostileLink:
    """One link and its session. What arrives is read only when asked for."""

    def __init__(self, link: Link, session: Session) -> None:
        self.link = link
        self.session = session
        self.inbox: deque[Message] = deque()
        self.goodbye: str | None = None
        """The reason that the other side gave in its Close."""
        self._block = memoryview(bytearray(1 << 16))

    # the handshake

    async def shake_hands(self, *, accept: bool = True) -> None:
        """Until the session is established; without ``accept`` until it is proved, if this side decides."""
        await self.link.handshake()
        while True:
            await self.flush()
            events = await self._events()
            if self.goodbye is not None:
                raise LinkClosed(self.goodbye)
            for event in events:
                match event:
                    case Proved(decide=decide):
                        if decide and not accept:
                            await self.flush()
                            return
                        if decide:
                            self.session.accept()
                            await self.flush()
                            return
                    case Established():
                        return

    # sending

    async def flush(self) -> None:
        if self.session.has_output:
            await self.link.send_all([self.session.take_output()])

    async def send(self, *messages: Message) -> None:
        """Messages in one frame."""
        for message in messages:
            self.session.send(message)
        await self.flush()

    async def send_payload(self, payload: bytes) -> None:
        """A MESSAGES frame with this payload, signed where frames are."""
        await self.link.send_all([self.session._seal(payload)])

    async def raw(self, *data: bytes) -> None:
        await self.link.send_all(data)

    # receiving

    async def _events(self) -> list[object]:
        count = await self.link.receive_into(self._block)
        if count == 0:
            raise LinkBroken("the other side ended the stream")
        events: list[object] = list(self.session.receive_untrusted(self._block[:count], trio.current_time()))
        for event in events:
            if isinstance(event, Received):
                self.inbox += event.messages
            elif isinstance(event, Closed):
                self.goodbye = event.reason
        return events

    async def next(self) -> Message:
        """The next message; ``LinkClosed`` or ``LinkBroken`` at the end."""
        while not self.inbox:
            if self.goodbye is not None:
                raise LinkClosed(self.goodbye)
            await self._events()
            await self.flush()  # pongs
        return self.inbox.popleft()

    async def expect(self, kind: type[M]) -> M:
        """The next message of this kind; others are passed over."""
        while True:
            message = await self.next()
            if isinstance(message, kind):
                return message

    async def ended(self) -> str | None:
        """Read on until the other side has ended the link; returns its goodbye, if it said one."""
        try:
            while True:
                if self.session.carries_pieces:
                    if await self.link.receive_into(self._block) == 0:
                        return None
                else:
                    await self.next()
        except FleetError:
            return self.goodbye


async def dial(
    binding: Binding,
    target: Peer,
    identity: Identity,
    purpose: Purpose = Purpose.CONTROL,
    *,
    session: bytes = b"",
    incarnation: int = 1,
    generation: int = 0,
    nonce: int = 0,
) -> HostileLink:
    """A link before its handshake."""
    link = await binding.dial(target.address, identity, target.peer_id)
    own = hello(identity, purpose, session=session, incarnation=incarnation, generation=generation, nonce=nonce)
    channel_peer = target.peer_id if binding.authenticates else None
    core = session_of(identity, Role.INITIATOR, own, now=trio.current_time(), channel_peer=channel_peer)
    return HostileLink(link, core)


class HostilePeer:
    """A neighbour of an honest peer, both links up."""

    def __init__(self, identity: Identity, control: HostileLink, bulk: HostileLink) -> None:
        self.identity = identity
        self.peer_id = identity.peer_id
        self.control = control
        self.bulk = bulk

    async def send_piece(self, request_id: int, data: bytes) -> None:
        await self.bulk.raw(piece_header(request_id, len(data)), data)

    async def serve(self, artifact: Artifact, answer: Callable[[int, int], Awaitable[None]]) -> None:
        """Be a source that claims everything, until cut off: ``answer(request id, piece)`` does the misbehaving."""
        everything = Bitfield(artifact.root, to_wire(np.ones(artifact.manifest.pieces, np.bool_)))
        try:
            await self.control.send(everything)
            while True:
                match await self.control.next():
                    case Join():
                        await self.control.send(everything)
                    case WantManifest(page=number):
                        await self.control.send(manifest_page(artifact, number))
                    case Request(first_id=first, pieces=pieces):
                        for offset, piece in enumerate(pieces):
                            await answer(first + offset, piece)
                    case _:
                        pass
        except FleetError:
            pass  # cut off, as it should be

    def abort(self) -> None:
        self.control.link.abort()
        self.bulk.link.abort()


def manifest_page(artifact: Artifact, number: int = 0) -> ManifestPage:
    manifest = artifact.manifest
    return ManifestPage(manifest.root, manifest.size, manifest.piece_size, number, page(manifest, number))


@asynccontextmanager
async def hostile(
    binding: Binding, target: Peer, identity: Identity | None = None, *, incarnation: int = 1, generation: int = 0
) -> AsyncIterator[HostilePeer]:
    """A hostile neighbour of ``target``, which already counts it as up."""
    identity = invent(0) if identity is None else identity
    links: list[HostileLink] = []
    try:
        control = await dial(binding, target, identity, incarnation=incarnation, generation=generation)
        links.append(control)
        await control.shake_hands()
        bulk = await dial(
            binding,
            target,
            identity,
            Purpose.BULK,
            session=control.session.session_id,
            incarnation=incarnation,
            nonce=1,
        )
        links.append(bulk)
        await bulk.shake_hands()
        await target.until(lambda: identity.peer_id in target.neighbours)
        yield HostilePeer(identity, control, bulk)
    finally:
        for link in links:
            link.link.abort()
