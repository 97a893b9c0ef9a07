"""What only the tls binding promises: it runs over awkward inner links, holds little, and reuses certificates."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from fleet.errors import LinkBroken, LocalMisuse, PeerViolation
from fleet.identity.channel_cert import VALIDITY_SECONDS
from fleet.identity.keys import Identity
from fleet.limits import CLOSE_SECONDS
from fleet.net import tls, tls_engine
from fleet.net.tls import TlsBinding, TlsLink
from fleet.storage import DirectoryFile
from tests.conformance.links import ALICE, BOB, CAROL, cancel_at, connect, drain, guarded, listening, noise, receive

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.net.link import Bytes
    from fleet.storage import File


class StreamLink:
    """An inner link over a pair of trio's in-memory streams; notes how large its sends are."""

    def __init__(self, stream: trio.StapledStream, most: int) -> None:
        self.stream = stream
        self.most = most  # bytes that one receive gives
        self.sends: list[int] = []
        self.aborted = False

    remote_address = "memory"
    channel_peer: PeerId | None = None

    async def handshake(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_all(self, buffers: Sequence[Bytes]) -> None:
        for buffer in buffers:
            self.sends.append(len(buffer))
            await self._guard(self.stream.send_all, buffer)

    async def receive_into(self, view: memoryview) -> int:
        data = await self._guard(self.stream.receive_some, min(len(view), self.most))
        view[: len(data)] = data
        return len(data)

    async def send_file(self, file: File, offset: int, size: int, prefix: bytes = b"") -> None:
        raise AssertionError("a channel that encrypts has no use for this")

    async def send_eof(self) -> None:
        await self._guard(self.stream.send_eof)

    async def aclose(self) -> None:
        await self.stream.aclose()

    def abort(self) -> None:
        if not self.aborted:
            self.aborted = True
            self.stream.send_stream.close()
            self.stream.receive_stream.close()

    @staticmethod
    async def _guard(call, *args: object):
        try:
            return await call(*args)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise LinkBroken(str(error)) from None


def over(
    pair: tuple[trio.StapledStream, trio.StapledStream], most: int = 1 << 16, expected: PeerId | None = None
) -> tuple[TlsLink, TlsLink, StreamLink, StreamLink]:
    """Alice's and Bob's TLS ends over an inner pair, before the handshake, and the inner ends."""
    binding = TlsBinding()
    inner_alice, inner_bob = (StreamLink(stream, most) for stream in pair)
    alice = binding._wrap(inner_alice, ALICE, client=True, expected_peer=expected or BOB.peer_id)
    bob = binding._wrap(inner_bob, BOB, client=False, expected_peer=None)
    return alice, bob, inner_alice, inner_bob


async def shake_hands(alice: TlsLink, bob: TlsLink) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alice.handshake)
        nursery.start_soon(bob.handshake)


@pytest.mark.parametrize("most", [1, 3, 7, 5_000])
@guarded
async def test_records_may_arrive_in_crumbs(most: int) -> None:
    data = noise(3_000 * min(most, 20))
    alice, bob, *_ = over(trio.testing.memory_stream_pair(), most)
    await shake_hands(alice, bob)
    assert alice.channel_peer == BOB.peer_id
    assert bob.channel_peer == ALICE.peer_id
    async with trio.open_nursery() as nursery:

        async def send() -> None:
            await alice.send_all([data])
            await alice.send_eof()

        nursery.start_soon(send)
        nursery.start_soon(bob.send_all, [data])
        assert await drain(bob) == (data, None)
        assert await receive(alice, len(data)) == data
    await alice.aclose()
    await bob.aclose()


@guarded
async def test_bytes_that_come_along_with_the_last_flight_are_not_forgotten() -> None:
    alice, bob, _, inner = over(trio.testing.memory_stream_pair())
    sent = trio.Event()
    receive_at_once = inner.receive_into
    calls = 0

    async def receive_into(view: memoryview) -> int:
        nonlocal calls
        calls += 1
        if calls == 2:
            await sent.wait()
        return await receive_at_once(view)

    inner.receive_into = receive_into  # type: ignore[method-assign]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bob.handshake)
        await alice.handshake()
        await alice.send_all([b"early"])
        sent.set()
    assert calls == 2
    assert await receive(bob, 5) == b"early"
    assert calls == 2
    alice.abort()
    bob.abort()


@guarded
async def test_a_receive_cancelled_between_crumbs_has_consumed_nothing() -> None:
    rng = random.Random(5)
    data = noise(3_000)
    alice, bob, *_ = over(trio.testing.memory_stream_pair(), 11)
    await shake_hands(alice, bob)
    await alice.send_all([data])
    await alice.send_eof()
    got = bytearray()
    block = bytearray(100)
    while True:
        attempt = await cancel_at(rng.randrange(8), bob.receive_into, memoryview(block))
        if not attempt.cancelled:
            if attempt.value == 0:
                break
            got += block[: attempt.value]
    assert got == data
    await alice.aclose()
    await bob.aclose()


