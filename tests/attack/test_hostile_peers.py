"""Hostile neighbours of honest peers, over real links: whatever they send, honest peers finish, and only the offender
is cut off, named and refused from then on."""

from __future__ import annotations

import contextlib
import random
import socket
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
import trio

from fleet.errors import FleetError, LinkClosed
from fleet.fleet import BINDINGS
from fleet.identity.exchange import exchange_public, session_keys_untrusted
from fleet.identity.keys import HANDSHAKE_DOMAIN
from fleet.limits import (
    MAX_ANSWERS_ADRIFT,
    MAX_CONTROL_OUTBOX,
    MAX_LINKS,
    MAX_PENDING_HANDSHAKES,
    MAX_REQUESTS_PER_LINK,
    MIB,
)
from fleet.net.authentication import Role
from fleet.net.hello import Purpose
from fleet.wire import cbor
from fleet.wire.frame import CONTROL, HEADER, FrameKind, control_frame, piece_header
from fleet.wire.messages import (
    Accept,
    Bitfield,
    Choke,
    Have,
    Join,
    Leave,
    ManifestPage,
    Message,
    Ping,
    Reject,
    Request,
    Unchoke,
    WantManifest,
    encode_batch,
    encode_message,
)
from tests.conformance.links import guarded
from tests.helpers.hostile import HostileLink, HostilePeer, dial, hello, hostile, invent, manifest_page
from tests.helpers.pair import session_of
from tests.helpers.toy import Artifact, Toy, nothing_left_open, toy_fleet

if TYPE_CHECKING:
    from fleet.net.link import Binding
    from fleet.peer import Peer

ARTIFACT = Artifact.of(32)
EVERYTHING = Bitfield(ARTIFACT.root, b"\xff" * 4)
ODD_PIECES = Bitfield(ARTIFACT.root, b"\x55" * 4)


@pytest.fixture(params=list(BINDINGS))
def name(request: pytest.FixtureRequest) -> str:
    """Of the binding."""
    return str(request.param)


@pytest.fixture(autouse=True)
def no_descriptor_left() -> Iterator[None]:
    with nothing_left_open():
        yield


def binding_of(toy: Toy) -> Binding:
    return toy.fleet.environment.binding


async def finish_honestly(toy: Toy, *fetchers: int) -> None:
    """Peer 0 shares the artifact, and everyone who fetches it has it soon."""
    await toy.fleet[0].share(ARTIFACT.file(), ARTIFACT.manifest.piece_size)
    for index in fetchers:
        peer = toy.fleet[index]
        holding = peer.swarm.holdings.get(ARTIFACT.root) or await peer.fetch(ARTIFACT.root)
        await holding.wait()
        assert bytes(toy.disks[index].contents(f"{ARTIFACT.root.hex()}.data")) == ARTIFACT.data


async def cut_off(toy: Toy, peer: Peer, evil: HostilePeer, *words: str) -> None:
    """``peer`` has banned the hostile peer for this reason, nobody else is blamed, and it is not let in again."""
    banned = await toy.trace.wait_for("banned", peer.name)
    assert banned.fields["neighbour"] == evil.peer_id.short
    for word in words:
        assert word in str(banned.fields["reason"])
    await peer.until(lambda: evil.peer_id not in peer.neighbours)
    await refused_again(toy, peer, evil)
    assert toy.blamed() == {bytes(evil.peer_id)}
    assert toy.is_mesh()


async def dropped(toy: Toy, peer: Peer, evil: HostilePeer) -> None:
    """The link has ended over a wrong tag, and nobody is blamed."""
    gone = await toy.trace.wait_for("neighbour_down", peer.name)
    assert "tag" in str(gone.fields["reason"])
    await peer.until(lambda: evil.peer_id not in peer.neighbours)
    assert toy.blamed() == set()
    assert toy.is_mesh()


async def refused_again(toy: Toy, peer: Peer, evil: HostilePeer) -> None:
    again = await dial(binding_of(toy), peer, evil.identity, nonce=99)
    try:
        with pytest.raises(LinkClosed, match="banned"):
            await shake_and_read_on(again)
    finally:
        again.link.abort()


async def shake_and_read_on(link: HostileLink) -> None:
    """Whoever decides about a link hears of a refusal only after its own handshake is over."""
    await link.shake_hands()
    while True:
        await link.next()


@asynccontextmanager
async def attack(
    name: str, peers: int = 2, *, decides: bool = False, target: int = 1
) -> AsyncIterator[tuple[Toy, Peer, HostilePeer]]:
    """A fleet, the honest peer that is attacked, and its hostile neighbour."""
    async with toy_fleet(peers, name) as toy:
        peer = toy.fleet[target]
        identity = invent(0, below=peer.peer_id) if decides else invent(0, above=peer.peer_id)
        async with hostile(binding_of(toy), peer, identity) as evil:
            yield toy, peer, evil


# pieces


def flipped(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


LIES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "flipped bit": (flipped, "does not match its hash"),
    "another piece": (lambda _: ARTIFACT.piece(31)[::-1], "does not match its hash"),
    "one byte short": (lambda data: data[:-1], "1,023 bytes for piece"),
    "one byte long": (lambda data: data + b"x", "1,025 bytes for piece"),
    "one byte": (lambda data: data[:1], "1 bytes for piece"),
}


