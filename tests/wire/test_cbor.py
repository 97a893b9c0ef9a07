"""``fleet.wire.cbor``: one value, one encoding, over published vectors, a reference encoder and every limit."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import LocalMisuse, PeerViolation
from fleet.identity.keys import PeerId
from fleet.limits import MAX_CBOR_DEPTH, MAX_CBOR_INT_MAP, MAX_CBOR_ITEMS
from fleet.wire.cbor import decode_untrusted, encode
from tests.helpers.vectors import vector_path

PLENTY = 1 << 20

integers = st.one_of(
    st.integers(-(2**64), 2**64 - 1),
    st.sampled_from([s * (2**k) + d for k in (8, 16, 32, 63) for d in (-1, 0, 1) for s in (1, -1)]),
    st.integers(-30, 30),
)
floats = st.one_of(st.floats(), st.floats(width=32), st.floats(width=16))
keys = st.one_of(integers, st.text(max_size=30), st.binary(max_size=30))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), integers, floats, st.text(), st.binary()),
    lambda inner: st.one_of(st.lists(inner, max_size=8), st.dictionaries(keys, inner, max_size=8)),
    max_leaves=20,
).filter(lambda value: depth(value) <= MAX_CBOR_DEPTH)


def depth(value: Any) -> int:
    if not isinstance(value, (list, dict)):
        return 0
    return 1 + max((depth(item) for item in (value if isinstance(value, list) else value.values())), default=0)


def reference(value: Any) -> bytes:
    """Core deterministic encoding as RFC 8949, section 4.2.1, words it, with nothing taken from the code under test."""

    def head(major: int, argument: int) -> bytes:
        if argument < 24:
            return bytes([major << 5 | argument])
        width = next(width for width in (1, 2, 4, 8) if argument < 256**width)
        return bytes([major << 5 | (24 + (1, 2, 4, 8).index(width))]) + argument.to_bytes(width, "big")

    match value:
        case None | bool():
            return {False: b"\xf4", True: b"\xf5", None: b"\xf6"}[value]
        case int():
            return head(0, value) if value >= 0 else head(1, -1 - value)
        case float():
            if value != value:
                return b"\xf9\x7e\x00"
            for initial, form in ((b"\xf9", ">e"), (b"\xfa", ">f")):
                try:
                    short = struct.pack(form, value)
                except OverflowError:
                    continue
                if struct.unpack(form, short)[0] == value:
                    return initial + short
            return b"\xfb" + struct.pack(">d", value)
        case bytes():
            return head(2, len(value)) + value
        case str():
            return head(3, len(value.encode())) + value.encode()
        case list():
            return head(4, len(value)) + b"".join(map(reference, value))
        case _:
            pairs = sorted((reference(key), reference(item)) for key, item in value.items())
            return head(5, len(pairs)) + b"".join(key + item for key, item in pairs)


def same(one: Any, other: Any) -> bool:
    """Equal in type, in the sign of zero and in being NaN, which ``==`` would not tell."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    return repr(one) == repr(other)


# Properties


@pytest.mark.slow
@given(values)
def test_every_value_round_trips_through_the_reference_encoding(value: Any) -> None:
    encoded = encode(value)
    assert encoded == reference(value)
    assert same(decode_untrusted(encoded, max_bytes=len(encoded)), value)


@given(st.dictionaries(keys, st.none(), max_size=100), st.randoms(use_true_random=False))
def test_the_order_in_which_a_map_was_filled_does_not_show(mapping: dict[Any, None], chance: Any) -> None:
    shuffled = list(mapping)
    chance.shuffle(shuffled)
    assert encode(dict.fromkeys(shuffled)) == encode(mapping)  # type: ignore[arg-type]


@given(st.binary(max_size=40))
def test_chance_bytes_are_read_canonically_or_refused(data: bytes) -> None:
    read_or_refuse(data)


