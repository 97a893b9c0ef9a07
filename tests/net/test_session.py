"""Sessions in pairs over a fake wire: handshake, attribution, batching, liveness, and what a hostile side may try."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import LimitExceeded, LinkBroken, LinkClosed, LocalMisuse, PeerViolation
from fleet.identity.exchange import TAG_SIZE, exchange_public, session_keys_untrusted
from fleet.identity.keys import CHANNEL_DOMAIN, HANDSHAKE_DOMAIN, Identity, PeerId
from fleet.limits import (
    HAVE_BATCH,
    LIVENESS_SECONDS,
    MAX_CONTROL_OUTBOX,
    MAX_HELLO,
    MAX_MESSAGES_PER_FRAME,
    MAX_PIECE_SIZE,
    PING_SECONDS,
)
from fleet.net.authentication import Role
from fleet.net.hello import Hello, Purpose
from fleet.net.session import Closed, Established, Proved, Received, Session, SessionEvent, State
from fleet.wire import cbor
from fleet.wire.frame import HEADER, FrameKind, PieceReader, control_frame, piece_header
from fleet.wire.messages import (
    REGISTRY,
    Accept,
    Bitfield,
    Close,
    Have,
    Join,
    Leave,
    ManifestPage,
    Message,
    Ping,
    Pong,
    Request,
    encode_batch,
    encode_message,
)
from tests.helpers.pair import (
    HIGH,
    LOW,
    STRANGER,
    Pair,
    drain,
    exchanging,
    frames_of,
    hello_of,
    secret_of,
    session_of,
)

ROOT = b"r" * 32
SIDES = [(LOW, HIGH), (HIGH, LOW)]
KINDS = [
    pytest.param(purpose, signed, id=f"{purpose.name.lower()}-{'signed' if signed else 'channel'}")
    for purpose in Purpose
    for signed in (True, False)
]


def messages_of(events: list[SessionEvent]) -> list[Message]:
    return [message for event in events if isinstance(event, Received) for message in event.messages]


def established(**options: object) -> Pair:
    pair = Pair(**options).settle()  # type: ignore[arg-type]
    assert pair.initiator.state is pair.responder.state is State.ESTABLISHED
    return pair


# --- the handshake ---


@pytest.mark.parametrize(("purpose", "signed"), KINDS)
@pytest.mark.parametrize(("initiator", "responder"), SIDES)
@pytest.mark.parametrize("accepts", [True, False])
def test_both_sides_are_established_exactly_when_the_decider_accepts(
    purpose: Purpose, signed: bool, initiator: Identity, responder: Identity, accepts: bool
) -> None:
    pair = Pair(purpose, signed, initiator, responder, accepts).settle()
    assert pair.initiator.session_id == pair.responder.session_id != b""
    assert (pair.initiator.peer, pair.responder.peer) == (responder.peer_id, initiator.peer_id)
    assert pair.initiator.decides != pair.responder.decides
    decider = LOW.peer_id if purpose is Purpose.CONTROL else responder.peer_id
    assert pair.other.peer == decider
    for role in Role:
        session, events = pair.side(role), pair.events[role]
        assert isinstance(events[0], Proved)
        assert events[0].decide == session.decides
        assert events[0].hello.purpose is purpose
        waits = session is pair.other
        if accepts:
            assert session.state is State.ESTABLISHED
            assert events[1:] == ([Established()] if waits else [])
        else:
            assert session.state is State.CLOSED
            assert events[1:] == ([Closed("refused")] if waits else [])


@pytest.mark.parametrize(("purpose", "signed"), KINDS)
def test_until_the_accept_the_other_side_is_not_established(purpose: Purpose, signed: bool) -> None:
    pair = Pair(purpose, signed, accepts=False)
    while pair.decider.state not in (State.PROVED, State.CLOSED) or not pair.other.peer:
        pair.move()
        assert State.ESTABLISHED not in (pair.initiator.state, pair.responder.state)
    with pytest.raises(LinkClosed):
        pair.other.send(Join(ROOT))


@pytest.mark.parametrize(("purpose", "signed"), KINDS)
@pytest.mark.parametrize("side", Role)
def test_every_split_point_gives_the_same_events(purpose: Purpose, signed: bool, side: Role) -> None:
    """One side's whole stream, handshake and first messages, cut in two at each byte; and byte by byte."""
    queued: list[Message] = [Join(ROOT), Have(ROOT, (1, 2, 3))] if purpose is Purpose.CONTROL else []
    model = Pair(purpose, signed).settle()
    # Nobody sends messages before the accept, so the decider never reads them together with the handshake.
    apart = {len(model.sent[Role(1 - side)])} if model.side(side).decides and queued else set()
    for message in queued:
        model.side(Role(1 - side)).send(message)
    model.settle()
    stream = bytes(model.sent[Role(1 - side)])
    assert len(stream) > 60
    cuts = [sorted({cut} | apart) for cut in range(1, len(stream))]
    for points in [*cuts, list(range(1, len(stream)))]:
        pair = Pair(purpose, signed)
        session = pair.side(side)
        if side is Role.INITIATOR:
            drain(session)
        for start, stop in zip([0, *points], [*points, len(stream)], strict=True):
            pair.deliver(side, stream[start:stop])
        assert pair.events[side][0] == model.events[side][0]
        assert messages_of(pair.events[side]) == queued
        assert [e for e in pair.events[side] if not isinstance(e, Received)] == [
            e for e in model.events[side] if not isinstance(e, Received)
        ]
        assert session.state is State.ESTABLISHED
        assert session.session_id == model.side(side).session_id


