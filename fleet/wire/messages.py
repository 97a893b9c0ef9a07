"""The registry of messages: kind, fields and their checks, and the phase of a session in which each is allowed.

On the wire a message is the CBOR array ``[kind, field, …]``, and a frame's payload is an array of messages. A kind that
is not in the table, a field that fails its check, or a message out of its phase is a ``PeerViolation``.

A swarm speaks as BitTorrent does (BEP 3; every request is answered by exactly one piece or REJECT, as in BEP 6): JOIN
and LEAVE say who takes part, BITFIELD and HAVE who holds what, REQUEST and CANCEL ask, CHOKE and UNCHOKE pause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, ClassVar, Final, TypeAlias

from fleet.errors import PeerViolation
from fleet.limits import (
    HAVE_BATCH,
    MANIFEST_PAGE_PIECES,
    MAX_CBOR_ITEMS,
    MAX_CONTROL_FRAME,
    MAX_MESSAGES_PER_FRAME,
    MAX_PIECE_SIZE,
    MAX_PIECES,
    MAX_REASON,
    MAX_REQUESTS_PER_LINK,
)
from fleet.wire import cbor


class Phase(Flag):
    """Where a session stands once the peer is proved."""

    PROVED = auto()
    ESTABLISHED = auto()


@dataclass(frozen=True, slots=True)
class Accept:
    """The deciding side keeps this link: from here on it carries messages."""

    kind: ClassVar[int] = 1


@dataclass(frozen=True, slots=True)
class Close:
    """The sender ends the session; ``reason`` is for people."""

    reason: str
    kind: ClassVar[int] = 2


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a sign of life."""

    token: int
    kind: ClassVar[int] = 3


@dataclass(frozen=True, slots=True)
class Pong:
    """Answers a Ping with its token."""

    token: int
    kind: ClassVar[int] = 4


@dataclass(frozen=True, slots=True)
class Join:
    """The sender wants the artifact with this root and holds nothing of it, not even its manifest."""

    root: bytes
    kind: ClassVar[int] = 16


@dataclass(frozen=True, slots=True)
class Leave:
    """The sender has left the swarm: it neither serves nor fetches the artifact."""

    root: bytes
    kind: ClassVar[int] = 17


@dataclass(frozen=True, slots=True)
class WantManifest:
    """Asks for one page of the manifest from a peer that sent a BITFIELD for it."""

    root: bytes
    page: int
    kind: ClassVar[int] = 18


@dataclass(frozen=True, slots=True)
class ManifestPage:
    """One page of the manifest: at most ``MANIFEST_PAGE_PIECES`` hashes of 32 bytes."""

    root: bytes
    size: int
    piece_size: int
    page: int
    hashes: bytes
    kind: ClassVar[int] = 19


@dataclass(frozen=True, slots=True)
class Bitfield:
    """The pieces that the sender offers to the receiver; replaces what it said before."""

    root: bytes
    bits: bytes
    kind: ClassVar[int] = 20


@dataclass(frozen=True, slots=True)
class Have:
    """More pieces that the sender offers to the receiver."""

    root: bytes
    pieces: tuple[int, ...]
    kind: ClassVar[int] = 21


@dataclass(frozen=True, slots=True)
class Request:
    """Asks for pieces; the n-th of them answers to the id ``first_id`` + n, in this direction of this session."""

    root: bytes
    first_id: int
    pieces: tuple[int, ...]
    kind: ClassVar[int] = 22


@dataclass(frozen=True, slots=True)
class Cancel:
    """The pieces of these request ids are no longer wanted. Each is still answered, by the piece or by REJECT."""

    ids: tuple[int, ...]
    kind: ClassVar[int] = 23


@dataclass(frozen=True, slots=True)
class Reject:
    """These request ids will not be served."""

    ids: tuple[int, ...]
    kind: ClassVar[int] = 24


@dataclass(frozen=True, slots=True)
class Choke:
    """The sender serves nothing of the artifact for now; it REJECTs what was waiting."""

    root: bytes
    kind: ClassVar[int] = 25


@dataclass(frozen=True, slots=True)
class Unchoke:
    """The sender serves the artifact again."""

    root: bytes
    kind: ClassVar[int] = 26


SessionMessage: TypeAlias = Accept | Close | Ping | Pong
SwarmMessage: TypeAlias = (
    Join | Leave | WantManifest | ManifestPage | Bitfield | Have | Request | Cancel | Reject | Choke | Unchoke
)
Message: TypeAlias = SessionMessage | SwarmMessage

Check: TypeAlias = Callable[[Any], bool]


def _integer(low: int, high: int) -> Check:
    return lambda value: type(value) is int and low <= value <= high


def _blob(longest: int) -> Check:
    return lambda value: type(value) is bytes and len(value) <= longest