@pytest.mark.slow
@given(values, st.data())
def test_a_damaged_encoding_is_read_canonically_or_refused(value: Any, draw: st.DataObject) -> None:
    damaged = bytearray(encode(value))
    for _ in range(draw.draw(st.integers(1, 4))):
        position = draw.draw(st.integers(0, len(damaged)))
        cut = draw.draw(st.integers(0, 3))
        damaged[position : position + cut] = draw.draw(st.binary(max_size=3))
    read_or_refuse(bytes(damaged))


def read_or_refuse(data: bytes) -> bool:
    try:
        value = decode_untrusted(data, max_bytes=PLENTY)
    except PeerViolation:
        return False
    assert encode(value) == data
    assert reference(value) == data
    return True


def test_of_all_messages_of_two_bytes_exactly_the_canonical_ones_are_read() -> None:
    read = sum(read_or_refuse(bytes([first, second])) for first in range(256) for second in range(256))
    integers_of_one_argument_byte = 2 * (256 - 24)
    byte_strings, ascii_strings = 256, 128
    one_item_arrays = 2 * 24 + len([b"", "", [], {}]) + len([False, True, None])
    assert read == integers_of_one_argument_byte + byte_strings + ascii_strings + one_item_arrays


# Examples


def test_map_keys_are_in_bytewise_order_not_shortest_first() -> None:
    encoded = encode({"aa": 5, b"": 4, "z": 6, -1: 3, 256: 2, 100: 1, 10: 0})
    assert encoded.hex(" ") == "a7 0a 00 18 64 01 19 01 00 02 20 03 40 04 61 7a 06 62 61 61 05"
    length_first = bytes.fromhex("a2 20 03 190100 02")
    assert cbor2.dumps({256: 2, -1: 3}, canonical=True) == length_first, "cbor2 changed its order: simplify ours"
    with pytest.raises(PeerViolation, match="ascending"):
        decode_untrusted(length_first, max_bytes=PLENTY)


@pytest.mark.parametrize("beside", [None, 0.5], ids=["plain", "with a float"])
def test_maps_keep_their_order_with_and_without_floats(beside: float | None) -> None:
    value = [{"b": [{"d": 1, 300: beside, -2: 3, b"q": 4}], "a": {}}, beside]
    assert encode(value) == reference(value)  # type: ignore[arg-type]
    assert same(decode_untrusted(encode(value), max_bytes=PLENTY), value)  # type: ignore[arg-type]


def test_half_floats_are_read_and_of_the_nans_only_one() -> None:
    for bits in {*range(0, 0x10000, 7), 0x0000, 0x8000, 0x7C00, 0xFC00, 0x7E00, 0x7E01, 0x7C01, 0xFE00, 0xFFFF}:
        data = b"\xf9" + bits.to_bytes(2, "big")
        if bits & 0x7C00 == 0x7C00 and bits & 0x3FF and bits != 0x7E00:
            with pytest.raises(PeerViolation, match="canonical"):
                decode_untrusted(data, max_bytes=3)
        else:
            value = decode_untrusted(data, max_bytes=3)
            assert repr(value) == repr(struct.unpack(">e", data[1:])[0])
            assert encode(value) == data


def test_subclasses_are_encoded_as_what_they_are_based_on() -> None:
    class Kind(IntEnum):
        HAVE = 7

    peer = PeerId(bytes(range(32)))
    assert encode([Kind.HAVE, peer]) == b"\x82\x07\x58\x20" + bytes(range(32))
    assert encode({Kind.HAVE: 1, peer: 2}) == b"\xa2\x07\x01\x58\x20" + bytes(range(32)) + b"\x02"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, lambda data: memoryview(b"_" + data + b"_")[1:-1]])
def test_any_kind_of_buffer_is_read(kind: Callable[[bytes], bytes]) -> None:
    data = encode([1, "two", b"three", {4: 5.5}])
    assert decode_untrusted(kind(data), max_bytes=len(data)) == [1, "two", b"three", {4: 5.5}]
    with pytest.raises(PeerViolation, match="bytes"):
        decode_untrusted(kind(data), max_bytes=len(data) - 1)


