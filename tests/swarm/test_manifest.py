"""The manifest: its arithmetic, its root, its form on disk and its pages."""

from __future__ import annotations

import json
import tracemalloc

import blake3
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import LocalMisuse, PeerViolation, StorageFailed
from fleet.limits import MANIFEST_PAGE_PIECES, MAX_PIECE_SIZE, MAX_PIECES, MIB
from fleet.sim.disk import Fault, SimDisk, SimFile
from fleet.swarm import manifest as module
from fleet.swarm.manifest import HASH_SIZE, MAX_MANIFEST_BYTES, Manifest, ManifestAssembler, hash_range, page, pages
from tests.helpers.vectors import vector_path


def file_of(data: bytes) -> SimFile:
    file = SimDisk().open("artifact", create=True)
    file.write(data, 0)
    return file


def of(data: bytes, piece_size: int) -> Manifest:
    return Manifest.of_file(file_of(data), piece_size)


def synthetic(pieces: int, piece_size: int = 1) -> Manifest:
    """A manifest of that many pieces whose hashes belong to no data."""
    return Manifest(pieces * piece_size, piece_size, blake3.blake3(b"hashes").digest(pieces * HASH_SIZE))


def test_our_hash_is_blake3() -> None:
    cases = json.loads(vector_path("blake3_test_vectors.json").read_text())["cases"]
    assert len(cases) == 35
    for case in cases:
        length, expected = case["input_len"], bytes.fromhex(case["hash"])[:HASH_SIZE]
        file = file_of(bytes(i % 251 for i in range(length)))
        manifest = Manifest.of_file(file, max(1, length))
        if length:
            assert manifest.pieces == 1
            assert manifest.piece_hash(0) == expected
        else:
            assert manifest.pieces == 0
            assert hash_range(file, 0, 0, memoryview(bytearray(1))) == expected


def test_a_piece_longer_than_the_block_is_hashed_whole() -> None:
    data = bytes(i % 251 for i in range(102_400))
    for block in (1, 1000, 102_399, 102_400, 200_000):
        length = 3000 if block == 1 else len(data)
        assert hash_range(file_of(data), 0, length, memoryview(bytearray(block))) == (
            blake3.blake3(data[:length]).digest()
        )


@pytest.mark.parametrize(
    ("size", "piece_size", "lengths"),
    [(0, 4, []), (1, 4, [1]), (4, 4, [4]), (5, 4, [4, 1]), (8, 4, [4, 4]), (3, 1, [1, 1, 1])],
)
def test_pieces_tile_the_artifact(size: int, piece_size: int, lengths: list[int]) -> None:
    data = bytes(range(size))
    manifest = of(data, piece_size)
    assert (manifest.size, manifest.piece_size, manifest.pieces) == (size, piece_size, len(lengths))
    at = 0
    for piece, length in enumerate(lengths):
        assert manifest.piece_offset(piece) == at
        assert manifest.piece_length(piece) == length
        assert manifest.piece_hash(piece) == blake3.blake3(data[at : at + length]).digest()
        at += length
    for ask in (manifest.piece_offset, manifest.piece_length, manifest.piece_hash):
        for piece in (-1, len(lengths)):
            with pytest.raises(LocalMisuse, match="no piece"):
                ask(piece)


def test_the_root_is_as_documented() -> None:
    manifest = of(b"hello world", 4)
    assert (
        manifest.root
        == blake3.blake3(
            b"fleet/manifest/1\0" + (11).to_bytes(8, "big") + (4).to_bytes(4, "big") + manifest.hashes
        ).digest()
    )
    assert manifest.root.hex() == "74e67a2542025dc6dad4916919134387a3a0c8c72e2a8f010325a4a1ab6ab25d"
    assert of(b"", 4).root.hex() == "774215b34d8098dbd2370a535f15f47469f125a1217b370e6b3fe7c9b392eea5"


def test_the_root_covers_everything() -> None:
    base = synthetic(3, 4)
    others = [
        Manifest(11, 4, base.hashes),
        Manifest(12, 5, base.hashes),
        Manifest(12, 4, base.hashes[:-1] + bytes([base.hashes[-1] ^ 1])),
        of(b"", 4),
        of(b"", 5),
    ]
    assert len({base.root, *(other.root for other in others)}) == 6
    assert base == Manifest(12, 4, base.hashes)
    assert base not in others


