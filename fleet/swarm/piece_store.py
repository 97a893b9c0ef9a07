"""One artifact of one peer: its bytes, and which pieces of them are known to be right.

Three files a store, named by the root's digest alone, so that no name from a peer ever reaches the disk:

- ``.data`` has the artifact's full size from the start. The space is reserved at creation, so a full disk fails there.
- ``.manifest`` is the manifest, checked against the root whenever it is read.
- ``.journal`` gets one 8-byte record for each verified piece: its index (u32, big-endian), then 4 check bytes of
  BLAKE3 keyed with the root. Records lie at multiples of 8, so no sector boundary cuts one.

The rule: **after a restart nothing is trusted without its hash.** The journal only says which pieces are worth
hashing; a piece counts as held when its bytes on disk match the manifest. So the order in which the disk wrote data and
journal does not matter, nothing is ever synced, and the worst that a crash can cost is fetching pieces again. The
journal is the longest prefix of valid records (as in ALICE, OSDI'14); what follows the first invalid one is cut.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from blake3 import blake3

from fleet.errors import LocalMisuse, PeerViolation, StorageFailed
from fleet.limits import KIB, MIB
from fleet.swarm.manifest import HASH_SIZE, MAX_MANIFEST_BYTES, Manifest, hash_range

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fleet.storage import File, Storage

__all__ = ["PieceStore", "Recovery"]

_RECORD_SIZE: Final = 8
_INDEX: Final = struct.Struct(">I")
_RECORD_PREFIX: Final = b"fleet/piece-journal/1\0"
_HASH_BLOCK: Final = 1 * MIB
_JOURNAL_BLOCK: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class Recovery:
    """What ``PieceStore.reopen`` found on the disk."""

    kept: int
    """Pieces whose bytes still match their hash."""
    dropped: int
    """Pieces that the journal listed and whose bytes do not match: to be fetched again."""
    journal_bytes_cut: int
    """Bytes at the journal's end that were no valid records."""


@dataclass(frozen=True, slots=True)
class _Names:
    data: str
    manifest: str
    journal: str

    @classmethod
    def of(cls, root: bytes) -> _Names:
        if len(root) != HASH_SIZE:
            raise LocalMisuse(f"a root has {HASH_SIZE} bytes, not {len(root)}")
        # The whole digest: with a part of it, an artifact made to share that part could displace another's files.
        stem = root.hex()
        return cls(f"{stem}.data", f"{stem}.manifest", f"{stem}.journal")

    def remove(self, storage: Storage) -> None:
        # The manifest goes first: without it the other two are known to be remains, whatever stops us here.
        for name in (self.manifest, self.journal, self.data):
            storage.remove(name)


def _record(root: bytes, piece: int) -> bytes:
    index = _INDEX.pack(piece)
    return index + blake3(_RECORD_PREFIX + index, key=root).digest(_RECORD_SIZE - len(index))


def _read_manifest(storage: Storage, name: str, root: bytes) -> Manifest | None:
    """The stored manifest, or None when there is none or it is not whole."""
    if not storage.exists(name):
        return None
    file = storage.open(name)
    try:
        size = file.size()
        if size > MAX_MANIFEST_BYTES:
            return None
        data = bytearray(size)
        file.read_into(memoryview(data), 0)
    finally:
        file.close()
    try:
        return Manifest.from_bytes_untrusted(bytes(data), root)
    except PeerViolation:
        return None  # torn by a crash: the caller removes it and reports the artifact as unknown


