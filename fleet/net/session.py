"""The session: who is at the other end of a link, and the control messages that go over it. Sans-IO.

State machine, the same for both sides and for control and bulk links::

    HELLO ──their hello──▶ PROOF ──their proof──▶ PROVED ──Accept──▶ ESTABLISHED ──Close, violation──▶ CLOSED
            (where the channel authenticates, the hello leads straight to PROVED)

``authentication`` says who is at the other end. Where it made keys (TCP), every MESSAGES frame carries one tag over its
number and the whole batch, under the key of its direction, so a frame cannot be forged, or replayed on another link, in
another direction or twice. On TLS frames carry no tag.

Exactly one link survives a simultaneous dial because exactly one side decides: of a control link the peer with the
smaller id, of a bulk link the responder. Until its Accept nothing but Accept and Close is taken, so nothing is lost on
the loser. The hello's ``incarnation`` (drawn at each start of a peer) and ``generation`` (how many sessions with this
peer the sender has seen end) tell the decider that its old link is dead on the other side and must give way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeAlias

from fleet.errors import LimitExceeded, LinkBroken, LinkClosed, LocalMisuse, PeerViolation
from fleet.identity.exchange import TAG_SIZE
from fleet.limits import (
    LIVENESS_SECONDS,
    MAX_CBOR_ITEMS,
    MAX_CONTROL_FRAME,
    MAX_CONTROL_OUTBOX,
    MAX_HELLO,
    MAX_MESSAGES_PER_FRAME,
    MAX_REASON,
    PING_SECONDS,
)
from fleet.net.authentication import Authentication, Role
from fleet.net.hello import Hello, Purpose
from fleet.wire.frame import FrameKind, FrameReader, control_frame
from fleet.wire.messages import (
    Accept,
    Close,
    Message,
    Phase,
    Ping,
    Pong,
    decode_batch_untrusted,
    encode_batch,
    encode_message,
    item_count,
)

if TYPE_CHECKING:
    from fleet.identity.keys import Identity, PeerId

_BATCH_ROOM: Final = MAX_CONTROL_FRAME - TAG_SIZE - 8
_BATCH_ITEMS: Final = MAX_CBOR_ITEMS - 1


class State(Enum):
    """See the module's picture."""

    HELLO = "awaiting hello"
    PROOF = "awaiting proof"
    PROVED = "proved"
    ESTABLISHED = "established"
    CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Proved:
    """The other side is who its hello says. Where ``decide`` is set this side must now accept or refuse the link."""

    peer: PeerId
    hello: Hello
    decide: bool


@dataclass(frozen=True, slots=True)
class Established:
    """The deciding side accepted: messages may flow."""


@dataclass(frozen=True, slots=True)
class Received:
    """Messages of the established session, in order; pings are answered inside and do not appear."""

    messages: list[Message]


@dataclass(frozen=True, slots=True)
class Closed:
    """The other side said goodbye."""

    reason: str


SessionEvent: TypeAlias = Proved | Established | Received | Closed


