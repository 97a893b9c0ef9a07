"""One side of one TLS 1.3 connection (RFC 8446), without the link. Sans-IO: OpenSSL on two memory buffers.

Rules held here:

- **Who is there** is decided by ``peer_of_certificate_untrusted`` alone. OpenSSL demands a certificate and makes the
  other side prove that it has the key; its own verdict on the (self-signed) chain is set aside. The client checks
  before its last flight leaves, so a server never sees a client that would refuse it. A client cannot know whether
  the server accepted it: TLS 1.3 ends its handshake first, and a refusal shows as ``LinkBroken`` on the first receive.
- **An end is authentic** only as a close_notify alert. The inner stream's end without one is ``LinkBroken``.
- **Writing while reading.** What OpenSSL must answer to control records (KeyUpdate, and the session tickets that its
  server side always issues) waits until this side sends next, which RFC 8446 section 4.6.3 allows. So reading never
  waits for the other side to read, and two peers cannot wait for each other. OpenSSL answers every KeyUpdate, however
  many arrive, so the answers that may wait are capped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from OpenSSL import SSL, crypto

from fleet.errors import FleetError, LinkBroken, PeerViolation
from fleet.identity.channel_cert import peer_of_certificate_untrusted
from fleet.limits import KIB, MAX_CHANNEL_ANSWERS

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.net.link import Bytes

BLOCK: Final = 256 * KIB
"""What is encrypted, or fed, at a time: at most so much ciphertext waits here in each direction. (With 64 KiB a swarm
takes a quarter more processor time, for four times the wake-ups.)"""
MAX_OUTGOING: Final = BLOCK + 8 * KIB
"""A block as records: what ``outgoing`` yields at a time."""

_RECORD: Final = 16 * KIB
_ALERT: Final = re.compile(r"(?!unknown)\S+ alert ", re.ASCII)  # how OpenSSL words an alert that it received


def _reason(error: SSL.Error) -> str:
    """OpenSSL's words for what happened."""
    entries = error.args[0] if error.args else ()
    if isinstance(entries, list) and entries:
        return str(entries[0][-1])
    return str(error) or type(error).__name__


