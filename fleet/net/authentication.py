"""Who is at the other end of a link: both hellos, and the proofs of their keys. Sans-IO.

The session id is the hash of both hellos, initiator's first. On a channel that proves nothing (TCP) each side signs the
session id and its role, and both derive keys from the hellos' exchange (``identity.exchange``), one for each direction.
On TLS the certificate is the proof, the hello's key must be the certificate's, and there are no keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import IntEnum

import blake3

from fleet.errors import LocalMisuse, PeerViolation
from fleet.identity.exchange import SECRET_SIZE, TagKey, exchange_public, session_keys_untrusted
from fleet.identity.keys import HANDSHAKE_DOMAIN, Identity, PeerId, verify_untrusted
from fleet.net.hello import Hello, Purpose
from fleet.wire.frame import FrameKind, control_frame


class Role(IntEnum):
    """Which side dialled."""

    INITIATOR = 0
    RESPONDER = 1


class Authentication:
    """One side of one handshake: from this side's hello to the other side's proved key."""

    def __init__(
        self,
        identity: Identity,
        role: Role,
        hello: Hello,
        *,
        secret: bytes,
        channel_peer: PeerId | None,
        expected_peer: PeerId | None,
        generation_of: Callable[[PeerId], int],
    ) -> None:
        """See ``Session``."""
        if channel_peer is None:
            if len(secret) != SECRET_SIZE:
                raise LocalMisuse(f"a channel that proves no identity needs a secret of {SECRET_SIZE} random bytes")
            hello = replace(hello, exchange=exchange_public(secret))
        self.role = role
        self.hello = hello
        """This side's; a responder's is whole once it has seen the initiator's."""
        self.their_hello: Hello | None = None
        self.session_id = b""
        self.keys: tuple[TagKey, TagKey] | None = None
        """By role; None where the channel authenticates."""
        self.channel_peer = channel_peer
        self._identity = identity
        self._secret = secret
        self._expected = expected_peer
        self._generation_of = generation_of
        self._hello_bytes = hello.encode()

    @property
    def first_frames(self) -> list[bytes]:
        """What this side says before it has heard anything."""
        return [self._hello_frame()] if self.role is Role.INITIATOR else []

    def _hello_frame(self) -> bytes:
        return control_frame(FrameKind.HELLO, self._hello_bytes)

    def hello_untrusted(self, payload: bytes) -> list[bytes]:
        """The other side's hello arrived; returns the frames to answer with. Proved by that where the channel is."""
        hello = Hello.decode_untrusted(payload)
        if hello.key == self._identity.peer_id:
            raise PeerViolation("the peer claims this peer's own key: a connection to oneself, or a stolen key")
        if self.channel_peer is not None and hello.key != self.channel_peer:
            raise PeerViolation("the hello's key is not the one that the channel proved", self.channel_peer)
        if self._expected is not None and hello.key != self._expected:
            raise PeerViolation(f"expected peer {self._expected.short}, found {hello.key.short}", self.channel_peer)
        if hello.purpose is not self.hello.purpose and self.role is Role.INITIATOR:
            raise PeerViolation("the responder changed the link's purpose")
        if (not hello.exchange) is (self.channel_peer is None):
            raise PeerViolation("a hello with an exchange key where the channel authenticates, or without one on TCP")
        self.their_hello = hello
        frames: list[bytes] = []
        if self.role is Role.RESPONDER:
            self.hello = replace(
                self.hello, purpose=hello.purpose, session=hello.session, generation=self._generation_of(hello.key)
            )
            self._hello_bytes = self.hello.encode()
            frames.append(self._hello_frame())
            first, second = payload, self._hello_bytes
        else:
            first, second = self._hello_bytes, payload
        transcript = b"".join(len(part).to_bytes(4, "big") + part for part in (first, second))
        self.session_id = blake3.blake3(transcript, derive_key_context="peerfleet session id 1").digest()
        if self.channel_peer is None:
            self.keys = session_keys_untrusted(self._secret, hello.exchange, self.session_id)
            proof = self._identity.sign(HANDSHAKE_DOMAIN, self.session_id + bytes([self.role]))
            frames.append(control_frame(FrameKind.PROOF, proof))
        return frames

    def proof_untrusted(self, payload: bytes) -> None:
        """The other side's proof arrived: it has the key of its hello, or has broken the protocol."""
        key = self.require_hello().key
        verify_untrusted(key, HANDSHAKE_DOMAIN, self.session_id + bytes([1 - self.role]), payload)

    def require_hello(self) -> Hello:
        """The other side's hello, which has arrived."""
        assert self.their_hello is not None, "states after HELLO hold the other side's hello"  # noqa: S101
        return self.their_hello

    @property
    def decides(self) -> bool:
        """Whether this side accepts or refuses the link: exactly one of the two does."""
        hello = self.require_hello()
        if hello.purpose is Purpose.CONTROL:
            return self._identity.peer_id < hello.key
        return self.role is Role.RESPONDER