@given(st.data())
@settings(max_examples=30)
def test_a_wire_that_cuts_anywhere(data: st.DataObject) -> None:
    def cut(stream: bytes) -> list[bytes]:
        if not stream:
            return []
        points = sorted(data.draw(st.sets(st.integers(1, max(1, len(stream) - 1)), max_size=5)))
        return [stream[a:b] for a, b in zip([0, *points], [*points, len(stream)], strict=True)]

    pair = Pair(data.draw(st.sampled_from(Purpose)), data.draw(st.booleans()), chunks=cut).settle()
    assert pair.initiator.state is pair.responder.state is State.ESTABLISHED


# --- who it is ---


def blame(session: Session, stream: bytes, match: str) -> PeerId | None:
    with pytest.raises(PeerViolation, match=match) as caught:
        session.receive_untrusted(stream, 0.0)
    assert session.state is State.CLOSED
    assert session.receive_untrusted(stream, 0.0) == []
    return caught.value.peer


def altered(session: Session, stream: bytes) -> None:
    """Changed on the way: the session is over, and nobody is to blame."""
    with pytest.raises(LinkBroken, match="tag"):
        session.receive_untrusted(stream, 0.0)
    assert session.state is State.CLOSED


@pytest.mark.parametrize("signed", [True, False])
def test_somebody_else_than_expected(signed: bool) -> None:
    pair = Pair(signed=signed, expected=STRANGER.peer_id)
    pair.deliver(Role.RESPONDER, drain(pair.initiator))
    named = blame(pair.initiator, drain(pair.responder), "expected peer")
    assert named == (None if signed else HIGH.peer_id)


@pytest.mark.parametrize("role", Role)
def test_ones_own_key(role: Role) -> None:
    session = session_of(LOW, role, hello_of(LOW), now=0.0)
    assert blame(session, control_frame(FrameKind.HELLO, hello_of(LOW).encode()), "own key") is None


def test_what_a_side_says_itself_cannot_be_said_back_to_it() -> None:
    session = session_of(LOW, Role.INITIATOR, hello_of(LOW), now=0.0)
    assert blame(session, drain(session), "own key") is None


@pytest.mark.parametrize("role", Role)
def test_another_key_than_the_channels(role: Role) -> None:
    session = session_of(LOW, role, hello_of(LOW), now=0.0, channel_peer=STRANGER.peer_id)
    named = blame(
        session,
        control_frame(FrameKind.HELLO, exchanging(hello_of(HIGH), HIGH).encode()),
        "not the one that the channel",
    )
    assert named == STRANGER.peer_id


@pytest.mark.parametrize("version", [0, 2, 2**64 - 1, -(2**64)])
def test_another_version(version: int) -> None:
    fields = cbor.decode_untrusted(hello_of(HIGH).encode(), max_bytes=MAX_HELLO)
    assert isinstance(fields, list)
    for payload in (cbor.encode([version, *fields[1:]]), cbor.encode([version])):
        session = session_of(LOW, Role.RESPONDER, hello_of(LOW), now=0.0)
        assert blame(session, control_frame(FrameKind.HELLO, payload), "speaks version") is None


def test_a_responder_that_changes_the_purpose() -> None:
    session = session_of(LOW, Role.INITIATOR, hello_of(LOW, Purpose.BULK), now=0.0)
    assert blame(session, control_frame(FrameKind.HELLO, exchanging(hello_of(HIGH), HIGH).encode()), "purpose") is None


