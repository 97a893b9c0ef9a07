"""Bitfields: one encoding for each set of pieces, in the layout of BEP 3."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import PeerViolation
from fleet.limits import MAX_PIECES
from fleet.swarm.bitfield import from_wire_untrusted, to_wire


@pytest.mark.parametrize(
    ("held", "pieces", "wire"),
    [
        ([], 0, ""),
        ([0], 1, "80"),
        ([7], 8, "01"),
        ([8], 9, "0080"),
        ([0, 1, 2, 9], 10, "e040"),
        (range(16), 16, "ffff"),
    ],
)
def test_piece_0_is_the_highest_bit_of_the_first_byte(held: list[int], pieces: int, wire: str) -> None:
    have = np.zeros(pieces, np.bool_)
    have[list(held)] = True
    assert to_wire(have).hex() == wire
    back = from_wire_untrusted(bytes.fromhex(wire), pieces)
    assert back.dtype == np.bool_
    assert np.array_equal(back, have)


@given(st.lists(st.booleans(), max_size=100))
def test_round_trip(bits: list[bool]) -> None:
    back = from_wire_untrusted(to_wire(np.array(bits, np.bool_)), len(bits))
    assert back.tolist() == bits
    back[:] = False  # the caller owns it


@given(st.binary(max_size=4), st.integers(0, 33))
def test_any_bytes_are_refused_or_the_one_encoding(data: bytes, pieces: int) -> None:
    try:
        have = from_wire_untrusted(data, pieces)
    except PeerViolation:
        spare = len(data) * 8 - pieces
        assert not 0 <= spare < 8 or data[-1] & ((1 << spare) - 1)
    else:
        assert have.shape == (pieces,)
        assert to_wire(have) == data


def test_the_largest_artifact() -> None:
    have = np.ones(MAX_PIECES, np.bool_)
    wire = to_wire(have)
    assert len(wire) == 32 * 1024
    assert from_wire_untrusted(wire, MAX_PIECES).all()
    with pytest.raises(PeerViolation, match="takes"):
        from_wire_untrusted(wire + b"\0", MAX_PIECES)