@guarded
async def test_no_buffer_between_the_ends(autojump_clock: trio.testing.MockClock) -> None:
    """Every send waits until the other side has taken it, so any wait for each other would show as a hang."""
    alice, bob, *_ = over(trio.testing.lockstep_stream_pair())
    data = noise(300_000)
    await shake_hands(alice, bob)
    async with trio.open_nursery() as nursery:

        async def send(link: TlsLink) -> None:
            await link.send_all([data[:10], data[10:]])
            await link.send_eof()

        async def collect(link: TlsLink) -> None:
            assert await drain(link) == (data, None)

        for link in (alice, bob):
            nursery.start_soon(send, link)
            nursery.start_soon(collect, link)
    await alice.aclose()
    await bob.aclose()


@guarded
async def test_a_goodbye_that_nobody_takes_ends_on_time(autojump_clock: trio.testing.MockClock) -> None:
    alice, bob, inner, _ = over(trio.testing.lockstep_stream_pair())
    await shake_hands(alice, bob)
    before = trio.current_time()
    await alice.aclose()
    assert trio.current_time() - before == pytest.approx(CLOSE_SECONDS)
    assert inner.aborted
    bob.abort()


@guarded
async def test_a_client_that_refuses_says_nothing_of_itself() -> None:
    """Neither its certificate nor its Finished leaves before the server's certificate has been judged."""
    alice, bob, inner, _ = over(trio.testing.memory_stream_pair(), expected=CAROL.peer_id)
    async with trio.open_nursery() as nursery:

        async def expect_refusal() -> None:
            with pytest.raises(PeerViolation):
                await alice.handshake()
            assert len(inner.sends) == 1  # the hello
            await alice.aclose()
            assert len(inner.sends) == 1

        nursery.start_soon(expect_refusal)
        with pytest.raises(LinkBroken, match="during the TLS handshake"):
            await bob.handshake()
    assert bob.channel_peer is None
    bob.abort()


@guarded
async def test_ciphertext_leaves_block_by_block_and_small_buffers_together(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(noise(1 << 20))
    file = DirectoryFile(tmp_path / "file")
    alice, bob, inner, _ = over(trio.testing.memory_stream_pair())
    await shake_hands(alice, bob)

    inner.sends.clear()
    await alice.send_all([b"head"] * 200)
    assert len(inner.sends) == 1
    assert inner.sends[0] < 850
    assert await receive(bob, 800) == b"head" * 200

    inner.sends.clear()
    await alice.send_all([b"head", noise(1 << 20), b"tail"])
    await alice.send_file(file, 0, 1 << 20)
    assert max(inner.sends) < tls_engine.MAX_OUTGOING
    assert len(inner.sends) <= 2 * 16 + 2
    assert await receive(bob, 4 + (1 << 20)) == b"head" + noise(1 << 20)
    assert await receive(bob, 4 + (1 << 20)) == b"tail" + noise(1 << 20)
    file.close()
    alice.abort()
    bob.abort()


@guarded
async def test_the_handshake_comes_first_and_once() -> None:
    alice, bob, *_ = over(trio.testing.memory_stream_pair())
    for call in (alice.send_all([b"x"]), alice.send_eof(), alice.receive_into(memoryview(bytearray(1)))):
        with pytest.raises(LocalMisuse, match="handshake"):
            await call
    await shake_hands(alice, bob)
    with pytest.raises(LocalMisuse, match="once"):
        await alice.handshake()
    alice.abort()
    bob.abort()


@guarded
async def test_a_certificate_serves_all_links_of_an_identity_until_it_is_half_over() -> None:
    now = 1_800_000_000.0
    binding = TlsBinding(wall_clock=lambda: now)
    first = binding._context_for(ALICE)
    assert binding._context_for(ALICE) is first
    assert binding._context_for(BOB) is not first
    now += VALIDITY_SECONDS / 2
    renewed = binding._context_for(ALICE)
    assert renewed is not first
    assert binding._context_for(ALICE) is renewed
    async with listening(binding) as listener:
        alice, bob = await connect(binding, listener)
        await shake_hands(alice, bob)
        await alice.aclose()
        await bob.aclose()


def test_the_store_of_certificates_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "_MAX_CONTEXTS", 3)
    binding = TlsBinding()
    contexts = [binding._context_for(Identity(bytes([index]) * 32)) for index in range(5)]
    assert len(binding._contexts) == 3
    assert binding._context_for(Identity(bytes([4]) * 32)) is contexts[4]
    assert binding._context_for(Identity(bytes([0]) * 32)) is not contexts[0]