@pytest.mark.parametrize("lie", LIES)
@guarded
async def test_a_source_of_wrong_pieces_is_cut_off_and_the_fetch_finishes(name: str, lie: str) -> None:
    spoil, words = LIES[lie]
    async with attack(name) as (toy, peer, evil), trio.open_nursery() as nursery:

        async def answer(request_id: int, piece: int) -> None:
            await evil.send_piece(request_id, spoil(ARTIFACT.piece(piece)))

        nursery.start_soon(evil.serve, ARTIFACT, answer)
        holding = await peer.fetch(ARTIFACT.root)
        await cut_off(toy, peer, evil, words)
        assert holding.verified == 0
        await finish_honestly(toy, 1)
        assert holding.download is not None
        assert evil.peer_id not in holding.download.bytes_from


@guarded
async def test_two_honest_sources_and_one_that_lies_after_a_while(name: str) -> None:
    async with attack(name, 4, target=3) as (toy, peer, evil), trio.open_nursery() as nursery:
        shared = trio.Event()
        answered = 0

        async def answer(request_id: int, piece: int) -> None:
            nonlocal answered
            answered += 1
            data = ARTIFACT.piece(piece)
            if answered > 3:
                await shared.wait()
                data = flipped(data)
            await evil.send_piece(request_id, data)

        nursery.start_soon(evil.serve, ARTIFACT, answer)
        holding = await peer.fetch(ARTIFACT.root)
        await toy.trace.wait_for("piece", peer.name, 3)
        for honest in (0, 1):
            await toy.fleet[honest].share(ARTIFACT.file(), ARTIFACT.manifest.piece_size, super_seed=False)
        shared.set()
        await cut_off(toy, peer, evil, "does not match its hash")
        await holding.wait()
        assert holding.download is not None
        assert holding.download.bytes_from[evil.peer_id] == 3 * ARTIFACT.manifest.piece_size


@guarded
async def test_a_source_that_claims_everything_and_serves_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.swarm.source.INITIAL_TIMEOUT", 0.02)
    async with attack(name) as (toy, peer, evil), trio.open_nursery() as nursery:

        async def say_nothing(request_id: int, piece: int) -> None:
            pass

        nursery.start_soon(evil.serve, ARTIFACT, say_nothing)
        await peer.fetch(ARTIFACT.root)
        await toy.trace.wait_for("source_timed_out", peer.name, source=evil.peer_id.short)
        await finish_honestly(toy, 1)
        assert toy.blamed() == set()  # slow is not wrong: it may be somebody's only source
        nursery.cancel_scope.cancel()


