"""The registry of messages: each kind there and back, and every way to be outside of its schema."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import PeerViolation
from fleet.limits import (
    HAVE_BATCH,
    MANIFEST_PAGE_PIECES,
    MAX_CBOR_ITEMS,
    MAX_CONTROL_FRAME,
    MAX_MESSAGES_PER_FRAME,
    MAX_PIECE_SIZE,
    MAX_PIECES,
    MAX_REASON,
    MAX_REQUESTS_PER_LINK,
)
from fleet.wire import cbor
from fleet.wire.messages import (
    REGISTRY,
    Accept,
    Close,
    Have,
    Join,
    Message,
    Phase,
    Ping,
    decode_batch_untrusted,
    encode_batch,
    encode_message,
    item_count,
)

ROOT = b"r" * 32
PAGES = MAX_PIECES // MANIFEST_PAGE_PIECES - 1  # the last

U32: tuple[Any, list[Any], list[Any]] = (st.integers(0, 2**32 - 1), [0, 2**32 - 1], [-1, 2**32, 2**64 - 1])
DIGEST: tuple[Any, list[Any], list[Any]] = (
    st.binary(min_size=32, max_size=32),
    [bytes(32), b"\xff" * 32],
    [b"", b"r" * 31, b"r" * 33],
)


def numbers(longest: int, high: int) -> tuple[Any, list[Any], list[Any]]:
    return (
        st.lists(st.integers(0, high), min_size=1, max_size=20).map(tuple),
        [(0,), (high,), (high,) * longest, (0, 0)],
        [(), (-1,), (high + 1,), (0,) * (longest + 1), (0, True), (0, "1"), (1.0,), (0, (1,)), (None,), (2**64 - 1,)],
    )


def number(high: int, low: int = 0) -> tuple[Any, list[Any], list[Any]]:
    return st.integers(low, high), [low, high], [low - 1, high + 1, 2**64 - 1, -(2**64)]


def blob(longest: int) -> tuple[Any, list[Any], list[Any]]:
    return st.binary(max_size=100), [b"", bytes(longest)], [bytes(longest + 1)]


# For each kind and field: values within (a strategy, then examples at the edges), and values just outside.
SCHEMA: dict[str, list[tuple[Any, list[Any], list[Any]]]] = {
    "Accept": [],
    "Close": [(st.text(max_size=MAX_REASON), ["", "é" * MAX_REASON], ["x" * (MAX_REASON + 1)])],
    "Ping": [U32],
    "Pong": [U32],
    "Join": [DIGEST],
    "Leave": [DIGEST],
    "WantManifest": [DIGEST, number(PAGES)],
    "ManifestPage": [
        DIGEST,
        number(MAX_PIECES * MAX_PIECE_SIZE),
        number(MAX_PIECE_SIZE, 1),
        number(PAGES),
        blob(MANIFEST_PAGE_PIECES * 32),
    ],
    "Bitfield": [DIGEST, blob(MAX_PIECES // 8)],
    "Have": [DIGEST, numbers(HAVE_BATCH, MAX_PIECES - 1)],
    "Request": [DIGEST, U32, numbers(MAX_REQUESTS_PER_LINK, MAX_PIECES - 1)],
    "Cancel": [numbers(MAX_REQUESTS_PER_LINK, 2**32 - 1)],
    "Reject": [numbers(MAX_REQUESTS_PER_LINK, 2**32 - 1)],
    "Choke": [DIGEST],
    "Unchoke": [DIGEST],
}
OTHER_TYPES: list[Any] = [None, True, False, 0, -1, 1.5, "x", b"x", (), (0,), {}, {0: 0}, "r" * 32]
KINDS = {kind.__name__: kind for kind, _, _ in REGISTRY.values()}
FIELDS = [(name, place) for name, fields in SCHEMA.items() for place in range(len(fields))]


def plain(name: str) -> Message:
    """A message of this kind that is within its schema."""
    message: Message = KINDS[name](*(examples[0] for _, examples, _ in SCHEMA[name]))
    return message


def phase_of(message: Message) -> Phase:
    return Phase.PROVED if isinstance(message, Accept) else Phase.ESTABLISHED


def read_back(message: Message) -> Message:
    (back,) = decode_batch_untrusted(encode_batch([encode_message(message)]), phase_of(message))
    return back


def raw(*items: Any) -> bytes:
    """The payload of a frame with these raw messages."""
    return cbor.encode([listed(item) for item in items])


def listed(value: Any) -> Any:
    return [listed(item) for item in value] if isinstance(value, (tuple, list)) else value


def refuse(payload: bytes, match: str, phase: Phase = Phase.ESTABLISHED) -> None:
    with pytest.raises(PeerViolation, match=match):
        decode_batch_untrusted(payload, phase)


def any_message() -> st.SearchStrategy[Message]:
    return st.sampled_from(sorted(SCHEMA)).flatmap(
        lambda name: st.builds(KINDS[name], *(values for values, _, _ in SCHEMA[name]))
    )


def test_every_kind_has_its_schema_here() -> None:
    assert set(SCHEMA) == set(KINDS)
    for number_, (kind, checks, _) in REGISTRY.items():
        assert kind.kind == number_
        assert len(kind.__slots__) == len(checks) == len(SCHEMA[kind.__name__])


@given(any_message())
def test_round_trip(message: Message) -> None:
    back = read_back(message)
    assert back == message
    assert type(back) is type(message)


@given(st.lists(any_message().filter(lambda message: not isinstance(message, Accept)), min_size=1, max_size=30))
def test_a_batch_there_and_back(messages: list[Message]) -> None:
    payload = encode_batch(map(encode_message, messages))
    assert decode_batch_untrusted(payload, Phase.ESTABLISHED) == messages
    assert payload == cbor.encode([cbor.decode_untrusted(encode_message(m), max_bytes=2**20) for m in messages])


@given(st.lists(any_message(), min_size=1, max_size=8))
def test_items_are_counted_as_the_decoder_counts_them(messages: list[Message]) -> None:
    payload = encode_batch(map(encode_message, messages))
    items = 1 + sum(map(item_count, messages))
    cbor.decode_untrusted(payload, max_bytes=MAX_CONTROL_FRAME, max_items=items)
    with pytest.raises(PeerViolation, match="items"):
        cbor.decode_untrusted(payload, max_bytes=MAX_CONTROL_FRAME, max_items=items - 1)


@pytest.mark.parametrize(("name", "place"), FIELDS)
def test_each_field_at_its_edges(name: str, place: int) -> None:
    for value in SCHEMA[name][place][1]:
        fields = [getattr(plain(name), slot) for slot in plain(name).__slots__]
        message = KINDS[name](*fields[:place], value, *fields[place + 1 :])
        assert read_back(message) == message


@pytest.mark.parametrize(("name", "place"), FIELDS)
def test_each_field_beyond_its_edges_and_of_other_types(name: str, place: int) -> None:
    _, _, outside = SCHEMA[name][place]
    message = plain(name)
    fields = [getattr(message, slot) for slot in message.__slots__]
    inside = fields[place]
    wrong = outside + [value for value in OTHER_TYPES if type(value) is not type(inside)]
    for value in wrong:
        refuse(
            raw([message.kind, *fields[:place], value, *fields[place + 1 :]]),
            f"field {place} of {name} is out of its range",
        )


@pytest.mark.parametrize("name", sorted(SCHEMA))
def test_a_field_too_many_or_too_few(name: str) -> None:
    message = plain(name)
    fields = [getattr(message, slot) for slot in message.__slots__]
    phase = phase_of(message)
    refuse(raw([message.kind, *fields, 0]), f"{name} has {len(fields) + 1} fields", phase)
    if fields:
        refuse(raw([message.kind, *fields[:-1]]), f"{name} has {len(fields) - 1} fields", phase)


@pytest.mark.parametrize("name", sorted(SCHEMA))
def test_each_kind_in_each_phase(name: str) -> None:
    message = plain(name)
    payload = encode_batch([encode_message(message)])
    allowed = {"Accept": {Phase.PROVED}, "Close": {Phase.PROVED, Phase.ESTABLISHED}}.get(name, {Phase.ESTABLISHED})
    for phase in Phase:
        if phase in allowed:
            assert decode_batch_untrusted(payload, phase) == [message]
        else:
            refuse(payload, f"{name} is not allowed while the session is {str(phase.name).lower()}", phase)


@pytest.mark.parametrize(
    "item",
    [[], [0], [5], [15], [255], [-1], [2**64 - 1], [True], [1.0], ["Join", ROOT], [b"\x10", ROOT], [None], [[16]]],
)
def test_an_unknown_kind(item: Any) -> None:
    refuse(raw(item), "unknown kind")


@pytest.mark.parametrize("item", [0, None, "x", b"x", {}, {16: ROOT}, True, 2**64 - 1])
def test_what_is_no_message_at_all(item: Any) -> None:
    refuse(raw(item), "unknown kind")
    refuse(cbor.encode(item), "array of 1 to")


def test_one_bad_message_refuses_the_whole_batch() -> None:
    refuse(encode_batch([encode_message(Join(ROOT)), cbor.encode([99])]), "unknown kind")


@pytest.mark.parametrize("count", [1, 23, 24, 255, 256, MAX_MESSAGES_PER_FRAME])
def test_batches_up_to_the_cap(count: int) -> None:
    messages = [Ping(number_) for number_ in range(count)]
    assert decode_batch_untrusted(encode_batch(map(encode_message, messages)), Phase.ESTABLISHED) == messages


@pytest.mark.parametrize("count", [0, MAX_MESSAGES_PER_FRAME + 1])
def test_batches_beyond_the_cap(count: int) -> None:
    refuse(encode_batch([encode_message(Ping(1))] * count), f"array of 1 to {MAX_MESSAGES_PER_FRAME}")


def test_items_beyond_the_cap() -> None:
    have = Have(ROOT, tuple(range(HAVE_BATCH)))
    fitting = (MAX_CBOR_ITEMS - 1) // item_count(have)
    payload = encode_batch([encode_message(have)] * fitting)
    assert len(decode_batch_untrusted(payload, Phase.ESTABLISHED)) == fitting
    refuse(encode_batch([encode_message(have)] * (fitting + 1)), "items")


def test_bytes_beyond_the_cap() -> None:
    refuse(b"\x81" + bytes(MAX_CONTROL_FRAME), "bytes where at most")


@pytest.mark.parametrize(
    "huge", [10**5_000, -(10**5_000), 2**64, -(2**64) - 1], ids=["huge", "minus huge", "2^64", "-2^64-1"]
)
@pytest.mark.parametrize(("name", "place"), FIELDS)
def test_integers_of_any_size_are_only_a_violation(name: str, place: int, huge: int) -> None:
    """Python will not print an int of more than 4,300 digits (ValueError), so none may get as far as a message."""
    message = plain(name)
    head = cbor.encode(message.kind)
    fields = [cbor.encode(listed(getattr(message, slot))) for slot in message.__slots__]
    magnitude = huge if huge >= 0 else -1 - huge
    body = magnitude.to_bytes((magnitude.bit_length() + 7) // 8, "big")
    fields[place] = (b"\xc2" if huge >= 0 else b"\xc3") + b"\x59" + len(body).to_bytes(2, "big") + body
    refuse(b"\x81" + bytes([0x81 + len(fields)]) + head + b"".join(fields), "tag")


@given(st.binary(max_size=200), st.sampled_from(Phase))
def test_random_bytes_raise_only_violations(payload: bytes, phase: Phase) -> None:
    with pytest.raises(PeerViolation):
        decode_batch_untrusted(payload, phase)


@given(
    st.lists(any_message(), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 5_000), st.integers(1, 255)), min_size=1, max_size=3),
    st.sampled_from(Phase),
)
def test_mutated_payloads_raise_only_violations_or_read_back_the_same(
    messages: list[Message], changes: list[tuple[int, int]], phase: Phase
) -> None:
    payload = bytearray(encode_batch(map(encode_message, messages)))
    for place, change in changes:
        payload[place % len(payload)] ^= change
    try:
        read = decode_batch_untrusted(bytes(payload), phase)
    except PeerViolation:
        return
    assert encode_batch(map(encode_message, read)) == payload


Value = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.integers(0, 30), inner, max_size=3),
    max_leaves=10,
)


@given(st.lists(st.tuples(st.sampled_from(sorted(REGISTRY)), st.lists(Value, max_size=5)), min_size=1, max_size=3))
def test_known_kinds_with_any_fields_raise_only_violations(items: list[tuple[int, list[Any]]]) -> None:
    payload = cbor.encode([[kind, *fields] for kind, fields in items])
    try:
        read = decode_batch_untrusted(payload, Phase.ESTABLISHED)
    except PeerViolation:
        return
    assert encode_batch(map(encode_message, read)) == payload


def test_a_reason_is_counted_in_characters() -> None:
    assert read_back(Close("\U0001f41d" * MAX_REASON)) == Close("\U0001f41d" * MAX_REASON)
