"""Hostile CBOR: each is refused with ``PeerViolation``, and where its cost is the attack, before an object is built."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest

from fleet.errors import PeerViolation
from fleet.limits import MAX_CBOR_INT_MAP, MAX_CBOR_ITEMS
from fleet.wire.cbor import decode_untrusted, encode

PLENTY = 1 << 20
MERSENNE = 2**61 - 1  # CPython takes an integer's hash modulo this


@pytest.fixture
def no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may reach the decoder: what costs no objects costs one pass over the initial bytes at most."""

    def loads(*args: object, **options: object) -> Any:
        raise AssertionError("hostile bytes reached cbor2.loads")

    monkeypatch.setattr(cbor2, "loads", loads)


def refuse(data: bytes, match: str) -> None:
    with pytest.raises(PeerViolation, match=match):
        decode_untrusted(data, max_bytes=PLENTY)


def head(major: int, argument: int) -> bytes:
    """An initial byte with an 8-byte argument."""
    return bytes([major << 5 | 27]) + argument.to_bytes(8, "big")


@pytest.mark.usefixtures("no_objects")
@pytest.mark.parametrize("opening", [b"\x81", b"\x82\x00", b"\xa1\x00", b"\xa1\x61a", b"\x81\xa1\x00"])
@pytest.mark.parametrize("end", [b"\x00", b""], ids=["closed", "open"])
def test_a_hundred_thousand_levels(opening: bytes, end: bytes) -> None:
    refuse(opening * 100_000 + end, "deep")


@pytest.mark.usefixtures("no_objects")
@pytest.mark.parametrize("major", [2, 3, 4, 5])
@pytest.mark.parametrize("claim", [2**64 - 1, 2**63, 2**63 - 1, 2**64 - 9, 2**32, 10])
def test_a_nine_byte_header_claims_more_than_there_is(major: int, claim: int) -> None:
    lone = head(major, claim)
    assert len(lone) == 9
    refuse(lone, "claims")
    refuse(lone + b"\0" * 9, "claims")
    refuse(b"\x82\x00" + lone, "claims")
    refuse(b"\xa1\x00" + lone, "claims")
    refuse(b"\xa1" + lone, "claims" if major < 4 else "key")