@guarded
async def test_a_source_that_never_answers_for_the_manifest(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.swarm.manifest_search.MANIFEST_TIMEOUT", 0.02)
    async with attack(name) as (toy, peer, evil):
        await peer.fetch(ARTIFACT.root)
        await evil.control.send(EVERYTHING)
        await evil.control.expect(WantManifest)
        await toy.trace.wait_for("source_timed_out", peer.name, source=evil.peer_id.short)
        await finish_honestly(toy, 1)


@guarded
async def test_a_source_of_one_byte_at_a_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins a piece and drips: the piece comes from elsewhere, and the rest of the drip is thrown away."""
    monkeypatch.setattr("fleet.swarm.source.INITIAL_TIMEOUT", 0.02)
    async with attack(name) as (toy, peer, evil):
        await peer.fetch(ARTIFACT.root)
        await evil.control.send(EVERYTHING)
        await evil.control.expect(WantManifest)
        await evil.control.send(manifest_page(ARTIFACT))
        request = await evil.control.expect(Request)
        data = ARTIFACT.piece(request.pieces[0])
        await evil.bulk.raw(piece_header(request.first_id, len(data)), data[:1])
        await toy.trace.wait_for("source_timed_out", peer.name, source=evil.peer_id.short)
        await evil.bulk.raw(data[1:2])
        await finish_honestly(toy, 1)
        await evil.bulk.raw(data[2:])  # late, and right: no offence
        await evil.control.send(Ping(1))
        holding = peer.swarm.holdings[ARTIFACT.root]
        while holding.received_bytes < len(ARTIFACT.data) + len(data):
            await trio.lowlevel.checkpoint()
        assert toy.blamed() == set()
        assert evil.peer_id in peer.neighbours


@guarded
async def test_a_reader_of_one_byte_at_a_time_delays_nobody(name: str) -> None:
    """It asks for pieces and reads nothing: others are served, and what waits for it is bounded."""
    big = Artifact.of(64, 256 * 1024)
    async with attack(name, target=0) as (toy, peer, evil):
        await peer.share(big.file(), big.manifest.piece_size, super_seed=False)
        await evil.control.send(Join(big.root), Request(big.root, 0, tuple(range(64))))
        await evil.control.expect(Bitfield)
        holding = await toy.fleet[1].fetch(big.root)
        await holding.wait()
        await evil.bulk.raw()  # its link is still there
        assert evil.peer_id in peer.neighbours
        assert len(peer.swarm._serving._queues[evil.peer_id]) <= 64


@pytest.mark.parametrize("where", ["nothing asked", "another id", "answered already"])
@guarded
async def test_unsolicited_pieces(name: str, where: str) -> None:
    async with attack(name) as (toy, peer, evil):
        data = ARTIFACT.piece(0)
        if where == "nothing asked":
            await evil.send_piece(0, data)
        else:
            await peer.fetch(ARTIFACT.root)
            await evil.control.send(EVERYTHING)
            await evil.control.expect(WantManifest)
            await evil.control.send(manifest_page(ARTIFACT))
            request = await evil.control.expect(Request)
            if where == "another id":
                await evil.send_piece(request.first_id + 4_000, data)
            else:
                for _ in range(2):
                    await evil.send_piece(request.first_id, ARTIFACT.piece(request.pieces[0]))
        await cut_off(toy, peer, evil, "unsolicited")
        await finish_honestly(toy, 1)


async def begin_piece(peer: Peer, evil: HostilePeer) -> tuple[Request, bytes]:
    """The honest peer waits for four pieces, and has got half of the first; returns its request and the other half."""
    await peer.fetch(ARTIFACT.root)
    await evil.control.send(EVERYTHING)
    await evil.control.expect(WantManifest)
    await evil.control.send(manifest_page(ARTIFACT))
    request = await evil.control.expect(Request)
    data = ARTIFACT.piece(request.pieces[0])
    await evil.bulk.raw(piece_header(request.first_id, len(data)), data[:512])
    await toy_progress(peer, 512)
    return request, data[512:]


async def toy_progress(peer: Peer, count: int) -> None:
    holding = peer.swarm.holdings[ARTIFACT.root]
    while holding.received_bytes < count:
        await trio.lowlevel.checkpoint()


async def heard(evil: HostilePeer, *messages: Message) -> None:
    """The messages have been handled: whatever is answered to a question after them comes after their effects."""
    await evil.control.send(*messages, WantManifest(bytes(32), 0))
    while (await evil.control.expect(Leave)).root != bytes(32):
        pass


@guarded
async def test_leave_then_the_pieces_that_were_on_their_way(name: str) -> None:
    """The two links are not in step: pieces sent before a LEAVE may arrive after it. They are no offence and no use."""
    async with attack(name) as (toy, peer, evil):
        request, rest = await begin_piece(peer, evil)
        await heard(evil, Leave(ARTIFACT.root))
        await evil.bulk.raw(rest)
        for number, piece in list(enumerate(request.pieces))[1:]:
            await evil.send_piece(request.first_id + number, ARTIFACT.piece(piece))
        await toy_progress(peer, len(request.pieces) * ARTIFACT.manifest.piece_size)
        assert evil.peer_id in peer.neighbours
        assert toy.blamed() == set()
        # Once each: a second answer to the same request is an offence as ever.
        await evil.send_piece(request.first_id, ARTIFACT.piece(request.pieces[0]))
        await cut_off(toy, peer, evil, "unsolicited")
        await finish_honestly(toy, 1)


@guarded
async def test_leave_and_join_again_in_the_middle_of_a_piece(name: str) -> None:
    async with attack(name) as (toy, peer, evil):
        _, rest = await begin_piece(peer, evil)
        await heard(evil, Leave(ARTIFACT.root))
        await evil.control.send(EVERYTHING)
        await evil.bulk.raw(rest)
        await toy_progress(peer, ARTIFACT.manifest.piece_size)
        again = await evil.control.expect(Request)
        for number, piece in enumerate(again.pieces):
            await evil.send_piece(again.first_id + number, ARTIFACT.piece(piece))
        await toy.trace.wait_for("piece", peer.name, len(again.pieces))
        evil.abort()
        await finish_honestly(toy, 1)
        assert toy.blamed() == set()


@guarded
async def test_leaving_with_answers_owed_over_and_over_is_bounded(name: str) -> None:
    async with attack(name) as (toy, peer, evil):
        await begin_piece(peer, evil)

        async def leave_over_and_over() -> None:
            while True:
                await evil.control.send(Leave(ARTIFACT.root), EVERYTHING)
                await evil.control.expect(Request)
                assert len(peer.swarm._fetching._intake._adrift.get(evil.peer_id, ())) <= MAX_ANSWERS_ADRIFT

        with pytest.raises(FleetError):
            await leave_over_and_over()
        down = await toy.trace.wait_for("neighbour_down", peer.name, neighbour=evil.peer_id.short)
        assert "unanswered" in str(down.fields["reason"])
        assert evil.peer_id not in peer.swarm._fetching._intake._adrift
        await finish_honestly(toy, 1)


@guarded
async def test_a_reject_of_the_piece_that_is_being_sent(name: str) -> None:
    async with attack(name) as (toy, peer, evil):
        request, rest = await begin_piece(peer, evil)
        await evil.control.send(Reject((request.first_id,)))
        await cut_off(toy, peer, evil, "whose piece is arriving")
        await finish_honestly(toy, 1)
        assert rest


@guarded
async def test_a_reject_of_the_next_piece_and_then_the_piece(name: str) -> None:
    async with attack(name) as (toy, peer, evil):
        request, rest = await begin_piece(peer, evil)
        await heard(evil, Reject((request.first_id + 1,)))
        await evil.bulk.raw(rest)
        await evil.send_piece(request.first_id + 1, ARTIFACT.piece(request.pieces[1]))
        await cut_off(toy, peer, evil, "unsolicited")
        await finish_honestly(toy, 1)


@guarded
async def test_rejects_of_unknown_ids_are_passed_over(name: str) -> None:
    async with attack(name) as (toy, peer, evil):
        await begin_piece(peer, evil)
        await heard(evil, *[Reject(tuple(range(1 << 20, (1 << 20) + 256)))] * 100)
        assert evil.peer_id in peer.neighbours
        evil.abort()
        await finish_honestly(toy, 1)
        assert toy.blamed() == set()


@guarded
async def test_a_choke_while_requests_are_out_and_no_answer(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.swarm.source.INITIAL_TIMEOUT", 0.02)
    async with attack(name) as (toy, peer, evil):
        await begin_piece(peer, evil)
        await heard(evil, Choke(ARTIFACT.root))
        await finish_honestly(toy, 1)
        assert toy.blamed() == set()


# manifests


def forged() -> list[Message]:
    manifest = ARTIFACT.manifest
    right = manifest_page(ARTIFACT)
    return [
        ManifestPage(right.root, right.size, right.piece_size, 0, flipped(right.hashes)),
        ManifestPage(right.root, right.size, right.piece_size, 0, right.hashes[:-1]),
        ManifestPage(right.root, right.size, right.piece_size + 1, 0, right.hashes),
        ManifestPage(right.root, right.size - 1, right.piece_size, 0, right.hashes),
        ManifestPage(right.root, 1 << 40, 1, 0, right.hashes),
        ManifestPage(right.root, 0, manifest.piece_size, 0, b""),
    ]


@pytest.mark.parametrize("which", range(6))
@guarded
async def test_a_forged_manifest(name: str, which: int) -> None:
    async with attack(name) as (toy, peer, evil):
        await peer.fetch(ARTIFACT.root)
        await evil.control.send(EVERYTHING)
        await evil.control.expect(WantManifest)
        await evil.control.send(forged()[which])
        await cut_off(toy, peer, evil)
        await finish_honestly(toy, 1)


@guarded
async def test_manifest_pages_that_nobody_asked_for(name: str) -> None:
    async with attack(name) as (toy, peer, evil):
        await peer.fetch(ARTIFACT.root)
        await heard(evil, *forged(), manifest_page(ARTIFACT))
        assert toy.trace.of("manifest") == []
        await finish_honestly(toy, 1)
        await heard(evil, *forged())
        assert toy.blamed() == set()


# messages that do not fit


BAD_NEWS: dict[str, Callable[[], list[Message]]] = {
    "a bitfield of another length": lambda: [Bitfield(ARTIFACT.root, b"\xff" * 5)],
    "a have beyond the end": lambda: [EVERYTHING, Have(ARTIFACT.root, (32,))],
    "a request beyond the end": lambda: [Request(ARTIFACT.root, 0, (31, 32))],
    "a manifest page beyond the end": lambda: [WantManifest(ARTIFACT.root, 1)],
    "an accept": lambda: [Accept()],
    "more requests than allowed": lambda: [
        Request(ARTIFACT.root, 0, (0,) * MAX_REQUESTS_PER_LINK),
        Request(ARTIFACT.root, 1_000, (0, 1)),
    ],
}


@pytest.mark.parametrize("news", BAD_NEWS)
@pytest.mark.parametrize("decides", [True, False])
@guarded
async def test_messages_that_do_not_fit_the_artifact(name: str, news: str, decides: bool) -> None:
    async with attack(name, decides=decides) as (toy, peer, evil):
        await finish_honestly(toy, 1)
        await evil.control.send(*BAD_NEWS[news]())
        await cut_off(toy, peer, evil)


@guarded
async def test_early_news_that_turns_out_not_to_fit_the_manifest(name: str) -> None:
    async with attack(name) as (toy, peer, evil):
        await peer.fetch(ARTIFACT.root)
        await evil.control.send(Bitfield(ARTIFACT.root, b"\xff" * 3))
        await evil.control.expect(WantManifest)
        await evil.control.send(manifest_page(ARTIFACT))
        await cut_off(toy, peer, evil, "bitfield")
        await finish_honestly(toy, 1)


PAYLOADS = {
    "no array": cbor.encode(1),
    "no message": cbor.encode([]),
    "unknown kind": cbor.encode([[99]]),
    "missing field": cbor.encode([[22, bytes(32), 0]]),
    "no pieces": cbor.encode([[22, bytes(32), 0, []]]),
    "a root of 31 bytes": cbor.encode([[16, bytes(31)]]),
    "trailing bytes": cbor.encode([[4, 1]]) + b"\0",
    "garbage": random.Random(1).randbytes(100),
    "nothing": b"",
}


@pytest.mark.parametrize("payload", PAYLOADS)
@guarded
async def test_payloads_that_are_no_messages(name: str, payload: str) -> None:
    async with attack(name) as (toy, peer, evil):
        await evil.control.send_payload(PAYLOADS[payload])
        await cut_off(toy, peer, evil)
        await finish_honestly(toy, 1)


FRAMES = {
    "4 GiB": HEADER.pack(2**32 - 1, CONTROL, FrameKind.MESSAGES),
    "1 MiB and a byte": HEADER.pack(MIB + 1, CONTROL, FrameKind.MESSAGES),
    "a piece": piece_header(0, 1) + b"x",
    "an unknown kind": HEADER.pack(1, CONTROL, 9) + b"x",
    "an unknown channel": HEADER.pack(1, 7, 1) + b"x",
    "a hello": control_frame(FrameKind.HELLO, b"\x80"),
    "a proof": control_frame(FrameKind.PROOF, bytes(64)),
    "noise": random.Random(2).randbytes(4_096),
}


@pytest.mark.parametrize("frame", FRAMES)
@guarded
async def test_bytes_that_are_no_frame_on_a_control_link(name: str, frame: str) -> None:
    async with attack(name) as (toy, peer, evil):
        await evil.control.raw(FRAMES[frame])
        await cut_off(toy, peer, evil)
        await finish_honestly(toy, 1)


BULK_FRAMES = {
    "messages": control_frame(FrameKind.MESSAGES, b"\x80" * 10),
    "4 GiB": piece_header(0, 2**32 - 5),
    "an empty piece": piece_header(0, 0),
    "shorter than its id": HEADER.pack(3, 1, 1) + bytes(4),
    "16 MiB and a byte": piece_header(0, 16 * MIB + 1),
    "another kind": HEADER.pack(5, 1, 2) + bytes(5),
    "noise": random.Random(3).randbytes(4_096),
}


@pytest.mark.parametrize("frame", BULK_FRAMES)
@guarded
async def test_bytes_that_are_no_piece_on_a_bulk_link(name: str, frame: str) -> None:
    async with attack(name) as (toy, peer, evil):
        await evil.bulk.raw(BULK_FRAMES[frame])
        await cut_off(toy, peer, evil)
        await finish_honestly(toy, 1)


@guarded
async def test_a_frame_under_another_sessions_key() -> None:
    """Its bytes may have been changed on the way, so the link ends and nobody is banned."""
    async with attack("tcp") as (toy, peer, evil):
        evil.control.session._authentication.keys = session_keys_untrusted(
            bytes(31) + b"k", exchange_public(bytes(31) + b"l"), b""
        )
        await evil.control.send(Ping(1))
        await dropped(toy, peer, evil)


@guarded
async def test_a_frame_sent_twice() -> None:
    async with attack("tcp") as (toy, peer, evil):
        evil.control.session.send(Ping(1))
        frame = evil.control.session.take_output()
        await evil.control.raw(frame, frame)
        await dropped(toy, peer, evil)


# handshakes


@guarded
async def test_a_proof_over_another_session_blames_nobody() -> None:
    """Whoever fails to prove a key cannot be told apart from its owner, who must not suffer for it."""
    async with toy_fleet(2) as toy:
        victim, owner = toy.fleet.peers
        await toy.fleet.stop(1)
        link = await dial(binding_of(toy), victim, owner.identity)
        try:
            await link.link.handshake()
            await link.flush()
            await link._events()
            link.session.take_output()
            proof = owner.identity.sign(HANDSHAKE_DOMAIN, bytes(32) + b"\0")
            await link.raw(control_frame(FrameKind.PROOF, proof))
            failed = await toy.trace.wait_for("handshake_failed", victim.name)
            assert "signature" in str(failed.fields["reason"])
            assert await link.ended() is None
        finally:
            link.link.abort()
        assert toy.blamed() == set()
        await toy.fleet.restart(1)
        assert toy.is_mesh()


@guarded
async def test_a_key_that_the_channel_did_not_prove() -> None:
    async with toy_fleet(2, "tls") as toy:
        victim = toy.fleet[0]
        evil = invent(0)
        link = await dial(binding_of(toy), victim, evil)
        try:
            await link.link.handshake()
            stolen = link.session._authentication._hello_bytes.replace(bytes(evil.peer_id), bytes(toy.fleet[1].peer_id))
            await link.raw(control_frame(FrameKind.HELLO, stolen))
            assert await link.ended() is None
        finally:
            link.link.abort()
        assert toy.blamed() == {bytes(evil.peer_id)}
        assert toy.is_mesh()


@pytest.mark.parametrize("first", [b"", b"\0", b"GET / HTTP/1.1\r\n\r\n", bytes(5_000)])
@guarded
async def test_strangers_that_do_not_speak_the_protocol(name: str, first: bytes) -> None:
    async with toy_fleet(2, name) as toy:
        host, port = toy.fleet[0].address.split(":")
        stream = await trio.open_tcp_stream(host, int(port))
        async with stream:
            with contextlib.suppress(trio.BrokenResourceError):  # it hung up already
                await stream.send_all(first)
                await stream.send_eof()
            await toy.trace.wait_for("handshake_failed", toy.fleet[0].name)
        assert toy.blamed() == set()
        await finish_honestly(toy, 1)


@guarded
async def test_a_thousand_half_open_handshakes(name: str) -> None:
    """The oldest give way, at most ``MAX_PENDING_HANDSHAKES`` are kept, and an honest peer still gets in."""
    async with toy_fleet(2, name) as toy:
        victim, other = toy.fleet.peers
        await toy.fleet.stop(1)
        host, port = victim.address.split(":")
        async with AsyncExitStack() as stack:
            for number in range(1_000):
                stack.push_async_exit(await trio.open_tcp_stream(host, int(port)))
                assert len(victim._handshakes._pending) <= MAX_PENDING_HANDSHAKES
                if number % 100 == 0:
                    await trio.lowlevel.checkpoint()
            await toy.trace.until(lambda: len(toy.trace.of("handshake_unfinished")) >= 1_000 - MAX_PENDING_HANDSHAKES)
            assert victim.handshakes_displaced == 1_000 - MAX_PENDING_HANDSHAKES
            assert len(victim._handshakes._pending) == MAX_PENDING_HANDSHAKES
            await toy.fleet.restart(1)
            assert toy.is_mesh()
        assert other.peer_id in victim.neighbours


@guarded
async def test_a_handshake_that_stops_half_way_is_dropped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with toy_fleet(2, name) as toy:
        victim = toy.fleet[0]
        monkeypatch.setattr("fleet.net.handshakes.HANDSHAKE_SECONDS", 0.05)
        link = await dial(binding_of(toy), victim, invent(0))
        try:
            await link.link.handshake()
            await toy.trace.wait_for("handshake_unfinished", victim.name)
            assert await link.ended() is None
        finally:
            link.link.abort()
        await victim.until(lambda: not victim._handshakes._pending)


@pytest.mark.parametrize("decides", [True, False])
@guarded
async def test_a_control_link_without_its_bulk_link(name: str, decides: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends in time and takes nobody along, also when messages came with the end of its handshake."""
    async with toy_fleet(2, name) as toy:
        victim = toy.fleet[0]
        monkeypatch.setattr("fleet.net.roster.HANDSHAKE_SECONDS", 0.05)
        evil = invent(0, below=victim.peer_id) if decides else invent(0, above=victim.peer_id)
        link = await dial(binding_of(toy), victim, evil)
        try:
            await link.shake_hands(accept=False)
            if decides:
                link.session.accept()
            link.session.send(Leave(ARTIFACT.root))
            link.session.send(Reject((1,)))
            await link.flush()
            down = await toy.trace.wait_for("neighbour_down", victim.name, neighbour=evil.peer_id.short)
            assert "opened no bulk link" in str(down.fields["reason"])
            await link.ended()
        finally:
            link.link.abort()
        assert toy.trace.of("neighbour_up", victim.name, neighbour=evil.peer_id.short) == []
        await finish_honestly(toy, 1)


@pytest.mark.parametrize("order", ["accept twice", "accept and close", "accept and a false duplicate"])
@guarded
async def test_an_accept_and_more_in_one_frame(name: str, order: str) -> None:
    async with toy_fleet(2, name) as toy:
        victim = toy.fleet[0]
        evil = invent(0, below=victim.peer_id)
        link = await dial(binding_of(toy), victim, evil)
        reason = "duplicate: another link to this peer survives" if "duplicate" in order else "bye"
        second = [1] if order == "accept twice" else [2, reason]
        try:
            await link.shake_hands(accept=False)
            await link.send_payload(cbor.encode([[1], second]))
            await link.ended()
        finally:
            link.link.abort()
        await toy.trace.until(lambda: evil.peer_id not in victim._roster.sessions)
        await finish_honestly(toy, 1)


async def refused_bulk(toy: Toy, target: Peer, link: HostileLink) -> None:
    try:
        with pytest.raises(LinkClosed, match="belongs to no session"):
            await link.shake_hands()
    finally:
        link.link.abort()
    assert toy.is_mesh()


@guarded
async def test_bulk_links_that_belong_nowhere(name: str) -> None:
    async with attack(name) as (toy, peer, evil):
        binding = binding_of(toy)
        stranger = invent(5)
        await refused_bulk(toy, peer, await dial(binding, peer, stranger, Purpose.BULK, session=bytes(32), nonce=2))
        # Another peer's session.
        theirs = peer.neighbours[toy.fleet[0].peer_id].session.session_id
        await refused_bulk(toy, peer, await dial(binding, peer, stranger, Purpose.BULK, session=theirs, nonce=3))
        await refused_bulk(toy, peer, await dial(binding, peer, evil.identity, Purpose.BULK, session=theirs, nonce=4))
        # A second one for its own.
        own = evil.control.session.session_id
        await refused_bulk(toy, peer, await dial(binding, peer, evil.identity, Purpose.BULK, session=own, nonce=5))
        assert evil.peer_id in peer.neighbours
        await finish_honestly(toy, 1)


@guarded
async def test_an_offence_on_a_third_link_ends_the_neighbour_too(name: str) -> None:
    async with attack(name, decides=True) as (toy, peer, evil):
        third = await dial(binding_of(toy), peer, evil.identity, incarnation=1, generation=7, nonce=7)
        try:
            await third.shake_hands(accept=False)
            await third.raw(FRAMES["noise"])
            await third.ended()
        finally:
            third.link.abort()
        await toy.trace.wait_for("banned", peer.name, neighbour=evil.peer_id.short)
        await peer.until(lambda: evil.peer_id not in peer.neighbours)
        assert toy.blamed() == {bytes(evil.peer_id)}


@pytest.mark.parametrize("decides", [True, False])
@guarded
async def test_many_identities_of_one_attacker_meet_the_cap(
    name: str, decides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are proved before the first is accepted, so that each saw room when it was looked at."""
    async with toy_fleet(3, name) as toy:
        victim = toy.fleet[0]
        monkeypatch.setattr("fleet.net.roster.MAX_LINKS", 8)
        links: list[HostileLink] = []
        try:
            for number in range(12):
                identity = invent(number, below=victim.peer_id) if decides else invent(number, above=victim.peer_id)
                links.append(await dial(binding_of(toy), victim, identity, nonce=number))
            refused = 0
            for link in links:
                try:
                    await link.shake_hands(accept=False)
                except LinkClosed:
                    refused += 1
            for link in links:
                if decides and refused == 0:
                    link.session.accept()
                    await link.flush()
            if decides:
                await toy.trace.wait_for("handshake_failed", victim.name, count=10)
            else:
                assert refused == 10
            assert len(victim._roster.sessions) == 4
            assert toy.is_mesh()
        finally:
            for link in links:
                link.link.abort()
        monkeypatch.setattr("fleet.net.roster.MAX_LINKS", MAX_LINKS)
        await finish_honestly(toy, 1, 2)


# floods


@guarded
async def test_requests_up_to_the_cap_are_served_and_one_more_is_an_offence(name: str) -> None:
    big = Artifact.of(4, 4 * MIB)  # more than two kernels buffer, so what is asked for stays in the queue
    async with attack(name, target=0) as (toy, peer, evil):
        await peer.share(big.file(), big.manifest.piece_size, super_seed=False)
        await evil.control.send(Join(big.root))
        for number in range(5):
            await evil.control.send(Request(big.root, number, (number % 4,)))
        await evil.control.expect(Bitfield)
        queue = peer.swarm._serving._queues[evil.peer_id]
        await heard(evil)
        taken = 5 - len(queue)
        assert taken < 5  # the link is full
        room = MAX_REQUESTS_PER_LINK - len(queue)
        await heard(evil, Request(big.root, 100, (0,) * room))
        assert len(queue) == MAX_REQUESTS_PER_LINK
        assert toy.blamed() == set()
        await evil.control.send(Request(big.root, 1_000, (0,)))
        await cut_off(toy, peer, evil, "more than 256 requests")


def narrow(link: Any) -> None:
    """Small kernel buffers, so that a test fills them soon."""
    sock = getattr(link, "_inner", link)._sock
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        sock.setsockopt(socket.SOL_SOCKET, option, 4_096)


FLOODS: dict[str, Callable[[], list[Message]]] = {
    "requests for what is not there": lambda: [Request(bytes(32), 0, (0,) * 256)] * 200,
    "manifests": lambda: [WantManifest(ARTIFACT.root, 0)] * 1_000,
    "manifests of nothing": lambda: [WantManifest(bytes(32), 0)] * 1_000,
    "joins": lambda: [Join(ARTIFACT.root)] * 1_000,
    "pings": lambda: [Ping(n) for n in range(1_000)],
}


@pytest.mark.parametrize("flood", FLOODS)
@guarded
async def test_a_flood_from_a_peer_that_never_reads(name: str, flood: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Questions that make the other side answer: what waits is bounded, and then it is cut off."""
    cap = 64 * 1_024
    monkeypatch.setattr("fleet.net.session.MAX_CONTROL_OUTBOX", cap)
    async with attack(name) as (toy, peer, evil):
        await finish_honestly(toy, 1)
        neighbour = peer.neighbours[evil.peer_id]
        session = neighbour.session
        for link in (neighbour.control, evil.control.link):
            narrow(link)
        payload = encode_batch(map(encode_message, FLOODS[flood]()))

        async def send_on() -> None:
            while True:
                await evil.control.send_payload(payload)
                assert session._outbox_size <= cap

        tracemalloc.start()
        try:
            with pytest.raises(FleetError):
                await send_on()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 8 * MIB + MAX_CONTROL_OUTBOX
        down = await toy.trace.wait_for("neighbour_down", peer.name, neighbour=evil.peer_id.short)
        assert "does not read" in str(down.fields["reason"])
        assert toy.is_mesh()


@pytest.mark.parametrize("manifest_known", [True, False])
@guarded
async def test_floods_of_news_are_only_work(name: str, manifest_known: bool) -> None:
    """HAVE, BITFIELD, CHOKE and LEAVE need no answer: they are taken, and change what little they say."""
    async with attack(name) as (toy, peer, evil):
        if manifest_known:
            await finish_honestly(toy, 1)
        else:
            await peer.fetch(ARTIFACT.root)
        news = [
            EVERYTHING,
            Have(ARTIFACT.root, tuple(range(32))),
            Bitfield(ARTIFACT.root, bytes(4)),
            Choke(ARTIFACT.root),
            Unchoke(ARTIFACT.root),
            Leave(ARTIFACT.root),
            Bitfield(bytes(32), b"\xff" * 1_000),
            Have(bytes(32), (0,)),
            Join(bytes(32)),
        ]
        for _ in range(20):
            await heard(evil, *news * 20)
        assert toy.blamed() == set()
        await finish_honestly(toy, 1) if not manifest_known else None
        assert peer.swarm.holdings[ARTIFACT.root].complete


@guarded
async def test_a_goodbye_then_more_messages(name: str) -> None:
    async with attack(name) as (toy, peer, evil):
        await evil.control.send_payload(cbor.encode([[2, "bye"], [3, 1], [16, bytes(32)]]))
        down = await toy.trace.wait_for("neighbour_down", peer.name, neighbour=evil.peer_id.short)
        assert down.fields["reason"]
        await finish_honestly(toy, 1)
        assert toy.blamed() == set()


@pytest.mark.parametrize("seed", range(6))
@guarded
async def test_any_order_of_well_formed_messages_and_pieces_crashes_nobody(name: str, seed: int) -> None:
    """Random walks through everything that may be said; the peer may cut the walker off, and nobody else."""
    rng = random.Random(seed)
    roots = [ARTIFACT.root, ARTIFACT.root, ARTIFACT.root, bytes(32)]
    async with attack(name) as (toy, peer, evil):
        await peer.fetch(ARTIFACT.root)
        asked: list[tuple[int, int]] = []

        async def listen() -> None:
            try:
                while True:
                    match await evil.control.next():
                        case Request(first_id=first, pieces=pieces):
                            asked.extend((first + n, piece) for n, piece in enumerate(pieces))
                        case WantManifest():
                            await evil.control.send(manifest_page(ARTIFACT))
                        case _:
                            pass
            except FleetError:
                pass

        def say() -> list[Message]:
            root = rng.choice(roots)
            pieces = tuple(rng.randrange(32) for _ in range(rng.randrange(1, 5)))
            ids = tuple(rng.choice(asked)[0] if asked else 0 for _ in range(rng.randrange(1, 3)))
            choices: list[Message] = [
                EVERYTHING,
                EVERYTHING,
                ODD_PIECES,
                Join(root),
                Leave(root),
                Have(root, pieces),
                Request(root, rng.randrange(100), pieces),
                Reject(ids),
                Choke(root),
                Unchoke(root),
                WantManifest(root, 0),
                Ping(1),
            ]
            return rng.choices(choices, k=rng.randrange(1, 4))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(listen)
            try:
                for _ in range(150):
                    if asked and rng.random() < 0.5:
                        request_id, piece = asked.pop(rng.randrange(len(asked)))
                        data = ARTIFACT.piece(piece)
                        cut = rng.randrange(len(data))
                        await evil.bulk.raw(piece_header(request_id, len(data)), data[:cut])
                        await evil.control.send(*say())
                        await evil.bulk.raw(data[cut:])
                    else:
                        await evil.control.send(*say())
            except FleetError:
                pass
            nursery.cancel_scope.cancel()
        evil.abort()
        await peer.until(lambda: evil.peer_id not in peer.neighbours)
        await finish_honestly(toy, 1)
        assert toy.blamed() <= {bytes(evil.peer_id)}
        assert toy.is_mesh()


@pytest.mark.parametrize("after", ["the bulk accept", "nothing"])
@guarded
async def test_a_listener_that_ends_the_session_before_it_accepts_the_bulk_link(name: str, after: str) -> None:
    """The dialling side waits for an Accept of a link whose session is gone meanwhile."""
    async with toy_fleet(1, name) as toy, trio.open_nursery() as nursery:
        peer = toy.fleet[0]
        evil = invent(0, above=peer.peer_id)
        listener = await binding_of(toy).listen(evil)
        links: list[HostileLink] = []

        async def answer() -> None:
            for nonce in (1, 2):
                link = await listener.accept()
                channel = peer.peer_id if binding_of(toy).authenticates else None
                core = session_of(
                    evil, Role.RESPONDER, hello(evil, nonce=nonce), now=trio.current_time(), channel_peer=channel
                )
                end = HostileLink(link, core)
                links.append(end)
                await end.shake_hands(accept=nonce == 1)
                if nonce == 2:
                    await end.flush()
                    links[0].link.abort()
                    peer._roster.sessions[evil.peer_id].end(LinkClosed("gone"))
                    await toy.trace.wait_for("neighbour_down", peer.name)
                    await peer.until(lambda: evil.peer_id not in peer._roster.sessions)
                    if after == "the bulk accept":
                        core.accept()
                        with contextlib.suppress(FleetError):  # who dialled hung up as soon as the session was gone
                            await end.flush()
                    else:
                        link.abort()

        nursery.start_soon(answer)
        try:
            with pytest.raises(FleetError):
                await peer.connect(listener.address, evil.peer_id)
        finally:
            await listener.aclose()
            for end in links:
                end.link.abort()
        assert peer.neighbours == {}
        with pytest.raises(FleetError):
            await peer.connect(listener.address, evil.peer_id)
