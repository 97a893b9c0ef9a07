"""What a piece store makes of the remains that kills, power cuts and failing disks leave.

The property everywhere: what is held after a restart matches its hash, nothing else is claimed, a record that the
disk kept is not lost, and a second restart finds what the first left.
"""

from __future__ import annotations

import random
from typing import get_args

import numpy as np
import pytest

from fleet.errors import StorageFailed
from fleet.sim.disk import Crash, Fault, SimDisk
from fleet.swarm.manifest import MAX_MANIFEST_BYTES, Manifest
from fleet.swarm.piece_store import PieceStore, Recovery

PIECE = 16
DATA = random.Random(7).randbytes(PIECE * 9 + 5)  # ten pieces, the last short
ORDER = (3, 0, 9, 7, 1, 2)  # in which they are verified


def _manifest() -> Manifest:
    file = SimDisk().open("artifact", create=True)
    file.write(DATA, 0)
    return Manifest.of_file(file, PIECE)


MANIFEST = _manifest()
STEM = MANIFEST.root.hex()
JOURNAL, DATA_FILE, MANIFEST_FILE = f"{STEM}.journal", f"{STEM}.data", f"{STEM}.manifest"


def fetch(store: PieceStore, *pieces: int) -> None:
    for piece in pieces:
        start = MANIFEST.piece_offset(piece)
        store.write(piece, 0, memoryview(DATA)[start : start + MANIFEST.piece_length(piece)])
        store.mark_verified(piece)


@pytest.fixture
def disk() -> SimDisk:
    """A disk whose store was killed after verifying ``ORDER``."""
    disk = SimDisk()
    fetch(PieceStore.create(disk, MANIFEST), *ORDER)
    return disk


def held(store: PieceStore) -> set[int]:
    return set(np.flatnonzero(store.have).tolist())


def restart(disk: SimDisk) -> PieceStore:
    """Reopen twice; the second must find exactly what the first left, and have nothing left to mend."""
    first = PieceStore.reopen(disk, MANIFEST.root)
    assert first is not None
    files = {name: bytes(disk.contents(name)) for name in disk.names()}
    second = PieceStore.reopen(disk, MANIFEST.root)
    assert second is not None
    assert held(second) == held(first)
    assert second.recovered == Recovery(first.verified_count, 0, 0)
    assert {name: bytes(disk.contents(name)) for name in disk.names()} == files
    for piece in held(first):
        start = MANIFEST.piece_offset(piece)
        view = bytearray(MANIFEST.piece_length(piece))
        first.read_into(piece, 0, memoryview(view))
        assert view == DATA[start : start + len(view)]
    return first


def carry_on(disk: SimDisk, store: PieceStore) -> None:
    """Whatever was lost can be fetched again, and stays."""
    fetch(store, *store.missing().tolist())
    assert disk.contents(DATA_FILE) == DATA
    again = restart(disk)
    assert again.complete
    assert len(disk.contents(JOURNAL)) == 8 * MANIFEST.pieces


