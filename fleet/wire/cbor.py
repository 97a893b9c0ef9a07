"""Strict deterministic CBOR: one value has one encoding, and nothing else is read (RFC 8949, section 4.2.1).

Values are None, bool, int in [-2^64, 2^64 - 1], float, str, bytes, list, and dict whose keys are int, str or bytes.
Map keys are in bytewise order of their encodings, and every NaN is 0xf97e00.

Reading hostile bytes takes three steps, each of linear cost:

1. A scan of the initial bytes alone: depth, number of items, claimed lengths against the bytes that are left, key
   types, strictly ascending keys (so none is there twice), no tags, no indefinite lengths, no other simple values.
2. ``cbor2`` builds the objects, with a fresh decoder, so that no state passes from one message to the next.
3. The value is encoded again and must give the very bytes that came in. That leaves out whatever else is not
   canonical: integers, lengths and floats longer than they need to be, and the payloads of NaNs.

``cbor2``'s own canonical mode sorts keys by length first (RFC 8949, section 4.2.3, the order of RFC 7049), which
differs once a map mixes kinds of keys, so maps are put in order here.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import cbor2

from fleet.errors import LocalMisuse, PeerViolation
from fleet.limits import MAX_CBOR_DEPTH, MAX_CBOR_INT_MAP, MAX_CBOR_ITEMS

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["CborKey", "CborValue", "decode_untrusted", "encode"]

CborKey: TypeAlias = int | str | bytes
CborValue: TypeAlias = "bool | int | float | str | bytes | list[CborValue] | dict[CborKey, CborValue] | None"


_INT_LIMIT: Final = 2**64


def _plain_sizes() -> tuple[int, ...]:
    """For each initial byte the size of the whole item where that byte alone decides it, else 0."""
    sizes = [0] * 256
    for major in (0x00, 0x20):  # integers
        for argument in range(24):
            sizes[major | argument] = 1
        for argument, size in ((24, 2), (25, 3), (26, 5), (27, 9)):
            sizes[major | argument] = size
    for major in (0x40, 0x60):  # short strings
        for argument in range(24):
            sizes[major | argument] = 1 + argument
    for simple in (0xF4, 0xF5, 0xF6):  # false, true, null
        sizes[simple] = 1
    return tuple(sizes)


_SIZES: Final = _plain_sizes()
_FLOAT_SIZES: Final = {0xF9: 3, 0xFA: 5, 0xFB: 9}
_ARGUMENT_SIZES: Final = {24: 1, 25: 2, 26: 4, 27: 8}


def encode(value: CborValue) -> bytes:
    """The one encoding of ``value``.

    Maps are put in order here. Subclasses (an ``IntEnum``, a ``PeerId``) are encoded as what they are based on.
    Raises ``LocalMisuse`` for whatever ``decode_untrusted`` would refuse at its default depth: other types, integers
    of more than 64 bits, text with lone surrogates, nesting beyond ``MAX_CBOR_DEPTH`` (which a value that contains
    itself reaches), an integer key in a map of more than ``MAX_CBOR_INT_MAP`` pairs. Bytes and items are not counted:
    those limits belong to the kind of message.
    """
    floats: list[float] = []
    try:
        return _dump(_in_order(value, floats, MAX_CBOR_DEPTH), floats=bool(floats))
    except UnicodeEncodeError as error:
        raise LocalMisuse(f"CBOR text must be valid Unicode: {error}") from None


def decode_untrusted(
    data: bytes | bytearray | memoryview,
    *,
    max_bytes: int,
    max_depth: int = MAX_CBOR_DEPTH,
    max_items: int = MAX_CBOR_ITEMS,
) -> CborValue:
    """The value that ``data`` encodes, where ``encode`` of that value is ``data`` again.

    ``max_depth`` counts arrays and maps inside each other (a plain value has depth 0, ``[]`` has 1); ``max_items``
    counts every array, map, key and value. Raises only ``PeerViolation``; the message says what is wrong with the
    bytes.
    """
    size = data.nbytes if isinstance(data, memoryview) else len(data)
    if size > max_bytes:
        raise PeerViolation(f"CBOR of {size:,} bytes where at most {max_bytes:,} are allowed")
    if not isinstance(data, bytes):
        data = bytes(data)
    try:
        floats = _scan_untrusted(data, max_depth, max_items)
    except IndexError:
        raise PeerViolation("CBOR is cut short") from None
    try:
        value = cast("CborValue", cbor2.loads(data))
    except cbor2.CBORError as error:  # what the scan leaves to it: text that is not UTF-8
        raise PeerViolation(f"CBOR cannot be read: {error}") from None
    if _dump(value, floats=floats) != data:
        raise PeerViolation("CBOR is not in its canonical form")
    return value


def _dump(value: CborValue, *, floats: bool) -> bytes:
    """Encode with maps in the order that they have.

    Only cbor2's canonical mode shortens floats, but it also sorts maps, and replacing its map encoder makes it look
    every item up in a table (four times slower on a list of integers). So values without floats go the plain way.
    """
    if floats:
        return cbor2.dumps(value, canonical=True, encoders=_MAP_ENCODER)
    return cbor2.dumps(value)


def _dump_map(encoder: cbor2.CBOREncoder, value: dict[CborKey, CborValue]) -> None:
    encoder.encode_length(5, len(value))
    for key, item in value.items():
        encoder.encode(key)
        encoder.encode(item)


_MAP_ENCODER: Final[dict[type, Any]] = {dict: _dump_map}


def _in_order(value: CborValue, floats: list[float], depth: int) -> CborValue:
    """``value`` with every map's keys sorted; its floats are added to ``floats``; ``depth`` more levels may open."""
    if isinstance(value, int):  # bool too
        if not -_INT_LIMIT <= value < _INT_LIMIT:
            raise LocalMisuse(f"CBOR integers have at most 64 bits and a sign, unlike {value:#x}")
        return value
    if isinstance(value, (str, bytes)) or value is None:
        return value
    if isinstance(value, float):
        floats.append(value)
        return value
    if not isinstance(value, (list, dict)):
        raise LocalMisuse(f"CBOR has no {type(value).__name__}: use None, bool, int, float, str, bytes, list or dict")
    if depth == 0:
        raise LocalMisuse(f"CBOR nests at most {MAX_CBOR_DEPTH} deep: flatten the value")
    if isinstance(value, list):
        if set(map(type, value)) == {int}:  # long lists are lists of numbers: no call for each item
            if min(cast("Sequence[int]", value)) < -_INT_LIMIT or max(cast("Sequence[int]", value)) >= _INT_LIMIT:
                raise LocalMisuse("CBOR integers have at most 64 bits and a sign, unlike one in this list")
            return value
        return [_in_order(item, floats, depth - 1) for item in value]
    for key in value:
        if not isinstance(key, (int, str, bytes)) or isinstance(key, bool):
            raise LocalMisuse(f"a CBOR map's key is an int, a str or bytes, not {type(key).__name__}")
        if isinstance(key, int):
            if not -_INT_LIMIT <= key < _INT_LIMIT:
                raise LocalMisuse(f"CBOR integers have at most 64 bits and a sign, unlike {key:#x}")
            if len(value) > MAX_CBOR_INT_MAP:
                raise LocalMisuse(f"a map with an integer key has at most {MAX_CBOR_INT_MAP} pairs: use a list")
    return {key: _in_order(value[key], floats, depth - 1) for key in sorted(value, key=cbor2.dumps)}


