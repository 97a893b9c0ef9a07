"""The tls binding: TLS 1.3 (RFC 8446) with mutual channel certificates, over the links of any other binding.

What moves the bytes, and the rules for it, is ``fleet.net.tls_link``; here are the contexts with each identity's
certificate, dialling and listening. There is no resumption: no session is cached and no ticket is accepted, so every
link proves both identities.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from OpenSSL import SSL, crypto

from fleet.identity.channel_cert import ChannelCertificate
from fleet.net.tcp import TcpBinding
from fleet.net.tls_link import Buffers, TlsLink

if TYPE_CHECKING:
    from fleet.identity.keys import Identity, PeerId
    from fleet.net.link import Binding, Link, Listener

_MAX_CONTEXTS: Final = 1_024  # local identities; more only means that certificates are issued again

# AES-128 first: as safe here as AES-256, which OpenSSL prefers, and faster.
_CIPHERS: Final = b"TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"


def _accept_any_chain(
    connection: SSL.Connection, certificate: crypto.X509, error: int, depth: int, verdict: int
) -> bool:
    return True  # no authority signs peers; TlsEngine.verify_untrusted decides


def _context(certificate: ChannelCertificate) -> SSL.Context:
    context = SSL.Context(SSL.TLS_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    context.set_max_proto_version(SSL.TLS1_3_VERSION)
    context.set_tls13_ciphersuites(_CIPHERS)
    context.set_options(SSL.OP_NO_TICKET | SSL.OP_NO_COMPRESSION)
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    context.use_certificate(certificate.certificate)
    context.use_privatekey(certificate.private_key)
    context.set_verify(SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT, _accept_any_chain)
    return context


class TlsListener:
    """Accepts TLS links on an inner listener. See ``fleet.net.link.Listener``."""

    def __init__(self, inner: Listener, binding: TlsBinding, identity: Identity) -> None:
        self._inner = inner
        self._binding = binding
        self._identity = identity

    @property
    def address(self) -> str:
        return self._inner.address

    async def accept(self) -> TlsLink:
        inner = await self._inner.accept()
        return self._binding._wrap(inner, self._identity, client=False, expected_peer=None)

    async def aclose(self) -> None:
        await self._inner.aclose()


class TlsBinding:
    """Links over TLS. One object serves any number of peers, all in the same trio run.

    ``inner`` carries the ciphertext (TCP unless given); ``wall_clock`` gives the time that certificates are judged by.
    """

    def __init__(self, inner: Binding | None = None, wall_clock: Callable[[], float] = time.time) -> None:
        self._inner: Binding = TcpBinding() if inner is None else inner
        self._wall_clock = wall_clock
        self._buffers = Buffers()
        self._contexts: dict[PeerId, tuple[SSL.Context, float]] = {}

    @property
    def name(self) -> str:
        return "tls"

    @property
    def authenticates(self) -> bool:
        return True

    async def listen(self, identity: Identity, address: str = "127.0.0.1:0") -> TlsListener:
        return TlsListener(await self._inner.listen(identity, address), self, identity)

    async def dial(self, address: str, identity: Identity, expected_peer: PeerId | None) -> TlsLink:
        inner = await self._inner.dial(address, identity, None)
        return self._wrap(inner, identity, client=True, expected_peer=expected_peer)

    def _wrap(self, inner: Link, identity: Identity, *, client: bool, expected_peer: PeerId | None) -> TlsLink:
        try:
            return TlsLink(
                inner,
                self._context_for(identity),
                client=client,
                expected_peer=expected_peer,
                buffers=self._buffers,
                wall_clock=self._wall_clock,
            )
        except BaseException:
            inner.abort()
            raise

    def _context_for(self, identity: Identity) -> SSL.Context:
        """One certificate serves all links of an identity, until half of its validity is over."""
        now = self._wall_clock()
        context, renew_at = self._contexts.get(identity.peer_id, (None, 0.0))
        if context is None or now >= renew_at:
            certificate = ChannelCertificate.issue(identity, now)
            context = _context(certificate)
            self._contexts.pop(identity.peer_id, None)
            self._contexts[identity.peer_id] = (context, certificate.renew_at)
            if len(self._contexts) > _MAX_CONTEXTS:
                del self._contexts[next(iter(self._contexts))]
        return context
