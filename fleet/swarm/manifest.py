"""The manifest of an artifact: its size, its piece size, and the BLAKE3-256 of each piece.

Its root, a BLAKE3-256 over all three, names the artifact: whoever knows the root can check a manifest that came from
anyone, and with the manifest every piece by itself. The manifest is flat as in BEP 3 rather than a tree as in BEP 52,
because it is small (32 bytes a piece) and travels in pages.

The root is BLAKE3(``b"fleet/manifest/1\\0"`` || size u64 || piece size u32 || hashes), integers big-endian. The prefix
keeps a root from ever equalling the hash of a piece or of any other kind of object.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from blake3 import blake3

from fleet.errors import LocalMisuse, PeerViolation
from fleet.limits import MANIFEST_PAGE_PIECES, MAX_PIECE_SIZE, MAX_PIECES, MIB

if TYPE_CHECKING:
    from fleet.storage import File

__all__ = ["HASH_SIZE", "MAX_MANIFEST_BYTES", "Manifest", "ManifestAssembler", "hash_range", "page", "pages"]

HASH_SIZE: Final = 32
"""Bytes of a piece's hash and of a root."""

_ROOT_PREFIX: Final = b"fleet/manifest/1\0"
_GEOMETRY: Final = struct.Struct(">QI")
_MAGIC: Final = b"fleetmf1"
_HEADER_SIZE: Final = len(_MAGIC) + _GEOMETRY.size

MAX_MANIFEST_BYTES: Final = _HEADER_SIZE + MAX_PIECES * HASH_SIZE
"""No stored manifest is longer, so a longer file is refused before it is read."""

_BLOCK: Final = 1 * MIB