HELLO_FIELDS: list[tuple[int, list[cbor.CborValue]]] = [
    (1, [2, -1, True, "0", None]),
    (2, [b"k" * 31, b"k" * 33, "k" * 32, None, 0]),
    (3, [b"n" * 31, b"n" * 33, "n" * 32, 0]),
    (4, [-1, True, "1", None, 1.0]),
    (5, [-1, 2**32, 2**64 - 1, False, b""]),
    (6, ["x" * 256, b"127.0.0.1:1", None]),
    (7, [b"s" * 32, b"s", "", None]),  # a control link belongs to no other session
    (8, [[True], ["1"], [[]], None, {}, [1, 1.5]]),
]


@pytest.mark.parametrize(("number", "values"), HELLO_FIELDS)
def test_a_hello_with_a_field_out_of_its_range(number: int, values: list[cbor.CborValue]) -> None:
    fields = cbor.decode_untrusted(hello_of(HIGH).encode(), max_bytes=MAX_HELLO)
    assert isinstance(fields, list)
    assert Hello.decode_untrusted(cbor.encode(fields)) == hello_of(HIGH)
    for value in values:
        with pytest.raises(PeerViolation, match="out of its range"):
            Hello.decode_untrusted(cbor.encode([*fields[:number], value, *fields[number + 1 :]]))
    with pytest.raises(PeerViolation, match="fields"):
        Hello.decode_untrusted(cbor.encode(fields[:-1]))


@given(st.binary(max_size=300))
def test_random_bytes_as_a_hello(payload: bytes) -> None:
    with pytest.raises(PeerViolation):
        Hello.decode_untrusted(payload)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_mutated_hello_raises_only_violations(place: int, change: int) -> None:
    payload = bytearray(hello_of(HIGH, Purpose.BULK).encode())
    payload[place % len(payload)] ^= change
    try:
        hello = Hello.decode_untrusted(bytes(payload))
    except PeerViolation:
        return
    assert hello.encode() == payload


# --- proofs and signatures ---


def at_proof() -> Pair:
    """A signed pair with both hellos exchanged, the proofs not."""
    pair = Pair()
    pair.deliver(Role.RESPONDER, drain(pair.initiator))
    hello, proof = frames_of(drain(pair.responder))
    assert proof[HEADER.size - 1] == FrameKind.PROOF
    pair.deliver(Role.INITIATOR, hello)
    return pair


def wrong_proofs() -> dict[str, bytes]:
    session_id = at_proof().initiator.session_id
    responder = bytes([Role.RESPONDER])
    return {
        "another key": STRANGER.sign(HANDSHAKE_DOMAIN, session_id + responder),
        "the other direction": HIGH.sign(HANDSHAKE_DOMAIN, session_id + bytes([Role.INITIATOR])),
        "another session": HIGH.sign(HANDSHAKE_DOMAIN, bytes(32) + responder),
        "another domain": HIGH.sign(CHANNEL_DOMAIN, session_id + responder),
        "reflected": LOW.sign(HANDSHAKE_DOMAIN, session_id + bytes([Role.INITIATOR])),
        "empty": b"",
        "cut": HIGH.sign(HANDSHAKE_DOMAIN, session_id + responder)[:-1],
        "lengthened": HIGH.sign(HANDSHAKE_DOMAIN, session_id + responder) + b"\0",
    }


@pytest.mark.parametrize("kind", wrong_proofs())
def test_a_wrong_proof_names_nobody(kind: str) -> None:
    """The key is claimed, not proved: whoever sent this may have nothing to do with the peer it names."""
    pair = at_proof()
    assert blame(pair.initiator, control_frame(FrameKind.PROOF, wrong_proofs()[kind]), "signature") is None
    assert pair.initiator.peer is None


def test_the_right_proof_passes_where_the_wrong_ones_do_not() -> None:
    pair = at_proof()
    proof = HIGH.sign(HANDSHAKE_DOMAIN, pair.initiator.session_id + bytes([Role.RESPONDER]))
    events = pair.initiator.receive_untrusted(control_frame(FrameKind.PROOF, proof), 0.0)
    assert events == [Proved(HIGH.peer_id, exchanging(hello_of(HIGH), HIGH), True)]


def test_an_old_handshake_replayed() -> None:
    """The responder's nonce is fresh, so the proof of yesterday does not fit."""
    recorded = bytes(Pair().settle().sent[Role.INITIATOR])
    responder = session_of(HIGH, Role.RESPONDER, hello_of(HIGH, nonce=b"fresh" + bytes(27)), now=0.0)
    assert blame(responder, recorded, "signature") is None