@pytest.mark.parametrize(
    ("size", "piece_size", "hashes", "match"),
    [
        (1, 0, 0, "a piece has"),
        (1, -1, 0, "a piece has"),
        (1, MAX_PIECE_SIZE + 1, 32, "a piece has"),
        (-1, 1, 0, "negative"),
        (1, 1, 0, "32 bytes of hashes"),
        (1, 1, 31, "32 bytes of hashes"),
        (1, 1, 64, "32 bytes of hashes"),
        (0, 1, 32, "0 bytes of hashes"),
        (MAX_PIECES + 1, 1, 0, "piece size of 2 or more"),
        (MAX_PIECES * 3, 2, 0, "piece size of 4 or more"),
        (MAX_PIECES * 4 + 1, 4, 0, "piece size of 8 or more"),
        (MAX_PIECES * MAX_PIECE_SIZE, MAX_PIECE_SIZE - 1, 0, f"piece size of {MAX_PIECE_SIZE:,} or more"),
        (MAX_PIECES * MAX_PIECE_SIZE + 1, MAX_PIECE_SIZE, 0, "split it"),
        pytest.param(1 << 100_000, 1, 0, "split it", id="beyond what Python prints"),
    ],
)
def test_the_constructor_refuses_what_cannot_be(size: int, piece_size: int, hashes: int, match: str) -> None:
    with pytest.raises(LocalMisuse, match=match):
        Manifest(size, piece_size, bytes(hashes))


def test_the_caps_themselves_are_allowed() -> None:
    manifest = synthetic(MAX_PIECES)
    assert manifest.pieces == MAX_PIECES
    assert len(manifest.to_bytes()) == MAX_MANIFEST_BYTES
    assert Manifest(MAX_PIECE_SIZE, MAX_PIECE_SIZE, bytes(32)).piece_length(0) == MAX_PIECE_SIZE
    assert Manifest(MAX_PIECES * MAX_PIECE_SIZE, MAX_PIECE_SIZE, manifest.hashes).pieces == MAX_PIECES


def test_of_file_reads_a_prefix_and_tells_each_piece() -> None:
    told: list[int] = []
    file = file_of(b"0123456789")
    assert Manifest.of_file(file, 3, 7, on_piece=told.append) == of(b"0123456", 3)
    assert told == [0, 1, 2]
    with pytest.raises(LocalMisuse, match="has 10 bytes"):
        Manifest.of_file(file, 3, 11)
    for size, piece_size in ((10, 0), (-1, 3), (10, MAX_PIECE_SIZE + 1)):
        with pytest.raises(LocalMisuse):
            Manifest.of_file(file, piece_size, size)


def test_of_file_passes_on_a_failing_disk() -> None:
    disk = SimDisk()
    file = disk.open("artifact", create=True)
    file.write(bytes(10), 0)
    disk.faults = [Fault("read", skip=1, reason="bad sector")]
    with pytest.raises(StorageFailed, match="bad sector"):
        Manifest.of_file(file, 4)


def test_of_file_holds_at_most_a_block() -> None:
    file = file_of(bytes(5 * MIB))
    tracemalloc.start()
    try:
        # One piece of 4 MiB, read a block at a time.
        Manifest.of_file(file, 4 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * MIB


@given(st.binary(max_size=200), st.integers(1, 64))
def test_round_trip_on_disk(data: bytes, piece_size: int) -> None:
    manifest = of(data, piece_size)
    stored = manifest.to_bytes()
    assert Manifest.from_bytes_untrusted(stored, manifest.root) == manifest
    with pytest.raises(PeerViolation, match="root"):
        Manifest.from_bytes_untrusted(stored, bytes(32))


def test_the_stored_layout_is_fixed() -> None:
    manifest = Manifest(5, 4, bytes(range(64)))
    assert manifest.to_bytes().hex() == "666c6565746d6631000000000000000500000004" + bytes(range(64)).hex()


def assemble(manifest: Manifest) -> tuple[Manifest | None, int]:
    assembler = ManifestAssembler(manifest.root)
    assert assembler.pages is None
    for n in range(pages(manifest)):
        assert assembler.next_page == n
        result = assembler.add_page_untrusted(manifest.size, manifest.piece_size, n, page(manifest, n))
        assert assembler.pages == pages(manifest)
        assert (result is None) == (n + 1 < pages(manifest))
    return result, assembler.next_page


@pytest.mark.parametrize(
    ("pieces", "count"),
    [
        (0, 1),
        (1, 1),
        (MANIFEST_PAGE_PIECES - 1, 1),
        (MANIFEST_PAGE_PIECES, 1),
        (MANIFEST_PAGE_PIECES + 1, 2),
        (2 * MANIFEST_PAGE_PIECES, 2),
        (MAX_PIECES, 16),
    ],
)
def test_pages_carry_the_whole_manifest(pieces: int, count: int) -> None:
    manifest = synthetic(pieces)
    assert pages(manifest) == count
    assert b"".join(page(manifest, n) for n in range(count)) == manifest.hashes
    assert assemble(manifest) == (manifest, count)
    for n in (-1, count):
        with pytest.raises(LocalMisuse, match="no page"):
            page(manifest, n)


@given(st.integers(0, 30), st.integers(1, 5), st.integers(1, 7))
def test_round_trip_in_pages_of_any_size(size: int, piece_size: int, page_pieces: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MANIFEST_PAGE_PIECES", page_pieces)
        manifest = of(bytes(range(size)), piece_size)
        assert assemble(manifest)[0] == manifest


def test_an_assembler_needs_a_root() -> None:
    with pytest.raises(LocalMisuse, match="root"):
        ManifestAssembler(b"short")
