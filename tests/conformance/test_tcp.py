"""What only the tcp binding promises: descriptor shortage, the lingering close, address forms."""

from __future__ import annotations

import os
import resource
import socket
from typing import TYPE_CHECKING, cast

import pytest
import trio
import trio.testing

from fleet.errors import LocalMisuse
from fleet.limits import CLOSE_SECONDS
from fleet.net.address import parse_address
from fleet.net.tcp import TcpBinding, TcpListener
from tests.conformance.links import ALICE, BOB, drain, guarded, linked, noise, receive

if TYPE_CHECKING:
    from fleet.net.tcp_link import TcpLink


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("localhost:65535", ("localhost", 65_535)),
        ("a-b.example.:1", ("a-b.example.", 1)),
        ("[::1]:80", ("::1", 80)),
        ("[::ffff:127.0.0.1]:80", ("::ffff:127.0.0.1", 80)),
    ],
)
def test_address_forms(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


def test_port_zero_is_for_listeners() -> None:
    assert parse_address("127.0.0.1:0", port_zero=True) == ("127.0.0.1", 0)
    with pytest.raises(LocalMisuse, match="port 0"):
        parse_address("127.0.0.1:0")


@guarded
async def test_ipv6() -> None:
    binding = TcpBinding()
    try:
        listener = await binding.listen(BOB, "[::1]:0")
    except LocalMisuse:
        pytest.skip("no IPv6 here")
    assert listener.address.startswith("[::1]:")
    alice = await binding.dial(listener.address, ALICE, None)
    bob = await listener.accept()
    assert bob.remote_address.startswith("[::1]:")
    await alice.aclose()
    await bob.aclose()
    await listener.aclose()


@guarded
async def test_accept_survives_a_full_descriptor_table() -> None:
    binding = TcpBinding()
    listener = await binding.listen(BOB)
    alice = await binding.dial(listener.address, ALICE, None)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    accepted: list[TcpLink] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    async with trio.open_nursery() as nursery:
        lowest_free = os.dup(0)
        os.close(lowest_free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            nursery.start_soon(accept)
            await trio.testing.wait_all_tasks_blocked()
            assert listener.shortages >= 1
            assert not accepted
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    await alice.send_all([b"x"])
    assert await receive(accepted[0], 1) == b"x"
    await alice.aclose()
    await accepted[0].aclose()
    await listener.aclose()


@guarded
async def test_a_socket_never_connects_to_itself() -> None:
    """Dialling a free port of the ephemeral range meets simultaneous open sooner or later; here at once."""
    from fleet.net import tcp

    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    name = sock.getsockname()
    real = socket.socket

    class Bound(real):  # binds itself to the port that it will dial
        def connect(self, address: object) -> None:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind(name)
            super().connect(name)

    sock.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tcp.socket, "socket", Bound)
        with pytest.raises(OSError, match="refused"):
            await tcp._connect(socket.AF_INET, name)


@guarded
async def test_close_waits_for_a_slow_reader_and_loses_nothing() -> None:
    data = noise(400_000)
    async with linked(TcpBinding()) as (alice, bob):
        alice, bob = cast("TcpLink", alice), cast("TcpLink", bob)
        bob._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65_536)
        alice._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
        await bob.send_all([noise(5_000)])  # unread: closing at once would reset, and lose what the kernel still holds
        async with trio.open_nursery() as nursery:

            async def send_and_close() -> None:
                await alice.send_all([data])
                assert alice._unacknowledged()
                await alice.aclose()

            nursery.start_soon(send_and_close)
            await trio.testing.wait_all_tasks_blocked()
            assert await drain(bob) == (data, None)


@pytest.mark.slow
@guarded
async def test_close_gives_up_on_a_reader_that_never_reads() -> None:
    async with linked(TcpBinding()) as (alice, bob):
        alice, bob = cast("TcpLink", alice), cast("TcpLink", bob)
        bob._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        alice._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
        await alice.send_all([noise(400_000)])
        before = trio.current_time()
        await alice.aclose()
        assert CLOSE_SECONDS <= trio.current_time() - before < CLOSE_SECONDS + 0.5


@guarded
async def test_a_lingering_close_can_be_cut_off() -> None:
    async with linked(TcpBinding()) as (alice, bob):
        alice, bob = cast("TcpLink", alice), cast("TcpLink", bob)
        bob._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        alice._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
        await alice.send_all([noise(400_000)])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(alice.aclose)
            await trio.testing.wait_all_tasks_blocked()
            before = trio.current_time()
            alice.abort()
        assert trio.current_time() - before < CLOSE_SECONDS / 2


def test_listener_counts_from_zero() -> None:
    with socket.socket() as sock:
        assert TcpListener(sock, memoryview(bytearray(1))).shortages == 0