def two_frames() -> tuple[Pair, list[bytes]]:
    """An established signed pair, and two frames of the initiator's that the responder has not seen."""
    pair = established()
    frames = []
    for message in (Join(ROOT), Leave(ROOT)):
        pair.initiator.send(message)
        frames += frames_of(drain(pair.initiator))
    return pair, frames


def test_frames_in_order_pass() -> None:
    pair, frames = two_frames()
    assert messages_of(pair.deliver(Role.RESPONDER, b"".join(frames))) == [Join(ROOT), Leave(ROOT)]


def test_a_frame_replayed() -> None:
    pair, (first, _) = two_frames()
    pair.deliver(Role.RESPONDER, first)
    altered(pair.responder, first)


def test_frames_swapped() -> None:
    pair, (_, second) = two_frames()
    altered(pair.responder, second)


def test_a_frame_reflected() -> None:
    pair, (first, _) = two_frames()
    altered(pair.initiator, first)


def test_a_frame_of_another_session() -> None:
    pair, _ = two_frames()
    other = Pair()
    other.responder = session_of(HIGH, Role.RESPONDER, hello_of(HIGH, nonce=b"n" * 32), now=0.0)
    other.settle()
    other.initiator.send(Join(ROOT))
    assert other.initiator.session_id != pair.initiator.session_id
    altered(pair.responder, drain(other.initiator))


def test_a_flipped_bit_at_every_byte_of_a_tagged_frame() -> None:
    _, (frame, _) = two_frames()
    for place in range(len(frame)):
        pair, _ = two_frames()
        broken = bytearray(frame)
        broken[place] ^= 1 << place % 8
        stream = bytes(broken)
        if int.from_bytes(stream[:4], "big") > len(frame) - HEADER.size:
            # It claims more than is there: refused at once, or once the rest has come.
            stream += bytes(min(int.from_bytes(stream[:4], "big"), 2_000_000))
        with pytest.raises((PeerViolation, LinkBroken), match=r"tag|frame"):
            pair.responder.receive_untrusted(stream, 0.0)
        assert pair.responder.state is State.CLOSED, place


def test_a_flipped_bit_at_every_byte_of_the_handshake() -> None:
    """Nothing is established, and whoever is named has been proved."""
    stream = bytes(Pair(initiator_identity=HIGH, responder_identity=LOW, accepts=False).settle().sent[Role.INITIATOR])
    for place in range(len(stream)):
        broken = bytearray(stream)
        broken[place] ^= 1 << place % 8
        responder = session_of(LOW, Role.RESPONDER, hello_of(LOW), now=0.0)
        try:
            events = responder.receive_untrusted(bytes(broken), 0.0)
        except PeerViolation as violation:
            assert violation.peer is None  # noqa: PT017
            events = []
        assert events == []
        assert responder.peer is None


# --- what is allowed when ---


def sealed(sender: Identity, receiver: Session, messages: list[Message], *, signed: bool = True) -> bytes:
    """A first MESSAGES frame to ``receiver`` that nothing is wrong with but what it says."""
    batch = encode_batch(map(encode_message, messages))
    if not signed:
        return control_frame(FrameKind.MESSAGES, batch)
    role = Role.INITIATOR if receiver._authentication.role is Role.RESPONDER else Role.RESPONDER
    assert receiver.their_hello is not None
    public = exchange_public(secret_of(LOW if sender is HIGH else HIGH))
    keys = session_keys_untrusted(secret_of(sender), public, receiver.session_id)
    return control_frame(FrameKind.MESSAGES, keys[role].tag(0, batch), batch)


def proved(*, decider: bool, signed: bool) -> tuple[Session, Identity]:
    """A session that is PROVED and waits, and the identity at its other end."""
    us, them = (LOW, HIGH) if decider else (HIGH, LOW)
    session = session_of(us, Role.RESPONDER, hello_of(us), now=0.0, channel_peer=None if signed else them.peer_id)
    other = session_of(them, Role.INITIATOR, hello_of(them), now=0.0, channel_peer=None if signed else us.peer_id)
    session.receive_untrusted(drain(other), 0.0)
    other.receive_untrusted(drain(session), 0.0)
    session.receive_untrusted(drain(other), 0.0)
    assert session.state is State.PROVED
    assert session.decides == decider
    return session, them