@pytest.mark.usefixtures("no_objects")
@pytest.mark.parametrize("major", [4, 5])
def test_each_level_claims_all_the_bytes_that_are_left(major: int) -> None:
    # Each claim alone is within the bytes; together they are not within the items.
    fields, key = (2, b"\x60") if major == 5 else (1, b"")
    data = b"\x00" * 20_000
    for _ in range(8):
        data = head(major, len(key + data) // fields) + key + data
    refuse(data, f"more than {MAX_CBOR_ITEMS:,} items")


@pytest.mark.usefixtures("no_objects")
def test_bignum_keys_that_share_one_hash() -> None:
    keys = (MERSENNE * factor for factor in range(9, 20_009))
    pairs = b"".join(b"\xc2" + encode(key.to_bytes(10, "big")) + b"\x00" for key in keys)
    data = b"\xb9" + (20_000).to_bytes(2, "big") + pairs
    refuse(data, "key is no integer or string")
    refuse(b"\x81" + data[3:], "tag")


def test_plain_keys_that_share_one_hash() -> None:
    sharing = [factor * MERSENNE for factor in range(-8, 9)]
    assert {hash(key) for key in sharing} == {0}
    assert not -(2**64) <= 9 * MERSENNE < 2**64
    value = dict.fromkeys(sharing, True)
    assert decode_untrusted(encode(value), max_bytes=PLENTY) == value  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_objects")
@pytest.mark.parametrize("step", [1, 2**40, MERSENNE // 20_000])
def test_many_integer_keys_whose_places_in_a_dict_the_sender_chose(step: int) -> None:
    # An integer's place follows from its value alone, so that crafted keys walk one path of occupied places: the cost
    # of n of them is n^2. The cap keeps n small, wherever the map lies.
    keys = [step * factor for factor in range(20_000)]
    plain = b"\xb9" + len(keys).to_bytes(2, "big") + b"".join(encode(key) + b"\x00" for key in keys)
    refuse(plain, f"more than {MAX_CBOR_INT_MAP} pairs")
    refuse(b"\x82\x00\xa1\x61a" + plain, f"more than {MAX_CBOR_INT_MAP} pairs")


@pytest.mark.usefixtures("no_objects")
@pytest.mark.parametrize(
    "pairs",
    [
        ["00", "00"],
        ["00", "01", "01"],
        ["20", "20"],
        ["6161", "6161"],
        ["60", "60"],
        ["4161", "4161"],
        ["01", "00"],
        ["20", "00"],
        ["6162", "6161"],
        ["6161", "4161"],
        ["626161", "617a"],
        ["20", "190100"],  # shortest first is the older order
    ],
)
def test_keys_twice_or_out_of_order(pairs: list[str]) -> None:
    # Each value is a map itself, so that the last key is remembered across what is nested between.
    data = bytes([0xA0 | len(pairs)]) + b"".join(bytes.fromhex(key) + b"\xa1\x61\x7a\x00" for key in pairs)
    refuse(data, "ascending")


def test_a_key_twice_in_two_forms() -> None:
    for first, second in (("01", "1801"), ("1801", "190001"), ("20", "3800"), ("6161", "780161"), ("40", "5800")):
        refuse(bytes.fromhex(f"a2{first}00{second}00"), "canonical")


@pytest.mark.usefixtures("no_objects")
@pytest.mark.parametrize("key", ["80", "a0", "8100", "f4", "f6", "f7", "f90000", "fb0000000000000000", "c100", "f0"])
def test_keys_of_other_types(key: str) -> None:
    refuse(bytes.fromhex(f"a1{key}00"), "key")
    refuse(bytes.fromhex(f"a20000{key}00"), "key")


@pytest.mark.parametrize(
    "data",
    [
        *("1817", "1800", "1900ff", "1a0000ffff", "1b00000000ffffffff"),
        *("3817", "3800", "3900ff", "3a0000ffff", "3b00000000ffffffff"),
        *("5800", "580161", "59000161", "5a0000000161", "5b000000000000000161"),
        *("7800", "780161", "79000161", "7a0000000161", "7b000000000000000161"),
        *("9800", "980100", "99000100", "9a0000000100", "9b000000000000000100"),
        *("b800", "b8010000", "b900010000", "ba000000010000", "bb00000000000000010000"),
        *("fa00000000", "fa3f800000", "fb0000000000000000", "fb3ff0000000000000", "fb40f86a0000000000"),
        *("f97e01", "f9fe00", "f97c01", "fa7fc00000", "fa7f800001", "fb7ff8000000000000", "fbfff8000000000001"),
    ],
)
def test_forms_longer_than_they_need_be(data: str) -> None:
    refuse(bytes.fromhex(data), "canonical")
    refuse(bytes.fromhex("8201" + data), "canonical")
    refuse(bytes.fromhex("a100" + data), "canonical")


@pytest.mark.usefixtures("no_objects")
@pytest.mark.parametrize("value", [0, -1000, "text", b"bytes", [1, [2]], {"a": {"b": 1}}, None, 1.5, [], {}])
def test_bytes_after_the_end(value: Any) -> None:
    for more in (b"\x00", b"\xff", b"\xf6", encode(value)):
        refuse(encode(value) + more, "after its end")


@pytest.mark.usefixtures("no_objects")
def test_every_prefix_of_a_message() -> None:
    value = [1, -500, 2**40, {"a": b"x" * 30, 3: ["t" * 300, {}]}, 1.5, 1.1, b"y" * 70_000, [None] * 30]
    data = encode(value)  # type: ignore[arg-type]
    ends = {*range(1_000), *range(1_000, len(data) - 1_000, 997), *range(len(data) - 1_000, len(data))}
    for end in ends:
        refuse(data[:end], "cut short|claims")


@pytest.mark.usefixtures("no_objects")
@pytest.mark.parametrize(
    "value",
    [24, 2**8, 2**16, -(2**63), 1.5, 1e5, 1.1, "é", b"x" * 32, "x" * 300, b"x" * 70_000, {"é": 1}, {b"x" * 32: 1}],
)
def test_every_prefix_of_what_ends_a_message(value: Any) -> None:
    # Nothing follows whose missing initial byte would show the cut.
    for data in (encode(value), encode([0, value]), encode({"": value})):
        for end in {*range(min(len(data), 60)), len(data) // 2, len(data) - 2, len(data) - 1}:
            refuse(data[:end], "cut short|claims")


@pytest.mark.usefixtures("no_objects")
@pytest.mark.parametrize(
    "data",
    [
        "d81c81d81d00",  # an array that contains itself
        "82d81c81 00d81d00",
        "d81d00",  # a reference into an earlier message
        "d90100 82 6161 d81900",  # a name space of strings and a reference into it
        "d81900",
        "c240",  # bignums
        "c340",
        "c100",  # a time
        "c4820000",  # a decimal, which could be of any size
        "c5821b7fffffffffffffff01",
        "d9010282 0102",  # a set
        "d9d9f700",  # "this is CBOR"
        "da00010000 00",
        "dbffffffffffffffff 00",
        "c0c0c0c000",
    ],
)
def test_tags(data: str) -> None:
    refuse(bytes.fromhex(data), "tag")
    refuse(b"\x82\x00" + bytes.fromhex(data), "tag")
    refuse(b"\xa1\x00" + bytes.fromhex(data), "tag")


def test_no_state_passes_from_one_message_to_the_next() -> None:
    assert decode_untrusted(encode(["a" * 40, "a" * 40]), max_bytes=PLENTY) == ["a" * 40] * 2
    refuse(bytes.fromhex("d81c81d81d00"), "tag")
    refuse(bytes.fromhex("d81d00"), "tag")
    first = decode_untrusted(b"\x80", max_bytes=PLENTY)
    assert isinstance(first, list)
    first.append(1)
    assert decode_untrusted(b"\x80", max_bytes=PLENTY) == []


@pytest.mark.usefixtures("no_objects")
@pytest.mark.parametrize("major", range(8))
def test_reserved_and_indefinite_initial_bytes(major: int) -> None:
    for low in (28, 29, 30, 31):
        for rest in (b"", b"\xff", b"\x00" * 9, b"\x00\xff"):
            item = bytes([major << 5 | low]) + rest
            for data in (item, b"\x81" + item, b"\xa1\x00" + item, b"\xa1" + item + b"\x00"):
                refuse(data, "reserved|stray|tag|key")


@pytest.mark.usefixtures("no_objects")
def test_simple_values() -> None:
    for initial in [*range(0xE0, 0xF4), 0xF7, 0xF8, 0xFC, 0xFD, 0xFE, 0xFF]:
        refuse(bytes([initial, 32]), "simple")
        refuse(bytes([0x82, 0xF6, initial, 32]), "simple")


@pytest.mark.usefixtures("no_objects")
def test_nothing() -> None:
    refuse(b"", "cut short")


@pytest.mark.usefixtures("no_objects")
def test_more_bytes_than_allowed_are_not_even_scanned() -> None:
    with pytest.raises(PeerViolation, match="1,001 bytes where at most 1,000"):
        decode_untrusted(b"\xff" * 1_001, max_bytes=1_000)


@pytest.mark.parametrize(
    "text", ["80", "c328", "c0af", "eda080", "edbfbf", "f4908080", "f8888080", "ff", "e6b0", "f09f92", "61ff62"]
)
def test_text_that_is_not_utf_8(text: str) -> None:
    body = bytes.fromhex(text)
    refuse(bytes([0x60 | len(body)]) + body, "cannot be read")
    refuse(b"\xa1" + bytes([0x60 | len(body)]) + body + b"\x00", "cannot be read")
    for padding in (65_534, 65_535, 65_536):  # cbor2 decodes long text in pieces of 64 KiB
        long = b"a" * padding + body
        refuse(b"\x7a" + len(long).to_bytes(4, "big") + long, "cannot be read")


def test_text_cut_at_every_split_point() -> None:
    text = "aé水𐅑\0z" * 3
    body = text.encode()
    boundaries = {len(text[:count].encode()) for count in range(len(text) + 1)}
    for cut in range(len(body) + 1):
        part = body[:cut]
        size = bytes([0x60 | cut]) if cut < 24 else bytes([0x78, cut])
        if cut in boundaries:
            assert decode_untrusted(size + part, max_bytes=PLENTY) == part.decode()
        else:
            refuse(size + part, "cannot be read")


@pytest.mark.parametrize("character", ["é", "水", "𐅑"])
def test_characters_across_64_kib(character: str) -> None:
    width = len(character.encode())
    for before in range(65_536 - width - 2, 65_536 + 3):
        text = "a" * before + character * 3
        text += "b" * (65_538 - len(text.encode()))
        assert len(text.encode()) >= 65_538
        encoded = encode([text, {text: 1.5}])
        assert decode_untrusted(encoded, max_bytes=PLENTY) == [text, {text: 1.5}]
    repeated = character * (200_000 // width)
    assert decode_untrusted(encode(repeated), max_bytes=PLENTY) == repeated


def test_a_hostile_message_leaves_the_next_one_unharmed() -> None:
    honest = encode({"kind": 3, "ids": [b"x" * 32]})
    for hostile in (b"\x81" * 100_000, head(4, 2**64 - 1), bytes.fromhex("d81c81d81d00"), b"\x61\xff"):
        refuse(hostile, "CBOR")
        assert decode_untrusted(honest, max_bytes=PLENTY) == {"kind": 3, "ids": [b"x" * 32]}