def _geometry_problem(size: int, piece_size: int) -> str | None:
    """Why these two cannot describe an artifact, or None when they can.

    A peer may have chosen both: neither is shown before it is known to be small, as Python refuses to print huge ones.
    """
    if type(size) is not int or type(piece_size) is not int:
        return "an artifact's size and piece size are integers"
    if not 1 <= piece_size <= MAX_PIECE_SIZE:
        return f"a piece has 1 to {MAX_PIECE_SIZE:,} bytes"
    if size < 0:
        return "an artifact's size cannot be negative"
    if size > MAX_PIECES * MAX_PIECE_SIZE:
        return f"an artifact has at most {MAX_PIECES * MAX_PIECE_SIZE:,} bytes: split it"
    if size > MAX_PIECES * piece_size:
        enough = 1 << (-(-size // MAX_PIECES) - 1).bit_length()
        return (
            f"{size:,} bytes in pieces of {piece_size:,} are more than the {MAX_PIECES:,} pieces allowed: "
            f"use a piece size of {enough:,} or more"
        )
    return None


@dataclass(frozen=True, slots=True)
class Manifest:
    """An artifact's description. Two are equal when their roots are.

    ``size`` is in bytes, ``piece_size`` too (the last piece may be shorter), ``hashes`` holds 32 bytes a piece. An
    empty artifact has no pieces. Raises ``LocalMisuse`` when the three do not fit each other or the limits.
    """

    size: int
    piece_size: int
    hashes: bytes = field(repr=False)
    root: bytes = field(init=False, compare=False)
    """The 32 bytes that name the artifact."""

    def __post_init__(self) -> None:
        problem = _geometry_problem(self.size, self.piece_size)
        if problem is not None:
            raise LocalMisuse(problem)
        if type(self.hashes) is not bytes or len(self.hashes) != self.pieces * HASH_SIZE:
            raise LocalMisuse(f"{self.pieces:,} pieces need {self.pieces * HASH_SIZE:,} bytes of hashes")
        hasher = blake3(_ROOT_PREFIX)
        hasher.update(_GEOMETRY.pack(self.size, self.piece_size))
        hasher.update(self.hashes)
        object.__setattr__(self, "root", hasher.digest())

    @property
    def pieces(self) -> int:
        """How many pieces there are."""
        return -(-self.size // self.piece_size)

    def piece_offset(self, piece: int) -> int:
        """Where the piece begins in the artifact, in bytes."""
        self._check(piece)
        return piece * self.piece_size

    def piece_length(self, piece: int) -> int:
        """The piece's length in bytes."""
        self._check(piece)
        return min(self.piece_size, self.size - piece * self.piece_size)

    def piece_hash(self, piece: int) -> bytes:
        """The piece's BLAKE3-256."""
        self._check(piece)
        return self.hashes[piece * HASH_SIZE : (piece + 1) * HASH_SIZE]

    def _check(self, piece: int) -> None:
        if not 0 <= piece < self.pieces:
            raise LocalMisuse(f"there is no piece {piece}: this artifact has {self.pieces:,}, counted from 0")

    @classmethod
    def of_file(
        cls, file: File, piece_size: int, size: int | None = None, *, on_piece: Callable[[int], None] | None = None
    ) -> Manifest:
        """Read and hash the first ``size`` bytes of ``file`` (all of it by default), holding 1 MiB at most.

        ``on_piece`` is told each piece's index once it is hashed. This takes as long as reading the file does: run it
        off the event loop. Raises ``LocalMisuse`` for sizes that cannot be, ``StorageFailed`` when reading fails.
        """
        held = file.size()
        if size is None:
            size = held
        problem = _geometry_problem(size, piece_size)
        if problem is not None:
            raise LocalMisuse(problem)
        if size > held:
            raise LocalMisuse(f"{file.name} has {held:,} bytes, not {size:,}: ask for what it has")
        block = memoryview(bytearray(min(_BLOCK, piece_size)))
        hashes = []
        for piece, offset in enumerate(range(0, size, piece_size)):
            hashes.append(hash_range(file, offset, min(piece_size, size - offset), block))
            if on_piece is not None:
                on_piece(piece)
        return cls(size, piece_size, b"".join(hashes))

    def to_bytes(self) -> bytes:
        """Fixed layout for a file: 8 bytes magic, size u64, piece size u32 (big-endian), hashes."""
        return _MAGIC + _GEOMETRY.pack(self.size, self.piece_size) + self.hashes

    @classmethod
    def from_bytes_untrusted(cls, data: bytes, expected_root: bytes) -> Manifest:
        """Read what ``to_bytes`` wrote; ``PeerViolation`` unless it is whole and its root is ``expected_root``."""
        if len(data) < _HEADER_SIZE or data[: len(_MAGIC)] != _MAGIC:
            raise PeerViolation("a stored manifest begins with its header, and this does not")
        size, piece_size = _GEOMETRY.unpack_from(data, len(_MAGIC))
        problem = _geometry_problem(size, piece_size)
        if problem is not None:
            raise PeerViolation(f"a stored manifest cannot be: {problem}")
        expected = _HEADER_SIZE + -(-size // piece_size) * HASH_SIZE
        if len(data) != expected:
            raise PeerViolation(f"a stored manifest should have {expected:,} bytes and has {len(data):,}")
        manifest = cls(size, piece_size, bytes(data[_HEADER_SIZE:]))
        if manifest.root != expected_root:
            raise PeerViolation("a stored manifest does not match the root it is stored under")
        return manifest


def hash_range(file: File, offset: int, length: int, block: memoryview) -> bytes:
    """BLAKE3-256 of ``length`` bytes of ``file`` from ``offset``, read through ``block`` (one byte or longer)."""
    hasher = blake3()
    end = offset + length
    while offset < end:
        part = block[: min(len(block), end - offset)]
        file.read_into(part, offset)
        hasher.update(part)
        offset += len(part)
    return hasher.digest()


def _page_count(pieces: int) -> int:
    return max(1, -(-pieces // MANIFEST_PAGE_PIECES))


def pages(manifest: Manifest) -> int:
    """How many pages the manifest travels in; an empty artifact's travels in one empty page."""
    return _page_count(manifest.pieces)


def page(manifest: Manifest, n: int) -> bytes:
    """The hashes of page ``n``: ``MANIFEST_PAGE_PIECES`` of them, fewer in the last. ``LocalMisuse`` beyond it."""
    if not 0 <= n < pages(manifest):
        raise LocalMisuse(f"there is no page {n}: this manifest has {pages(manifest)}, counted from 0")
    span = MANIFEST_PAGE_PIECES * HASH_SIZE
    return manifest.hashes[n * span : (n + 1) * span]


class ManifestAssembler:
    """Collects the manifest of ``root`` from the pages of one source, in order; memory follows what has arrived.

    One assembler serves one source: only the whole manifest can be checked against the root, so pages of several
    sources must not mix, or an honest one would be blamed for a liar's page. A refused page changes nothing, except
    that a wrong root ends the assembly.
    """

    def __init__(self, root: bytes) -> None:
        if len(root) != HASH_SIZE:
            raise LocalMisuse(f"a root has {HASH_SIZE} bytes, not {len(root)}")
        self._root = bytes(root)
        self._geometry: tuple[int, int] | None = None
        self._hashes = bytearray()
        self._next = 0
        self._ended = False

    @property
    def next_page(self) -> int:
        """The page to ask for next; once all have arrived, the number of pages."""
        return self._next

    @property
    def pages(self) -> int | None:
        """How many pages the source's header calls for; None before its first page."""
        if self._geometry is None:
            return None
        size, piece_size = self._geometry
        return _page_count(-(-size // piece_size))

    def add_page_untrusted(self, size: int, piece_size: int, page: int, hashes: bytes) -> Manifest | None:
        """Take the next page; returns the manifest once it is whole and its root is right, None before.

        ``size`` and ``piece_size`` are repeated on every page. Raises ``PeerViolation`` for sizes that cannot be or
        that contradict an earlier page, for a page out of order, repeated or of the wrong length, and for a
        manifest with another root.
        """
        if self._ended:
            raise PeerViolation("a manifest page came after the last one")
        problem = _geometry_problem(size, piece_size)
        if problem is not None:
            raise PeerViolation(f"a manifest's header cannot be: {problem}")
        if self._geometry is not None and self._geometry != (size, piece_size):
            raise PeerViolation("a manifest page contradicts the sizes of the page before")
        if type(page) is not int or page != self._next:
            raise PeerViolation(f"a manifest page is out of order: page {self._next} was due")
        pieces = -(-size // piece_size)
        due = min(MANIFEST_PAGE_PIECES, pieces - page * MANIFEST_PAGE_PIECES) * HASH_SIZE
        if type(hashes) is not bytes or len(hashes) != due:
            raise PeerViolation(f"page {page} of this manifest must carry {due:,} bytes of hashes")
        self._geometry = size, piece_size
        self._hashes += hashes
        self._next += 1
        if self._next < _page_count(pieces):
            return None
        self._ended = True
        manifest = Manifest(size, piece_size, bytes(self._hashes))
        self._hashes = bytearray()
        if manifest.root != self._root:
            raise PeerViolation("a manifest's pages do not hash to the root that was asked for")
        return manifest