class TlsEngine:
    """Ciphertext goes in through ``feed`` and comes out of ``outgoing``. What went wrong for good is in ``failure``."""

    __slots__ = (
        "_answers",
        "_connection",
        "_ended",
        "_expected",
        "_remote",
        "_unread",
        "_wall_clock",
        "client",
        "failure",
        "peer",
    )

    def __init__(
        self,
        context: SSL.Context,
        remote: str,
        *,
        client: bool,
        expected_peer: PeerId | None,
        wall_clock: Callable[[], float],
    ) -> None:
        """``remote`` is the other side's address, for what errors say."""
        self.client = client
        self.peer: PeerId | None = None
        """Who the other side is, once the stream is open."""
        self.failure: FleetError | None = None
        """Why nothing more can be decrypted."""
        self._remote = remote
        self._expected = expected_peer
        self._wall_clock = wall_clock
        self._connection = SSL.Connection(context, None)
        if client:
            self._connection.set_connect_state()
        else:
            self._connection.set_accept_state()
        self._ended = False  # the other side has sent close_notify
        self._unread = False  # OpenSSL may hold bytes that it has not handed out
        self._answers = bytearray()  # what reading made OpenSSL want to say, until the next send

    # the handshake

    def shake_hands(self) -> bool:
        """Go on with what was fed. True when OpenSSL is content; a client's last flight is then still to be sent.

        Raises ``LinkBroken`` or ``PeerViolation``; an alert for the other side is then in ``outgoing``.
        """
        try:
            self._connection.do_handshake()
        except SSL.WantReadError:
            return False
        except SSL.Error as error:
            raise self._blame(error) from None
        return True

    def verify_untrusted(self) -> PeerId:
        """The other side's identity, once its certificate is proved and it is the expected one."""
        certificate = self._connection.get_peer_certificate()
        if certificate is None:
            raise PeerViolation(f"{self._remote} sent no channel certificate")
        # OpenSSL counts the other side's own certificate among a server's chain, not among a client's.
        chain = len(self._connection.get_peer_cert_chain() or ())
        if chain > (1 if self.client else 0):
            raise PeerViolation(f"{self._remote} sent more than one certificate")
        der = crypto.dump_certificate(crypto.FILETYPE_ASN1, certificate)
        try:
            peer = peer_of_certificate_untrusted(der, self._wall_clock())
        except PeerViolation as violation:
            raise PeerViolation(f"{self._remote}: {violation}") from None
        if self._expected is not None and peer != self._expected:
            raise PeerViolation(f"expected {self._expected} at {self._remote}, found {peer}", peer)
        return peer

    def open(self, peer: PeerId) -> None:
        """The handshake is over, with ``peer`` on the other side."""
        self.peer = peer
        self._unread = True  # the last flight may have brought application bytes along

    # out

    def encrypt(self, block: Bytes) -> None:
        """Make records of at most ``BLOCK`` bytes; all that was there before must have gone out."""
        try:
            self._connection.sendall(block)
        except SSL.Error as error:
            raise LinkBroken(f"cannot send to {self._remote}: {_reason(error)}") from None

    def end_stream(self) -> None:
        """Say close_notify."""
        try:
            self._connection.shutdown()
        except SSL.Error as error:
            raise LinkBroken(f"cannot end the stream to {self._remote}: {_reason(error)}") from None

    def outgoing(self) -> Iterator[bytes]:
        """What OpenSSL wants to say, in its order; also the answers that come up while the caller sends."""
        more = True
        while more or self._answers:
            if self._answers:
                # They left OpenSSL before whatever is in its buffer now, and records keep their order.
                block, self._answers = bytes(self._answers), bytearray()
            else:
                try:
                    block = self._connection.bio_read(MAX_OUTGOING)
                except SSL.WantReadError:
                    return
                more = len(block) == MAX_OUTGOING
            yield block

    # in

    def feed(self, data: memoryview) -> None:
        """Ciphertext arrived, at most ``BLOCK`` bytes; all that was there before must have been handed out."""
        self._connection.bio_write(data)

    def feed_end(self) -> None:
        """The inner stream has ended, before a goodbye."""
        self.failure = LinkBroken(f"{self._remote} ended the stream without saying goodbye")

    @property
    def may_decrypt(self) -> bool:
        """Whether ``decrypt_into`` may have something to say before more is fed."""
        return self._unread or self._ended or self.failure is not None

    def decrypt_into(self, view: memoryview) -> int | None:
        """Fill ``view`` with what there is; 0 at the end of the stream, None when there is nothing (yet, or for good:
        see ``failure``).
        """
        got = 0
        while got < len(view) and not self._ended and self.failure is None:
            try:
                got += self._connection.recv_into(view[got : got + _RECORD], _RECORD)
            except SSL.WantReadError:
                self._unread = False
                break
            except SSL.ZeroReturnError:
                self._ended = True
            except SSL.Error as error:
                self.failure = self._blame(error)
        else:
            self._unread = True
        self._keep_answers()
        if got:
            return got
        return 0 if self._ended else None

    def _keep_answers(self) -> None:
        """Take what reading made OpenSSL want to say, and refuse a peer that asks for more than it lets us say."""
        if self.failure is not None:
            return  # that is the alert, which goes out at once
        try:
            self._answers += self._connection.bio_read(MAX_OUTGOING)
        except SSL.WantReadError:
            return
        if len(self._answers) > MAX_CHANNEL_ANSWERS:
            self._answers.clear()
            self.failure = PeerViolation(
                f"{self._remote} asked for key updates without end: more than {MAX_CHANNEL_ANSWERS:,} bytes of"
                " answers wait",
                self.peer,
            )

    def _blame(self, error: SSL.Error) -> FleetError:
        """The other side broke off (an alert), or it broke the protocol."""
        reason = _reason(error)
        if isinstance(error, SSL.SysCallError) or _ALERT.match(reason):
            return LinkBroken(f"{self._remote} broke off: {reason}")
        return PeerViolation(f"{self._remote} broke the TLS protocol: {reason}", self.peer)