EARLY: list[Message] = [Ping(1), Pong(1), Join(ROOT), Have(ROOT, (1,)), Request(ROOT, 0, (1,)), Bitfield(ROOT, b"")]


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("decider", [True, False])
@pytest.mark.parametrize("message", EARLY, ids=lambda message: type(message).__name__)
def test_messages_before_the_accept(signed: bool, decider: bool, message: Message) -> None:
    session, them = proved(decider=decider, signed=signed)
    assert blame(session, sealed(them, session, [message], signed=signed), "not allowed") == them.peer_id


@pytest.mark.parametrize("signed", [True, False])
def test_an_accept_from_the_side_that_does_not_decide(signed: bool) -> None:
    session, them = proved(decider=True, signed=signed)
    assert blame(session, sealed(them, session, [Accept()], signed=signed), "does not decide") == them.peer_id


@pytest.mark.parametrize(
    "messages", [[Accept(), Accept()], [Close("no"), Accept()], [Accept(), Close("no")], [Close("no"), Close("no")]]
)
def test_more_than_one_answer_to_whether_the_link_is_kept(messages: list[Message]) -> None:
    """Two Accepts would make two neighbours of one link, and an Accept after a Close would bring the dead back."""
    session, them = proved(decider=False, signed=True)
    assert blame(session, sealed(them, session, messages), "more than one answer") == them.peer_id


def test_an_accept_once_established() -> None:
    pair = established()
    batch = encode_batch([encode_message(Accept())])
    pair.initiator._frames_out.append(pair.initiator._seal(batch))
    assert blame(pair.responder, drain(pair.initiator), "not allowed") == LOW.peer_id


@pytest.mark.parametrize("kind", [FrameKind.HELLO, FrameKind.PROOF])
def test_handshake_frames_once_established(kind: FrameKind) -> None:
    pair = established()
    assert blame(pair.responder, control_frame(kind, hello_of(LOW).encode()), f"a {kind.name} frame") == LOW.peer_id


@pytest.mark.parametrize("kind", [FrameKind.PROOF, FrameKind.MESSAGES])
def test_anything_before_the_hello(kind: FrameKind) -> None:
    session = session_of(LOW, Role.RESPONDER, hello_of(LOW), now=0.0)
    assert blame(session, control_frame(kind, b""), f"a {kind.name} frame") is None


def test_accept_is_for_the_deciding_side_while_it_decides() -> None:
    fresh = session_of(LOW, Role.RESPONDER, hello_of(LOW), now=0.0)
    waiting, _ = proved(decider=False, signed=True)
    done, _ = proved(decider=True, signed=True)
    done.accept()
    for session in (fresh, waiting, done):
        before = session.state
        with pytest.raises(LocalMisuse, match="nothing to accept"):
            session.accept()
        assert session.state is before


def test_a_link_refused_by_the_other_side_cannot_be_accepted() -> None:
    session, them = proved(decider=True, signed=True)
    assert session.receive_untrusted(sealed(them, session, [Close("full")]), 0.0) == [Closed("full")]
    with pytest.raises(LinkClosed, match="refused"):
        session.accept()
    assert session.state is State.CLOSED
    assert not session.has_output


# --- sizes ---


@pytest.mark.parametrize("claim", [2**32 - 1, 1_048_577])
def test_a_header_that_claims_too_much_is_refused_before_anything_is_allocated(claim: int) -> None:
    pair = established()
    assert blame(pair.responder, HEADER.pack(claim, 0, FrameKind.MESSAGES), "frame of") == LOW.peer_id


def test_nobody_unproved_makes_this_side_hold_more_than_a_hello() -> None:
    session = session_of(LOW, Role.RESPONDER, hello_of(LOW), now=0.0)
    assert session.receive_untrusted(HEADER.pack(MAX_HELLO, 0, FrameKind.HELLO), 0.0) == []
    session = session_of(LOW, Role.RESPONDER, hello_of(LOW), now=0.0)
    assert blame(session, HEADER.pack(MAX_HELLO + 1, 0, FrameKind.HELLO), "frame of") is None
    pair = at_proof()
    assert blame(pair.initiator, HEADER.pack(MAX_HELLO + 1, 0, FrameKind.PROOF), "frame of") is None


