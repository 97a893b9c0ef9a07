"""A fleet: many real peers in one process, started, joined, stopped, killed and restarted together.

::

    async with Fleet(peers=8, binding="tls") as fleet:
        artifact = await fleet[0].share(path)
        holdings = [await peer.fetch(artifact.root) for peer in fleet.peers[1:]]

The composition root: here a seed, a binding and a folder become an ``Environment``, identities and storages.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from fleet.environment import Environment, current_host
from fleet.errors import DeadlineExceeded, FleetError, LocalMisuse, PeerViolation, StorageFailed, lone_error
from fleet.limits import HANDSHAKE_SECONDS
from fleet.net.local import ANY_PORT
from fleet.net.tcp import TcpBinding
from fleet.net.tls import TlsBinding
from fleet.peer import Peer
from fleet.storage import Directory, Storage

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

    from fleet.net.link import Binding
    from fleet.trace import Trace

BINDINGS: Final[dict[str, Callable[[], Binding]]] = {"tcp": TcpBinding, "tls": TlsBinding}
FULL_MESH: Final = 9
"""Peers up to which everyone knows everyone, unless a degree is given."""
MAX_PEERS: Final = 1_000


def default_degree(peers: int) -> int:
    """Neighbours that each peer has at least: everyone in a small fleet, else log N + 1.

    So the cost of a peer hardly grows with the fleet (HyParView's active view, Leitao et al., DSN 2007).
    """
    return peers - 1 if peers <= FULL_MESH else max(4, round(math.log(peers)) + 1)


class Fleet:
    """Peers that are up, and joined to each other, while the ``async with`` block runs."""

    def __init__(
        self,
        peers: int,
        binding: str = "tcp",
        *,
        seed: int = 1,
        folder: Path | str | None = None,
        degree: int | None = None,
        keep: bool = True,
        trace: Trace | None = None,
        environment: Environment | None = None,
        storage: Callable[[int], Storage] | None = None,
    ) -> None:
        """``peers`` of them over ``binding`` ("tcp" or "tls").

        ``seed`` decides identities, the graph of neighbours and every choice of the peers. ``folder`` keeps each peer's
        store (``peer-0``, ``peer-1``, …); without one a temporary folder is used and removed. A fleet of up to
        ``degree`` + 1 peers is a full mesh, a larger one a seeded random graph in which everyone has at least
        ``degree`` neighbours (by default ``default_degree(peers)``). With ``keep`` both ends of an edge dial each other
        again when they lose their link. ``environment`` and ``storage(index)`` replace the machine's own ports.
        """
        if not 1 <= peers <= MAX_PEERS:
            raise LocalMisuse(f"a fleet has 1 to {MAX_PEERS} peers, not {peers}")
        if degree is not None and degree < 1:
            raise LocalMisuse(f"a degree of {degree} leaves the peers alone: use 1 or more")
        if binding not in BINDINGS and environment is None:
            raise LocalMisuse(f"there is no binding {binding!r}: choose one of {', '.join(BINDINGS)}")
        if environment is None:
            environment = Environment(BINDINGS[binding](), seed)
            if trace is not None:
                environment = Environment(environment.binding, seed, trace=trace)
        self.environment = environment
        self.start_seconds = 0.0
        """How long it took until every peer was up and joined."""
        self._count = peers
        self._degree = default_degree(peers) if degree is None else degree
        self._keep = keep
        self._folder = None if folder is None else Path(folder)
        self._temporary: Path | None = None
        self._storage = storage
        self._peers: list[Peer] = []
        self._scopes: dict[int, trio.CancelScope] = {}
        self._ended: dict[int, trio.Event] = {}
        self._addresses: dict[int, str] = {}
        self._edges: list[tuple[int, int]] | None = None
        self._stack = AsyncExitStack()
        self._nursery: trio.Nursery | None = None

    # --- the block ---

    async def __aenter__(self) -> Self:
        started = trio.current_time()
        if self._folder is None and self._storage is None:
            try:
                self._temporary = self._folder = Path(tempfile.mkdtemp(prefix="peerfleet-"))
            except OSError as error:
                raise StorageFailed(
                    f"cannot make a temporary folder ({error.strerror}): give one with folder="
                ) from None
            self._stack.callback(shutil.rmtree, self._temporary, ignore_errors=True)
        try:
            self._stack.enter_context(lone_error())
            self._nursery = await self._stack.enter_async_context(trio.open_nursery())
            self._peers = [self._make(index) for index in range(self._count)]
            for index in range(self._count):
                await self.start(index)
            await self.join()
        except BaseException as error:
            await self.__aexit__(type(error), error, error.__traceback__)
            raise
        self.start_seconds = trio.current_time() - started
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()
        return await self._stack.__aexit__(exc_type, exc, traceback)

    # --- peers ---

    @property
    def peers(self) -> list[Peer]:
        """Every peer, running or not, by index."""
        return list(self._peers)

    def __getitem__(self, index: int) -> Peer:
        return self._peers[index]

    def __len__(self) -> int:
        return self._count

    def running(self, index: int) -> bool:
        """Whether the peer is up."""
        return index in self._scopes

    def _make(self, index: int) -> Peer:
        if self._storage is not None:
            storage = self._storage(index)
        else:
            assert self._folder is not None, "made on entry"  # noqa: S101
            storage = Directory(self._folder / f"peer-{index}")
        return Peer(self.environment, index, self.environment.identity(index), storage)

    async def start(self, index: int) -> Peer:
        """Start a peer; it keeps identity, storage and, where it can, address. It dials nobody before ``join``."""
        if self._nursery is None:
            raise LocalMisuse("the fleet is not up: use it in an `async with` block")
        if self.running(index):
            raise LocalMisuse(f"peer {index} is running already")
        if index in self._ended:
            self._peers[index] = self._make(index)
        await self._nursery.start(self._run, index)
        return self._peers[index]

    async def _run(self, index: int, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        ended = self._ended[index] = trio.Event()
        current_host.set(self._peers[index].name)  # for this task and all that it starts
        try:
            with trio.CancelScope() as scope:
                async with self._peers[index].running(self._addresses.get(index, ANY_PORT), or_any_port=True) as peer:
                    self._addresses[index] = peer.address
                    self._scopes[index] = scope
                    task_status.started()
                    await trio.sleep_forever()
        finally:
            self._scopes.pop(index, None)
            ended.set()

    async def stop(self, index: int) -> None:
        """Stop a peer in order: it says goodbye. Its storage stays."""
        if not self.running(index):
            raise LocalMisuse(f"peer {index} is not running")
        self._scopes[index].cancel()
        await self._ended[index].wait()

    async def kill(self, index: int) -> None:
        """Stop a peer as a killed process stops: every link breaks without a goodbye. Its storage stays."""
        if not self.running(index):
            raise LocalMisuse(f"peer {index} is not running")
        self._peers[index].kill()
        await self.stop(index)

    async def restart(self, index: int) -> Peer:
        """Start a stopped peer again with its storage, and join it to its neighbours.

        Who is not to be reached now, after ``HANDSHAKE_SECONDS`` at the most, is no error: it is dialled again.
        Without ``keep`` it is one.
        """
        peer = await self.start(index)
        await self.join(index, whole=not self._keep)
        return peer

    # --- the graph ---

    def edges(self) -> list[tuple[int, int]]:
        """Who dials whom: a full mesh, or a ring with seeded chords until everyone has ``degree`` neighbours."""
        if self._edges is None:
            self._edges = self._draw_edges()
        return list(self._edges)

    def _draw_edges(self) -> list[tuple[int, int]]:
        count = self._count
        if count <= self._degree + 1:
            return [(a, b) for a in range(count) for b in range(a + 1, count)]
        rng = self.environment.rng("neighbour graph", 0)
        neighbours: list[set[int]] = [{(a - 1) % count, (a + 1) % count} for a in range(count)]
        edges = [(a, (a + 1) % count) for a in range(count)]
        for a in range(count):
            # Whoever has fewest neighbours so far comes first, so that degrees stay even.
            others = [b for b in range(count) if b != a and b not in neighbours[a]]
            rng.shuffle(others)
            others.sort(key=lambda b: len(neighbours[b]))
            for b in others[: max(0, self._degree - len(neighbours[a]))]:
                edges.append((a, b))
                neighbours[a].add(b)
                neighbours[b].add(a)
        return edges

    async def join(self, index: int | None = None, *, whole: bool = True) -> None:
        """Dial along the graph's edges between running peers (of one peer, or all) that are not links yet.

        Raises what the first dial of an edge raised when that edge does not come up within ``HANDSHAKE_SECONDS``;
        unless ``whole``, it does not matter, since it is dialled again.
        """
        with lone_error():
            async with trio.open_nursery() as nursery:
                for a, b in self.edges():
                    if index not in (None, a, b):
                        continue
                    if self.running(a) and self.running(b):
                        # The one that joins dials: its generation tells the other that an older link is dead.
                        dialler, other = (b, a) if index == b else (a, b)
                        nursery.start_soon(self._connect, dialler, other, whole)
                    else:
                        self._keep_edge(a, b)

    async def _connect(self, a: int, b: int, whole: bool) -> None:
        peer, other = self._peers[a], self._peers[b]
        failure: FleetError | None = None
        if other.peer_id not in peer.neighbours:
            try:
                await peer.connect(other.address, other.peer_id)
            except FleetError as error:
                await trio.lowlevel.checkpoint_if_cancelled()  # then the peers are stopping, which is no news
                if whole and (not self._keep or isinstance(error, LocalMisuse | PeerViolation)):
                    raise
                failure = error
        self._keep_edge(a, b)
        if failure is not None and not whole:
            return
        with trio.move_on_after(HANDSHAKE_SECONDS):
            while not (other.peer_id in peer.neighbours and peer.peer_id in other.neighbours):
                await peer.until(lambda: other.peer_id in peer.neighbours)
                await other.until(lambda: peer.peer_id in other.neighbours)
            return
        if whole:
            raise failure or DeadlineExceeded(f"{other.name} lost its link to {peer.name} while it was being joined")

    def _keep_edge(self, a: int, b: int) -> None:
        """Whoever of the two runs keeps the other, which may be up later."""
        for here, there in ((a, b), (b, a)):
            if self._keep and self.running(here) and there in self._addresses:
                self._peers[here].keep(self._addresses[there], self._peers[there].peer_id)
