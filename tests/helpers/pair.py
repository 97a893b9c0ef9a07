"""Two real sessions joined by a fake wire, which moves their bytes in whatever pieces a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from fleet.identity.exchange import exchange_public
from fleet.identity.keys import Identity, PeerId
from fleet.net.authentication import Role
from fleet.net.hello import NONCE_SIZE, Hello, Purpose
from fleet.net.session import Proved, Session, SessionEvent, State
from fleet.wire.frame import HEADER

LOW, HIGH = sorted((Identity(bytes([n]) * 32) for n in (1, 2)), key=lambda identity: identity.peer_id)
"""Two identities: the one with the smaller id decides a control link."""
STRANGER = Identity(b"\x03" * 32)
CONTROL_SESSION = b"c" * 32
"""The control session that a bulk link of these tests claims to belong to."""


def hello_of(identity: Identity, purpose: Purpose = Purpose.CONTROL, nonce: bytes = b"", generation: int = 0) -> Hello:
    """A hello with all that is drawn by chance fixed."""
    session = CONTROL_SESSION if purpose is Purpose.BULK else b""
    return Hello(
        purpose, identity.peer_id, nonce or identity.peer_id[:NONCE_SIZE], 7, generation, "127.0.0.1:1", session, (1,)
    )


def secret_of(identity: Identity) -> bytes:
    """A link secret with nothing left to chance."""
    return bytes(identity.peer_id)


def exchanging(hello: Hello, identity: Identity) -> Hello:
    """The hello as a session with tags sends it."""
    return replace(hello, exchange=exchange_public(secret_of(identity)))


def session_of(
    identity: Identity,
    role: Role,
    hello: Hello,
    *,
    now: float = 0.0,
    channel_peer: PeerId | None = None,
    expected_peer: PeerId | None = None,
) -> Session:
    """A session with nothing left to chance."""
    secret = secret_of(identity) if channel_peer is None else b""
    return Session(
        identity, role, hello, now=now, secret=secret, channel_peer=channel_peer, expected_peer=expected_peer
    )


def frames_of(stream: bytes) -> list[bytes]:
    """The whole frames, headers included, that make up ``stream``."""
    frames = []
    while stream:
        length, _, _ = HEADER.unpack_from(stream)
        end = HEADER.size + length
        assert len(stream) >= end, "the stream ends inside a frame"
        frames.append(stream[:end])
        stream = stream[end:]
    return frames


def drain(session: Session) -> bytes:
    """Everything that ``session`` has to send."""
    parts = []
    while session.has_output:
        parts.append(session.take_output())
    return b"".join(parts)


def whole(stream: bytes) -> Iterable[bytes]:
    """The chunks of a wire that keeps together what was sent together."""
    return [stream] if stream else []


@dataclass
class Pair:
    """An initiator and a responder. The deciding side accepts as ``accepts`` says, as soon as the other is proved."""

    purpose: Purpose = Purpose.CONTROL
    signed: bool = True
    initiator_identity: Identity = LOW
    responder_identity: Identity = HIGH
    accepts: bool = True
    chunks: Callable[[bytes], Iterable[bytes]] = whole
    expected: PeerId | None = None
    now: float = 0.0
    events: dict[Role, list[SessionEvent]] = field(default_factory=lambda: {role: [] for role in Role})
    sent: dict[Role, bytearray] = field(default_factory=lambda: {role: bytearray() for role in Role})
    """What each side has sent so far."""

    def __post_init__(self) -> None:
        self.initiator = session_of(
            self.initiator_identity,
            Role.INITIATOR,
            hello_of(self.initiator_identity, self.purpose),
            now=self.now,
            channel_peer=None if self.signed else self.responder_identity.peer_id,
            expected_peer=self.expected,
        )
        self.responder = session_of(
            self.responder_identity,
            Role.RESPONDER,
            hello_of(self.responder_identity),
            now=self.now,
            channel_peer=None if self.signed else self.initiator_identity.peer_id,
        )

    def side(self, role: Role) -> Session:
        """The session of that role."""
        return self.initiator if role is Role.INITIATOR else self.responder

    @property
    def decider(self) -> Session:
        """Who accepts or refuses. Once proved."""
        return self.initiator if self.initiator.decides else self.responder

    @property
    def other(self) -> Session:
        """Who waits for the decision."""
        return self.responder if self.initiator.decides else self.initiator

    def deliver(self, role: Role, stream: bytes) -> list[SessionEvent]:
        """Bytes arrive at the side of this role, in one piece."""
        session = self.side(role)
        happened = session.receive_untrusted(stream, self.now)
        self.events[role] += happened
        for event in happened:
            if isinstance(event, Proved) and event.decide and session.state is State.PROVED:
                if self.accepts:
                    session.accept()
                else:
                    session.close("refused")
        return happened

    def move(self) -> bool:
        """Carry over what each side has to send now, in chunks; whether there was anything."""
        streams = {role: drain(self.side(role)) for role in Role}
        for role, stream in streams.items():
            self.sent[role] += stream
            for chunk in self.chunks(stream):
                self.deliver(Role(1 - role), chunk)
        return any(streams.values())

    def settle(self) -> Pair:
        """Carry bytes until neither side has anything to say."""
        for _ in range(50):
            if not self.move():
                return self
        raise AssertionError("the two sides never stop talking")