def test_the_size_of_a_view_is_its_bytes_not_its_elements() -> None:
    view = memoryview(encode([1] * 7)).cast("I")
    assert len(view) == 2
    with pytest.raises(PeerViolation, match="8 bytes"):
        decode_untrusted(view, max_bytes=7)
    assert decode_untrusted(view, max_bytes=8) == [1] * 7


def nested(levels: int) -> Any:
    value: Any = 0
    for _ in range(levels):
        value = [value]
    return value


def cycle() -> Any:
    value: list[Any] = []
    value.append({"again": value})
    return value


@pytest.mark.parametrize(
    "value",
    [
        (1, 2),
        {1, 2},
        bytearray(b"x"),
        object(),
        1j,
        cbor2.undefined,
        cbor2.CBORSimpleValue(16),
        cbor2.CBORTag(1, 2),
        2**64,
        -(2**64) - 1,
        [1, 2**64],
        [1, -(2**64) - 1],
        ["mixed", 2**64],
        "\ud800",
        ["\udfff"],
        {"\ud800": 1},
        {True: 1},
        {None: 1},
        {1.5: 1},
        {(1, 2): 1},
        {2**64: 1},
        {-(2**64) - 1: 1},
        {"a": {"b": (1,)}},
        nested(MAX_CBOR_DEPTH + 1),
        nested(100_000),  # crashes the interpreter in cbor2 6.3
        cycle(),
        dict.fromkeys(range(MAX_CBOR_INT_MAP + 1)),
        {**dict.fromkeys(map(str, range(MAX_CBOR_INT_MAP))), -1: None},
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_what_no_peer_would_read_is_not_encoded(value: Any) -> None:
    with pytest.raises(LocalMisuse):
        encode(value)


# Limits: at each cap exactly, and one beyond it


@pytest.mark.parametrize("opening", [b"\x81", b"\xa1\x00"], ids=["arrays", "maps"])
@pytest.mark.parametrize("limit", [0, 1, 3, MAX_CBOR_DEPTH, 100])
def test_depth_at_the_cap(opening: bytes, limit: int) -> None:
    for innermost in (b"\x00", opening[:1].replace(b"\x81", b"\x80").replace(b"\xa1", b"\xa0")):
        levels = limit - (innermost != b"\x00")
        if levels >= 0:
            decode_untrusted(opening * levels + innermost, max_bytes=PLENTY, max_depth=limit)
        with pytest.raises(PeerViolation, match="deep"):
            decode_untrusted(opening * (levels + 1) + innermost, max_bytes=PLENTY, max_depth=limit)


def test_depth_is_counted_from_where_a_container_ends() -> None:
    siblings = [nested(MAX_CBOR_DEPTH - 1), {"a": nested(MAX_CBOR_DEPTH - 2)}, nested(MAX_CBOR_DEPTH - 1)]
    assert decode_untrusted(encode(siblings), max_bytes=PLENTY) == siblings


@pytest.mark.parametrize(
    ("value", "items"),
    [
        (0, 1),
        ([], 1),
        ([0, "a", b"b", 1.5, None], 6),
        ({"a": 1, "b": 2}, 5),
        ([[], [[]], {}], 5),
        ([{"a": [1, 2]}, {"b": {}}], 9),
    ],
)
def test_items_at_the_cap(value: Any, items: int) -> None:
    data = encode(value)
    assert decode_untrusted(data, max_bytes=PLENTY, max_items=items) == value
    with pytest.raises(PeerViolation, match="items"):
        decode_untrusted(data, max_bytes=PLENTY, max_items=items - 1)


def test_the_default_number_of_items_at_the_cap() -> None:
    full = [0] * (MAX_CBOR_ITEMS - 1)
    assert decode_untrusted(encode(full), max_bytes=PLENTY) == full
    with pytest.raises(PeerViolation, match="items"):
        decode_untrusted(encode([*full, 0]), max_bytes=PLENTY)


def test_a_map_with_integer_keys_at_the_cap() -> None:
    full = dict.fromkeys(range(MAX_CBOR_INT_MAP))
    assert decode_untrusted(encode(full), max_bytes=PLENTY) == full  # type: ignore[arg-type]
    text = {str(key): None for key in range(MAX_CBOR_INT_MAP + 1)}
    assert decode_untrusted(encode(text), max_bytes=PLENTY) == text  # type: ignore[arg-type]
    for key in (0, -1, 2**64 - 1, -(2**64)):
        mixed = {key: None, **{str(key): None for key in range(MAX_CBOR_INT_MAP)}}
        with pytest.raises(PeerViolation, match="integer key"):
            decode_untrusted(reference(mixed), max_bytes=PLENTY)


# RFC 8949, appendix A

BIGNUM = "a bignum: integers have at most 64 bits"
TAG = "a tag"
INDEFINITE = "an indefinite length"
LONG_FLOAT = "a float longer than it need be"
SIMPLE = "a simple value other than false, true and null"
REFUSED = {
    "c249010000000000000000": BIGNUM,
    "c349010000000000000000": BIGNUM,
    "fa7f800000": LONG_FLOAT,
    "fa7fc00000": LONG_FLOAT,
    "faff800000": LONG_FLOAT,
    "fb7ff0000000000000": LONG_FLOAT,
    "fb7ff8000000000000": LONG_FLOAT,
    "fbfff0000000000000": LONG_FLOAT,
    "f7": SIMPLE,
    "f0": SIMPLE,
    "f818": SIMPLE,
    "f8ff": SIMPLE,
    "c074323031332d30332d32315432303a30343a30305a": TAG,
    "c11a514b67b0": TAG,
    "c1fb41d452d9ec200000": TAG,
    "d74401020304": TAG,
    "d818456449455446": TAG,
    "d82076687474703a2f2f7777772e6578616d706c652e636f6d": TAG,
    "5f42010243030405ff": INDEFINITE,
    "7f657374726561646d696e67ff": INDEFINITE,
    "9fff": INDEFINITE,
    "9f018202039f0405ffff": INDEFINITE,
    "9f01820203820405ff": INDEFINITE,
    "83018202039f0405ff": INDEFINITE,
    "83019f0203ff820405": INDEFINITE,
    "9f0102030405060708090a0b0c0d0e0f101112131415161718181819ff": INDEFINITE,
    "bf61610161629f0203ffff": INDEFINITE,
    "826161bf61626163ff": INDEFINITE,
    "bf6346756ef563416d7421ff": INDEFINITE,
}
SAYS = {BIGNUM: "tag", TAG: "tag", INDEFINITE: "indefinite", LONG_FLOAT: "canonical", SIMPLE: "simple"}
# What JSON cannot hold: the file gives these in diagnostic notation.
DIAGNOSTIC = {
    "f97c00": float("inf"),
    "f97e00": float("nan"),
    "f9fc00": float("-inf"),
    "40": b"",
    "4401020304": b"\1\2\3\4",
    "a201020304": {1: 2, 3: 4},
}


def test_appendix_a_of_the_rfc() -> None:
    vectors = json.loads(vector_path("cbor_appendix_a.json").read_text())
    assert len(vectors) == 82
    refused = {}
    for vector in vectors:
        data = bytes.fromhex(vector["hex"])
        try:
            value = decode_untrusted(data, max_bytes=len(data))
        except PeerViolation as violation:
            refused[vector["hex"]] = str(violation)
            continue
        expected = vector["decoded"] if "decoded" in vector else DIAGNOSTIC[vector["hex"]]
        if value == expected and isinstance(value, float):
            expected = float(expected)  # JSON has 100000.0 and 1e300, which some writers give as integers
        assert same(value, expected), vector
        assert encode(value) == data
    assert refused.keys() == REFUSED.keys()
    for data_hex, message in refused.items():
        assert SAYS[REFUSED[data_hex]] in message, data_hex
