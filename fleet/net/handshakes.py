"""The handshakes of one peer's links: each from its first byte to a neighbour, or to why there is none.

Both handshakes of an incoming link (channel and session) have ``HANDSHAKE_SECONDS``, and at most
``MAX_PENDING_HANDSHAKES`` of them are pending, the oldest giving way. The deadline of an outgoing one is the caller's.

The two links race: the last message of a control link's handshake may be lost and sent again while the bulk link that
belongs to it is there already. Such a bulk link waits until the other handshake is over, within its own deadline.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final

import trio

from fleet.errors import FleetError, LinkBroken, LinkClosed, PeerViolation
from fleet.identity.exchange import SECRET_SIZE
from fleet.limits import HANDSHAKE_SECONDS, MAX_PENDING_HANDSHAKES
from fleet.net.authentication import Role
from fleet.net.hello import NONCE_SIZE, Hello, Purpose
from fleet.net.neighbour import Neighbour
from fleet.net.roster import DUPLICATE
from fleet.net.session import Closed, Established, Proved, Received, Session

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.net.link import Link, Listener
    from fleet.net.local import LocalPeer
    from fleet.net.roster import Roster

FEATURE_SWARM: Final = 1


class Handshakes:
    """Those that go on, in and out."""

    def __init__(self, local: LocalPeer, roster: Roster) -> None:
        self.displaced = 0
        """Pending incoming handshakes that gave way to newer ones."""
        self._local = local
        self._roster = roster
        self._pending: OrderedDict[trio.CancelScope, None] = OrderedDict()
        self._shaking: dict[bytes, trio.Event] = {}
        """Incoming control links whose handshake goes on, by session: set when it is over."""

    # --- both ways ---

    async def initiate(
        self, link: Link, purpose: Purpose, expected_peer: PeerId | None, control_session: bytes = b""
    ) -> Neighbour | PeerId:
        """Both handshakes of a link that this side dialled: its neighbour, or the peer that another link leads to."""
        try:
            await link.handshake()
            known = expected_peer or link.channel_peer
            generation = 0 if known is None else self._roster.generation(known)
            hello = self._hello(purpose, generation, control_session)
            return await self._shake_hands(link, Role.INITIATOR, hello, expected_peer)
        except BaseException:
            link.abort()
            raise

    async def accept_links(self, listener: Listener) -> None:
        """Welcome whoever dials until the listener is closed."""
        while True:
            try:
                link = await listener.accept()
            except LinkClosed:
                return  # this side is stopping, and the listener was closed just as somebody knocked
            if len(self._pending) >= MAX_PENDING_HANDSHAKES:
                oldest, _ = self._pending.popitem(last=False)
                oldest.cancel()
                self.displaced += 1
                self._local.trace.emit("handshake_displaced", pending=len(self._pending))
            scope = trio.CancelScope(deadline=trio.current_time() + HANDSHAKE_SECONDS)
            self._pending[scope] = None
            self._local.spawn(self._welcome, link, scope)

    async def _welcome(self, link: Link, scope: trio.CancelScope) -> None:
        """Both handshakes of an incoming link."""
        kept = False
        try:
            with scope:
                await link.handshake()
                hello = self._hello(Purpose.CONTROL, 0)
                outcome = await self._shake_hands(link, Role.RESPONDER, hello, None)
                kept = isinstance(outcome, Neighbour)
            if scope.cancelled_caught:
                self._local.trace.emit("handshake_unfinished", address=link.remote_address)
        except FleetError as error:
            self._local.trace.emit("handshake_failed", address=link.remote_address, reason=str(error))
        finally:
            self._pending.pop(scope, None)
            if not kept:
                link.abort()

    # --- the session ---

    def _hello(self, purpose: Purpose, generation: int, control_session: bytes = b"") -> Hello:
        nonce = self._local.environment.entropy(NONCE_SIZE)
        return Hello(
            purpose,
            self._local.peer_id,
            nonce,
            self._local.incarnation,
            generation,
            self._local.address,
            control_session,
            (FEATURE_SWARM,),
        )

    async def _shake_hands(
        self, link: Link, role: Role, hello: Hello, expected_peer: PeerId | None
    ) -> Neighbour | PeerId:
        """The session's handshake, up to a link that carries messages or pieces. See ``initiate``."""
        environment = self._local.environment
        authenticates = environment.binding.authenticates
        session = Session(
            self._local.identity,
            role,
            hello,
            now=trio.current_time(),
            secret=b"" if authenticates else environment.entropy(SECRET_SIZE),
            channel_peer=link.channel_peer if authenticates else None,
            expected_peer=expected_peer,
            generation_of=self._roster.generation,
        )
        scratch = environment.scratch
        neighbour: Neighbour | None = None
        over = trio.Event()
        try:
            while neighbour is None:
                if session.has_output:
                    await link.send_all([session.take_output()])
                count = await link.receive_into(scratch)
                if count == 0:
                    raise LinkBroken(f"{link.remote_address} ended the link during its handshake")
                events = session.receive_untrusted(scratch[:count], trio.current_time())
                if role is Role.RESPONDER and session.is_control and session.session_id:
                    self._shaking[session.session_id] = over  # before the other side can know of the session
                for event in events:
                    match event:
                        case Proved(decide=decide):
                            if role is Role.RESPONDER and not session.is_control:
                                await self._until_shaken(session)
                            objection = self._roster.objection(session)
                            if objection is not None:
                                return await self._refuse(link, session, objection)
                            if decide:
                                session.accept()
                                neighbour = self._roster.keep(link, session, dialled=role is Role.INITIATOR)
                        case Established() if neighbour is None:
                            # Asked again: other links came and went while this one waited for its Accept.
                            objection = self._roster.objection(session)
                            if objection is not None:
                                return await self._refuse(link, session, objection)
                            neighbour = self._roster.keep(link, session, dialled=role is Role.INITIATOR)
                        case Received(messages) if neighbour is not None:
                            neighbour.early += messages
                        case Closed(reason):
                            if reason == DUPLICATE and session.peer is not None and neighbour is None:
                                await link.aclose()
                                return session.peer
                            raise LinkClosed(f"{link.remote_address} refused the link: {reason}")
            if session.has_output:
                await link.send_all([session.take_output()])
            if not session.is_control:
                # Not before the Accept is out: from here on the neighbour's own tasks send on this link.
                if neighbour.reason is not None:
                    raise neighbour.reason
                neighbour.attach(link, session.rest())
        except PeerViolation as violation:
            if violation.peer is not None:
                self._roster.ban(violation.peer, str(violation))
            raise
        except BaseException as error:
            if neighbour is not None:
                neighbour.end(error if isinstance(error, FleetError) else LinkClosed("the handshake was given up"))
            raise
        finally:
            if self._shaking.get(session.session_id) is over:
                del self._shaking[session.session_id]
            over.set()
        return neighbour

    async def _until_shaken(self, bulk: Session) -> None:
        """Wait for the end of the control link's handshake that this bulk link has overtaken, if it has."""
        hello = bulk.their_hello
        assert hello is not None, "the session is proved"  # noqa: S101
        control = self._shaking.get(hello.session)
        if control is not None:
            await control.wait()

    async def _refuse(self, link: Link, session: Session, objection: str) -> PeerId:
        session.close(objection)
        await link.send_all([session.take_output()])
        await link.aclose()
        if objection == DUPLICATE and session.peer is not None:
            return session.peer
        raise LinkClosed(f"this side refused {link.remote_address}: {objection}")