class Session:
    """One side of one session. Bytes go in through ``receive_untrusted``, come out of ``take_output``."""

    def __init__(
        self,
        identity: Identity,
        role: Role,
        hello: Hello,
        *,
        now: float,
        secret: bytes = b"",
        channel_peer: PeerId | None = None,
        expected_peer: PeerId | None = None,
        generation_of: Callable[[PeerId], int] = lambda _peer: 0,
    ) -> None:
        """``hello`` is this side's; a responder's takes purpose and session from the initiator's, and its generation
        from ``generation_of``. ``channel_peer`` is the identity that an authenticating channel has proved; without
        one frames carry tags, for which ``secret`` gives 32 fresh random bytes.
        """
        self.peer: PeerId | None = None
        """The other side, once proved."""
        self.state = State.HELLO
        self.decides = False
        """Once proved: whether this side accepts or refuses the link."""
        self.messages_dropped = 0
        self._authentication = Authentication(
            identity,
            role,
            hello,
            secret=secret,
            channel_peer=channel_peer,
            expected_peer=expected_peer,
            generation_of=generation_of,
        )
        self._reader = FrameReader()
        self._frames_out = self._authentication.first_frames
        self._outbox: deque[tuple[bytes, int]] = deque()
        self._outbox_size = 0
        self._sent_frames = 0
        self._received_frames = 0
        self._heard_at = now
        self._ping_at: float | None = None
        self._pings = 0

    # --- in ---

    def receive_untrusted(self, data: memoryview | bytes, now: float) -> list[SessionEvent]:
        """Take bytes from the link and return what happened, in order. Once the session is CLOSED nothing happens.

        Raises ``PeerViolation`` or, for bytes changed on the way, ``LinkBroken`` (the session is then CLOSED), or
        ``LimitExceeded`` as ``send`` does, when the other side pings and does not read the answers.
        """
        events: list[SessionEvent] = []
        if self._is_closed:
            return events
        self._heard_at = now
        self._ping_at = None
        try:
            self._reader.feed(data)
            while not (self._is_closed or self.carries_pieces):
                # Nobody unproved can make this side hold more than a hello.
                longest = MAX_HELLO if self.state in (State.HELLO, State.PROOF) else MAX_CONTROL_FRAME
                frame = self._reader.next_untrusted(longest)
                if frame is None:
                    break
                self._frame_untrusted(*frame, events)
        except PeerViolation as violation:
            self.state = State.CLOSED
            # Only a proved peer is to blame, not a claimed key.
            violation.peer = self.peer or self._authentication.channel_peer
            raise
        except LinkBroken:
            self.state = State.CLOSED
            raise
        return events

    @property
    def _is_closed(self) -> bool:
        return self.state is State.CLOSED

    @property
    def their_hello(self) -> Hello | None:
        """The other side's, once it has arrived."""
        return self._authentication.their_hello

    @property
    def session_id(self) -> bytes:
        """Empty until both hellos are known."""
        return self._authentication.session_id

    @property
    def is_control(self) -> bool:
        """Whether this is a control link's session."""
        return self._authentication.hello.purpose is Purpose.CONTROL

    @property
    def carries_pieces(self) -> bool:
        """True once a bulk link's handshake is over: what follows is for a ``PieceReader``, beginning with ``rest``."""
        return self.state is State.ESTABLISHED and self._authentication.hello.purpose is Purpose.BULK

    def rest(self) -> bytes:
        """Bytes of pieces that arrived together with the end of a bulk link's handshake."""
        return self._reader.rest()

    def _frame_untrusted(self, kind: FrameKind, payload: bytes, events: list[SessionEvent]) -> None:
        match self.state, kind:
            case State.HELLO, FrameKind.HELLO:
                self._frames_out += self._authentication.hello_untrusted(payload)
                if self._authentication.keys is None:
                    self._proved(events)
                else:
                    self.state = State.PROOF
            case State.PROOF, FrameKind.PROOF:
                self._authentication.proof_untrusted(payload)
                self._proved(events)
            case (State.PROVED, FrameKind.MESSAGES):
                self._answer_untrusted(self._open_untrusted(payload, Phase.PROVED), events)
            case (State.ESTABLISHED, FrameKind.MESSAGES):
                self._messages(self._open_untrusted(payload, Phase.ESTABLISHED), events)
            case _:
                raise PeerViolation(f"a {kind.name} frame while the session is {self.state.value}")

    def _proved(self, events: list[SessionEvent]) -> None:
        hello = self._authentication.require_hello()
        self.peer = hello.key
        self.state = State.PROVED
        self.decides = self._authentication.decides
        events.append(Proved(hello.key, hello, self.decides))

    def _answer_untrusted(self, messages: list[Message], events: list[SessionEvent]) -> None:
        """What the other side says of the link while it is PROVED: one Accept or one Close, in a frame of its own."""
        if len(messages) != 1:
            raise PeerViolation("more than one answer to whether the link is kept")
        if isinstance(messages[0], Accept):
            if self.decides:
                raise PeerViolation("an Accept from the side that does not decide")
            self.state = State.ESTABLISHED
            events.append(Established())
        else:
            self._messages(messages, events)

    def _messages(self, messages: list[Message], events: list[SessionEvent]) -> None:
        """Answer what the session itself answers, and pass on the rest; nothing counts after a Close."""
        received: list[Message] = []
        goodbye: Close | None = None
        for message in messages:
            if isinstance(message, Close):
                goodbye = message
                break
            if isinstance(message, Ping):
                self.send(Pong(message.token))
            elif not isinstance(message, Pong):
                received.append(message)
        if received:
            events.append(Received(received))
        if goodbye is not None:
            self.state = State.CLOSED
            self._outbox.clear()
            self._outbox_size = 0
            events.append(Closed(goodbye.reason))

    # --- tags ---

    def _open_untrusted(self, payload: bytes, phase: Phase) -> list[Message]:
        batch = payload
        keys = self._authentication.keys
        if keys is not None:
            tag, batch = payload[:TAG_SIZE], payload[TAG_SIZE:]
            keys[1 - self._authentication.role].check_untrusted(self._received_frames, batch, tag)
        self._received_frames += 1
        return decode_batch_untrusted(batch, phase)

    def _seal(self, batch: bytes) -> bytes:
        number = self._sent_frames
        self._sent_frames += 1
        keys = self._authentication.keys
        if keys is None:
            return control_frame(FrameKind.MESSAGES, batch)
        return control_frame(FrameKind.MESSAGES, keys[self._authentication.role].tag(number, batch), batch)

    # --- out ---

    def accept(self) -> None:
        """Keep the link. Only after a ``Proved`` with ``decide``, else ``LocalMisuse``.

        Raises ``LinkClosed`` when the other side has refused the link meanwhile.
        """
        if self.state is State.CLOSED:
            raise LinkClosed("the other side refused the link before this side accepted it")
        if self.state is not State.PROVED or not self.decides:
            raise LocalMisuse(f"nothing to accept: the session is {self.state.value}, decided here: {self.decides}")
        self._frames_out.append(self._seal(encode_batch([encode_message(Accept())])))
        self.state = State.ESTABLISHED

    def close(self, reason: str) -> None:
        """Say goodbye (or refuse the link, before it is established); nothing can be sent after it."""
        if self.state in (State.PROVED, State.ESTABLISHED) and not self.carries_pieces:
            self._flush_outbox()
            self._frames_out.append(self._seal(encode_batch([encode_message(Close(reason[:MAX_REASON]))])))
        self.state = State.CLOSED

    def send(self, message: Message) -> None:
        """Queue a message for the next frame.

        Raises ``LimitExceeded`` when ``MAX_CONTROL_OUTBOX`` bytes wait for a peer that does not read: the caller cuts
        it off. Raises ``LinkClosed`` when the session is not established, ``LocalMisuse`` for a message that no frame
        can hold or on a bulk link, which carries pieces only.
        """
        if self.state is not State.ESTABLISHED:
            raise LinkClosed(f"the session is {self.state.value}: wait for it to be established")
        if not self.is_control:
            raise LocalMisuse("a bulk link carries pieces only: send messages on the control link")
        encoded = encode_message(message)
        items = item_count(message)
        if len(encoded) > _BATCH_ROOM or items > _BATCH_ITEMS:
            raise LocalMisuse(f"a {type(message).__name__} of {len(encoded):,} bytes fits no frame: send it in parts")
        if self._outbox_size + len(encoded) > MAX_CONTROL_OUTBOX:
            self.messages_dropped += 1
            raise LimitExceeded(f"{self._outbox_size:,} bytes of control messages wait for a peer that does not read")
        self._outbox.append((encoded, items))
        self._outbox_size += len(encoded)

    @property
    def has_output(self) -> bool:
        """Whether ``take_output`` would return anything."""
        return bool(self._frames_out or self._outbox)

    def take_output(self) -> bytes:
        """The bytes to send now: whole frames, as many messages to a frame as fit. Call it once per wake-up."""
        if self._outbox:
            self._frames_out.append(self._next_batch())
        output = b"".join(self._frames_out)
        self._frames_out.clear()
        return output

    def _flush_outbox(self) -> None:
        while self._outbox:
            self._frames_out.append(self._next_batch())

    def _next_batch(self) -> bytes:
        batch: list[bytes] = []
        room, items = _BATCH_ROOM, _BATCH_ITEMS
        while self._outbox and len(batch) < MAX_MESSAGES_PER_FRAME:
            encoded, count = self._outbox[0]
            if len(encoded) > room or count > items:
                break
            self._outbox.popleft()
            batch.append(encoded)
            room -= len(encoded)
            items -= count
        self._outbox_size -= _BATCH_ROOM - room
        return self._seal(encode_batch(batch))

    # --- time ---

    def next_deadline(self) -> float:
        """When ``on_timer`` is next due, in the clock of the ``now`` arguments."""
        if self.state is not State.ESTABLISHED or self.carries_pieces:
            return float("inf")
        silent_from = self._heard_at if self._ping_at is None else self._ping_at
        return min(silent_from + PING_SECONDS, self._heard_at + LIVENESS_SECONDS)

    def on_timer(self, now: float) -> bool:
        """Ping a silent peer. False means it has been silent for ``LIVENESS_SECONDS``: break the link.

        Raises ``LimitExceeded`` as ``send`` does.
        """
        if self.state is not State.ESTABLISHED or self.carries_pieces:
            return True
        if now >= self._heard_at + LIVENESS_SECONDS:
            return False
        silent_from = self._heard_at if self._ping_at is None else self._ping_at
        if now >= silent_from + PING_SECONDS:
            self._ping_at = now
            self._pings += 1
            self.send(Ping(self._pings % 2**32))
        return True