def test_the_outbox_has_a_cap() -> None:
    pair = established()
    page = ManifestPage(ROOT, 2**30, 2**16, 0, bytes(512 * 1024))
    size = len(encode_message(page))
    fitting = MAX_CONTROL_OUTBOX // size
    for _ in range(fitting):
        pair.initiator.send(page)
    with pytest.raises(LimitExceeded, match="does not read"):
        pair.initiator.send(page)
    assert pair.initiator.messages_dropped == 1
    left = MAX_CONTROL_OUTBOX - fitting * size
    overhead = size - 512 * 1024
    filler = ManifestPage(ROOT, 2**30, 2**16, 0, bytes(left - overhead))
    assert len(encode_message(filler)) == left
    pair.initiator.send(filler)  # exactly full
    with pytest.raises(LimitExceeded):
        pair.initiator.send(Leave(ROOT))
    pair.settle()
    assert messages_of(pair.events[Role.RESPONDER]) == [*[page] * fitting, filler]
    pair.initiator.send(page)  # there is room again


def test_a_peer_that_pings_and_does_not_read() -> None:
    """The answers wait in the outbox; at its cap the flooder is cut off."""
    pair = established()
    pair.responder.send(Bitfield(ROOT, bytes(32 * 1024)))
    while pair.responder._outbox_size < MAX_CONTROL_OUTBOX - 32 * 1024 - 100:
        pair.responder.send(Bitfield(ROOT, bytes(32 * 1024)))
    flood = []
    for token in range(20 * 1_024):
        pair.initiator.send(Ping(token))
        if token % 1_024 == 1_023:
            flood.append(drain(pair.initiator))
    with pytest.raises(LimitExceeded, match="does not read"):
        pair.deliver(Role.RESPONDER, b"".join(flood))
    assert pair.responder._outbox_size <= MAX_CONTROL_OUTBOX


def test_a_message_that_no_frame_can_hold_is_refused_at_once() -> None:
    """Queued, it would stay at the head of the outbox and empty frames would go out for ever."""
    pair = established()
    with pytest.raises(LocalMisuse, match="fits no frame"):
        pair.initiator.send(Have(ROOT, tuple(range(70_000))))
    with pytest.raises(LocalMisuse, match="fits no frame"):
        pair.initiator.send(Bitfield(ROOT, bytes(2**20)))
    assert not pair.initiator.has_output


# --- batches ---


@pytest.mark.parametrize(("count", "frames"), [(1, 1), (MAX_MESSAGES_PER_FRAME, 1), (MAX_MESSAGES_PER_FRAME + 1, 2)])
def test_many_messages_travel_in_one_frame(count: int, frames: int) -> None:
    pair = established()
    messages = [Have(ROOT, (number,)) for number in range(count)]
    for message in messages:
        pair.initiator.send(message)
    stream = drain(pair.initiator)
    assert len(frames_of(stream)) == frames
    assert messages_of(pair.deliver(Role.RESPONDER, stream)) == messages


@pytest.mark.parametrize("role", Role)
def test_the_tag_covers_session_direction_number_and_batch(role: Role) -> None:
    pair = established()
    session, public = pair.side(role), exchange_public(secret_of(HIGH if role is Role.INITIATOR else LOW))
    secret = secret_of(LOW if role is Role.INITIATOR else HIGH)
    key = session_keys_untrusted(secret, public, session.session_id)[role]
    batch = encode_batch([encode_message(Join(ROOT))])
    before = session._sent_frames
    for number in (before, before + 1):
        session.send(Join(ROOT))
        assert drain(session) == control_frame(FrameKind.MESSAGES, key.tag(number, batch), batch)


def test_a_link_secret_is_required_where_the_channel_proves_nothing() -> None:
    with pytest.raises(LocalMisuse, match="secret"):
        Session(LOW, Role.INITIATOR, hello_of(LOW), now=0.0)


def test_an_exchange_key_that_would_make_the_session_keys_public() -> None:
    session = session_of(LOW, Role.RESPONDER, hello_of(LOW))
    weak = replace(hello_of(HIGH), exchange=bytes(32))
    assert blame(session, control_frame(FrameKind.HELLO, weak.encode()), "small order") is None


@pytest.mark.parametrize("signed", [True, False])
def test_an_exchange_key_that_is_missing_or_too_many(signed: bool) -> None:
    session = session_of(LOW, Role.RESPONDER, hello_of(LOW), channel_peer=None if signed else HIGH.peer_id)
    wrong = hello_of(HIGH) if signed else exchanging(hello_of(HIGH), HIGH)
    assert blame(session, control_frame(FrameKind.HELLO, wrong.encode()), "exchange") == (
        None if signed else HIGH.peer_id
    )


@pytest.mark.parametrize("signed", [True, False])
def test_a_frame_carries_a_tag_only_where_the_channel_proves_nothing(signed: bool) -> None:
    pair = established(signed=signed)
    pair.initiator.send(Join(ROOT))
    payload = drain(pair.initiator)[HEADER.size :]
    batch = encode_batch([encode_message(Join(ROOT))])
    assert payload[TAG_SIZE if signed else 0 :] == batch
    assert len(payload) == len(batch) + (TAG_SIZE if signed else 0)


