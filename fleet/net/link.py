"""The network port: what a binding gives to the layers above, and what it promises them.

A *binding* (tcp, tls, later dtls and sim) listens and dials. A *link* is an ordered stream of bytes, both ways.
``tests/conformance/`` holds the promises below as one suite that every binding passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

if TYPE_CHECKING:
    from fleet.identity.keys import Identity, PeerId
    from fleet.storage import File

MAX_PREFIX: Final = 64
Bytes: TypeAlias = bytes | bytearray | memoryview


class Link(Protocol):
    """One ordered byte stream between two endpoints.

    At most one task sends and one task receives at a time; a second one is ``LocalMisuse``. Every method that
    waits may be cancelled. After a cancelled ``send_all`` or ``send_file`` the stream is cut at an unknown byte and
    only ``abort`` and ``aclose`` make sense; a cancelled ``receive_into`` has consumed nothing.

    Raises ``LinkBroken`` when the other side is gone without a goodbye, ``LinkClosed`` on use after ``aclose``,
    ``abort`` or (for sends) ``send_eof``.
    """

    @property
    def remote_address(self) -> str:
        """Where the other end is, as text for people (``127.0.0.1:40312``)."""
        ...

    @property
    def channel_peer(self) -> PeerId | None:
        """The identity that the channel itself proved (TLS certificates), or None where it proves none (TCP).

        None also until ``handshake`` has returned.
        """
        ...

    async def handshake(self) -> None:
        """Finish the channel's own handshake. Called once, before anything else; no application byte is
        accepted before it returns.

        Raises ``PeerViolation`` when the other side's proof of identity is wrong, or it is not the expected peer.
        """
        ...

    async def send_all(self, buffers: Sequence[Bytes]) -> None:
        """Send the buffers back to back; returns when the last byte has been handed to the channel."""
        ...

    async def send_file(self, file: File, offset: int, size: int, prefix: bytes = b"") -> None:
        """Send ``prefix`` (at most ``MAX_PREFIX`` bytes) and ``size`` bytes of ``file`` from ``offset``.

        No more than one block of the file is held in memory. The prefix travels with the first, for a header that
        would otherwise be a packet, and a wake-up at the other side, of its own.

        Raises ``StorageFailed`` when the file ends early or cannot be read: the stream is then cut short.
        """
        ...

    async def receive_into(self, view: memoryview) -> int:
        """Receive at least one byte into ``view`` and return how many; 0 is the other side's end of stream.

        Always a checkpoint, but never yields between filling ``view`` and returning, so that many links can
        share one scratch buffer.
        """
        ...

    async def send_eof(self) -> None:
        """Say that nothing more will be sent; receiving goes on."""
        ...

    async def aclose(self) -> None:
        """Close in order. Never waits for the other side longer than ``CLOSE_SECONDS``; safe to call twice.

        When cancelled it still releases the socket.
        """
        ...

    def abort(self) -> None:
        """Drop the link at once, without a goodbye (a reset, where the binding has one). Safe to call twice."""
        ...


class Listener(Protocol):
    """Accepts links. The links it returns have not shaken hands yet."""

    @property
    def address(self) -> str:
        """What others pass to ``Binding.dial``."""
        ...

    async def accept(self) -> Link:
        """The next incoming link, its ``handshake`` still to be called. Survives a full file-descriptor table."""
        ...

    async def aclose(self) -> None:
        """Stop listening. Links already accepted live on."""
        ...


class Binding(Protocol):
    """One way to carry links."""

    @property
    def name(self) -> str:
        """``tcp``, ``tls``, …"""
        ...

    @property
    def authenticates(self) -> bool:
        """True when the channel proves both identities and protects the bytes, so that frames need no tag."""
        ...

    async def listen(self, identity: Identity, address: str = "127.0.0.1:0") -> Listener:
        """Listen as ``identity``. Port 0 picks a free one."""
        ...

    async def dial(self, address: str, identity: Identity, expected_peer: PeerId | None) -> Link:
        """Connect to ``address`` as ``identity``; ``handshake`` still to be called.

        Raises ``LinkBroken`` when nothing listens there, ``LocalMisuse`` when the address makes no sense.
        """
        ...