def _read_journal(journal: File, manifest: Manifest) -> tuple[list[int], int]:
    """The pieces in the journal's longest valid prefix, each once in order of first mention, and that prefix's end."""
    size = journal.size()
    listed: dict[int, None] = {}
    offset = 0
    while offset + _RECORD_SIZE <= size:
        block = bytearray(min(_JOURNAL_BLOCK, size - offset) // _RECORD_SIZE * _RECORD_SIZE)
        journal.read_into(memoryview(block), offset)
        for at in range(0, len(block), _RECORD_SIZE):
            record = block[at : at + _RECORD_SIZE]
            (piece,) = _INDEX.unpack_from(record)
            if piece >= manifest.pieces or record != _record(manifest.root, piece):
                return list(listed), offset + at
            listed[piece] = None
        offset += len(block)
    return list(listed), offset


class PieceStore:
    """The pieces of one artifact. Made by ``create``, ``reopen`` or ``adopt``; use it from one thread at a time.

    Every failure of the disk is ``StorageFailed`` and leaves the store as it was before the call, save for the bytes of
    the unverified piece that was being written. A call that cannot be meant is ``LocalMisuse``.
    """

    def __init__(
        self,
        manifest: Manifest,
        data: File,
        journal: File | None,
        storage: Storage | None,
        have: NDArray[np.bool_],
        recovered: Recovery | None = None,
    ) -> None:
        self._manifest = manifest
        self._data = data
        self._journal = journal
        self._storage = storage
        self._have = have
        self._have_view = have.view()
        self._have_view.flags.writeable = False
        self._count = int(np.count_nonzero(have))
        self._journal_end = self._count * _RECORD_SIZE
        self._recovered = recovered
        self._adopted_version = data.version() if journal is None else None
        self._closed = False

    @classmethod
    def create(cls, storage: Storage, manifest: Manifest) -> Self:
        """A new store without pieces, with room for all of them reserved.

        Raises ``StorageFailed`` when the disk is full or fails, and then leaves no file behind; ``LocalMisuse``
        when there is already a store of this artifact, which ``reopen`` would have recovered or cleared away.
        """
        names = _Names.of(manifest.root)
        if storage.exists(names.manifest):
            raise LocalMisuse(f"{names.manifest} is already stored: reopen it, or remove it first")
        with ExitStack() as undo:
            undo.callback(_remove_quietly, storage, names)
            names.remove(storage)
            data = storage.open(names.data, create=True)
            undo.callback(data.close)
            data.allocate(manifest.size)
            journal = storage.open(names.journal, create=True)
            undo.callback(journal.close)
            described = storage.open(names.manifest, create=True)
            try:
                described.write(manifest.to_bytes(), 0)
            finally:
                described.close()
            undo.pop_all()
        return cls(manifest, data, journal, storage, np.zeros(manifest.pieces, np.bool_))

    @classmethod
    def reopen(cls, storage: Storage, root: bytes, on_piece: Callable[[int], None] | None = None) -> Self | None:
        """The store of ``root`` as an earlier run left it, or None when there is none.

        Without a whole manifest there is none, and whatever else remains of it is removed. Each piece that the journal
        lists is hashed anew and ``on_piece`` told its index; ``recovered`` says what came of it. The journal is then
        rewritten to list just the pieces kept, so that it stays bounded over any number of crashes. This reads every
        listed piece: run it off the event loop. Raises ``StorageFailed`` when the disk fails, and removes nothing then.
        """
        names = _Names.of(root)
        manifest = _read_manifest(storage, names.manifest, root)
        if manifest is None:
            names.remove(storage)
            return None
        have = np.zeros(manifest.pieces, np.bool_)
        with ExitStack() as undo:
            data = storage.open(names.data, create=True)
            undo.callback(data.close)
            # What a crash or another disk took from the file reads as zeros from here on, and fails its hash below.
            data.allocate(manifest.size)
            journal = storage.open(names.journal, create=True)
            undo.callback(journal.close)
            listed, valid_end = _read_journal(journal, manifest)
            cut = journal.size() - valid_end
            block = memoryview(bytearray(min(_HASH_BLOCK, manifest.piece_size)))
            kept = []
            for piece in listed:
                digest = hash_range(data, manifest.piece_offset(piece), manifest.piece_length(piece), block)
                if digest == manifest.piece_hash(piece):
                    kept.append(piece)
                if on_piece is not None:
                    on_piece(piece)
            have[kept] = True
            end = len(kept) * _RECORD_SIZE
            if end != valid_end:
                # Any mix of old and new records that a crash leaves here is again a journal of valid records.
                journal.write(b"".join(_record(root, piece) for piece in kept), 0)
            if end != valid_end or cut:
                journal.truncate(end)
            undo.pop_all()
        return cls(manifest, data, journal, storage, have, Recovery(len(kept), len(listed) - len(kept), cut))

    @staticmethod
    def is_stored(storage: Storage, root: bytes) -> bool:
        """Whether there is anything for ``reopen`` to find. Quick, so that a first fetch need not leave the loop."""
        return storage.exists(_Names.of(root).manifest)

    @classmethod
    def adopt(cls, file: File, manifest: Manifest) -> Self:
        """A complete store over a file of the user's that ``manifest`` was just made from.

        It is read in place, never written and never deleted; ``close`` closes ``file``. Raises ``LocalMisuse`` when the
        file is shorter than the manifest says.
        """
        held = file.size()
        if held < manifest.size:
            raise LocalMisuse(f"{file.name} has {held:,} bytes and its manifest says {manifest.size:,}: make it anew")
        return cls(manifest, file, None, None, np.ones(manifest.pieces, np.bool_))

    @property
    def manifest(self) -> Manifest:
        return self._manifest

    @property
    def file(self) -> File:
        """The data file, for sending from: piece ``i`` is at ``manifest.piece_offset(i)``."""
        return self._data

    @property
    def adopted(self) -> bool:
        """Whether the data is the user's own file."""
        return self._journal is None

    @property
    def recovered(self) -> Recovery | None:
        """What ``reopen`` found; None for a store that was created or adopted."""
        return self._recovered

    @property
    def have(self) -> NDArray[np.bool_]:
        """Which pieces are verified, shape ``(pieces,)``: a read-only view that follows the store."""
        return self._have_view

    @property
    def verified_count(self) -> int:
        return self._count

    @property
    def complete(self) -> bool:
        return self._count == self._manifest.pieces

    def missing(self) -> NDArray[np.intp]:
        """The indexes of the pieces not verified yet, ascending."""
        return np.flatnonzero(~self._have)

    def check_unchanged(self) -> None:
        """Raise ``StorageFailed`` when the user's own file was written to, or cut, since it was adopted."""
        if self._adopted_version is not None and self._data.version() != self._adopted_version:
            raise StorageFailed(f"{self._data.name} was changed while it is shared: share it again")

    def write(self, piece: int, offset_in_piece: int, data: memoryview) -> None:
        """Write bytes of a piece that is not verified yet. ``LocalMisuse`` beyond the piece or on a verified one."""
        if self._journal is None:
            raise LocalMisuse(f"{self._data.name} is the user's own file, which is only read")
        at = self._position(piece, offset_in_piece, data.nbytes)
        if self._have[piece]:
            raise LocalMisuse(f"piece {piece} is verified already: drop what arrived for it instead of writing it")
        self._data.write(data, at)

    def mark_verified(self, piece: int) -> None:
        """Record that the piece was written and its hash checked; marking it twice is harmless.

        Raises ``StorageFailed`` when the record cannot be written: the piece is then not held, and may be marked again.
        """
        self._position(piece, 0, 0)
        if self._have[piece] or self._journal is None:
            return
        # On failure the end stays where it is, so the next record overwrites whatever part of this one was written.
        self._journal.write(_record(self._manifest.root, piece), self._journal_end)
        self._journal_end += _RECORD_SIZE
        self._have[piece] = True
        self._count += 1

    def read_into(self, piece: int, offset_in_piece: int, view: memoryview) -> None:
        """Fill ``view`` from the piece, verified or not: ``have`` tells whether its bytes may be passed on."""
        self._data.read_into(view, self._position(piece, offset_in_piece, view.nbytes))

    def close(self) -> None:
        """Close the files, which stay for ``reopen``; safe to call twice."""
        self._closed = True
        self._data.close()
        if self._journal is not None:
            self._journal.close()

    def remove(self) -> None:
        """Close the store and delete its files; a user's own file stays."""
        self.close()
        if self._storage is not None:
            _Names.of(self._manifest.root).remove(self._storage)

    def _position(self, piece: int, offset_in_piece: int, length: int) -> int:
        """Where these bytes of the piece lie in the file."""
        if self._closed:
            raise LocalMisuse("this store is closed: reopen the artifact")
        room = self._manifest.piece_length(piece)
        if not 0 <= offset_in_piece <= room - length:
            raise LocalMisuse(
                f"piece {piece} has {room:,} bytes: {length:,} bytes at {offset_in_piece:,} are not within it"
            )
        return self._manifest.piece_offset(piece) + offset_in_piece


def _remove_quietly(storage: Storage, names: _Names) -> None:
    """Undo a creation that failed; the failure itself is what the caller must hear of."""
    for name in (names.manifest, names.journal, names.data):
        with suppress(StorageFailed):
            storage.remove(name)