@pytest.mark.parametrize("length", range(8 * len(ORDER) + 1))
def test_the_journal_cut_at_every_byte(disk: SimDisk, length: int) -> None:
    del disk.contents(JOURNAL)[length:]
    store = restart(disk)
    assert held(store) == set(ORDER[: length // 8])
    assert store.recovered == Recovery(length // 8, 0, length % 8)
    carry_on(disk, store)


@pytest.mark.parametrize("kind", ["garbage", "zeros", "ones", "another artifact's records"])
@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 100_000])
def test_a_tail_that_is_no_record(disk: SimDisk, kind: str, length: int) -> None:
    rng = random.Random(length)
    other = SimDisk()
    donor = Manifest(MANIFEST.size, PIECE, bytes(len(MANIFEST.hashes)))
    lender = PieceStore.create(other, donor)
    lender.mark_verified(4)
    lent = bytes(other.contents(f"{donor.root.hex()}.journal"))
    tail = {
        "garbage": rng.randbytes(length),
        "zeros": bytes(length),
        "ones": b"\xff" * length,
        "another artifact's records": (lent * (length // 8 + 1))[:length],
    }[kind]
    disk.contents(JOURNAL).extend(tail)
    store = restart(disk)
    assert held(store) == set(ORDER)
    assert store.recovered == Recovery(len(ORDER), 0, length)
    carry_on(disk, store)


@pytest.mark.parametrize("bit", range(0, 8 * 8 * len(ORDER), 3))
def test_a_flipped_journal_bit_ends_the_prefix(disk: SimDisk, bit: int) -> None:
    disk.contents(JOURNAL)[bit // 8] ^= 1 << bit % 8
    store = restart(disk)
    whole = bit // 64
    assert held(store) == set(ORDER[:whole])
    assert store.recovered == Recovery(whole, 0, 8 * (len(ORDER) - whole))
    carry_on(disk, store)


def test_records_twice_are_harmless_and_fold(disk: SimDisk) -> None:
    journal = disk.contents(JOURNAL)
    journal += bytes(journal) * 3
    store = restart(disk)
    assert held(store) == set(ORDER)
    assert store.recovered == Recovery(len(ORDER), 0, 0)
    carry_on(disk, store)


def test_a_journal_longer_than_one_read_of_it() -> None:
    pieces = 20_000  # 160,000 bytes of records
    data = random.Random(1).randbytes(pieces)
    disk = SimDisk()
    file = disk.open("artifact", create=True)
    file.write(data, 0)
    manifest = Manifest.of_file(file, 1)
    store = PieceStore.create(disk, manifest)
    store.file.write(data, 0)
    for piece in range(pieces):
        store.mark_verified(piece)
    journal = disk.contents(f"{manifest.root.hex()}.journal")
    journal[8 * 15_000] ^= 1
    again = PieceStore.reopen(disk, manifest.root)
    assert again is not None
    assert again.recovered == Recovery(15_000, 0, 8 * 5_000)
    assert len(journal) == 8 * 15_000
    assert again.missing().tolist() == list(range(15_000, pieces))


@pytest.mark.parametrize("how", ["zeroed", "one bit"])
@pytest.mark.parametrize("lost", [(3,), (9,), (2, 7), ORDER])
def test_lost_data_of_a_journaled_piece_is_dropped_and_counted(disk: SimDisk, how: str, lost: tuple[int, ...]) -> None:
    content = disk.contents(DATA_FILE)
    for piece in lost:
        start, length = MANIFEST.piece_offset(piece), MANIFEST.piece_length(piece)
        if how == "zeroed":
            content[start : start + length] = bytes(length)
        else:
            content[start + length - 1] ^= 1
    copy = disk.copy()
    first = PieceStore.reopen(copy, MANIFEST.root)
    assert first is not None
    assert first.recovered == Recovery(len(ORDER) - len(lost), len(lost), 0)
    store = restart(disk)
    assert held(store) == set(ORDER) - set(lost)
    carry_on(disk, store)


@pytest.mark.parametrize("length", [0, 1, PIECE, PIECE * 4, len(DATA) - 1])
def test_a_data_file_cut_short(disk: SimDisk, length: int) -> None:
    del disk.contents(DATA_FILE)[length:]
    store = restart(disk)
    assert held(store) == {p for p in ORDER if MANIFEST.piece_offset(p) + MANIFEST.piece_length(p) <= length}
    assert len(disk.contents(DATA_FILE)) == len(DATA)
    carry_on(disk, store)


@pytest.mark.parametrize("gone", [DATA_FILE, JOURNAL])
def test_a_file_gone_costs_its_pieces(disk: SimDisk, gone: str) -> None:
    disk.remove(gone)
    store = restart(disk)
    assert held(store) == set()
    carry_on(disk, store)


def test_no_room_to_make_the_data_file_whole_again(disk: SimDisk) -> None:
    disk.remove(DATA_FILE)
    disk.capacity = 1000
    disk.open("hog", create=True).allocate(1000 - len(MANIFEST.to_bytes()) - 8 * len(ORDER) - 1)
    with pytest.raises(StorageFailed, match="full"):
        PieceStore.reopen(disk, MANIFEST.root)
    disk.remove("hog")
    assert held(restart(disk)) == set()


@pytest.mark.parametrize("length", range(len(MANIFEST.to_bytes())))
def test_the_manifest_cut_at_every_byte(disk: SimDisk, length: int) -> None:
    del disk.contents(MANIFEST_FILE)[length:]
    gone_and_made_anew(disk)


@pytest.mark.parametrize("at", range(0, len(MANIFEST.to_bytes()), 5))
def test_a_flipped_bit_of_the_manifest(disk: SimDisk, at: int) -> None:
    disk.contents(MANIFEST_FILE)[at] ^= 1
    gone_and_made_anew(disk)


def test_other_ruins_of_a_manifest(disk: SimDisk) -> None:
    size = len(MANIFEST.to_bytes())
    for ruin in (bytes(size), MANIFEST.to_bytes() + b"\0", Manifest(1, 1, bytes(32)).to_bytes()):
        ruined = disk.copy()
        ruined.contents(MANIFEST_FILE)[:] = ruin
        gone_and_made_anew(ruined)
    disk.contents(MANIFEST_FILE).extend(bytes(MAX_MANIFEST_BYTES))
    disk.faults = [Fault("read", ".manifest")]
    assert PieceStore.reopen(disk, MANIFEST.root) is None
    assert len(disk.faults) == 1  # nobody even read it
    assert disk.names() == []


def test_data_and_journal_without_a_manifest(disk: SimDisk) -> None:
    disk.remove(MANIFEST_FILE)
    gone_and_made_anew(disk)


def test_creation_clears_remains_away(disk: SimDisk) -> None:
    """Without a manifest there is no store, so nothing that is left may shape the new one."""
    disk.remove(MANIFEST_FILE)
    disk.contents(DATA_FILE).extend(b"longer")
    store = PieceStore.create(disk, MANIFEST)
    assert disk.contents(JOURNAL) == b""
    carry_on(disk, store)


def gone_and_made_anew(disk: SimDisk) -> None:
    disk.open("another-file", create=True)
    assert PieceStore.reopen(disk, MANIFEST.root) is None
    assert disk.names() == ["another-file"]
    store = PieceStore.create(disk, MANIFEST)
    assert held(store) == set()
    carry_on(disk, store)


def test_a_journal_of_an_earlier_life_proves_nothing(disk: SimDisk) -> None:
    """Its records are valid, as the root is the same; only the hashes show that the data is not there."""
    old = bytes(disk.contents(JOURNAL))
    store = PieceStore.reopen(disk, MANIFEST.root)
    assert store is not None
    store.remove()
    PieceStore.create(disk, MANIFEST).close()
    disk.contents(JOURNAL)[:] = old
    again = PieceStore.reopen(disk.copy(), MANIFEST.root)
    assert again is not None
    assert again.recovered == Recovery(0, len(ORDER), 0)
    carry_on(disk, restart(disk))


def test_repeated_loss_does_not_grow_the_journal(disk: SimDisk) -> None:
    for _ in range(20):
        disk.contents(DATA_FILE)[MANIFEST.piece_offset(3)] ^= 1
        store = PieceStore.reopen(disk, MANIFEST.root)
        assert store is not None
        assert store.recovered == Recovery(len(ORDER) - 1, 1, 0)
        fetch(store, 3)
        assert len(disk.contents(JOURNAL)) == 8 * len(ORDER)


def two_lives() -> SimDisk:
    """The disk of a store whose second life mended a piece, rewrote the journal and fetched more. Nothing is synced."""
    disk = SimDisk()
    fetch(PieceStore.create(disk, MANIFEST), *ORDER)
    start = MANIFEST.piece_offset(7)
    disk.open(DATA_FILE).write(bytes(PIECE), start)
    store = PieceStore.reopen(disk, MANIFEST.root)
    assert store is not None
    fetch(store, 7, 5)
    return disk


@pytest.mark.parametrize("how", ["torn", "reorder"])
def test_power_cuts_that_keep_any_writes_in_any_order(how: Crash) -> None:
    """Nothing is ever synced, so a power cut may keep any part of what was done, over two lives of the store."""
    disk = two_lives()
    known = set()
    for seed in range(500):
        after = disk.copy(rng=random.Random(seed))
        after.crash(how)
        found = PieceStore.reopen(after.copy(), MANIFEST.root)
        if found is None:
            assert PieceStore.reopen(after, MANIFEST.root) is None
            assert after.names() == []
            continue
        known.add(frozenset(held(found)))
        carry_on(after, restart(after))
    assert frozenset() in known
    assert len(known) > 5


def test_a_power_cut_that_loses_all_leaves_no_store() -> None:
    disk = two_lives()
    disk.crash("drop")
    assert disk.names() == []
    assert PieceStore.reopen(disk, MANIFEST.root) is None


def test_a_power_cut_after_all_was_synced_loses_nothing() -> None:
    for how in get_args(Crash):
        disk = two_lives()
        for name in disk.names():
            disk.open(name).sync()
        disk.crash(how)
        store = restart(disk)
        assert held(store) == {*ORDER, 5}
        carry_on(disk, store)


def test_a_kill_between_any_two_operations() -> None:
    """After a kill the disk has all that was done before it: no verified piece is lost, at any point."""
    fair = SimDisk()
    fetch(PieceStore.create(fair, MANIFEST), *ORDER)
    for n in range(fair.operations):
        for partial in (0, 5):
            disk = SimDisk()
            disk.fail_at(n, partial=partial, and_after=True)
            marked: list[int] = []
            try:
                store = PieceStore.create(disk, MANIFEST)
                for piece in ORDER:
                    fetch(store, piece)
                    marked.append(piece)
            except StorageFailed:
                pass
            disk.heal()
            if PieceStore.reopen(disk.copy(), MANIFEST.root) is None:
                assert not marked
            else:
                store = restart(disk)
                assert held(store) == set(marked)
                carry_on(disk, store)


def test_a_kill_while_recovering_loses_nothing(disk: SimDisk) -> None:
    """The journal is rewritten in place; a kill within that leaves records of pieces that are there, all of them."""
    disk.contents(DATA_FILE)[MANIFEST.piece_offset(3)] ^= 1
    fair = disk.copy()
    assert PieceStore.reopen(fair, MANIFEST.root) is not None
    for n in range(fair.operations):
        for partial in range(0, 8 * len(ORDER), 8):
            killed = disk.copy()
            killed.fail_at(n, partial=partial, and_after=True)
            with pytest.raises(StorageFailed):
                PieceStore.reopen(killed, MANIFEST.root)
            killed.heal()
            assert held(restart(killed)) == set(ORDER) - {3}


def test_a_kill_while_removing_leaves_the_store_or_remains(disk: SimDisk) -> None:
    """Never a store that has lost its data: what is half removed is gone."""
    outcomes = set()
    for n in range(3):
        killed = disk.copy()
        store = PieceStore.reopen(killed, MANIFEST.root)
        assert store is not None
        killed.fail_at(n, and_after=True)
        with pytest.raises(StorageFailed):
            store.remove()
        killed.heal()
        again = PieceStore.reopen(killed, MANIFEST.root)
        assert again is None or again.recovered == Recovery(len(ORDER), 0, 0)
        assert again is not None or killed.names() == []
        outcomes.add(again is None)
    assert outcomes == {True, False}
