"""The link of the tls binding: one TLS 1.3 connection (RFC 8446) over an inner link.

OpenSSL works on two memory buffers and never sees a socket, so the same code runs over TCP and over a simulated link.
Rules held here:

- **Who is there** is decided by ``peer_of_certificate_untrusted`` alone. OpenSSL demands a certificate and makes the
  other side prove that it has the key; its own verdict on the (self-signed) chain is set aside. The client checks
  before its last flight leaves, so a server never sees a client that would refuse it. A client cannot know whether
  the server accepted it: TLS 1.3 ends its handshake first, and a refusal shows as ``LinkBroken`` on the first receive.
- **An end is authentic** only as a close_notify alert. The inner stream's end without one is ``LinkBroken``.
- **Memory**: at most 256 KiB of ciphertext wait inside OpenSSL in each direction (with 64 KiB a swarm takes a
  quarter more processor time, for four times the wake-ups). Reading asks the inner link for more
  only once everything before has been handed out; sending encrypts a block only once the last one has gone.
- **Writing while reading.** What OpenSSL must answer to control records (KeyUpdate, and the session tickets that its
  server side always issues) waits until this side sends next, which RFC 8446 section 4.6.3 allows. So reading never
  waits for the other side to read, and two peers cannot wait for each other. OpenSSL answers every KeyUpdate, however
  many arrive, so the answers that may wait are capped. Only a fatal alert is written at once, if no send is under
  way, and for at most ``CLOSE_SECONDS``.
"""

from __future__ import annotations

import copy
import enum
import re
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import trio
from OpenSSL import SSL, crypto

from fleet.errors import FleetError, LinkBroken, LinkClosed, LocalMisuse, PeerViolation
from fleet.identity.channel_cert import peer_of_certificate_untrusted
from fleet.limits import CLOSE_SECONDS, KIB, MAX_CHANNEL_ANSWERS, MAX_CHANNEL_HANDSHAKE
from fleet.net.usage import Usage, check_range

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.net.link import Bytes, Link
    from fleet.storage import File

_RECORD: Final = 16 * KIB
_BLOCK: Final = 256 * KIB
_OUTGOING: Final = _BLOCK + 8 * KIB  # a block as records
_SMALL: Final = 4 * KIB  # copying a buffer of this size costs less than a record of its own
_HANDSHAKE_BLOCK: Final = 4 * KIB

_ALERT: Final = re.compile(r"(?!unknown)\S+ alert ", re.ASCII)  # how OpenSSL words an alert that it received


class _State(enum.Enum):
    NEW = enum.auto()
    SHAKING_HANDS = enum.auto()
    OPEN = enum.auto()
    REFUSED = enum.auto()


class Buffers:
    """Blocks that all links of one binding share: none is ever in use across a yield."""

    __slots__ = ("incoming", "plain")

    def __init__(self) -> None:
        self.incoming = memoryview(bytearray(_BLOCK))
        self.plain = memoryview(bytearray(_BLOCK))


def _reason(error: SSL.Error) -> str:
    """OpenSSL's words for what happened."""
    entries = error.args[0] if error.args else ()
    if isinstance(entries, list) and entries:
        return str(entries[0][-1])
    return str(error) or type(error).__name__


def _blocks(buffers: Sequence[Bytes]) -> Iterator[Bytes]:
    """The buffers' bytes in pieces of at most a block: small neighbours joined, large ones sliced without a copy."""
    gathered = bytearray()
    for buffer in buffers:
        view = memoryview(buffer).cast("B") if len(buffer) else memoryview(b"")
        if len(view) <= _SMALL:
            gathered += view
            if len(gathered) > _BLOCK - _SMALL:
                yield gathered
                gathered = bytearray()
            continue
        if gathered:
            yield gathered
            gathered = bytearray()
        for start in range(0, len(view), _BLOCK):
            yield view[start : start + _BLOCK]
    if gathered:
        yield gathered


