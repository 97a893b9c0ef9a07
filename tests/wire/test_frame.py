"""Frames: every split point of a stream, every bad header, and bytes that are no frames at all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import PeerViolation
from fleet.limits import MAX_CONTROL_FRAME, MAX_PIECE_SIZE
from fleet.wire.frame import (
    BULK,
    CONTROL,
    HEADER,
    PIECE,
    PIECE_HEADER,
    FrameKind,
    FrameReader,
    PieceReader,
    control_frame,
    piece_header,
)

FRAMES = [(FrameKind.HELLO, b"hello"), (FrameKind.PROOF, b""), (FrameKind.MESSAGES, bytes(range(40)))]
STREAM = b"".join(control_frame(kind, payload) for kind, payload in FRAMES)


def read_all(reader: FrameReader) -> list[tuple[FrameKind, bytes]]:
    frames = []
    while (frame := reader.next_untrusted()) is not None:
        frames.append(frame)
    return frames


# --- control ---


def test_a_control_frame_on_the_wire() -> None:
    assert control_frame(FrameKind.PROOF, b"ab", b"", b"c").hex() == "00000003" + "00" + "02" + "616263"


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_every_split_point(cut: int) -> None:
    reader = FrameReader()
    reader.feed(STREAM[:cut])
    first = read_all(reader)
    reader.feed(memoryview(STREAM)[cut:])
    assert first + read_all(reader) == FRAMES
    assert reader.rest() == b""


@given(st.lists(st.tuples(st.sampled_from(FrameKind), st.binary(max_size=60)), max_size=8), st.data())
def test_any_cuts(frames: list[tuple[FrameKind, bytes]], data: st.DataObject) -> None:
    stream = b"".join(control_frame(kind, payload) for kind, payload in frames)
    points = sorted(data.draw(st.sets(st.integers(0, len(stream)))))
    reader = FrameReader()
    read = []
    for start, stop in zip([0, *points], [*points, len(stream)], strict=True):
        reader.feed(stream[start:stop])
        read += read_all(reader)
    assert read == frames


def test_the_caller_may_reuse_what_it_fed() -> None:
    reader = FrameReader()
    scratch = bytearray(STREAM)
    reader.feed(memoryview(scratch))
    scratch[:] = bytes(len(scratch))
    assert read_all(reader) == FRAMES


def test_the_rest_is_what_follows_the_last_frame_taken() -> None:
    reader = FrameReader()
    reader.feed(STREAM + b"more")
    assert [reader.next_untrusted() for _ in FRAMES] == FRAMES
    assert reader.rest() == b"more"
    assert reader.rest() == b""


@pytest.mark.parametrize("length", [0, 1, MAX_CONTROL_FRAME])
def test_lengths_within_the_cap(length: int) -> None:
    reader = FrameReader()
    reader.feed(control_frame(FrameKind.MESSAGES, bytes(length)))
    assert reader.next_untrusted() == (FrameKind.MESSAGES, bytes(length))


@pytest.mark.parametrize("length", [MAX_CONTROL_FRAME + 1, 2**31, 2**32 - 1])
def test_lengths_beyond_the_cap_are_refused_in_the_header(length: int) -> None:
    header = HEADER.pack(length, CONTROL, FrameKind.MESSAGES)
    reader = FrameReader()
    reader.feed(header[:-1])
    assert reader.next_untrusted() is None
    reader.feed(header[-1:])
    with pytest.raises(PeerViolation, match="at most 1,048,576"):
        reader.next_untrusted()


def test_a_caller_may_set_a_lower_cap() -> None:
    reader = FrameReader()
    reader.feed(HEADER.pack(101, CONTROL, FrameKind.HELLO))
    assert reader.next_untrusted(101) is None
    with pytest.raises(PeerViolation, match="at most 100"):
        reader.next_untrusted(100)


@pytest.mark.parametrize(
    ("channel", "kind"), [(CONTROL, 0), (CONTROL, 4), (CONTROL, 255), (BULK, PIECE), (2, 1), (255, 255)]
)
def test_other_channels_and_kinds_on_a_control_link(channel: int, kind: int) -> None:
    reader = FrameReader()
    reader.feed(HEADER.pack(0, channel, kind))
    with pytest.raises(PeerViolation, match="on a control link"):
        reader.next_untrusted()


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_random_bytes_raise_only_violations(parts: list[bytes]) -> None:
    reader = FrameReader()
    taken = b""
    try:
        for part in parts:
            reader.feed(part)
            taken += b"".join(control_frame(*frame) for frame in read_all(reader))
    except PeerViolation:
        return
    assert taken + reader.rest() == b"".join(parts)


@given(st.integers(0, len(STREAM) - 1), st.integers(1, 255))
def test_mutated_frames_raise_only_violations(place: int, change: int) -> None:
    stream = bytearray(STREAM)
    stream[place] ^= change
    reader = FrameReader()
    reader.feed(bytes(stream))
    try:
        frames = read_all(reader)
    except PeerViolation:
        return
    assert b"".join(control_frame(*frame) for frame in frames) + reader.rest() == stream


# --- pieces ---

PIECES = [(0, b"a"), (2**32 - 1, bytes(range(30))), (7, b"z" * 9)]
BULK_STREAM = b"".join(piece_header(request_id, len(body)) + body for request_id, body in PIECES)


def read_pieces(reader: PieceReader, chunk: bytes, pieces: list[tuple[int, bytearray]]) -> None:
    """Take a chunk as a bulk link's receiver does."""
    data = memoryview(chunk)
    while data:
        if reader.remaining == 0:
            header = reader.header_untrusted(data)
            if header is None:
                return
            request_id, length, data = header
            assert reader.remaining == length
            pieces.append((request_id, bytearray()))
        run, data = reader.body(data)
        pieces[-1][1].extend(run)