BULKY: list[Message] = [
    Have(ROOT, tuple(range(HAVE_BATCH))),
    Have(ROOT, tuple(range(200_000, 200_000 + HAVE_BATCH))),
    Have(ROOT, (1,)),
    Bitfield(ROOT, bytes(32 * 1024)),
    ManifestPage(ROOT, 2**30, 2**16, 0, bytes(512 * 1024)),
    Request(ROOT, 2**32 - 1, tuple(range(256))),
    Join(ROOT),
]


@given(st.lists(st.tuples(st.sampled_from(BULKY), st.integers(1, 9)), max_size=12), st.booleans())
@settings(max_examples=25)
def test_whatever_is_queued_arrives_in_order(runs: list[tuple[Message, int]], signed: bool) -> None:
    """Frames have caps on bytes, on messages and on items: no honest queue makes one that the other side refuses."""
    pair = established(signed=signed)
    queued: list[Message] = []
    for message, count in runs:
        for _ in range(count):
            try:
                pair.initiator.send(message)
            except LimitExceeded:
                break
            queued.append(message)
    pair.settle()
    assert messages_of(pair.events[Role.RESPONDER]) == queued


def test_haves_of_every_piece_of_a_large_artifact() -> None:
    pair = established(signed=False)
    haves: list[Message] = [Have(ROOT, tuple(range(n, n + HAVE_BATCH))) for n in range(0, 262_144, HAVE_BATCH)]
    for have in haves:
        pair.initiator.send(have)
    pair.settle()
    assert messages_of(pair.events[Role.RESPONDER]) == haves


# --- bulk links ---


@pytest.mark.parametrize("signed", [True, False])
def test_piece_bytes_in_the_same_read_as_the_accept_are_left_alone(signed: bool) -> None:
    piece = bytes(range(256)) * 3
    stream = piece_header(9, len(piece)) + piece
    pair = Pair(Purpose.BULK, signed)
    while pair.responder.state is not State.ESTABLISHED:
        pair.move()
    accept = drain(pair.responder)
    assert pair.deliver(Role.INITIATOR, accept + stream)[-1] == Established()
    assert pair.initiator.carries_pieces
    rest = pair.initiator.rest()
    assert rest == stream
    assert pair.initiator.rest() == b""
    header = PieceReader().header_untrusted(memoryview(rest))
    assert header is not None
    assert header[:2] == (9, len(piece))
    assert header[2] == piece


def test_pieces_before_the_accept() -> None:
    pair = Pair(Purpose.BULK, accepts=False)
    pair.deliver(Role.RESPONDER, drain(pair.initiator))
    pair.deliver(Role.INITIATOR, drain(pair.responder))
    hello_and_proof = drain(pair.initiator)
    assert blame(pair.responder, hello_and_proof + piece_header(1, MAX_PIECE_SIZE), "bulk|channel 1") == LOW.peer_id


def test_a_bulk_link_carries_no_messages() -> None:
    pair = established(purpose=Purpose.BULK)
    for session in (pair.initiator, pair.responder):
        with pytest.raises(LocalMisuse, match="pieces only"):
            session.send(Join(ROOT))
        assert session.next_deadline() == float("inf")
        assert session.on_timer(1e9)
        session.close("done")
        assert not session.has_output  # a frame between two pieces would be taken for a piece


# --- time ---


def test_a_ping_is_answered_inside() -> None:
    pair = established()
    pair.initiator.send(Ping(2**32 - 1))
    pair.initiator.send(Join(ROOT))
    pair.settle()
    assert messages_of(pair.events[Role.RESPONDER]) == [Join(ROOT)]
    assert messages_of(pair.events[Role.INITIATOR]) == []
    assert frames_of(bytes(pair.sent[Role.RESPONDER]))[-1].endswith(encode_message(Pong(2**32 - 1)))


def test_a_silent_peer_is_pinged_and_then_given_up() -> None:
    pair = established()
    session = pair.initiator
    assert session.next_deadline() == PING_SECONDS
    assert session.on_timer(PING_SECONDS - 0.001)
    assert not session.has_output
    pings = 0
    while session.on_timer(deadline := session.next_deadline()):
        assert len(frames_of(drain(session))) == 1
        pings += 1
    assert deadline == LIVENESS_SECONDS
    assert pings == LIVENESS_SECONDS / PING_SECONDS - 1


