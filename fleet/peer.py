"""A peer: one identity, one listener, its neighbours, and the services that they talk to.

Links come in through the listener or go out through ``connect``; either way both handshakes (channel and session) have
``HANDSHAKE_SECONDS`` and at most ``MAX_PENDING_HANDSHAKES`` incoming ones are pending, the oldest giving way. A
neighbour is up when its control and its bulk link both are. Who breaks the protocol is cut off and refused then on.

The two links race: the last message of a control link's handshake may be lost and sent again while the bulk link that
belongs to it is there already. Such a bulk link waits until the other handshake is over, within its own deadline.

A neighbour that is kept (``keep``) is dialled again when it is lost, after the pauses of ``fleet.net.redial``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from fleet.environment import current_host, off_loop_checkpoint
from fleet.errors import DeadlineExceeded, FleetError, LinkBroken, LinkClosed, LocalMisuse, PeerViolation
from fleet.identity.exchange import SECRET_SIZE
from fleet.limits import HANDSHAKE_SECONDS, MAX_LINKS, MAX_PENDING_HANDSHAKES, MAX_REMEMBERED_PEERS, MIB
from fleet.net.hello import NONCE_SIZE, Hello, Purpose
from fleet.net.neighbour import Neighbour
from fleet.net.redial import Redial, Redials
from fleet.net.session import Closed, Established, Proved, Received, Role, Session
from fleet.storage import DirectoryFile
from fleet.swarm.manifest import Manifest
from fleet.swarm.transfer import Transfer
from fleet.wire.messages import SwarmMessage

if TYPE_CHECKING:
    from fleet.environment import Environment
    from fleet.identity.keys import Identity, PeerId
    from fleet.net.link import Link, Listener
    from fleet.storage import File, Storage
    from fleet.swarm.holding import Holding
    from fleet.wire.messages import Message

DUPLICATE: Final = "duplicate: another link to this peer survives"
FEATURE_SWARM: Final = 1
ANY_PORT: Final = "127.0.0.1:0"


@contextmanager
def lone_error() -> Iterator[None]:
    """Around a nursery that callers do not know of: an error that is alone in its group is raised as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        (alone,) = group.exceptions
        context = alone.__context__
        try:
            raise alone
        finally:
            alone.__context__ = context  # not the group: an error would be its own context