class TlsLink:
    """One TLS connection over an inner link. See ``fleet.net.link.Link`` for what its methods promise."""

    __slots__ = (
        "_answers",
        "_buffers",
        "_client",
        "_connection",
        "_ended",
        "_expected",
        "_failure",
        "_inner",
        "_peer",
        "_send_failure",
        "_state",
        "_unread",
        "_use",
        "_wall_clock",
    )

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
        self._client = client
        self._expected = expected_peer
        self._buffers = buffers
        self._wall_clock = wall_clock
        self._connection = SSL.Connection(context, None)
        if client:
            self._connection.set_connect_state()
        else:
            self._connection.set_accept_state()
        self._state = _State.NEW
        self._peer: PeerId | None = None
        self._ended = False  # the other side has sent close_notify
        self._unread = False  # OpenSSL may hold bytes that it has not handed out
        self._failure: FleetError | None = None
        self._send_failure: LinkBroken | None = None
        self._answers = bytearray()  # what reading made OpenSSL want to say, until the next send

    @property
    def remote_address(self) -> str:
        return self._inner.remote_address

    @property
    def channel_peer(self) -> PeerId | None:
        return self._peer

    def __repr__(self) -> str:
        return f"TlsLink({self.remote_address}, {self._peer!r})"

    # the handshake

    async def handshake(self) -> None:
        self._use.check_open()
        if self._state is not _State.NEW:
            raise LocalMisuse(f"the handshake with {self.remote_address} has been called before: once is enough")
        self._state = _State.SHAKING_HANDS
        try:
            await self._inner.handshake()
            await self._exchange_flights()
            peer = self._verify()
            if self._client:
                await self._flush()
        except BaseException:
            self._state = _State.REFUSED
            raise
        self._use.check_open()
        self._peer = peer
        self._state = _State.OPEN
        self._unread = True  # the last flight may have brought application bytes along

    async def _exchange_flights(self) -> None:
        """Until OpenSSL is content; a client's last flight is then still in its buffer."""
        received = 0
        while True:
            try:
                self._connection.do_handshake()
            except SSL.WantReadError:
                pass
            except SSL.Error as error:
                failure = self._blame(error)
                await self._send_alert()
                raise failure from None
            else:
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
            self._connection.bio_write(block[:count])

    def _verify(self) -> PeerId:
        """The other side's identity, once its certificate is proved and it is the expected one."""
        certificate = self._connection.get_peer_certificate()
        if certificate is None:
            raise PeerViolation(f"{self.remote_address} sent no channel certificate")
        # OpenSSL counts the other side's own certificate among a server's chain, not among a client's.
        chain = len(self._connection.get_peer_cert_chain() or ())
        if chain > (1 if self._client else 0):
            raise PeerViolation(f"{self.remote_address} sent more than one certificate")
        der = crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)
        try:
            peer = peer_of_certificate_untrusted(der, self._wall_clock())
        except PeerViolation as violation:
            raise PeerViolation(f"{self.remote_address}: {violation}") from None
        if self._expected is not None and peer != self._expected:
            raise PeerViolation(f"expected {self._expected} at {self.remote_address}, found {peer}", peer)
        return peer

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
                length = min(_BLOCK - head, end - offset)
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
        try:
            self._connection.sendall(block)
        except SSL.Error as error:
            raise LinkBroken(f"cannot send to {self.remote_address}: {_reason(error)}") from None
        await self._flush()
        self._use.cut = False

    async def _flush(self) -> None:
        """Send what OpenSSL wants to say. The caller has the sending side to itself."""
        more = True
        while more or self._answers:
            if self._answers:
                # They left OpenSSL before whatever is in its buffer now, and records keep their order.
                outgoing, self._answers = bytes(self._answers), bytearray()
            else:
                try:
                    outgoing = self._connection.bio_read(_OUTGOING)
                except SSL.WantReadError:
                    return
                more = len(outgoing) == _OUTGOING
            try:
                await self._inner.send_all((outgoing,))
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
            try:
                self._connection.shutdown()
            except SSL.Error as error:
                raise LinkBroken(f"cannot end the stream to {self.remote_address}: {_reason(error)}") from None
            await self._flush()
            self._use.cut = False
        finally:
            self._use.sending = False

    def _begin_sending(self) -> None:
        self._check_open()
        if self._failure is not None or self._send_failure is not None:
            raise LinkBroken(str(self._failure or self._send_failure))
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
            if self._unread or self._ended or self._failure is not None:
                await trio.lowlevel.checkpoint()
                self._check_open()
                count = self._decrypt(view)
                self._keep_answers()
            else:
                count = None
            while count is None:
                if self._failure is not None:
                    await self._send_alert()
                    raise copy.copy(self._failure)  # a copy, as a traceback would grow with every call
                incoming = self._buffers.incoming
                size = await self._inner.receive_into(incoming)
                if size:
                    self._connection.bio_write(incoming[:size])
                    count = self._decrypt(view)
                    self._keep_answers()
                else:
                    self._failure = LinkBroken(f"{self.remote_address} ended the stream without saying goodbye")
            return count
        finally:
            self._use.receiving = False

    def _decrypt(self, view: memoryview) -> int | None:
        """Fill ``view`` with what OpenSSL has; 0 at the end of the stream, None when there is nothing (yet)."""
        got = 0
        while got < len(view) and not self._ended and self._failure is None:
            try:
                got += self._connection.recv_into(view[got : got + _RECORD], _RECORD)
            except SSL.WantReadError:
                self._unread = False
                break
            except SSL.ZeroReturnError:
                self._ended = True
            except SSL.Error as error:
                self._failure = self._blame(error)
        else:
            self._unread = True
        if got:
            return got
        return 0 if self._ended else None

    def _keep_answers(self) -> None:
        """Take what reading made OpenSSL want to say, and refuse a peer that asks for more than it lets us say."""
        if self._failure is not None:
            return  # that is the alert, which goes out at once
        try:
            self._answers += self._connection.bio_read(_OUTGOING)
        except SSL.WantReadError:
            return
        if len(self._answers) > MAX_CHANNEL_ANSWERS:
            self._answers.clear()
            self._failure = PeerViolation(
                f"{self.remote_address} asked for key updates without end: more than {MAX_CHANNEL_ANSWERS:,} bytes of"
                " answers wait",
                self._peer,
            )

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
                if self._state is _State.OPEN and self._failure is None:
                    await self._say_goodbye()
                await self._inner.aclose()
        finally:
            self._inner.abort()

    async def _say_goodbye(self) -> None:
        try:
            if not self._use.eof_sent:
                self._connection.shutdown()
            await self._flush()
        except (SSL.Error, LinkBroken, LinkClosed):
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

    def _blame(self, error: SSL.Error) -> FleetError:
        """The other side broke off (an alert), or it broke the protocol."""
        reason = _reason(error)
        if isinstance(error, SSL.SysCallError) or _ALERT.match(reason):
            return LinkBroken(f"{self.remote_address} broke off: {reason}")
        return PeerViolation(f"{self.remote_address} broke the TLS protocol: {reason}", self._peer)