def _text(longest: int) -> Check:
    return lambda value: type(value) is str and len(value) <= longest


def _digest(value: Any) -> bool:
    return type(value) is bytes and len(value) == 32


def _integers(longest: int, high: int) -> Check:
    def check(value: Any) -> bool:
        return (
            type(value) is list
            and 0 < len(value) <= longest
            and all(type(item) is int for item in value)
            and min(value) >= 0
            and max(value) <= high
        )

    return check


_U32: Final = _integer(0, 2**32 - 1)
_PIECES: Final = _integers(HAVE_BATCH, MAX_PIECES - 1)
_IDS: Final = _integers(MAX_REQUESTS_PER_LINK, 2**32 - 1)
_PROVED: Final = Phase.PROVED
_ESTABLISHED: Final = Phase.ESTABLISHED

REGISTRY: Final[dict[int, tuple[type[Any], tuple[Check, ...], Phase]]] = {
    kind.kind: (kind, checks, phases)
    for kind, checks, phases in (
        (Accept, (), _PROVED),
        (Close, (_text(MAX_REASON),), _PROVED | _ESTABLISHED),
        (Ping, (_U32,), _ESTABLISHED),
        (Pong, (_U32,), _ESTABLISHED),
        (Join, (_digest,), _ESTABLISHED),
        (Leave, (_digest,), _ESTABLISHED),
        (WantManifest, (_digest, _integer(0, MAX_PIECES // MANIFEST_PAGE_PIECES - 1)), _ESTABLISHED),
        (
            ManifestPage,
            (
                _digest,
                _integer(0, MAX_PIECES * MAX_PIECE_SIZE),
                _integer(1, MAX_PIECE_SIZE),
                _integer(0, MAX_PIECES // MANIFEST_PAGE_PIECES - 1),
                _blob(MANIFEST_PAGE_PIECES * 32),
            ),
            _ESTABLISHED,
        ),
        (Bitfield, (_digest, _blob(MAX_PIECES // 8)), _ESTABLISHED),
        (Have, (_digest, _PIECES), _ESTABLISHED),
        (Request, (_digest, _U32, _integers(MAX_REQUESTS_PER_LINK, MAX_PIECES - 1)), _ESTABLISHED),
        (Cancel, (_IDS,), _ESTABLISHED),
        (Reject, (_IDS,), _ESTABLISHED),
        (Choke, (_digest,), _ESTABLISHED),
        (Unchoke, (_digest,), _ESTABLISHED),
    )
}


def encode_message(message: Message) -> bytes:
    """The canonical CBOR of one message."""
    fields = (getattr(message, name) for name in message.__slots__)
    return cbor.encode([message.kind, *(list(field) if type(field) is tuple else field for field in fields)])


def item_count(message: Message) -> int:
    """How many CBOR items the encoded message holds, itself included."""
    fields = [getattr(message, name) for name in message.__slots__]
    return 2 + len(fields) + sum(len(field) for field in fields if type(field) is tuple)


def encode_batch(encoded: Iterable[bytes]) -> bytes:
    """The payload of a MESSAGES frame that holds these encoded messages."""
    parts = list(encoded)
    count = len(parts)
    head = (
        bytes([0x80 | count])
        if count < 24
        else b"\x98" + bytes([count])
        if count < 256
        else b"\x99" + count.to_bytes(2, "big")
    )
    return head + b"".join(parts)


def decode_batch_untrusted(payload: bytes, phase: Phase) -> list[Message]:
    """The messages in a MESSAGES frame's payload; ``PeerViolation`` unless every one is well-formed and in phase."""
    batch = cbor.decode_untrusted(payload, max_bytes=MAX_CONTROL_FRAME, max_items=MAX_CBOR_ITEMS)
    if type(batch) is not list or not 0 < len(batch) <= MAX_MESSAGES_PER_FRAME:
        raise PeerViolation(f"a frame's payload is not an array of 1 to {MAX_MESSAGES_PER_FRAME} messages")
    return [_message_untrusted(item, phase) for item in batch]


def _message_untrusted(item: object, phase: Phase) -> Message:
    if type(item) is not list or not item or type(item[0]) is not int or item[0] not in REGISTRY:
        raise PeerViolation("a message of an unknown kind")
    kind, checks, phases = REGISTRY[item[0]]
    fields = item[1:]
    if phase not in phases:
        raise PeerViolation(f"{kind.__name__} is not allowed while the session is {str(phase.name).lower()}")
    if len(fields) != len(checks):
        raise PeerViolation(f"{kind.__name__} has {len(fields)} fields, not {len(checks)}")
    for number, (check, value) in enumerate(zip(checks, fields, strict=True)):
        if not check(value):
            raise PeerViolation(f"field {number} of {kind.__name__} is out of its range")
    message: Message = kind(*(tuple(f) if type(f) is list else f for f in fields))
    return message
