"""HELLO: what each side of a link says of itself first, before anything is proved."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from fleet.errors import PeerViolation
from fleet.identity.exchange import PUBLIC_SIZE
from fleet.identity.keys import PeerId
from fleet.limits import MAX_ADDRESS, MAX_HELLO
from fleet.wire import cbor

VERSION: Final = 1
NONCE_SIZE: Final = 32


class Purpose(IntEnum):
    """What the link is for: messages, or the bytes of pieces."""

    CONTROL = 0
    BULK = 1


@dataclass(frozen=True, slots=True)
class Hello:
    """What a side says of itself first. ``session`` is the control session that a bulk link belongs to, else empty.
    ``exchange`` is the public half of its link secret (``identity.exchange``); empty where the channel authenticates.
    """

    purpose: Purpose
    key: PeerId
    nonce: bytes
    incarnation: int
    generation: int = 0
    address: str = ""
    session: bytes = b""
    features: tuple[int, ...] = ()
    exchange: bytes = b""

    def encode(self) -> bytes:
        """Canonical CBOR."""
        return cbor.encode(
            [
                VERSION,
                int(self.purpose),
                bytes(self.key),
                self.nonce,
                self.incarnation,
                self.generation,
                self.address,
                self.session,
                list(self.features),
                self.exchange,
            ]
        )

    @classmethod
    def decode_untrusted(cls, payload: bytes) -> Hello:
        """The hello in ``payload``; ``PeerViolation`` when it is none, or of another version."""
        if len(payload) > MAX_HELLO:
            raise PeerViolation(f"a hello of {len(payload):,} bytes; at most {MAX_HELLO:,} are taken")
        fields = cbor.decode_untrusted(payload, max_bytes=MAX_HELLO)
        if type(fields) is not list or not fields or type(fields[0]) is not int:
            raise PeerViolation("a hello that is no array")
        if fields[0] != VERSION:
            raise PeerViolation(f"the peer speaks version {fields[0]}, this side version {VERSION}: use one release")
        if len(fields) != 10:
            raise PeerViolation(f"a hello of {len(fields)} fields, not 10")
        purpose, key, nonce, incarnation, generation, address, session, features, exchange = fields[1:]
        if (
            type(purpose) is not int
            or purpose not in (Purpose.CONTROL, Purpose.BULK)
            or type(key) is not bytes
            or len(key) != 32
            or type(nonce) is not bytes
            or len(nonce) != NONCE_SIZE
            or type(incarnation) is not int
            or incarnation < 0
            or type(generation) is not int
            or not 0 <= generation < 2**32
            or type(address) is not str
            or len(address) > MAX_ADDRESS
            or type(session) is not bytes
            or len(session) != (32 if purpose == Purpose.BULK else 0)
            or type(features) is not list
            or not all(type(feature) is int for feature in features)
            or type(exchange) is not bytes
            or len(exchange) not in (0, PUBLIC_SIZE)
        ):
            raise PeerViolation("a hello with a field out of its range")
        numbers = tuple(feature for feature in features if type(feature) is int)
        return cls(Purpose(purpose), PeerId(key), nonce, incarnation, generation, address, session, numbers, exchange)
