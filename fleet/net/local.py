"""This peer, as its links know it: who it is, what it runs on, where it listens, and the nursery of its tasks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from fleet.environment import PeerTrace, current_host
from fleet.errors import LocalMisuse

if TYPE_CHECKING:
    import trio

    from fleet.environment import Environment
    from fleet.identity.keys import Identity
    from fleet.net.link import Listener

ANY_PORT: Final = "127.0.0.1:0"


class LocalPeer:
    """One peer of this process. It starts once, with ``begin`` and then ``listen``."""

    def __init__(self, environment: Environment, identity: Identity, name: str) -> None:
        self.environment = environment
        self.identity = identity
        self.peer_id = identity.peer_id
        self.name = name
        self.trace = PeerTrace(environment.trace, name)
        self.incarnation = int.from_bytes(environment.entropy(8), "big")
        """Tells this start of the peer from others, so that links to an earlier one are known to be dead."""
        self.nursery: trio.Nursery | None = None
        self.listener: Listener | None = None
        self.stopping = False
        self._host: str | None = None

    def begin(self, nursery: trio.Nursery) -> None:
        """From here on its tasks run in ``nursery``, in the process of whoever calls."""
        self.nursery = nursery
        self._host = current_host.get()

    def spawn(self, fn: Callable[..., Awaitable[object]], *args: object) -> None:
        """Start a task of this peer's, in its process whoever calls."""
        assert self.nursery is not None, "only used while running"  # noqa: S101
        token = current_host.set(self._host)
        try:
            self.nursery.start_soon(fn, *args)
        finally:
            current_host.reset(token)

    async def listen(self, address: str, or_any_port: bool) -> Listener:
        """Open the listener; ``or_any_port`` takes any free port when ``address`` is not free."""
        binding = self.environment.binding
        try:
            self.listener = await binding.listen(self.identity, address)
        except LocalMisuse:
            if not or_any_port:
                raise
            self.listener = await binding.listen(self.identity, ANY_PORT)
        return self.listener

    @property
    def address(self) -> str:
        """Where others dial this peer. ``LocalMisuse`` when it does not listen yet."""
        if self.listener is None:
            raise self.not_running()
        return self.listener.address

    def require_running(self) -> None:
        """``LocalMisuse`` unless the peer has begun, and is not stopping."""
        if self.nursery is None or self.stopping:
            raise self.not_running()

    def not_running(self) -> LocalMisuse:
        """What whoever asks too early, or too late, did wrong."""
        return LocalMisuse(f"{self.name} is not running: start it first")