def test_a_piece_header_on_the_wire() -> None:
    assert piece_header(258, 5).hex() == "00000009" + "01" + "01" + "00000102"


@pytest.mark.parametrize("cut", range(len(BULK_STREAM) + 1))
def test_pieces_at_every_split_point(cut: int) -> None:
    reader = PieceReader()
    pieces: list[tuple[int, bytearray]] = []
    read_pieces(reader, BULK_STREAM[:cut], pieces)
    read_pieces(reader, BULK_STREAM[cut:], pieces)
    assert pieces == PIECES
    assert reader.remaining == 0


@given(st.sets(st.integers(0, len(BULK_STREAM))))
def test_pieces_cut_anywhere(cuts: set[int]) -> None:
    reader = PieceReader()
    pieces: list[tuple[int, bytearray]] = []
    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(BULK_STREAM)], strict=True):
        read_pieces(reader, BULK_STREAM[start:stop], pieces)
    assert pieces == PIECES


def test_pieces_byte_by_byte() -> None:
    reader = PieceReader()
    pieces: list[tuple[int, bytearray]] = []
    for place in range(len(BULK_STREAM)):
        read_pieces(reader, BULK_STREAM[place : place + 1], pieces)
    assert pieces == PIECES


def test_the_bytes_of_a_piece_are_not_copied() -> None:
    data = memoryview(bytearray(BULK_STREAM))
    reader = PieceReader()
    header = reader.header_untrusted(data)
    assert header is not None
    run, _ = reader.body(header[2])
    data[PIECE_HEADER.size] = 0
    assert run == b"\0"


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("length", [1, MAX_PIECE_SIZE])
def test_piece_lengths_within_the_cap(length: int, split: bool) -> None:
    header = piece_header(3, length)
    reader = PieceReader()
    if split:
        assert reader.header_untrusted(memoryview(header[:4])) is None
        header = header[4:]
    assert reader.header_untrusted(memoryview(header)) == (3, length, b"")
    assert reader.remaining == length


@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("claim", [0, 1, 3, 4, MAX_PIECE_SIZE + 5, 2**32 - 1])
def test_piece_lengths_beyond_the_cap(claim: int, split: bool) -> None:
    header = PIECE_HEADER.pack(claim, BULK, PIECE, 3)
    reader = PieceReader()
    if split:
        assert reader.header_untrusted(memoryview(header[:-1])) is None
        header = header[-1:]
    with pytest.raises(PeerViolation, match="at least 1 and at most"):
        reader.header_untrusted(memoryview(header))
    assert reader.remaining == 0


@pytest.mark.parametrize(("channel", "kind"), [(BULK, 0), (BULK, 2), (CONTROL, 1), (CONTROL, 3), (2, 1)])
def test_other_channels_and_kinds_on_a_bulk_link(channel: int, kind: int) -> None:
    with pytest.raises(PeerViolation, match="on a bulk link"):
        PieceReader().header_untrusted(memoryview(PIECE_HEADER.pack(100, channel, kind, 1)))


@given(st.lists(st.binary(max_size=30), max_size=10))
def test_random_bytes_on_a_bulk_link_raise_only_violations(parts: list[bytes]) -> None:
    reader = PieceReader()
    pieces: list[tuple[int, bytearray]] = []
    try:
        for part in parts:
            read_pieces(reader, part, pieces)
    except PeerViolation:
        pass
    assert all(len(body) <= MAX_PIECE_SIZE for _, body in pieces)
