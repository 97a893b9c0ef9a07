"""Frames: the unit that a link carries.

A frame is a fixed header and a payload::

    length  u32   bytes of payload
    channel u8    0 control, 1 bulk
    kind    u8    what the payload is, per channel

Control payloads are at most ``MAX_CONTROL_FRAME`` bytes and are collected whole. A bulk payload is a request id (u32)
and the bytes of one piece; it is never collected, but handed on as it arrives. Lengths are checked in the header,
before anything is allocated. Integers are big-endian.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from fleet.errors import PeerViolation
from fleet.limits import MAX_CONTROL_FRAME, MAX_PIECE_SIZE

HEADER: Final = struct.Struct(">IBB")
PIECE_HEADER: Final = struct.Struct(">IBBI")
_REQUEST_ID_SIZE: Final = PIECE_HEADER.size - HEADER.size

CONTROL: Final = 0
BULK: Final = 1


class FrameKind(IntEnum):
    """Kinds of the control channel."""

    HELLO = 1
    PROOF = 2
    MESSAGES = 3


PIECE: Final = 1
"""The one kind of the bulk channel."""

_KINDS: Final = frozenset(FrameKind)


def control_frame(kind: FrameKind, *parts: bytes) -> bytes:
    """A whole control frame; the parts are its payload."""
    return HEADER.pack(sum(map(len, parts)), CONTROL, kind) + b"".join(parts)


def piece_header(request_id: int, length: int) -> bytes:
    """What goes before the ``length`` bytes of a piece on the bulk channel."""
    return PIECE_HEADER.pack(_REQUEST_ID_SIZE + length, BULK, PIECE, request_id)


class FrameReader:
    """Cuts a control stream into frames, holding what was fed and at most one incomplete frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._start = 0

    def feed(self, data: memoryview | bytes) -> None:
        """Take bytes from the link."""
        del self._buffer[: self._start]
        self._start = 0
        self._buffer += data

    def next_untrusted(self, longest: int = MAX_CONTROL_FRAME) -> tuple[FrameKind, bytes] | None:
        """The next whole frame, or None. Raises ``PeerViolation`` at a bad header, or one that claims more than
        ``longest`` bytes of payload.
        """
        buffer, start = self._buffer, self._start + HEADER.size
        if start > len(buffer):
            return None
        length, channel, kind = HEADER.unpack_from(buffer, self._start)
        if channel != CONTROL or kind not in _KINDS:
            raise PeerViolation(f"a frame of channel {channel}, kind {kind} on a control link")
        if length > longest:
            raise PeerViolation(f"a control frame of {length:,} bytes; at most {longest:,} are taken")
        if start + length > len(buffer):
            return None
        self._start = start + length
        return FrameKind(kind), bytes(buffer[start : self._start])

    def rest(self) -> bytes:
        """The bytes after the last frame taken, for whoever reads the stream next; forgotten here."""
        rest = bytes(self._buffer[self._start :])
        self._buffer.clear()
        self._start = 0
        return rest


class PieceReader:
    """Cuts a bulk stream into piece headers and runs of piece bytes, copying nothing but headers."""

    def __init__(self) -> None:
        self._header = bytearray()
        self.remaining = 0
        """Bytes of the current piece still to come; 0 between pieces."""

    def header_untrusted(self, data: memoryview) -> tuple[int, int, memoryview] | None:
        """Take a header from the front of ``data``, between two pieces.

        Returns (request id, piece length, rest of ``data``), or None when the header is still incomplete and all of
        ``data`` is consumed. Raises ``PeerViolation`` when it is no piece header.
        """
        header = self._header
        if not header and len(data) >= PIECE_HEADER.size:
            fields = PIECE_HEADER.unpack_from(data)
            data = data[PIECE_HEADER.size :]
        else:
            missing = PIECE_HEADER.size - len(header)
            header += data[:missing]
            if len(header) < PIECE_HEADER.size:
                return None
            fields = PIECE_HEADER.unpack(header)
            header.clear()
            data = data[missing:]
        length, channel, kind, request_id = fields
        if channel != BULK or kind != PIECE:
            raise PeerViolation(f"a frame of channel {channel}, kind {kind} on a bulk link")
        length -= _REQUEST_ID_SIZE
        if not 0 < length <= MAX_PIECE_SIZE:
            raise PeerViolation(f"a piece of {length:,} bytes; at least 1 and at most {MAX_PIECE_SIZE:,} are taken")
        self.remaining = length
        return request_id, length, data

    def body(self, data: memoryview) -> tuple[memoryview, memoryview]:
        """Split ``data`` into (bytes of the current piece, the rest), and count the former off ``remaining``."""
        run = data[: self.remaining]
        self.remaining -= len(run)
        return run, data[len(run) :]
