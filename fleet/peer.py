"""A peer: one identity, one listener, its neighbours, and the services that they talk to.

Links come in through the listener or go out through ``connect``; ``fleet.net`` has what happens then: the handshakes
(``handshakes``), who becomes a neighbour and who is refused (``roster``), and who is dialled again (``dialler``). What
neighbours say, and the bytes of pieces, go to the swarm service (``fleet.swarm.transfer``).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from fleet.environment import off_loop_checkpoint
from fleet.errors import LocalMisuse, lone_error
from fleet.limits import MIB
from fleet.net.dialler import Dialler
from fleet.net.handshakes import Handshakes
from fleet.net.local import ANY_PORT, LocalPeer
from fleet.net.roster import Roster
from fleet.storage import DirectoryFile
from fleet.swarm.manifest import Manifest
from fleet.swarm.transfer import Transfer
from fleet.wire.messages import SwarmMessage

if TYPE_CHECKING:
    from fleet.environment import Environment
    from fleet.identity.keys import Identity, PeerId
    from fleet.net.neighbour import Neighbour
    from fleet.storage import File, Storage
    from fleet.swarm.holding import Holding
    from fleet.wire.messages import Message


class Peer:
    """One peer. Make it with ``running``; ``neighbours`` are those that are up, ``swarm`` its artifacts."""

    def __init__(self, environment: Environment, index: int, identity: Identity, storage: Storage) -> None:
        self.index = index
        self.identity = identity
        self.peer_id = identity.peer_id
        self.name = f"peer-{index}"
        self._environment = environment
        self._storage = storage
        self._local = LocalPeer(environment, identity, self.name)
        self._roster = Roster(self._local, self)
        self._handshakes = Handshakes(self._local, self._roster)
        self._dialler = Dialler(self._local, self._roster, self._handshakes, environment.rng("redials", index))
        self._transfer: Transfer | None = None

    # --- life ---

    @asynccontextmanager
    async def running(self, address: str = ANY_PORT, *, or_any_port: bool = False) -> AsyncIterator[Peer]:
        """Listen and serve until the block ends, then say goodbye to every neighbour and release everything.

        ``or_any_port`` takes any free port when ``address`` is not free. A peer runs once: make another for a restart.
        """
        if self._local.listener is not None:
            raise LocalMisuse(f"{self.name} ran already: make a new Peer with its identity and storage")
        with lone_error():
            async with trio.open_nursery() as nursery:
                self._local.begin(nursery)
                listener = await self._local.listen(address, or_any_port)
                self._transfer = Transfer(
                    self._environment,
                    self._storage,
                    self.name,
                    lambda purpose: self._environment.rng(purpose, self.index),
                    self._local.spawn,
                )
                try:
                    nursery.start_soon(self._handshakes.accept_links, listener)
                    nursery.start_soon(self._transfer.run_timers)
                    nursery.start_soon(self._dialler.redial_lost)
                    yield self
                finally:
                    self._local.stopping = True
                    # Neighbours close their links, in order or not, while being cancelled.
                    nursery.cancel_scope.cancel()
                    with trio.CancelScope(shield=True):
                        await listener.aclose()
                        await self._roster.all_ended()
                    self._transfer.close()
                    self._storage.close()

    def kill(self) -> None:
        """Drop every link at once, without a goodbye, as a killed process does. The caller then ends ``running``."""
        self._roster.abort()

    @property
    def address(self) -> str:
        """Where others dial this peer."""
        return self._local.address

    # --- artifacts ---

    @property
    def swarm(self) -> Transfer:
        """The artifacts that this peer shares and fetches."""
        if self._transfer is None:
            raise self._local.not_running()
        return self._transfer

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

    # --- neighbours ---

    @property
    def neighbours(self) -> dict[PeerId, Neighbour]:
        """Read-only: those that are up."""
        return self._roster.up

    @property
    def banned(self) -> dict[PeerId, str]:
        """Read-only: who broke the protocol, and how."""
        return self._roster.banned

    @property
    def handshakes_displaced(self) -> int:
        """Pending incoming handshakes that gave way to newer ones."""
        return self._handshakes.displaced

    async def connect(self, address: str, expected_peer: PeerId | None = None) -> Neighbour:
        """The neighbour at ``address``, dialled unless it is up already.

        Raises ``LinkBroken`` when nobody answers there, ``PeerViolation`` when somebody else does, ``LinkClosed`` when
        it refuses, ``DeadlineExceeded`` after ``HANDSHAKE_SECONDS``, ``LocalMisuse`` when this peer does not run.
        """
        return await self._dialler.connect(address, expected_peer)

    def keep(self, address: str, peer: PeerId) -> None:
        """Keep ``peer`` as a neighbour: while it has no link it is dialled, again and again, with pauses that grow.

        Its last hello's address and ``address`` are tried in turn. It is not dialled while it is banned, and nobody is
        once this peer stops. Raises ``LocalMisuse`` when this peer has not been started, or is that peer itself.
        """
        self._dialler.keep(address, peer)

    def let_go(self, peer: PeerId) -> None:
        """Do not dial ``peer`` again when it is lost. A link that it has stays."""
        self._dialler.let_go(peer)

    async def until(self, ready: Callable[[], bool]) -> None:
        """Wait until ``ready()`` holds, looked at whenever a neighbour comes up or goes down."""
        while not ready():
            await self._roster.changed()

    # --- what neighbours ask of their owner ---

    def neighbour_up(self, neighbour: Neighbour) -> None:
        """See ``Owner``."""
        self._dialler.neighbour_up(neighbour)
        self.swarm.neighbour_up(neighbour)

    def neighbour_down(self, neighbour: Neighbour) -> None:
        """See ``Owner``."""
        self.swarm.neighbour_down(neighbour)
        if self.neighbours.get(neighbour.peer) is neighbour:
            self._dialler.neighbour_down(neighbour)

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