def test_a_peer_that_answers_lives_for_ever() -> None:
    pair = established()
    for _ in range(20):
        pair.now = min(pair.initiator.next_deadline(), pair.responder.next_deadline())
        assert pair.initiator.on_timer(pair.now)
        assert pair.responder.on_timer(pair.now)
        pair.settle()
    assert pair.now == 20 * PING_SECONDS
    assert pair.initiator.next_deadline() == pair.now + PING_SECONDS


def test_any_byte_is_a_sign_of_life() -> None:
    pair = established()
    pair.now = LIVENESS_SECONDS - 1
    assert pair.initiator.on_timer(pair.now)
    pair.deliver(Role.INITIATOR, b"\0")
    assert pair.initiator.next_deadline() == pair.now + PING_SECONDS


def test_nothing_is_due_before_it_is_established() -> None:
    pair = Pair()
    assert pair.initiator.next_deadline() == float("inf")
    assert pair.initiator.on_timer(1e9)
    assert frames_of(drain(pair.initiator))[1:] == []


# --- the end ---


@pytest.mark.parametrize("signed", [True, False])
def test_a_goodbye_comes_after_what_was_queued(signed: bool) -> None:
    pair = established(signed=signed)
    for piece in range(MAX_MESSAGES_PER_FRAME + 1):
        pair.initiator.send(Have(ROOT, (piece,)))
    pair.initiator.close("x" * 1_000)
    pair.settle()
    assert len(messages_of(pair.events[Role.RESPONDER])) == MAX_MESSAGES_PER_FRAME + 1
    assert pair.events[Role.RESPONDER][-1] == Closed("x" * 255)


def test_messages_before_a_goodbye_in_its_frame_count_and_those_after_it_do_not() -> None:
    pair = established()
    batch = map(encode_message, (Join(ROOT), Close("bye"), Leave(ROOT), Ping(1), Close("again")))
    pair.initiator._frames_out.append(pair.initiator._seal(encode_batch(batch)))
    assert pair.deliver(Role.RESPONDER, drain(pair.initiator)) == [Received([Join(ROOT)]), Closed("bye")]
    assert not pair.responder.has_output


def test_nothing_after_a_close() -> None:
    pair = established()
    pair.responder.send(Join(ROOT))
    pair.initiator.close("done")
    goodbye = drain(pair.initiator)
    late = drain(pair.responder)
    pair.responder.send(Leave(ROOT))
    assert pair.deliver(Role.RESPONDER, goodbye) == [Closed("done")]
    for session in (pair.initiator, pair.responder):
        assert session.state is State.CLOSED
        with pytest.raises(LinkClosed):
            session.send(Join(ROOT))
        assert session.receive_untrusted(late, 1.0) == []
        assert session.receive_untrusted(b"\xff" * 100, 1.0) == []  # not even looked at
        session.close("again")
        assert not session.has_output
        assert session.next_deadline() == float("inf")


def test_frames_after_the_goodbye_in_the_same_read_are_not_looked_at() -> None:
    pair = established()
    pair.initiator.close("done")
    assert pair.deliver(Role.RESPONDER, drain(pair.initiator) + b"\xff" * 50) == [Closed("done")]


def test_every_kind_of_message_is_for_some_phase() -> None:
    assert {kind for kind, _, _ in REGISTRY.values()} >= {Accept, Close, Ping, Pong}


# --- rubbish ---


@given(st.binary(min_size=1, max_size=200), st.booleans(), st.booleans())
def test_random_bytes_raise_only_violations(rubbish: bytes, signed: bool, up: bool) -> None:
    pair = established(signed=signed) if up else Pair(signed=signed)
    try:
        events = pair.responder.receive_untrusted(rubbish, 0.0)
    except PeerViolation as violation:
        assert violation.peer in ((None,) if signed and not up else (LOW.peer_id,))  # noqa: PT017
    else:
        assert events == []


@given(st.lists(st.tuples(st.integers(0, 2_000), st.integers(1, 255)), min_size=1, max_size=3))
def test_mutated_frames_on_an_authenticated_channel_raise_only_violations(changes: list[tuple[int, int]]) -> None:
    pair = established(signed=False)
    for message in (*EARLY, Close("bye")):
        pair.initiator.send(message)
    stream = bytearray(drain(pair.initiator))
    for place, change in changes:
        stream[place % len(stream)] ^= change
    try:
        pair.responder.receive_untrusted(bytes(stream), 0.0)
    except PeerViolation as violation:
        assert violation.peer == LOW.peer_id  # noqa: PT017
