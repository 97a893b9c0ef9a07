"""Simulated datagrams: what arrives when, what is lost and why, and that nothing waits or grows without bounds."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from fleet.errors import LinkClosed, LocalMisuse
from fleet.sim.datagram import RECEIVE_QUEUE, SimSocket
from fleet.sim.path import MAX_DATAGRAM, Path, Rates, Uniform
from tests.sim.networks import EXACT, LATENCY, Stopwatch, linked, play, receive

if TYPE_CHECKING:
    from fleet.sim.network import SimNetwork

KIB = 1024
MIB = 1024 * KIB


def pair(network: SimNetwork) -> tuple[SimSocket, SimSocket]:
    return network.datagrams("a"), network.datagrams("b")


async def collect(socket: SimSocket, seconds: float = 10.0) -> list[bytes]:
    """What arrives within so many seconds."""
    got = []
    with trio.move_on_after(seconds):
        while True:
            got += [data for data, _ in await socket.receive_from()]
    return got


def drops(network: SimNetwork) -> dict[str, int]:
    return network.statistics().drops


def test_datagrams_arrive_after_the_latency_and_together() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        watch = Stopwatch()
        for data in (b"one", bytearray(b"two"), memoryview(b"three"), b""):
            a.send_to(data, b.address)
        assert await b.receive_from() == [(data, a.address) for data in (b"one", b"two", b"three", b"")]
        assert watch.seconds == pytest.approx(LATENCY)
        b.send_to(b"back", a.address)
        assert await a.receive_from() == [(b"back", b.address)]

    assert len(play(scenario).of_kind("datagram")) == 5


def test_what_is_sent_is_a_copy() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        scratch = bytearray(b"before")
        a.send_to(scratch, b.address)
        scratch[:] = b"after!"
        assert await b.receive_from() == [(b"before", a.address)]

    play(scenario)


def test_a_host_reaches_its_own_sockets() -> None:
    async def scenario(network: SimNetwork) -> None:
        one, other = network.datagrams("a"), network.datagrams("a", 53)
        one.send_to(b"x", "127.0.0.1:53")
        assert await other.receive_from() == [(b"x", one.address)]

    play(scenario, rates=Rates(up=1, queue_bytes=1))


def test_loss_duplication_and_reordering_happen_as_often_as_they_should() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        sent = [number.to_bytes(2, "big") for number in range(2_000)]

        async def pass_over(path: Path) -> list[bytes]:
            network.set_path("a", "b", path)
            for data in sent:
                a.send_to(data, b.address)
                await trio.sleep(0.001)
            return await collect(b)

        assert await pass_over(EXACT) == sent
        lossy = await pass_over(replace(EXACT, loss=0.1))
        assert 150 < drops(network)["loss"] < 250
        assert lossy == sorted(set(lossy))
        assert len(lossy) == 2_000 - drops(network)["loss"]
        doubled = Counter(await pass_over(replace(EXACT, duplication=0.1)))
        assert set(doubled) == set(sent)
        assert 150 < sum(count == 2 for count in doubled.values()) < 250
        shuffled = await pass_over(replace(EXACT, reordering=0.1))
        assert sorted(shuffled) == sent
        overtaken = sum(after < before for before, after in itertools.pairwise(shuffled))
        assert 100 < overtaken < 250
        assert sorted(await pass_over(replace(EXACT, jitter=0.01))) == sent

    play(scenario)


def test_jitter_reorders_datagrams() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        sent = [bytes([number]) for number in range(100)]
        for data in sent:
            a.send_to(data, b.address)
        got = await collect(b)
        assert got != sent
        assert sorted(got) == sent

    play(scenario, path=replace(EXACT, latency=Uniform(0.01, 0.02)))


def test_a_black_hole_swallows_what_is_large() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        for size in (1_199, 1_200, 1_201, MAX_DATAGRAM):
            a.send_to(bytes(size), b.address)
        assert [len(data) for data in await collect(b)] == [1_199, 1_200]
        assert drops(network) == {"too large": 2}

    play(scenario, path=replace(EXACT, max_datagram=1_200))


def test_what_no_network_carries_is_misuse() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        a.send_to(bytes(MAX_DATAGRAM), b.address)
        with pytest.raises(LocalMisuse, match="at most 65,507 bytes"):
            a.send_to(bytes(MAX_DATAGRAM + 1), b.address)
        with pytest.raises(LocalMisuse, match="write host:port"):
            a.send_to(b"x", "b")
        with pytest.raises(LocalMisuse, match=r"in use\): choose a free port"):
            network.datagrams("b", int(b.address.rpartition(":")[2]))

    play(scenario)


def test_nobody_there() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        a.send_to(b"x", "b:9")
        a.send_to(b"x", "nowhere:9")
        a.send_to(b"x", b.address)
        b.close()
        network.crash("c")
        a.send_to(b"x", "c:9")
        await trio.sleep(1)
        assert drops(network) == {"no socket": 2, "no such host": 1, "host down": 1}

    play(scenario)


def test_partitions_lose_and_clogs_hold() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        network.partition(["a"], ["b"], one_way=True)
        a.send_to(b"lost", b.address)
        b.send_to(b"through", a.address)
        assert await collect(a) == [b"through"]
        network.heal()
        network.clog("a", "b")
        for number in range(3):
            a.send_to(bytes([number]), b.address)
            await trio.sleep(1)
        assert await collect(b) == []
        network.unclog("a", "b")
        assert await collect(b) == [b"\0", b"\1", b"\2"]
        assert drops(network) == {"partition": 1}

    play(scenario)


def test_a_clog_holds_so_many() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        network.clog("a", "b")
        for _ in range(10_005):
            a.send_to(b"x", b.address)
        await trio.sleep(1)
        assert drops(network) == {"clog full": 5}
        network.unclog("a", "b")
        assert len(await collect(b)) == 10_000

    play(scenario)


@pytest.mark.parametrize(
    "rates", [Rates(up=100 * KIB, queue_bytes=10 * KIB), Rates(down=100 * KIB, queue_bytes=10 * KIB)]
)
def test_a_full_access_link_drops_the_newest(rates: Rates) -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        for number in range(30):
            a.send_to(bytes([number]) * KIB, b.address)
        watch = Stopwatch()
        got = []
        while len(got) < 11:
            got += [data[0] for data, _ in await b.receive_from()]
        assert watch.seconds == pytest.approx(LATENCY + 11 / 100)
        assert got == list(range(11))  # one under way, ten waiting
        name = "uplink full" if rates.up else "downlink full"
        assert drops(network) == {name: 19}
        hosts = network.statistics().hosts
        assert (hosts["b"].received_bytes, hosts["b"].received_units) == (11 * KIB, 11)
        assert hosts["a"].sent_units == (11 if rates.up else 30)

    play(scenario, rates=rates)


def test_a_full_receive_queue_drops_and_counts() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        room = RECEIVE_QUEUE // (64 + 960)
        for _ in range(room + 7):
            a.send_to(bytes(960), b.address)
        await trio.sleep(1)
        assert drops(network) == {"receive queue full": 7}
        assert len(await b.receive_from()) == room
        for _ in range(20_000):
            a.send_to(b"", b.address)  # empty ones count too
        await trio.sleep(1)
        assert len(await b.receive_from()) == RECEIVE_QUEUE // 64
        a.send_to(b"again", b.address)
        assert await collect(b) == [b"again"]

    play(scenario)


def test_datagrams_and_streams_share_an_uplink_evenly() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        async with linked(network) as (near, far), trio.open_nursery() as nursery:
            nursery.start_soon(near.send_all, [bytes(5 * MIB)])

            async def flood() -> None:
                while True:
                    a.send_to(bytes(1_200), b.address)
                    await trio.sleep(0.001)  # 1.2 MB a second

            nursery.start_soon(flood)
            nursery.start_soon(collect, b, 100)
            watch = Stopwatch()
            await receive(far, 5 * MIB)
            assert watch.seconds == pytest.approx(10, rel=0.05)
            nursery.cancel_scope.cancel()

    play(scenario, rates=Rates(up=MIB))


def test_closing_wakes_whoever_waits() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)

        async def expect_closed() -> None:
            with pytest.raises(LinkClosed, match=f"{b.address} is closed"):
                await b.receive_from()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expect_closed)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(LocalMisuse, match="two tasks receive"):
                await b.receive_from()
            b.close()
        b.close()
        with pytest.raises(LinkClosed):
            b.send_to(b"x", a.address)
        with pytest.raises(LinkClosed):
            await b.receive_from()
        network.crash("a")
        with pytest.raises(LinkClosed):
            a.send_to(b"x", b.address)

    play(scenario)


def test_a_cancelled_receive_has_consumed_nothing() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        with trio.move_on_after(1):
            await b.receive_from()
        a.send_to(b"x", b.address)
        await trio.sleep(1)
        with trio.move_on_after(0) as scope:
            await b.receive_from()
        assert scope.cancelled_caught
        with trio.testing.assert_checkpoints():
            assert await b.receive_from() == [(b"x", a.address)]

    play(scenario)


def test_one_seed_is_one_history() -> None:
    async def scenario(network: SimNetwork) -> None:
        a, b = pair(network)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(collect, b)
            for number in range(500):
                a.send_to(bytes(number), b.address)
                await trio.sleep(0.001)

    path = Path(latency=Uniform(0.01, 0.05), jitter=0.01, loss=0.1, duplication=0.1, reordering=0.1)
    first, second, other = (play(scenario, path=path, rates=Rates(up=MIB), seed=seed) for seed in (1, 1, 2))
    assert first.digest == second.digest
    assert first.events == second.events
    assert other.digest != first.digest
