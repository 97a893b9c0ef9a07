"""``fleet.identity.keys``: the text form of peer ids, and signatures that pass for one thing only."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import LocalMisuse, PeerViolation
from fleet.identity import keys
from fleet.identity.keys import (
    CHANNEL_DOMAIN,
    HANDSHAKE_DOMAIN,
    SIGNATURE_SIZE,
    Identity,
    PeerId,
    verify_untrusted,
)

ALICE = Identity(bytes(range(32)))
BOB = Identity(bytes(32))

# RFC 8032, section 7.1, test 1: the empty message
RFC_SECRET = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
RFC_PUBLIC = bytes.fromhex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a")
RFC_SIGNATURE = bytes.fromhex(
    "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
)
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493


# Peer ids


@given(st.binary(min_size=32, max_size=32))
def test_the_text_form_round_trips(key: bytes) -> None:
    peer = PeerId(key)
    text = str(peer)
    assert len(text) == 52
    assert text == text.lower()
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz234567")
    assert PeerId.parse(text) == PeerId.parse(text.upper()) == peer
    assert type(PeerId.parse(text)) is PeerId


def test_known_text_forms() -> None:
    assert str(PeerId(bytes(32))) == "a" * 52
    assert str(PeerId(b"\xff" * 32)) == "7" * 51 + "q"
    assert PeerId(b"\xff" * 32).short == "7" * 8
    assert repr(PeerId(bytes(32))) == "PeerId(aaaaaaaa)"
    assert f"{PeerId(bytes(32))}" == "a" * 52


def test_a_peer_id_is_its_bytes() -> None:
    peer = PeerId(bytes(range(32)))
    assert peer == bytes(range(32))
    assert {peer: 1}[PeerId(bytes(range(32)))] == 1
    assert PeerId(bytes(32)) < peer


GOOD = str(ALICE.peer_id)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        GOOD[:-1],
        GOOD + "a",
        GOOD[:48],  # 30 bytes
        GOOD + GOOD,
        "a" * 56,  # 35 bytes
        "a" * 51 + "b",  # the last character holds 4 bits that must be 0
        "a" * 51 + "r",
        "7" * 52,
        *(replacement + GOOD[1:] for replacement in "018=-_ \n\0.é"),
        *(GOOD[:-1] + replacement for replacement in "018= \n"),
        GOOD + "====",
        GOOD + " ",
        " " + GOOD,
        GOOD[:26] + "=" * 26,
        "\N{LATIN SMALL LETTER LONG S}" + GOOD[1:],  # its upper case is S
        "\N{LATIN SMALL LETTER DOTLESS I}" + GOOD[1:],  # its upper case is I
        "\N{KELVIN SIGN}" + GOOD[1:],  # its lower case is k
        "\N{LATIN SMALL LETTER SHARP S}" + GOOD[2:],  # its upper case is two letters
        "\ud800" + GOOD[1:],
        "0x" + bytes(ALICE.peer_id).hex(),
    ],
)
def test_text_that_is_no_peer_id(text: str) -> None:
    with pytest.raises(LocalMisuse):
        PeerId.parse(text)


@given(st.text(max_size=60))
def test_any_other_text_is_refused_in_one_way(text: str) -> None:
    try:
        peer = PeerId.parse(text)
    except LocalMisuse:
        return
    assert str(peer) == text.lower()


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_keys_of_another_size(size: int) -> None:
    with pytest.raises(LocalMisuse, match=f"not {size}"):
        PeerId(bytes(size))
    with pytest.raises(LocalMisuse, match=f"not {size}"):
        Identity(bytes(size))


# Signatures


def test_rfc_8032_test_1() -> None:
    identity = Identity(RFC_SECRET)
    assert identity.peer_id == RFC_PUBLIC
    assert identity.sign(b"", b"") == RFC_SIGNATURE
    verify_untrusted(PeerId(RFC_PUBLIC), b"", b"", RFC_SIGNATURE)


def refuse(peer: PeerId, domain: bytes, message: bytes, signature: bytes) -> None:
    with pytest.raises(PeerViolation) as caught:
        verify_untrusted(peer, domain, message, signature)
    assert caught.value.peer == peer, "the violation names nobody"


def test_a_signature_is_for_one_peer_domain_and_message() -> None:
    signature = ALICE.sign(HANDSHAKE_DOMAIN, b"message")
    assert len(signature) == SIGNATURE_SIZE
    verify_untrusted(ALICE.peer_id, HANDSHAKE_DOMAIN, b"message", signature)
    refuse(BOB.peer_id, HANDSHAKE_DOMAIN, b"message", signature)
    refuse(ALICE.peer_id, CHANNEL_DOMAIN, b"message", signature)
    refuse(ALICE.peer_id, b"", b"message", signature)
    refuse(ALICE.peer_id, HANDSHAKE_DOMAIN, b"Message", signature)
    refuse(ALICE.peer_id, HANDSHAKE_DOMAIN, b"message\0", signature)
    refuse(ALICE.peer_id, HANDSHAKE_DOMAIN, b"", signature)


def test_no_domain_begins_another() -> None:
    # Domain and message are signed end to end, so if one domain began another, the rest of it could be a message.
    domains = [value for name, value in vars(keys).items() if name.endswith("_DOMAIN")]
    assert {HANDSHAKE_DOMAIN, CHANNEL_DOMAIN} <= set(domains)
    assert len(set(domains)) == len(domains)
    for domain in domains:
        assert domain.index(b"\0") == len(domain) - 1
        assert sum(other.startswith(domain) for other in domains) == 1


def test_every_flipped_bit_of_a_signature_shows() -> None:
    signature = ALICE.sign(HANDSHAKE_DOMAIN, b"message")
    for bit in range(8 * SIGNATURE_SIZE):
        flipped = bytearray(signature)
        flipped[bit // 8] ^= 1 << bit % 8
        refuse(ALICE.peer_id, HANDSHAKE_DOMAIN, b"message", bytes(flipped))


def test_every_flipped_bit_of_a_message_and_of_a_key_shows() -> None:
    signature = ALICE.sign(HANDSHAKE_DOMAIN, b"message")
    for bit in range(8 * len(b"message")):
        flipped = bytearray(b"message")
        flipped[bit // 8] ^= 1 << bit % 8
        refuse(ALICE.peer_id, HANDSHAKE_DOMAIN, bytes(flipped), signature)
    for bit in range(256):
        key = bytearray(ALICE.peer_id)
        key[bit // 8] ^= 1 << bit % 8
        refuse(PeerId(key), HANDSHAKE_DOMAIN, b"message", signature)


@pytest.mark.parametrize("size", [0, 1, 32, SIGNATURE_SIZE - 1, SIGNATURE_SIZE + 1, 2 * SIGNATURE_SIZE])
def test_signatures_of_another_size(size: int) -> None:
    signature = (ALICE.sign(HANDSHAKE_DOMAIN, b"message") * 2)[:size]
    refuse(ALICE.peer_id, HANDSHAKE_DOMAIN, b"message", signature)


def test_a_signature_cannot_lend_bytes_to_the_message() -> None:
    signature = ALICE.sign(HANDSHAKE_DOMAIN, b"message")
    refuse(ALICE.peer_id, HANDSHAKE_DOMAIN[1:], b"message", signature + HANDSHAKE_DOMAIN[:1])
    refuse(ALICE.peer_id, HANDSHAKE_DOMAIN, b"essage", signature)


def test_a_second_form_of_the_same_signature_is_refused() -> None:
    # S + L satisfies the same equation: whoever accepts it gives one message two signatures (RFC 8032, section 5.1.7).
    signature = ALICE.sign(HANDSHAKE_DOMAIN, b"message")
    scalar = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    refuse(ALICE.peer_id, HANDSHAKE_DOMAIN, b"message", signature[:32] + scalar.to_bytes(32, "little"))


@pytest.mark.parametrize("key", [bytes(32), b"\1" + bytes(31), b"\xff" * 32, b"\xec" + b"\xff" * 30 + b"\x7f"])
def test_keys_for_which_anything_would_verify(key: bytes) -> None:
    # Points of small order, for which a signature of zeros can hold, and encodings of no point at all.
    for signature in (bytes(64), b"\1" + bytes(63), key + bytes(32)):
        refuse(PeerId(key), HANDSHAKE_DOMAIN, b"message", signature)


def test_an_identity_does_not_show_its_secret() -> None:
    seed = bytes(range(32))
    shown = repr(Identity(seed)) + str(Identity(seed))
    assert ALICE.peer_id.short in shown
    assert seed.hex() not in shown
    assert repr(seed) not in shown


def test_the_same_seed_is_the_same_peer() -> None:
    assert Identity(bytes(32)).peer_id == BOB.peer_id
    assert Identity(bytes(32)).sign(HANDSHAKE_DOMAIN, b"m") == BOB.sign(HANDSHAKE_DOMAIN, b"m")
    assert ALICE.peer_id != BOB.peer_id