def _scan_untrusted(data: bytes, max_depth: int, max_items: int) -> bool:
    """Check the structure of ``data`` without building anything; return whether a float is in it.

    Raises ``PeerViolation``, or ``IndexError`` where an initial byte is missing: a check at each would cost more than
    the rest of the loop.
    """
    sizes = _SIZES
    end = len(data)
    position = 0
    items_left = max_items - 1
    floats = False
    # The open array (previous is None) or map (previous is the last key's encoding): as many turns as it has items
    # or pairs left. The outermost level is like an array of one.
    turns: Iterator[None] = repeat(None, 1)
    previous: bytes | None = None
    parents: list[tuple[Iterator[None], bytes | None]] = []
    if items_left < 0:
        raise PeerViolation(f"CBOR has more than {max_items:,} items")
    while True:
        for _ in turns:
            if previous is not None:
                start = position
                head = data[position]
                size = sizes[head]
                if head >= 0x80:
                    raise PeerViolation(f"a CBOR map's key is no integer or string: initial byte {head:#04x}")
                position = position + size if size else _string_end_untrusted(data, position)
                key = data[start:position]
                if key <= previous:
                    raise PeerViolation("a CBOR map's keys are not in ascending order, or one is there twice")
                previous = key
            head = data[position]
            size = sizes[head]
            if size:
                position += size
            elif head == 0x58 or head == 0x78:  # ids and hashes: common enough to spare them the call
                position += 2 + data[position + 1]
            elif head < 0x80:
                position = _string_end_untrusted(data, position)
            elif head < 0xC0:
                count = head & 0x1F
                position += 1
                if count >= 24:
                    width = _ARGUMENT_SIZES.get(count)
                    if width is None:
                        raise PeerViolation(f"CBOR with an indefinite or reserved length: initial byte {head:#04x}")
                    count = int.from_bytes(data[position : position + width], "big")
                    position += width
                if len(parents) == max_depth:
                    raise PeerViolation(f"CBOR nests more than {max_depth} deep")
                is_map = head >= 0xA0
                inside = 2 * count if is_map else count
                if inside > end - position:  # each takes a byte or more
                    raise PeerViolation(f"CBOR claims {inside:,} items and has {max(end - position, 0):,} bytes left")
                items_left -= inside
                if items_left < 0:
                    raise PeerViolation(f"CBOR has more than {max_items:,} items")
                if count:
                    # Integers sort before strings, so the first key tells whether there are any.
                    if is_map and count > MAX_CBOR_INT_MAP and data[position] < 0x40:
                        raise PeerViolation(f"a CBOR map of more than {MAX_CBOR_INT_MAP} pairs has an integer key")
                    parents.append((turns, previous))
                    turns = repeat(None, count)
                    previous = b"" if is_map else None
                    break
            elif head in _FLOAT_SIZES:
                floats = True
                position += _FLOAT_SIZES[head]
            elif head < 0xE0:
                raise PeerViolation(f"CBOR with a tag: initial byte {head:#04x}")
            else:
                raise PeerViolation(f"CBOR with an unknown simple value or a stray break: initial byte {head:#04x}")
        else:
            if not parents:
                break
            turns, previous = parents.pop()
    if position != end:
        raise PeerViolation("CBOR is cut short" if position > end else "CBOR with more bytes after its end")
    return floats


def _string_end_untrusted(data: bytes, position: int) -> int:
    """Where the item ends that begins at ``position`` with a string's initial byte, or an integer's reserved one."""
    head = data[position]
    width = _ARGUMENT_SIZES.get(head & 0x1F)
    if width is None:
        raise PeerViolation(f"CBOR with an indefinite or reserved length: initial byte {head:#04x}")
    body = position + 1 + width
    stop = body + int.from_bytes(data[position + 1 : body], "big")
    if stop > len(data):
        raise PeerViolation(f"CBOR claims a string of {stop - body:,} bytes and has {max(len(data) - body, 0):,} left")
    return stop
