"""The link of the tls binding: one TLS connection over an inner link.

OpenSSL never sees a socket (``tls_engine``), so the same code runs over TCP and over a simulated link. Reading asks the
inner link for more only once everything before has been handed out; sending encrypts a block only once the last one
has gone. Reading never writes, but for a fatal alert: that is sent at once, if no send is under way, and for at most
``CLOSE_SECONDS``.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import trio

from fleet.errors import FleetError, LinkBroken, LinkClosed, LocalMisuse, PeerViolation
from fleet.limits import CLOSE_SECONDS, KIB, MAX_CHANNEL_HANDSHAKE
from fleet.net.tls_engine import BLOCK, TlsEngine
from fleet.net.usage import Usage, check_range

if TYPE_CHECKING:
    from OpenSSL import SSL

    from fleet.identity.keys import PeerId
    from fleet.net.link import Bytes, Link
    from fleet.storage import File

_SMALL: Final = 4 * KIB  # copying a buffer of this size costs less than a record of its own
_HANDSHAKE_BLOCK: Final = 4 * KIB


class _State(enum.Enum):
    NEW = enum.auto()
    SHAKING_HANDS = enum.auto()
    OPEN = enum.auto()
    REFUSED = enum.auto()


class Buffers:
    """Blocks that all links of one binding share: none is ever in use across a yield."""

    __slots__ = ("incoming", "plain")

    def __init__(self) -> None:
        self.incoming = memoryview(bytearray(BLOCK))
        self.plain = memoryview(bytearray(BLOCK))


def _blocks(buffers: Sequence[Bytes]) -> Iterator[Bytes]:
    """The buffers' bytes in pieces of at most a block: small neighbours joined, large ones sliced without a copy."""
    gathered = bytearray()
    for buffer in buffers:
        view = memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")
        if len(view) <= _SMALL:
            gathered += view
            if len(gathered) > BLOCK - _SMALL:
                yield gathered
                gathered = bytearray()
            continue
        if gathered:
            yield gathered
            gathered = bytearray()
        for start in range(0, len(view), BLOCK):
            yield view[start : start + BLOCK]
    if gathered:
        yield gathered