class Peer:
    """One peer. Make it with ``running``; ``neighbours`` are those that are up, ``swarm`` its artifacts."""

    def __init__(self, environment: Environment, index: int, identity: Identity, storage: Storage) -> None:
        self.index = index
        self.identity = identity
        self.peer_id = identity.peer_id
        self.name = f"peer-{index}"
        self.neighbours: dict[PeerId, Neighbour] = {}
        self.banned: OrderedDict[PeerId, str] = OrderedDict()
        """Who broke the protocol, and how; the oldest are forgotten beyond ``MAX_REMEMBERED_PEERS``."""
        self.handshakes_displaced = 0
        """Pending incoming handshakes that gave way to newer ones."""
        self._environment = environment
        self._storage = storage
        self._listener: Listener | None = None
        self._nursery: trio.Nursery | None = None
        self._incarnation = int.from_bytes(environment.entropy(8), "big")
        self._generations: OrderedDict[PeerId, int] = OrderedDict()
        self._sessions: dict[PeerId, Neighbour] = {}
        self._pending: OrderedDict[trio.CancelScope, None] = OrderedDict()
        self._shaking: dict[bytes, trio.Event] = {}
        """Incoming control links whose handshake goes on, by session: set when it is over."""
        self._dialling: dict[trio.CancelScope, PeerId | None] = {}
        """Whom this side dials, until there is a link to shake hands on."""
        self._redials = Redials(environment.rng("redials", index))
        self._host: str | None = None
        self._changed = trio.Event()
        self._transfer: Transfer | None = None
        self._stopping = False

    # --- life ---

    @asynccontextmanager
    async def running(self, address: str = ANY_PORT, *, or_any_port: bool = False) -> AsyncIterator[Peer]:
        """Listen and serve until the block ends, then say goodbye to every neighbour and release everything.

        ``or_any_port`` takes any free port when ``address`` is not free. A peer runs once: make another for a restart.
        """
        if self._listener is not None:
            raise LocalMisuse(f"{self.name} ran already: make a new Peer with its identity and storage")
        with lone_error():
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._host = current_host.get()
                self._listener = await self._listen(address, or_any_port)
                self._transfer = Transfer(
                    self._environment,
                    self._storage,
                    self.name,
                    lambda purpose: self._environment.rng(purpose, self.index),
                    self._spawn,
                )
                try:
                    nursery.start_soon(self._accept_links, self._listener)
                    nursery.start_soon(self._transfer.run_timers)
                    nursery.start_soon(self._redial_lost)
                    yield self
                finally:
                    self._stopping = True
                    # Neighbours close their links, in order or not, while being cancelled.
                    nursery.cancel_scope.cancel()
                    with trio.CancelScope(shield=True):
                        await self._listener.aclose()
                        for neighbour in list(self._sessions.values()):
                            await neighbour.ended.wait()
                    self._transfer.close()
                    self._storage.close()

    def _spawn(self, fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task of this peer's, in its process whoever calls."""
        assert self._nursery is not None, "only used while running"  # noqa: S101
        token = current_host.set(self._host)
        try:
            self._nursery.start_soon(fn, *args)
        finally:
            current_host.reset(token)

    async def _listen(self, address: str, or_any_port: bool) -> Listener:
        binding = self._environment.binding
        try:
            return await binding.listen(self.identity, address)
        except LocalMisuse:
            if not or_any_port:
                raise
        return await binding.listen(self.identity, ANY_PORT)

    # --- artifacts ---

    async def share(self, source: Path | str | File, piece_size: int = MIB, *, super_seed: bool = True) -> Holding:
        """Serve a file, read in place and never written; ``holding.root`` is what others fetch.

        Raises ``StorageFailed`` when it cannot be read, ``LocalMisuse`` when the piece size does not fit it.
        """
        file = DirectoryFile(Path(source), writable=False) if isinstance(source, str | Path) else source
        try:
            manifest = await self._environment.off_loop(
                lambda: Manifest.of_file(file, piece_size, on_piece=lambda _: off_loop_checkpoint())
            )
            await trio.lowlevel.checkpoint_if_cancelled()  # the peer may have stopped meanwhile
            return self.swarm.share(manifest, file, super_seed=super_seed)
        except BaseException:
            file.close()
            raise

    async def fetch(self, root: bytes) -> Holding:
        """Fetch an artifact from the neighbours that have it, and serve it on; ``await holding.wait()`` for the end."""
        return await self.swarm.fetch(root)

    # --- ends ---

    def kill(self) -> None:
        """Drop every link at once, without a goodbye, as a killed process does. The caller then ends ``running``."""
        for neighbour in list(self._sessions.values()):
            neighbour.abort()

    @property
    def address(self) -> str:
        """Where others dial this peer."""
        if self._listener is None:
            raise LocalMisuse(f"{self.name} is not running: start it first")
        return self._listener.address

    @property
    def swarm(self) -> Transfer:
        """The artifacts that this peer shares and fetches."""
        if self._transfer is None:
            raise LocalMisuse(f"{self.name} is not running: start it first")
        return self._transfer

    def _emit(self, kind: str, **fields: str | float) -> None:
        self._environment.trace.emit(trio.current_time(), self.name, kind, **fields)

    # --- links ---

    async def connect(self, address: str, expected_peer: PeerId | None = None) -> Neighbour:
        """The neighbour at ``address``, dialled unless it is up already.

        Raises ``LinkBroken`` when nobody answers there, ``PeerViolation`` when somebody else does, ``LinkClosed`` when
        it refuses, ``DeadlineExceeded`` after ``HANDSHAKE_SECONDS``, ``LocalMisuse`` when this peer does not run.
        """
        self._require_running()
        if expected_peer == self.peer_id or address == self.address:
            raise LocalMisuse(f"{address} is this peer itself: dial another")
        if expected_peer is not None and expected_peer in self.neighbours:
            return self.neighbours[expected_peer]
        with trio.move_on_after(HANDSHAKE_SECONDS):
            return await self._dial_neighbour(address, expected_peer)
        raise DeadlineExceeded(f"{address} did not finish its handshake within {HANDSHAKE_SECONDS:.0f} s")

    def keep(self, address: str, peer: PeerId) -> None:
        """Keep ``peer`` as a neighbour: while it has no link it is dialled, again and again, with pauses that grow.

        Its last hello's address and ``address`` are tried in turn. It is not dialled while it is banned, and nobody is
        once this peer stops. Raises ``LocalMisuse`` when this peer has not been started, or is that peer itself.
        """
        if self._nursery is None:
            raise LocalMisuse(f"{self.name} is not running: start it first")
        if peer == self.peer_id:
            raise LocalMisuse(f"{address} is this peer itself: keep another")
        self._redials.keep(peer, address, trio.current_time(), up=peer in self.neighbours)
        self._note_change()

    def let_go(self, peer: PeerId) -> None:
        """Do not dial ``peer`` again when it is lost. A link that it has stays."""
        self._redials.let_go(peer)

    async def _redial_lost(self) -> None:
        """The one timer for all kept neighbours; a dial is a task while it lasts."""
        while True:
            for redial in self._redials.take_due(trio.current_time(), self.banned):
                self._emit("redial", neighbour=redial.peer.short, attempt=redial.attempt)
                self._spawn(self._redial, redial)
            with trio.move_on_at(self._redials.next_due()):
                await self._changed.wait()

    async def _redial(self, redial: Redial) -> None:
        try:
            await self.connect(redial.address, redial.peer)
        except FleetError as error:
            self._emit("redial_failed", neighbour=redial.peer.short, reason=str(error))
        finally:
            self._redials.dialled(redial.peer, trio.current_time())
            self._note_change()

    async def _dial_neighbour(self, address: str, expected_peer: PeerId | None) -> Neighbour:
        link = await self._dial_link(address, expected_peer)
        if link is None:
            assert expected_peer is not None, "somebody came up"  # noqa: S101
            return self.neighbours.get(expected_peer) or await self._dial_neighbour(address, expected_peer)
        neighbour = await self._initiate(link, Purpose.CONTROL, expected_peer)
        if isinstance(neighbour, Neighbour):
            peer = neighbour.peer
            try:
                with neighbour.dialling:
                    await self._dial_bulk(address, neighbour)
            except BaseException as error:
                neighbour.end(error if isinstance(error, FleetError) else LinkClosed("the dial was given up"))
                raise
        else:
            peer = neighbour  # another link to it survives: wait until that is up
            if expected_peer is None and peer in self._generations and peer not in self._sessions:
                # That link is dead here, which the other side could not be told before it was known who answers.
                return await self._dial_neighbour(address, peer)
        kept = neighbour if isinstance(neighbour, Neighbour) else None
        while peer not in self.neighbours:
            if kept is not None and kept.reason is not None and self._sessions.get(peer) in (None, kept):
                raise LinkClosed(f"the link to {address} ended at once: {kept.reason}")
            await self._changed.wait()
        return self.neighbours[peer]

    async def _dial_link(self, address: str, expected_peer: PeerId | None) -> Link | None:
        """A link to there, or None when that peer has come up as a neighbour meanwhile."""
        link: Link | None = None
        with trio.CancelScope() as scope:
            self._dialling[scope] = expected_peer
            try:
                link = await self._environment.binding.dial(address, self.identity, expected_peer)
            finally:
                del self._dialling[scope]
        return link

    async def _dial_bulk(self, address: str, neighbour: Neighbour) -> None:
        link = await self._environment.binding.dial(address, self.identity, neighbour.peer)
        await self._initiate(link, Purpose.BULK, neighbour.peer, neighbour.session.session_id)

    def _require_running(self) -> None:
        if self._nursery is None or self._stopping:
            raise LocalMisuse(f"{self.name} is not running: start it first")

    async def _initiate(
        self, link: Link, purpose: Purpose, expected_peer: PeerId | None, control_session: bytes = b""
    ) -> Neighbour | PeerId:
        """Both handshakes of a link that this side dialled: its neighbour, or the peer that another link leads to."""
        try:
            await link.handshake()
            known = expected_peer or link.channel_peer
            generation = 0 if known is None else self._generations.get(known, 0)
            hello = self._hello(purpose, generation, control_session)
            return await self._shake_hands(link, Role.INITIATOR, hello, expected_peer)
        except BaseException:
            link.abort()
            raise

    async def _accept_links(self, listener: Listener) -> None:
        assert self._nursery is not None, "started by running"  # noqa: S101
        while True:
            try:
                link = await listener.accept()
            except LinkClosed:
                return  # this side is stopping, and the listener was closed just as somebody knocked
            if len(self._pending) >= MAX_PENDING_HANDSHAKES:
                oldest, _ = self._pending.popitem(last=False)
                oldest.cancel()
                self.handshakes_displaced += 1
                self._emit("handshake_displaced", pending=len(self._pending))
            scope = trio.CancelScope(deadline=trio.current_time() + HANDSHAKE_SECONDS)
            self._pending[scope] = None
            self._spawn(self._welcome, link, scope)

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
                self._emit("handshake_unfinished", address=link.remote_address)
        except FleetError as error:
            self._emit("handshake_failed", address=link.remote_address, reason=str(error))
        finally:
            self._pending.pop(scope, None)
            if not kept:
                link.abort()

    def _hello(self, purpose: Purpose, generation: int, control_session: bytes = b"") -> Hello:
        nonce = self._environment.entropy(NONCE_SIZE)
        return Hello(
            purpose,
            self.peer_id,
            nonce,
            self._incarnation,
            generation,
            self.address,
            control_session,
            (FEATURE_SWARM,),
        )

    async def _shake_hands(
        self, link: Link, role: Role, hello: Hello, expected_peer: PeerId | None
    ) -> Neighbour | PeerId:
        """The session's handshake, up to a link that carries messages or pieces. See ``_initiate``."""
        authenticates = self._environment.binding.authenticates
        session = Session(
            self.identity,
            role,
            hello,
            now=trio.current_time(),
            secret=b"" if authenticates else self._environment.entropy(SECRET_SIZE),
            channel_peer=link.channel_peer if authenticates else None,
            expected_peer=expected_peer,
            generation_of=lambda peer: self._generations.get(peer, 0),
        )
        scratch = self._environment.scratch
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
                            objection = self._objection(session)
                            if objection is not None:
                                return await self._refuse(link, session, objection)
                            if decide:
                                session.accept()
                                neighbour = self._keep(link, session, role)
                        case Established() if neighbour is None:
                            # Asked again: other links came and went while this one waited for its Accept.
                            objection = self._objection(session)
                            if objection is not None:
                                return await self._refuse(link, session, objection)
                            neighbour = self._keep(link, session, role)
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
                self._ban(violation.peer, str(violation))
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

    def _objection(self, session: Session) -> str | None:
        """Why a proved link is not to be kept, or None. Duplicates are for the deciding side to refuse."""
        hello = session.their_hello
        assert hello is not None, "the session is proved"  # noqa: S101
        if self._stopping:
            return "this side is stopping"
        if hello.key in self.banned:
            return f"banned: {self.banned[hello.key]}"
        current = self._sessions.get(hello.key)
        if current is not None and current.reason is not None:
            current = None  # it is ending
        if session.is_control:
            if current is None:
                others = len(self._sessions) - (hello.key in self._sessions)
                return "too many neighbours" if others >= MAX_LINKS // 2 else None
            stale = hello.incarnation != current.hello.incarnation or hello.generation > current.hello.generation
            return DUPLICATE if session.decides and not stale else None
        if current is None or current.bulk_promised or current.session.session_id != hello.session:
            return "this bulk link belongs to no session"
        return None

    def _keep(self, link: Link, session: Session, role: Role) -> Neighbour:
        """The link is established: a control link makes a neighbour, a bulk link completes one."""
        peer = session.peer
        assert peer is not None, "the session is established"  # noqa: S101
        if not session.is_control:
            neighbour = self._sessions[peer]
            neighbour.bulk_promised = True
            return neighbour
        previous = self._sessions.get(peer)
        if previous is not None:
            previous.end(LinkBroken("a newer link replaces this one"))
        neighbour = self._sessions[peer] = Neighbour(session, link, dialled=role is Role.INITIATOR)
        self._spawn(self._serve, neighbour, previous)
        return neighbour

    # --- neighbours ---

    async def _serve(self, neighbour: Neighbour, previous: Neighbour | None) -> None:
        """A neighbour's whole life, from its control link's handshake to its end."""
        peer = neighbour.peer
        try:
            with trio.move_on_after(HANDSHAKE_SECONDS):
                if previous is not None:
                    await previous.ended.wait()
                await neighbour.until_attached(self._environment.scratch)
            if neighbour.bulk is None:
                neighbour.end(LinkBroken(f"{peer.short} opened no bulk link"))
            if neighbour.reason is None:
                self.neighbours[peer] = neighbour
                self._redials.up(peer, neighbour.hello.address, trio.current_time())
                for scope, dialled in self._dialling.items():
                    if dialled == peer:
                        scope.cancel()
                self.swarm.neighbour_up(neighbour)
                self._note_change()
                self._emit("neighbour_up", neighbour=peer.short, dialled=neighbour.dialled)
                await neighbour.run(self, self._environment.scratch)
        finally:
            neighbour.end(LinkClosed("this side is stopping"))  # unless it has a reason already
            try:
                try:
                    self._take_down(neighbour)
                finally:
                    await neighbour.close()
            finally:
                # Whatever failed above: those who wait for its end, as a stopping peer does, must not wait for ever.
                if self._sessions.get(peer) is neighbour:
                    del self._sessions[peer]
                neighbour.ended.set()
                self._note_change()

    def _take_down(self, neighbour: Neighbour) -> None:
        """Nobody is to wait for it while its links close."""
        peer = neighbour.peer
        self.swarm.neighbour_down(neighbour)
        if self.neighbours.get(peer) is neighbour:
            del self.neighbours[peer]
            self._redials.down(peer, trio.current_time())
        self._generations[peer] = self._generations.pop(peer, 0) + 1
        if len(self._generations) > MAX_REMEMBERED_PEERS:
            self._generations.popitem(last=False)
        if isinstance(neighbour.reason, PeerViolation):
            self._ban(peer, str(neighbour.reason))
        self._emit("neighbour_down", neighbour=peer.short, reason=str(neighbour.reason))
        self._note_change()

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    def _ban(self, peer: PeerId, reason: str) -> None:
        if peer in self.banned or peer == self.peer_id:
            return
        self.banned[peer] = reason
        if len(self.banned) > MAX_REMEMBERED_PEERS:
            self.banned.popitem(last=False)
        self._emit("banned", neighbour=peer.short, reason=reason)
        current = self._sessions.get(peer)
        if current is not None:
            current.end(PeerViolation(reason, peer))  # what it did on another link

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()`` holds, looked at whenever a neighbour comes up or goes down."""
        while not ready():
            await self._changed.wait()

    # --- what neighbours ask of their owner ---

    def handle_untrusted(self, neighbour: Neighbour, messages: list[Message]) -> None:
        """See ``Service``."""
        for message in messages:
            if neighbour.reason is not None:
                return  # cut off by what one of them asked for
            if isinstance(message, SwarmMessage):
                self.swarm.handle_untrusted(neighbour, message)

    def before_frame(self, neighbour: Neighbour) -> None:
        """See ``Service``."""
        self.swarm.before_frame(neighbour)

    async def bulk_receive(self, neighbour: Neighbour) -> None:
        """See ``Service``."""
        await self.swarm.bulk_receive(neighbour)

    async def bulk_send(self, neighbour: Neighbour) -> None:
        """See ``Service``."""
        await self.swarm.bulk_send(neighbour)
