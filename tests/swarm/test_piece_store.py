"""The piece store in fair weather, against a model, and with a disk that refuses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fleet.errors import LocalMisuse, StorageFailed
from fleet.sim.disk import Fault, SimDisk
from fleet.storage import Directory, DirectoryFile, Storage
from fleet.swarm.manifest import Manifest
from fleet.swarm.piece_store import PieceStore, Recovery

DATA = bytes(range(1, 23))
PIECE = 4  # six pieces, the last of two bytes


def manifest_of(data: bytes = DATA, piece_size: int = PIECE) -> Manifest:
    file = SimDisk().open("artifact", create=True)
    file.write(data, 0)
    return Manifest.of_file(file, piece_size)


MANIFEST = manifest_of()
STEM = MANIFEST.root.hex()


def piece_bytes(piece: int) -> bytes:
    return DATA[piece * PIECE : (piece + 1) * PIECE]


def fill(store: PieceStore, *pieces: int) -> None:
    for piece in pieces:
        store.write(piece, 0, memoryview(piece_bytes(piece)))
        store.mark_verified(piece)


def read(store: PieceStore, piece: int) -> bytes:
    view = bytearray(store.manifest.piece_length(piece))
    store.read_into(piece, 0, memoryview(view))
    return bytes(view)


def test_a_new_store_is_empty_and_has_its_room() -> None:
    disk = SimDisk()
    store = PieceStore.create(disk, MANIFEST)
    assert disk.names() == [f"{STEM}.data", f"{STEM}.journal", f"{STEM}.manifest"]
    assert len(disk.contents(f"{STEM}.data")) == len(DATA)
    assert disk.contents(f"{STEM}.journal") == b""
    assert store.manifest is MANIFEST
    assert (store.verified_count, store.complete, store.adopted, store.recovered) == (0, False, False, None)
    assert store.missing().tolist() == [0, 1, 2, 3, 4, 5]
    assert store.have.dtype == np.bool_
    assert store.have.shape == (6,)


def test_pieces_arrive_in_parts_and_any_order() -> None:
    store = PieceStore.create(SimDisk(), MANIFEST)
    have = store.have
    store.write(5, 1, memoryview(piece_bytes(5)[1:]))
    store.write(5, 0, memoryview(piece_bytes(5)[:1]))
    assert read(store, 5) == piece_bytes(5)
    assert not have[5]
    store.mark_verified(5)
    assert have[5]
    fill(store, 2, 0, 1, 4)
    assert store.missing().tolist() == [3]
    assert not store.complete
    fill(store, 3)
    assert store.complete
    assert store.verified_count == 6
    assert b"".join(read(store, piece) for piece in range(6)) == DATA
    part = bytearray(2)
    store.read_into(1, 1, memoryview(part))
    assert part == piece_bytes(1)[1:3]


def test_marking_twice_writes_one_record() -> None:
    disk = SimDisk()
    store = PieceStore.create(disk, MANIFEST)
    fill(store, 3)
    store.mark_verified(3)
    assert store.verified_count == 1
    assert len(disk.contents(f"{STEM}.journal")) == 8


def test_have_cannot_be_written_by_others() -> None:
    store = PieceStore.create(SimDisk(), MANIFEST)
    with pytest.raises(ValueError, match="read-only"):
        store.have[0] = True


@pytest.mark.parametrize(
    ("piece", "offset", "length"),
    [(-1, 0, 1), (6, 0, 1), (0, -1, 1), (0, 0, 5), (0, 4, 1), (0, 5, 0), (5, 0, 3), (5, 2, 1), (2**40, 0, 1)],
)
def test_nothing_is_touched_beyond_a_piece(piece: int, offset: int, length: int) -> None:
    disk = SimDisk()
    store = PieceStore.create(disk, MANIFEST)
    view = memoryview(bytearray(b"x" * length))
    with pytest.raises(LocalMisuse):
        store.write(piece, offset, view)
    with pytest.raises(LocalMisuse):
        store.read_into(piece, offset, view)
    assert disk.contents(f"{STEM}.data") == bytes(len(DATA))


@pytest.mark.parametrize("piece", [-1, 6])
def test_no_other_piece_can_be_marked(piece: int) -> None:
    store = PieceStore.create(SimDisk(), MANIFEST)
    with pytest.raises(LocalMisuse, match="no piece"):
        store.mark_verified(piece)
    assert store.verified_count == 0


def test_lengths_are_counted_in_bytes() -> None:
    store = PieceStore.create(SimDisk(), MANIFEST)
    with pytest.raises(LocalMisuse, match="not within"):
        store.write(0, 0, memoryview(np.zeros(2, np.uint32)))


def test_a_verified_piece_is_not_written_again() -> None:
    store = PieceStore.create(SimDisk(), MANIFEST)
    fill(store, 1)
    with pytest.raises(LocalMisuse, match="verified already"):
        store.write(1, 0, memoryview(b"late"))
    assert read(store, 1) == piece_bytes(1)


def test_a_closed_store_refuses_and_closes_again() -> None:
    store = PieceStore.create(SimDisk(), MANIFEST)
    store.close()
    store.close()
    for use in (
        lambda: store.write(0, 0, memoryview(b"x")),
        lambda: store.read_into(0, 0, memoryview(bytearray(1))),
        lambda: store.mark_verified(0),
    ):
        with pytest.raises(LocalMisuse, match="closed"):
            use()


def test_reopen_finds_what_was_verified() -> None:
    disk = SimDisk()
    store = PieceStore.create(disk, MANIFEST)
    fill(store, 4, 1, 5)
    store.write(0, 0, memoryview(piece_bytes(0)))  # whole, but never marked
    store.close()
    told: list[int] = []
    again = PieceStore.reopen(disk, MANIFEST.root, told.append)
    assert again is not None
    assert again.recovered == Recovery(kept=3, dropped=0, journal_bytes_cut=0)
    assert again.manifest == MANIFEST
    assert again.missing().tolist() == [0, 2, 3]
    assert again.verified_count == 3
    assert told == [4, 1, 5]
    fill(again, 0, 2, 3)
    again.close()
    whole = PieceStore.reopen(disk, MANIFEST.root)
    assert whole is not None
    assert whole.complete
    assert len(disk.contents(f"{STEM}.journal")) == 6 * 8


def test_an_unknown_root_has_no_store() -> None:
    disk = SimDisk()
    PieceStore.create(disk, MANIFEST).close()
    assert PieceStore.reopen(disk, bytes(32)) is None
    assert PieceStore.reopen(SimDisk(), MANIFEST.root) is None
    assert PieceStore.reopen(disk, MANIFEST.root) is not None
    with pytest.raises(LocalMisuse, match="root"):
        PieceStore.reopen(disk, MANIFEST.root[:-1])


def test_create_does_not_displace_a_store() -> None:
    disk = SimDisk()
    fill(PieceStore.create(disk, MANIFEST), 0)
    with pytest.raises(LocalMisuse, match="reopen"):
        PieceStore.create(disk, MANIFEST)
    again = PieceStore.reopen(disk, MANIFEST.root)
    assert again is not None
    assert again.verified_count == 1


def test_remove_takes_only_its_own_files() -> None:
    disk = SimDisk()
    other = PieceStore.create(disk, manifest_of(b"other"))
    store = PieceStore.create(disk, MANIFEST)
    fill(store, 0)
    store.remove()
    assert all(name.startswith(other.manifest.root.hex()) for name in disk.names())
    assert len(disk.names()) == 3
    assert PieceStore.reopen(disk, MANIFEST.root) is None
    PieceStore.create(disk, MANIFEST)


def test_an_empty_artifact_is_complete_at_once() -> None:
    disk = SimDisk()
    empty = manifest_of(b"")
    store = PieceStore.create(disk, empty)
    assert store.complete
    assert store.missing().tolist() == []
    store.close()
    again = PieceStore.reopen(disk, empty.root)
    assert again is not None
    assert again.complete
    with pytest.raises(LocalMisuse):
        again.write(0, 0, memoryview(b""))


def test_an_adopted_file_is_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "user's own file"
    path.write_bytes(DATA)
    file = DirectoryFile(path, writable=False)
    manifest = Manifest.of_file(file, PIECE)
    store = PieceStore.adopt(file, manifest)
    assert store.complete
    assert store.adopted
    assert store.file is file
    assert store.verified_count == 6
    assert store.missing().tolist() == []
    assert read(store, 5) == piece_bytes(5)
    with pytest.raises(LocalMisuse, match="own file"):
        store.write(0, 0, memoryview(b"x"))
    store.mark_verified(0)
    with pytest.raises(LocalMisuse):
        store.mark_verified(6)
    store.remove()
    assert path.read_bytes() == DATA
    assert list(tmp_path.iterdir()) == [path]


def test_an_adopted_file_must_be_long_enough() -> None:
    file = SimDisk().open("short", create=True)
    file.write(DATA[:-1], 0)
    with pytest.raises(LocalMisuse, match="make it anew"):
        PieceStore.adopt(file, MANIFEST)


def test_the_real_disk(tmp_path: Path) -> None:
    with Directory(tmp_path) as disk:
        store = PieceStore.create(disk, MANIFEST)
        assert store.file.fileno() is not None
        fill(store, 0, 5)
    with Directory(tmp_path) as disk:
        again = PieceStore.reopen(disk, MANIFEST.root)
        assert again is not None
        assert again.recovered == Recovery(2, 0, 0)
        fill(again, 1, 2, 3, 4)
        assert (tmp_path / f"{STEM}.data").read_bytes() == DATA
        again.remove()
    assert list(tmp_path.iterdir()) == []


# A disk that refuses


@pytest.mark.parametrize("capacity", range(len(DATA) + len(MANIFEST.to_bytes())))
def test_a_full_disk_fails_at_creation_and_leaves_nothing(capacity: int) -> None:
    disk = SimDisk(capacity=capacity)
    with pytest.raises(StorageFailed, match="full"):
        PieceStore.create(disk, MANIFEST)
    assert disk.names() == []
    disk.capacity = None
    assert PieceStore.create(disk, MANIFEST).verified_count == 0


def test_any_failure_of_creation_leaves_nothing() -> None:
    fair = SimDisk()
    PieceStore.create(fair, MANIFEST)
    for n in range(fair.operations):
        for partial in (0, 5):
            disk = SimDisk()
            disk.fail_at(n, partial=partial)
            with pytest.raises(StorageFailed):
                PieceStore.create(disk, MANIFEST)
            disk.heal()
            assert disk.names() == []
            disk = SimDisk()
            disk.fail_at(n, partial=partial, and_after=True)  # even cleaning up fails
            with pytest.raises(StorageFailed, match="fails"):
                PieceStore.create(disk, MANIFEST)
            disk.heal()
            assert PieceStore.reopen(disk, MANIFEST.root) is None
            assert disk.names() == []


@pytest.mark.parametrize("partial", range(PIECE))
def test_a_failed_write_claims_nothing_and_can_be_repeated(partial: int) -> None:
    disk = SimDisk()
    store = PieceStore.create(disk, MANIFEST)
    fill(store, 0, 2)
    disk.faults = [Fault("write", ".data", partial=partial)]
    with pytest.raises(StorageFailed):
        store.write(1, 0, memoryview(piece_bytes(1)))
    assert store.missing().tolist() == [1, 3, 4, 5]
    assert (read(store, 0), read(store, 2)) == (piece_bytes(0), piece_bytes(2))
    fill(store, 1)
    assert store.verified_count == 3


@pytest.mark.parametrize("partial", range(9))
@pytest.mark.parametrize("repeat", [1, 3], ids=["the same piece", "another piece"])
def test_a_failed_journal_append_claims_nothing_and_harms_no_later_record(partial: int, repeat: int) -> None:
    disk = SimDisk()
    store = PieceStore.create(disk, MANIFEST)
    fill(store, 0)
    disk.faults = [Fault("write", ".journal", partial=partial)]
    store.write(1, 0, memoryview(piece_bytes(1)))
    with pytest.raises(StorageFailed):
        store.mark_verified(1)
    assert not store.have[1]
    assert store.verified_count == 1

    # Killed here: the torn record is cut. A record that reached the disk whole is true, as its piece was verified.
    reached = 1 if partial == 8 else 0
    killed = PieceStore.reopen(disk.copy(), MANIFEST.root)
    assert killed is not None
    assert killed.recovered == Recovery(1 + reached, 0, partial % 8)

    # Carrying on: the next records take its place.
    fill(store, repeat, 5)
    assert store.verified_count == 3
    again = PieceStore.reopen(disk, MANIFEST.root)
    assert again is not None
    assert np.flatnonzero(again.have).tolist() == [0, repeat, 5]
    assert again.recovered == Recovery(3, 0, 0)


def test_any_failure_of_reopening_costs_nothing() -> None:
    disk = SimDisk()
    fill(PieceStore.create(disk, MANIFEST), 0, 2, 5)
    disk.contents(f"{STEM}.data")[2 * PIECE] ^= 1  # so that the journal is rewritten
    disk.contents(f"{STEM}.journal").extend(b"tail")
    fair = disk.copy()
    assert PieceStore.reopen(fair, MANIFEST.root) is not None
    for n in range(fair.operations):
        for partial in (0, 3, 8):
            ill = disk.copy()
            ill.fail_at(n, partial=partial)
            with pytest.raises(StorageFailed):
                PieceStore.reopen(ill, MANIFEST.root)
            ill.heal()
            again = PieceStore.reopen(ill, MANIFEST.root)
            assert again is not None
            kept = np.flatnonzero(again.have).tolist()
            # A rewrite stopped in the middle may cost records, and so a fetch, but never invents one.
            assert set(kept) <= {0, 5}
            assert kept == [0, 5] or partial == 3


def test_reopening_a_store_in_order_writes_nothing() -> None:
    disk = SimDisk()
    fill(PieceStore.create(disk, MANIFEST), 3, 1)
    disk.faults = [Fault("write"), Fault("truncate")]
    assert PieceStore.reopen(disk, MANIFEST.root) is not None
    assert len(disk.faults) == 2


class StoreMachine(RuleBasedStateMachine):
    """The store against a model: what each byte is, which pieces are held, and what the next start will find."""

    pieces = st.integers(0, MANIFEST.pieces - 1)

    @initialize()
    def create(self) -> None:
        self.disk = SimDisk()
        self.storage: Storage = self.disk
        self.store = PieceStore.create(self.disk, MANIFEST)
        self.bytes = bytearray(len(DATA))
        self.held: set[int] = set()

    def right(self, piece: int) -> bool:
        return self.bytes[piece * PIECE : (piece + 1) * PIECE] == piece_bytes(piece)

    @rule(piece=pieces, start=st.integers(0, PIECE), length=st.integers(0, PIECE), wrong=st.booleans())
    def write(self, piece: int, start: int, length: int, wrong: bool) -> None:
        data = bytes(length) if wrong else piece_bytes(piece)[start : start + length]
        fits = start + len(data) <= MANIFEST.piece_length(piece)
        if piece in self.held or not fits:
            with pytest.raises(LocalMisuse):
                self.store.write(piece, start, memoryview(data))
        else:
            self.store.write(piece, start, memoryview(data))
            self.bytes[piece * PIECE + start : piece * PIECE + start + len(data)] = data

    @rule(piece=pieces)
    def write_whole(self, piece: int) -> None:
        self.write(piece, 0, MANIFEST.piece_length(piece), wrong=False)

    @rule(piece=pieces)
    def mark(self, piece: int) -> None:
        if self.right(piece):
            self.store.mark_verified(piece)
            self.held.add(piece)

    @rule(piece=pieces, partial=st.integers(0, 7))
    def fail_to_mark(self, piece: int, partial: int) -> None:
        if self.right(piece) and piece not in self.held:
            self.disk.faults = [Fault("write", ".journal", partial=partial)]
            with pytest.raises(StorageFailed):
                self.store.mark_verified(piece)

    @rule(piece=pieces, partial=st.integers(0, PIECE - 1))
    def fail_to_write(self, piece: int, partial: int) -> None:
        if piece not in self.held:
            data = piece_bytes(piece)
            self.disk.faults = [Fault("write", ".data", partial=partial)]
            with pytest.raises(StorageFailed):
                self.store.write(piece, 0, memoryview(data))
            written = data[:partial]
            self.bytes[piece * PIECE : piece * PIECE + len(written)] = written

    @rule(closed=st.booleans(), tail=st.binary(max_size=20))
    def restart(self, closed: bool, tail: bytes) -> None:
        if closed:
            self.store.close()
        journal = self.disk.contents(f"{STEM}.journal")
        torn = len(journal) - 8 * len(self.held)
        journal += tail
        self.reopen(Recovery(len(self.held), 0, torn + len(tail)))

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def restart_after_losing_a_piece(self, data: st.DataObject) -> None:
        piece = data.draw(st.sampled_from(sorted(self.held)))
        torn = len(self.disk.contents(f"{STEM}.journal")) - 8 * len(self.held)
        self.disk.contents(f"{STEM}.data")[piece * PIECE] ^= 0xFF
        self.bytes[piece * PIECE] ^= 0xFF
        self.held.remove(piece)
        self.reopen(Recovery(len(self.held), 1, torn))

    def reopen(self, expected: Recovery) -> None:
        store = PieceStore.reopen(self.disk, MANIFEST.root)
        assert store is not None
        assert store.recovered == expected
        self.store = store

    @invariant()
    def agrees(self) -> None:
        store = self.store
        assert set(np.flatnonzero(store.have).tolist()) == self.held
        assert set(store.missing().tolist()) == set(range(MANIFEST.pieces)) - self.held
        assert store.verified_count == len(self.held)
        assert store.complete == (len(self.held) == MANIFEST.pieces)
        assert self.disk.contents(f"{STEM}.data") == self.bytes
        for piece in self.held:
            assert read(store, piece) == piece_bytes(piece)


TestStoreMachine = pytest.mark.slow(StoreMachine.TestCase)
