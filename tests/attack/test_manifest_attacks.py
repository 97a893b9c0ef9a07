"""A hostile source of manifests: every lie is a ``PeerViolation``, found before it costs memory."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import blake3
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import PeerViolation
from fleet.limits import MANIFEST_PAGE_PIECES, MAX_PIECE_SIZE, MAX_PIECES, MIB
from fleet.swarm.bitfield import from_wire_untrusted
from fleet.swarm.manifest import HASH_SIZE, MAX_MANIFEST_BYTES, Manifest, ManifestAssembler, page

PAGE_BYTES = MANIFEST_PAGE_PIECES * HASH_SIZE
HUGE = 1 << 100_000  # beyond what Python agrees to print


@pytest.fixture(scope="module")
def manifest() -> Manifest:
    pieces = MANIFEST_PAGE_PIECES + 3
    return Manifest(pieces * 2, 2, blake3.blake3(b"hashes").digest(pieces * HASH_SIZE))


IMPOSSIBLE: list[Any] = [
    pytest.param(HUGE, 2, id="huge size"),
    pytest.param(-HUGE, 2, id="huge negative size"),
    pytest.param(8, HUGE, id="huge piece"),
    pytest.param(8, -HUGE, id="huge negative piece"),
    (8, 0),
    (8, -1),
    (-1, 2),
    (8, MAX_PIECE_SIZE + 1),
    (MAX_PIECES + 1, 1),
    (MAX_PIECES * MAX_PIECE_SIZE + 1, MAX_PIECE_SIZE),
    (2**64 - 1, 1),
    (True, 2),
    (8, True),
    (8.0, 2),
    (None, 2),
    ("8", 2),
    (8, b"2"),
]


@pytest.mark.parametrize(("size", "piece_size"), IMPOSSIBLE)
def test_an_impossible_header(size: Any, piece_size: Any) -> None:
    assembler = ManifestAssembler(bytes(32))
    with pytest.raises(PeerViolation, match="header"):
        assembler.add_page_untrusted(size, piece_size, 0, b"")
    assert assembler.pages is None


def test_the_largest_header_allowed_reserves_nothing() -> None:
    first = bytes(PAGE_BYTES)
    assembler = ManifestAssembler(bytes(32))
    tracemalloc.start()
    try:
        with pytest.raises(PeerViolation, match="must carry"):
            assembler.add_page_untrusted(MAX_PIECES, 1, 0, b"")
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
        assert assembler.add_page_untrusted(MAX_PIECES, 1, 0, first) is None
        assert tracemalloc.get_traced_memory()[0] < 2 * PAGE_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("n", [1, 2, -1, pytest.param(HUGE, id="huge"), True, False, 0.0, None, "0"])
def test_a_first_page_that_is_not_page_0(manifest: Manifest, n: Any) -> None:
    with pytest.raises(PeerViolation, match="out of order"):
        ManifestAssembler(manifest.root).add_page_untrusted(manifest.size, manifest.piece_size, n, page(manifest, 0))


@pytest.mark.parametrize(
    "hashes", [b"", bytes(31), bytes(PAGE_BYTES - 32), bytes(PAGE_BYTES + 32), None, "x" * 32, [0]]
)
def test_a_page_of_the_wrong_length_or_type(manifest: Manifest, hashes: Any) -> None:
    with pytest.raises(PeerViolation, match="must carry"):
        ManifestAssembler(manifest.root).add_page_untrusted(manifest.size, manifest.piece_size, 0, hashes)


@pytest.mark.parametrize("hashes", [b"\0", bytes(32), bytes(PAGE_BYTES)])
def test_an_empty_artifact_with_hashes(hashes: bytes) -> None:
    empty = Manifest(0, 2, b"")
    assembler = ManifestAssembler(empty.root)
    with pytest.raises(PeerViolation, match="must carry 0 bytes"):
        assembler.add_page_untrusted(0, 2, 0, hashes)
    assert assembler.add_page_untrusted(0, 2, 0, b"") == empty


def test_contradicting_repeated_skipped_and_short_pages_change_nothing(manifest: Manifest) -> None:
    size, piece_size = manifest.size, manifest.piece_size
    assembler = ManifestAssembler(manifest.root)
    assert assembler.add_page_untrusted(size, piece_size, 0, page(manifest, 0)) is None
    lies = [
        (size - 1, piece_size, 1, page(manifest, 1)),  # as many pieces, another size
        (size, piece_size + 1, 1, page(manifest, 1)),
        (size * 2, piece_size * 2, 1, page(manifest, 1)),
        (size, piece_size, 0, page(manifest, 0)),
        (size, piece_size, 2, page(manifest, 1)),
        (size, piece_size, 1, page(manifest, 1)[:-32]),
        (size, piece_size, 1, page(manifest, 1) + bytes(32)),
        (size, piece_size, 1, page(manifest, 0)),
    ]
    for lie in lies:
        with pytest.raises(PeerViolation):
            assembler.add_page_untrusted(*lie)
        assert assembler.next_page == 1
    assert assembler.add_page_untrusted(size, piece_size, 1, page(manifest, 1)) == manifest
    with pytest.raises(PeerViolation, match="after the last"):
        assembler.add_page_untrusted(size, piece_size, 1, page(manifest, 1))
    with pytest.raises(PeerViolation, match="after the last"):
        assembler.add_page_untrusted(size, piece_size, 2, b"")


@pytest.mark.parametrize("where", [0, PAGE_BYTES - 1, PAGE_BYTES, -1])
def test_one_wrong_byte_of_hashes_ends_the_assembly(manifest: Manifest, where: int) -> None:
    hashes = bytearray(manifest.hashes)
    hashes[where] ^= 1
    size, piece_size = manifest.size, manifest.piece_size
    assembler = ManifestAssembler(manifest.root)
    assert assembler.add_page_untrusted(size, piece_size, 0, bytes(hashes[:PAGE_BYTES])) is None
    with pytest.raises(PeerViolation, match="root"):
        assembler.add_page_untrusted(size, piece_size, 1, bytes(hashes[PAGE_BYTES:]))
    with pytest.raises(PeerViolation, match="after the last"):
        assembler.add_page_untrusted(size, piece_size, 0, page(manifest, 0))


def test_right_hashes_under_another_geometry(manifest: Manifest) -> None:
    """Same pieces, same hashes, but a last piece of another length: only the root tells."""
    assembler = ManifestAssembler(manifest.root)
    assembler.add_page_untrusted(manifest.size - 1, 2, 0, page(manifest, 0))
    with pytest.raises(PeerViolation, match="root"):
        assembler.add_page_untrusted(manifest.size - 1, 2, 1, page(manifest, 1))


anything: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from([None, False, True, 0.5, "1", [], {}, HUGE]), st.integers(), st.binary(max_size=70)
)


@given(
    st.lists(
        st.tuples(
            st.one_of(st.integers(-1, 9), anything),
            st.one_of(st.integers(-1, 4), anything),
            st.one_of(st.integers(0, 1), anything),
            st.one_of(st.integers(0, 5).map(lambda n: bytes(32 * n)), anything),
        ),
        max_size=4,
    )
)
def test_no_page_raises_anything_else(lies: list[Any]) -> None:
    assembler = ManifestAssembler(bytes(32))
    for lie in lies:
        with suppress(PeerViolation):
            assert assembler.add_page_untrusted(*lie) is None


@given(st.binary(max_size=200))
def test_no_stored_bytes_raise_anything_else(data: bytes) -> None:
    for stored in (data, b"fleetmf1" + data):
        with pytest.raises(PeerViolation):
            Manifest.from_bytes_untrusted(stored, bytes(32))


@pytest.mark.parametrize(
    ("size", "piece_size"), [(2**64 - 1, 1), (2**64 - 1, 2**32 - 1), (1, 0), (MAX_PIECES + 1, 1), (MAX_PIECES, 1)]
)
def test_a_stored_header_that_calls_for_more_than_there_is(size: int, piece_size: int) -> None:
    data = b"fleetmf1" + size.to_bytes(8, "big") + piece_size.to_bytes(4, "big") + bytes(64)
    tracemalloc.start()
    try:
        with pytest.raises(PeerViolation):
            Manifest.from_bytes_untrusted(data, bytes(32))
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_every_flipped_bit_and_every_cut_of_a_stored_manifest() -> None:
    manifest = Manifest(5, 2, blake3.blake3(b"hashes").digest(96))
    stored = manifest.to_bytes()
    assert len(stored) < MAX_MANIFEST_BYTES
    for bit in range(len(stored) * 8):
        flipped = bytearray(stored)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(PeerViolation):
            Manifest.from_bytes_untrusted(bytes(flipped), manifest.root)
    for cut in range(len(stored)):
        with pytest.raises(PeerViolation):
            Manifest.from_bytes_untrusted(stored[:cut], manifest.root)
    with pytest.raises(PeerViolation):
        Manifest.from_bytes_untrusted(stored + b"\0", manifest.root)


@pytest.mark.parametrize("data", [None, "\0", [0], 0, np.zeros(1, np.uint8)])
def test_a_bitfield_of_another_type(data: Any) -> None:
    with pytest.raises(PeerViolation):
        from_wire_untrusted(data, 8)


def test_each_spare_bit_of_a_bitfield() -> None:
    for pieces in range(1, 17):
        size = (pieces + 7) // 8
        for spare in range(size * 8 - pieces):
            with pytest.raises(PeerViolation, match="zero"):
                from_wire_untrusted((1 << spare).to_bytes(size, "big"), pieces)
        for wrong in (size - 1, size + 1, 1000):
            with pytest.raises(PeerViolation, match="takes"):
                from_wire_untrusted(bytes(wrong), pieces)
