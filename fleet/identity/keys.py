"""Ed25519 identities (RFC 8032) and domain-separated signatures.

A ``PeerId`` is the public key itself. Every signature covers a domain prefix, so that one kind of signed object can
never pass for another. PyNaCl signs in 23 us and verifies in 63 us on a 2-core server, ``cryptography`` in 40 and
198 us.
"""

from __future__ import annotations

import base64
import binascii
import functools
from typing import Final, Self

from nacl.bindings import (
    crypto_sign,
    crypto_sign_BYTES,
    crypto_sign_open,
    crypto_sign_PUBLICKEYBYTES,
    crypto_sign_seed_keypair,
    crypto_sign_SEEDBYTES,
)
from nacl.exceptions import BadSignatureError

from fleet.errors import LocalMisuse, PeerViolation

HANDSHAKE_DOMAIN: Final = b"fleet/handshake/1\0"
CHANNEL_DOMAIN: Final = b"fleet/channel/1\0"

SIGNATURE_SIZE: Final = crypto_sign_BYTES


class PeerId(bytes):
    """A peer's Ed25519 public key, 32 bytes. ``str()`` is lowercase base32 without padding, 52 characters."""

    __slots__ = ()

    def __new__(cls, key: bytes) -> Self:
        if len(key) != crypto_sign_PUBLICKEYBYTES:
            raise LocalMisuse(f"a peer id is {crypto_sign_PUBLICKEYBYTES} bytes, not {len(key)}")
        return super().__new__(cls, key)

    @classmethod
    def parse(cls, text: str) -> PeerId:
        """The peer id that ``text`` (52 base32 characters, either case) stands for; ``LocalMisuse`` if none does."""
        try:
            key = base64.b32decode(text.upper() + "=" * (-len(text) % 8))
        except (binascii.Error, ValueError):
            raise LocalMisuse(f"{text!r} is no peer id: 52 letters a-z and digits 2-7 are") from None
        peer = cls(key)
        if str(peer) != text.lower():
            raise LocalMisuse(f"{text!r} is no peer id: it is not in canonical form")
        return peer

    def __str__(self) -> str:
        return base64.b32encode(self).decode("ascii").rstrip("=").lower()

    def __repr__(self) -> str:
        return f"PeerId({self.short})"

    @property
    def short(self) -> str:
        """The first 8 characters of the text form: for people, never for decisions."""
        return _short(self)


@functools.lru_cache(maxsize=4096)
def _short(peer: PeerId) -> str:
    return str(peer)[:8]


class Identity:
    """A private key. Everything that a peer signs goes through ``sign``."""

    __slots__ = ("_secret", "peer_id")

    def __init__(self, seed: bytes) -> None:
        """``seed``: the 32 secret bytes of RFC 8032."""
        if len(seed) != crypto_sign_SEEDBYTES:
            raise LocalMisuse(f"an identity's seed is {crypto_sign_SEEDBYTES} bytes, not {len(seed)}")
        public, self._secret = crypto_sign_seed_keypair(seed)
        self.peer_id = PeerId(public)

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """The 64-byte signature over ``domain`` followed by ``message``."""
        return crypto_sign(domain + message, self._secret)[:SIGNATURE_SIZE]

    def __repr__(self) -> str:
        return f"Identity({self.peer_id.short})"


def verify_untrusted(peer: PeerId, domain: bytes, message: bytes, signature: bytes) -> None:
    """Raise ``PeerViolation`` unless ``signature`` is ``peer``'s over ``domain`` followed by ``message``."""
    if len(signature) != SIGNATURE_SIZE:
        raise PeerViolation(f"a signature has {len(signature)} bytes, not {SIGNATURE_SIZE}", peer)
    try:
        crypto_sign_open(signature + domain + message, peer)
    except BadSignatureError:
        raise PeerViolation("a signature does not verify", peer) from None
