"""Which pieces a peer holds: a boolean array in memory, one bit a piece on the wire.

Wire form as in BEP 3: piece 0 is the highest bit of the first byte, and the spare bits at the end are zero. They must
be, so that one set of pieces has one encoding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fleet.errors import PeerViolation

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["from_wire_untrusted", "to_wire"]


def to_wire(have: NDArray[np.bool_]) -> bytes:
    """Pack ``have`` (shape ``(pieces,)``) into ``ceil(pieces / 8)`` bytes, highest bit first."""
    return np.packbits(have).tobytes()


def from_wire_untrusted(data: bytes, pieces: int) -> NDArray[np.bool_]:
    """Unpack a peer's bitfield into a new array of shape ``(pieces,)``; ``pieces`` comes from the manifest.

    Raises ``PeerViolation`` for a wrong length or a spare bit that is set (BEP 3 drops the connection for both).
    """
    if type(data) is not bytes:
        raise PeerViolation("a bitfield must be a byte string")
    expected = (pieces + 7) // 8
    if len(data) != expected:
        raise PeerViolation(f"a bitfield of {pieces} pieces takes {expected} bytes, not {len(data)}")
    spare = expected * 8 - pieces
    if spare and data[-1] & ((1 << spare) - 1):
        raise PeerViolation(f"a bitfield of {pieces} pieces must leave its last {spare} bits zero")
    return np.unpackbits(np.frombuffer(data, np.uint8), count=pieces).view(np.bool_)