class TlsLink:
    """One TLS connection over an inner link. See ``fleet.net.link.Link`` for what its methods promise."""

    __slots__ = ("_buffers", "_engine", "_inner", "_send_failure", "_state", "_use")

    def __init__(
        self,
        inner: Link,
        context: SSL.Context,
        *,
        client: bool,
        expected_peer: PeerId | None,
        buffers: Buffers,
        wall_clock: Callable[[], float],
    ) -> None:
        self._inner = inner
        self._use = Usage(inner.remote_address)
        self._buffers = buffers
        self._engine = TlsEngine(
            context, inner.remote_address, client=client, expected_peer=expected_peer, wall_clock=wall_clock
        )
        self._state = _State.NEW
        self._send_failure: LinkBroken | None = None

    @property
    def remote_address(self) -> str:
        return self._inner.remote_address

    @property
    def channel_peer(self) -> PeerId | None:
        return self._engine.peer

    def __repr__(self) -> str:
        return f"TlsLink({self.remote_address}, {self._engine.peer!r})"

    # the handshake

    async def handshake(self) -> None:
        self._use.check_open()
        if self._state is not _State.NEW:
            raise LocalMisuse(f"the handshake with {self.remote_address} has been called before: once is enough")
        self._state = _State.SHAKING_HANDS
        try:
            await self._inner.handshake()
            await self._exchange_flights()
            peer = self._engine.verify_untrusted()
            if self._engine.client:
                await self._flush()
        except BaseException:
            self._state = _State.REFUSED
            raise
        self._use.check_open()
        self._engine.open(peer)
        self._state = _State.OPEN

    async def _exchange_flights(self) -> None:
        """Until OpenSSL is content; a client's last flight is then still in its buffer."""
        received = 0
        while True:
            try:
                content = self._engine.shake_hands()
            except FleetError:
                await self._send_alert()
                raise
            if content:
                return
            await self._flush()
            if received >= MAX_CHANNEL_HANDSHAKE:
                raise PeerViolation(
                    f"{self.remote_address} sent {received:,} bytes of handshake, more than {MAX_CHANNEL_HANDSHAKE:,}"
                )
            block = self._buffers.incoming[:_HANDSHAKE_BLOCK]
            count = await self._inner.receive_into(block)
            if count == 0:
                raise LinkBroken(f"{self.remote_address} closed the link during the TLS handshake")
            received += count
            self._engine.feed(block[:count])

    # sending

    async def send_all(self, buffers: Sequence[Bytes]) -> None:
        self._begin_sending()
        try:
            # Before anything is encrypted: a call that is cancelled already then leaves the stream whole.
            await trio.lowlevel.checkpoint_if_cancelled()
            sent = False
            for block in _blocks(buffers):
                await self._send_block(block)
                sent = True
            if not sent:
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self._use.sending = False

    async def send_file(self, file: File, offset: int, size: int, prefix: bytes = b"") -> None:
        check_range(offset, size, prefix)
        self._begin_sending()
        try:
            await trio.lowlevel.checkpoint()
            end = offset + size
            while offset < end or prefix:
                self._check_open()
                head = len(prefix)
                length = min(BLOCK - head, end - offset)
                block = self._buffers.plain[: head + length]
                block[:head] = prefix
                self._use.cut = True  # should the file end early
                file.read_into(block[head:], offset)
                await self._send_block(block)
                offset += length
                prefix = b""
        finally:
            self._use.sending = False

    async def _send_block(self, block: Bytes) -> None:
        self._check_open()
        self._use.cut = True
        self._engine.encrypt(block)
        await self._flush()
        self._use.cut = False

    async def _flush(self) -> None:
        """Send what OpenSSL wants to say. The caller has the sending side to itself."""
        for block in self._engine.outgoing():
            try:
                await self._inner.send_all((block,))
            except LinkBroken as error:
                self._send_failure = error  # receiving goes on, as bytes may wait that came before the break
                raise

    async def send_eof(self) -> None:
        if self._use.eof_sent:
            await trio.lowlevel.checkpoint()
            self._check_open()
            return
        self._begin_sending()
        try:
            await trio.lowlevel.checkpoint()
            self._check_open()
            self._use.eof_sent = True
            self._use.cut = True
            self._engine.end_stream()
            await self._flush()
            self._use.cut = False
        finally:
            self._use.sending = False

    def _begin_sending(self) -> None:
        self._check_open()
        if self._engine.failure is not None or self._send_failure is not None:
            raise LinkBroken(str(self._engine.failure or self._send_failure))
        self._use.begin_sending()

    async def _send_alert(self) -> None:
        """Tell the other side why, if that takes no waiting for a send under way."""
        if self._use.sending:
            return
        self._use.sending = True
        try:
            with trio.move_on_after(CLOSE_SECONDS):
                await self._flush()
        except (LinkBroken, LinkClosed, LocalMisuse):
            pass  # there is a better error to raise
        finally:
            self._use.sending = False

    # receiving

    async def receive_into(self, view: memoryview) -> int:
        self._check_open()
        self._use.begin_receiving(view)
        try:
            count: int | None = None
            if self._engine.may_decrypt:
                await trio.lowlevel.checkpoint()
                self._check_open()
                count = self._engine.decrypt_into(view)
            while count is None:
                if self._engine.failure is not None:
                    await self._send_alert()
                    raise copy.copy(self._engine.failure)  # a copy, as a traceback would grow with every call
                incoming = self._buffers.incoming
                size = await self._inner.receive_into(incoming)
                if size:
                    self._engine.feed(incoming[:size])
                    count = self._engine.decrypt_into(view)
                else:
                    self._engine.feed_end()
            return count
        finally:
            self._use.receiving = False

    # ending

    async def aclose(self) -> None:
        if self._use.closed:
            await trio.lowlevel.checkpoint()
            return
        self._use.closed = True
        try:
            if self._use.cut or self._use.sending:
                # Half a record has gone out, so no goodbye can follow it.
                await trio.lowlevel.checkpoint()
                return
            with trio.move_on_after(CLOSE_SECONDS):
                if self._state is _State.OPEN and self._engine.failure is None:
                    await self._say_goodbye()
                await self._inner.aclose()
        finally:
            self._inner.abort()

    async def _say_goodbye(self) -> None:
        try:
            if not self._use.eof_sent:
                self._engine.end_stream()
            await self._flush()
        except (LinkBroken, LinkClosed):
            pass  # the other side is gone already

    def abort(self) -> None:
        self._use.closed = True
        self._inner.abort()

    # errors

    def _check_open(self) -> None:
        self._use.check_open()
        if self._state is _State.OPEN:
            return
        if self._state is _State.REFUSED:
            raise LinkBroken(f"the TLS handshake with {self.remote_address} did not succeed: close this link")
        raise LocalMisuse(f"await handshake() before using the link to {self.remote_address}")
