"""Simulated streams: times and rates are exact, every fault strikes as described, one seed is one run."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import FleetError, LinkBroken, LinkClosed, LocalMisuse
from fleet.identity.keys import Identity
from fleet.sim.connect import BACKLOG, CONNECT_SECONDS
from fleet.sim.flow import SEGMENT, SEND_BUFFER, USER_TIMEOUT_SECONDS
from fleet.sim.history import History
from fleet.sim.network import SimNetwork
from fleet.sim.path import Constant, Path, Rates, Uniform, regions
from tests.sim.networks import EXACT, LATENCY, PEERS, Stopwatch, drain, linked, play, receive

if TYPE_CHECKING:
    from fleet.sim.stream import SimLink

KIB = 1024
MIB = 1024 * KIB


def block() -> memoryview:
    return memoryview(bytearray(1 << 17))


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


async def send_for_ever(link: SimLink) -> None:
    """Until the link or the test ends."""
    try:
        while True:
            await link.send_all([bytes(SEGMENT)])
    except (LinkBroken, LinkClosed):
        pass


async def take_for_ever(link: SimLink) -> None:
    try:
        while await link.receive_into(block()):
            pass
    except (LinkBroken, LinkClosed):
        pass


async def fill(link: SimLink) -> None:
    """Send until the other side's window and this side's buffer are full."""
    with trio.move_on_after(5):
        await link.send_all([bytes(4 * MIB)])


# times


def test_latency_is_exact_in_each_direction() -> None:
    async def scenario(network: SimNetwork) -> None:
        network.set_path("b", "a", Path(latency=Constant(0.5), crumble=0))
        listener = await network.binding.listen(PEERS["b"])
        watch = Stopwatch()
        a = await network.binding.dial(listener.address, PEERS["a"], None)
        assert watch.seconds == pytest.approx(LATENCY + 0.5)
        b = await listener.accept()
        assert watch.seconds == pytest.approx(2 * LATENCY + 0.5)
        for source, sink, latency in ((a, b, LATENCY), (b, a, 0.5)):
            watch = Stopwatch()
            await source.send_all([noise(300)])
            assert watch.seconds == 0
            assert await receive(sink, 300) == noise(300)
            assert watch.seconds == pytest.approx(latency)

    play(scenario)


def test_region_matrix_decides_latencies() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network, "a", "c") as (a, c):
            watch = Stopwatch()
            await c.send_all([b"x"])
            await receive(a, 1)
            assert watch.seconds == pytest.approx(0.2)

    matrix = {"east": {"east": 0.01, "west": 0.1}, "west": {"east": 0.2, "west": 0.01}}
    play(scenario, path=regions(matrix, {"a": "east", "b": "east", "c": "west"}, Path(crumble=0)))


def test_opening_may_take_longer_than_a_round_trip() -> None:
    async def scenario(network: SimNetwork) -> None:
        watch = Stopwatch()
        async with linked(network):
            assert watch.seconds == pytest.approx(3 * LATENCY + 0.4)

    play(scenario, path=replace(EXACT, connect_seconds=0.4))


def test_a_host_reaches_itself_without_the_network() -> None:
    async def scenario(network: SimNetwork) -> None:
        watch = Stopwatch()
        async with linked(network, "a", "a") as (near, far):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(near.send_all, [bytes(3 * MIB)])
                await receive(far, 3 * MIB)
            assert watch.seconds < 0.01
        assert network.statistics().hosts["a"].sent_bytes == 0

    play(scenario, rates=Rates(up=1_000, down=1_000))


@pytest.mark.parametrize("jitter", [0.0, 0.02])
def test_order_is_kept_when_the_path_gets_shorter_under_way(jitter: float) -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            for number in range(200):
                network.set_path("a", "b", Path(latency=Constant(0.3 - number / 1_000), jitter=jitter, crumble=0))
                await a.send_all([bytes([number])])
                await trio.sleep(0.0001)
            watch = Stopwatch()
            assert await receive(b, 200) == bytes(range(200))
            assert 0.25 < watch.seconds < 0.32

    play(scenario)


# rates


@pytest.mark.parametrize(
    "rates", [Rates(up=MIB), Rates(down=MIB), Rates(up=MIB, down=MIB), Rates(up=MIB, down=2 * MIB)]
)
@pytest.mark.parametrize("crumble", [0.0, 0.3])
def test_throughput_is_the_rate(rates: Rates, crumble: float) -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b), trio.open_nursery() as nursery:
            watch = Stopwatch()
            nursery.start_soon(a.send_all, [bytes(10 * MIB)])
            await receive(b, 10 * MIB)
            assert watch.seconds == pytest.approx(10 + LATENCY, rel=0.001)

    play(scenario, path=replace(EXACT, crumble=crumble), rates=rates)


def test_a_segment_at_equal_rates_pays_for_its_size_once() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            watch = Stopwatch()
            await a.send_all([bytes(1_000)])
            await receive(b, 1_000)
            assert watch.seconds == pytest.approx(1.0 + LATENCY)

    play(scenario, rates=Rates(up=1_000, down=1_000))


async def shares(network: SimNetwork, pairs: list[tuple[str, str]], seconds: float) -> list[int]:
    """Bytes that each pair's link has delivered after ``seconds`` of sending as fast as it goes."""
    got = [0] * len(pairs)

    async def collect(link: SimLink, index: int) -> None:
        scratch = block()
        while count := await link.receive_into(scratch):
            got[index] += count

    async with trio.open_nursery() as nursery:
        for index, (near, far) in enumerate(pairs):
            listener = await network.binding.listen(PEERS[far])
            a = await network.binding.dial(listener.address, PEERS[near], None)
            nursery.start_soon(send_for_ever, a)
            nursery.start_soon(collect, await listener.accept(), index)
        await trio.sleep(1)
        before = list(got)
        await trio.sleep(seconds)
        nursery.cancel_scope.cancel()
    return [after - earlier for after, earlier in zip(got, before, strict=True)]


@pytest.mark.parametrize(
    ("pairs", "rates"),
    [
        ([("a", "b"), ("a", "c")], Rates(up=MIB)),
        ([("a", "b"), ("a", "b")], Rates(up=MIB)),
        ([("a", "c"), ("b", "c")], Rates(down=MIB)),
        ([("a", "c"), ("b", "c")], Rates(up=MIB, down=MIB)),
        ([("a", "b")] * 5, Rates(up=MIB, queue_bytes=20 * KIB)),
    ],
)
@pytest.mark.parametrize("crumble", [0.0, 0.2])
def test_streams_share_a_link_evenly_and_use_it_up(pairs: list[tuple[str, str]], rates: Rates, crumble: float) -> None:
    async def scenario(network: SimNetwork) -> None:
        got = await shares(network, pairs, 20)
        for share in got:
            assert share == pytest.approx(20 * MIB / len(pairs), rel=0.03)
        assert sum(got) == pytest.approx(20 * MIB, rel=0.02)

    play(scenario, path=replace(EXACT, crumble=crumble), rates=rates)


def test_directions_do_not_share() -> None:
    async def scenario(network: SimNetwork) -> None:
        for share in await shares(network, [("a", "b"), ("b", "a")], 5):
            assert share == pytest.approx(5 * MIB, rel=0.01)

    play(scenario, rates=Rates(up=MIB, down=MIB))


def test_a_stream_that_nobody_reads_leaves_the_link_to_others() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, _), trio.open_nursery() as nursery:
            nursery.start_soon(send_for_ever, a)
            await trio.sleep(3)
            assert sum(await shares(network, [("a", "b")], 5)) == pytest.approx(5 * MIB, rel=0.01)
            nursery.cancel_scope.cancel()

    play(scenario, rates=Rates(up=MIB, down=MIB))


@pytest.mark.parametrize("rates", [Rates(up=MIB), Rates(down=MIB)])
def test_a_message_waits_for_one_round_of_the_others(rates: Rates) -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b), linked(network) as (c, d), trio.open_nursery() as nursery:
            nursery.start_soon(send_for_ever, a)
            nursery.start_soon(take_for_ever, b)
            await trio.sleep(2)
            for _ in range(50):
                watch = Stopwatch()
                await c.send_all([b"x" * 100])
                await receive(d, 100)
                assert watch.seconds <= LATENCY + 2 * SEGMENT / MIB + 0.001
            nursery.cancel_scope.cancel()

    play(scenario, rates=rates)


def test_rates_change_under_way() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b), trio.open_nursery() as nursery:
            nursery.start_soon(send_for_ever, a)
            watch = Stopwatch()
            await receive(b, MIB)
            assert watch.seconds == pytest.approx(1, rel=0.05)
            network.set_rates("a", Rates(up=4 * MIB))
            watch = Stopwatch()
            await receive(b, 4 * MIB)
            assert watch.seconds == pytest.approx(1, rel=0.1)
            network.set_rates("a", Rates())
            watch = Stopwatch()
            await receive(b, 8 * MIB)
            assert watch.seconds < 1
            network.set_rates("a", Rates(up=MIB))
            await receive(b, 2 * MIB)
            watch = Stopwatch()
            await receive(b, 3 * MIB)
            assert watch.seconds == pytest.approx(3, rel=0.1)
            nursery.cancel_scope.cancel()

    play(scenario, rates=Rates(up=MIB))


def test_statistics_count_what_crossed_the_access_links() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            await a.send_all([bytes(40_000)])
            await receive(b, 40_000)
            await b.send_all([b"x"])
            await receive(a, 1)
        hosts = network.statistics().hosts
        assert (hosts["a"].sent_bytes, hosts["a"].sent_units) == (40_000, 3)
        assert (hosts["b"].received_bytes, hosts["b"].received_units) == (40_000, 3)
        assert (hosts["b"].sent_bytes, hosts["a"].received_bytes) == (1, 1)
        assert hosts["c"].sent_units == hosts["c"].received_units == 0
        assert network.statistics().drops == {}

    play(scenario)


# backpressure


@pytest.mark.parametrize("rates", [Rates(), Rates(up=MIB, down=MIB)])
def test_a_reader_that_stops_stops_the_sender(rates: Rates) -> None:
    window = 200 * KIB

    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            sent = 0

            async def send() -> None:
                nonlocal sent
                for _ in range(1_024):
                    await a.send_all([bytes(KIB)])
                    sent += KIB

            async with trio.open_nursery() as nursery:
                nursery.start_soon(send)
                await trio.sleep(100)
                assert window + SEND_BUFFER // 2 <= sent <= window + SEND_BUFFER
                await receive(b, 150 * KIB)
                await trio.sleep(100)
                assert sent > window + SEND_BUFFER + 100 * KIB
                await receive(b, MIB - 150 * KIB)

    play(scenario, path=replace(EXACT, window=window), rates=rates)


def test_a_full_uplink_holds_its_streams_back() -> None:
    async def scenario(network: SimNetwork) -> None:
        sent = 0

        async def send(link: SimLink) -> None:
            nonlocal sent
            for _ in range(1_024):
                await link.send_all([bytes(KIB)])
                sent += KIB

        async with (
            linked(network) as (a, _),
            linked(network) as (b, _),
            linked(network) as (c, _),
            trio.open_nursery() as nursery,
        ):
            for link in (a, b, c):
                nursery.start_soon(send, link)
            await trio.sleep(5)
            assert sent <= 5 * KIB + 100 * KIB + 3 * 2 * SEGMENT
            nursery.cancel_scope.cancel()

    play(scenario, rates=Rates(up=KIB, queue_bytes=100 * KIB))


def test_every_split_point_is_met() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            seen = set()
            for _ in range(100):
                await a.send_all([b"hello"])
                await trio.sleep(1)
                count = await b.receive_into(block())
                seen.add(count)
                await receive(b, 5 - count) if count < 5 else None
            assert seen == {1, 2, 3, 4, 5}
            assert network.statistics().hosts["a"].sent_units > 150

    play(scenario, path=replace(EXACT, crumble=1))


# loss


def test_loss_is_a_delay_that_doubles() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            network.set_path("a", "b", replace(EXACT, loss=0.999999))
            await a.send_all([b"first"])
            await trio.sleep(0.1)
            await a.send_all([b"second"])
            await trio.sleep(2.9)
            network.set_path("a", "b", EXACT)  # attempts: 0, 0.2, 0.6, 1.4, then 3.0 after the first arrival
            watch = Stopwatch()
            assert await receive(b, 11) == b"firstsecond"
            assert watch.seconds == pytest.approx(3 * 0.2 * 5 + 2 * LATENCY - 3.0)

    assert [dict(event.fields)["reason"] for event in play(scenario).of_kind("drop")] == ["loss", "loss"]


def test_everything_arrives_over_a_lossy_path() -> None:
    data = noise(3 * MIB)

    async def scenario(network: SimNetwork) -> None:
        listener = await network.binding.listen(PEERS["b"])
        a = await network.binding.dial(listener.address, PEERS["a"], None)
        b = await listener.accept()
        async with trio.open_nursery() as nursery:

            async def send() -> None:
                await a.send_all([data])
                await a.aclose()

            nursery.start_soon(send)
            assert await drain(b) == (data, None)
        assert network.statistics().drops["loss"] > 10

    play(scenario, path=Path(latency=Uniform(0.01, 0.05), jitter=0.01, loss=0.1))


def test_a_path_that_loses_everything_breaks_the_stream() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, _):
            network.set_path("a", "b", replace(EXACT, loss=1))
            watch = Stopwatch()
            await a.send_all([b"x"])
            with pytest.raises(LinkBroken, match="b acknowledged nothing for 20 s"):
                await a.receive_into(block())
            assert watch.seconds == pytest.approx(USER_TIMEOUT_SECONDS + LATENCY)

    play(scenario)


# connecting


def test_nobody_listens() -> None:
    async def scenario(network: SimNetwork) -> None:
        watch = Stopwatch()
        with pytest.raises(LinkBroken, match="cannot connect to b:80: refused, nobody listens there"):
            await network.binding.dial("b:80", PEERS["a"], None)
        assert watch.seconds == pytest.approx(2 * LATENCY)
        with pytest.raises(LinkBroken, match="no such host"):
            await network.binding.dial("d:80", PEERS["a"], None)

    assert len(play(scenario).of_kind("refused")) == 1


def test_a_connection_refused_by_chance() -> None:
    async def scenario(network: SimNetwork) -> None:
        listener = await network.binding.listen(PEERS["b"])
        outcomes = []
        for _ in range(40):
            try:
                (await network.binding.dial(listener.address, PEERS["a"], None)).abort()
            except LinkBroken as error:
                assert "by chance" in str(error)  # noqa: PT017
                outcomes.append(False)
            else:
                outcomes.append(True)
        assert 10 < sum(outcomes) < 30

    play(scenario, path=replace(EXACT, refuse=0.5))


@pytest.mark.parametrize("fault", ["partition", "one way", "power loss"])
def test_a_dial_that_nobody_answers_times_out(fault: str) -> None:
    async def scenario(network: SimNetwork) -> None:
        listener = await network.binding.listen(PEERS["b"])
        if fault == "power loss":
            network.crash("b", silent=True)
        elif fault == "partition":
            network.partition(["a"], ["b"])
        else:
            network.partition(["b"], ["a"], one_way=True)
        watch = Stopwatch()
        with pytest.raises(LinkBroken, match=r"no answer for 20 s"):
            await network.binding.dial(listener.address, PEERS["a"], None)
        assert watch.seconds == CONNECT_SECONDS

    assert len(play(scenario).of_kind("connect_timeout")) == 1


@pytest.mark.parametrize("one_way", [False, True])
def test_a_dial_gets_through_when_the_partition_heals_in_time(one_way: bool) -> None:
    async def scenario(network: SimNetwork) -> None:
        network.partition(["b"], ["a"], one_way=one_way)
        listener = await network.binding.listen(PEERS["b"])
        watch = Stopwatch()
        async with trio.open_nursery() as nursery:

            async def heal() -> None:
                await trio.sleep(2)
                network.heal()

            nursery.start_soon(heal)
            await network.binding.dial(listener.address, PEERS["a"], None)
        assert watch.seconds == pytest.approx(3 + 2 * LATENCY)  # knocks at 0, 1 and 3 seconds
        await listener.accept()
        with trio.move_on_after(100) as scope:  # repeated knocks make one link
            await listener.accept()
        assert scope.cancelled_caught

    play(scenario)


def test_a_backlog_is_bounded() -> None:
    async def scenario(network: SimNetwork) -> None:
        listener = await network.binding.listen(PEERS["b"])
        links = [await network.binding.dial(listener.address, PEERS["a"], None) for _ in range(BACKLOG)]
        await trio.sleep(1)
        with pytest.raises(LinkBroken, match="wait there already"):
            await network.binding.dial(listener.address, PEERS["a"], None)
        await listener.accept()
        await network.binding.dial(listener.address, PEERS["a"], None)
        # Those who come at once find room while they ask, and are reset when they find none.
        await listener.accept()
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(network.binding.dial, listener.address, PEERS["a"], None)
        await trio.sleep(1)
        accepted = 0
        with trio.move_on_after(1):
            while True:
                await listener.accept()
                accepted += 1
        assert accepted == BACKLOG
        await listener.aclose()
        assert len(links) == BACKLOG

    play(scenario)


def test_who_waits_in_a_backlog_is_reset_when_the_listener_closes() -> None:
    async def scenario(network: SimNetwork) -> None:
        listener = await network.binding.listen(PEERS["b"])
        waiting = await network.binding.dial(listener.address, PEERS["a"], None)
        await trio.sleep(1)
        late = await network.binding.dial(listener.address, PEERS["a"], None)
        await listener.aclose()
        for link in (waiting, late):
            with pytest.raises(LinkBroken, match="b reset it"):
                await link.receive_into(block())

    play(scenario)


# addresses


def test_addresses() -> None:
    async def scenario(network: SimNetwork) -> None:
        binding = network.binding
        first = await binding.listen(PEERS["a"])
        second = await binding.listen(PEERS["a"], "a:0")
        third = await binding.listen(PEERS["a"], "127.0.0.1:4001")
        assert first.address == "a:40000"
        assert second.address == "a:40001"
        assert third.address == "a:4001"
        await first.aclose()
        assert (await binding.listen(PEERS["a"])).address == "a:40002"  # not the one that has just become free
        assert (await binding.listen(PEERS["b"])).address == "b:40000"
        with pytest.raises(LocalMisuse, match=r"in use\): choose a free port"):
            await binding.listen(PEERS["a"], "a:4001")
        with pytest.raises(LocalMisuse, match="no address of a"):
            await binding.listen(PEERS["a"], "b:4002")
        await third.aclose()
        assert (await binding.listen(PEERS["a"], "a:4001")).address == "a:4001"
        near = await binding.dial("localhost:4001", PEERS["a"], None)
        assert near.remote_address == "localhost:4001"

    play(scenario)


def test_ports_run_out_in_words() -> None:
    async def scenario(network: SimNetwork) -> None:
        for _ in range(65_536 - 40_000):
            network.datagrams("a")
        with pytest.raises(LocalMisuse, match="every port of a is taken"):
            network.datagrams("a")
        network.datagrams("a", 4_000).close()

    play(scenario)


def test_hosts_by_name_address_and_identity() -> None:
    async def scenario(network: SimNetwork) -> None:
        stranger = Identity(bytes([9]) * 32)
        name = f"host-{stranger.peer_id.short}"
        listener = await network.binding.listen(stranger)
        assert listener.address.startswith(f"{name}:")
        assert network.hosts == ["a", "b", "c", name]
        assert network.host_of(listener.address) == network.host_of(stranger.peer_id) == name
        link = await network.binding.dial(listener.address, PEERS["a"], None)
        assert network.host_of((await listener.accept()).remote_address) == "a"
        link.abort()
        network.add_host("10.0.0.3")
        assert network.datagrams("10.0.0.3", 4000).address == "10.0.0.3:4000"

    play(scenario)


@pytest.mark.parametrize(
    "call",
    [
        lambda network: network.set_path("a", "x", Path()),
        lambda network: network.path("x", "a"),
        lambda network: network.set_rates("x", Rates()),
        lambda network: network.partition(["a", "x"], ["b"]),
        lambda network: network.partition(["a"], ["x"]),
        lambda network: network.clog("x", "a"),
        lambda network: network.unclog("a", "x"),
        lambda network: network.reset("x", "a"),
        lambda network: network.crash("x"),
        lambda network: network.restore("x"),
        lambda network: network.datagrams("x"),
        lambda network: network.host_of("x:1"),
    ],
)
def test_a_host_that_does_not_exist_is_misuse(call: Callable[[SimNetwork], object]) -> None:
    network = SimNetwork(History(), random.Random(1))
    for name in PEERS:
        network.add_host(name)
    with pytest.raises(LocalMisuse, match="no host 'x': there are a, b, c"):
        call(network)


def test_hosts_are_added_once_and_named_well() -> None:
    network = SimNetwork(History(), random.Random(1))
    network.add_host("a", PEERS["a"].peer_id)
    with pytest.raises(LocalMisuse, match="a host a already"):
        network.add_host("a")
    with pytest.raises(LocalMisuse, match="at home on a"):
        network.add_host("b", PEERS["a"].peer_id)
    for name in ("", "127.0.0.1", "localhost", "a:1", "peer 3", "1x"):
        with pytest.raises(LocalMisuse):
            network.add_host(name)


def test_nothing_is_dialled_while_the_network_stands_still() -> None:
    network = SimNetwork(History(), random.Random(1))

    async def main() -> None:
        with pytest.raises(LocalMisuse, match=r"enter network.running\(\)"):
            await network.binding.dial("a:1", PEERS["a"], None)
        async with network.running():
            with pytest.raises(LocalMisuse, match="once"):
                async with network.running():
                    pass
        with pytest.raises(ZeroDivisionError):  # no group around it
            async with network.running():
                raise ZeroDivisionError

    trio.run(main)


# partitions


async def arrives(link: SimLink, seconds: float) -> bytes:
    """What can be received within so many seconds."""
    got = bytearray()
    scratch = block()
    with trio.move_on_after(seconds):
        while count := await link.receive_into(scratch):
            got += scratch[:count]
    return bytes(got)


@pytest.mark.parametrize("one_way", [False, True])
def test_a_short_partition_is_a_delay(one_way: bool) -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            await a.send_all([b"before"])
            network.partition(["a"], ["b"], one_way=one_way)  # what is on its way is lost
            await a.send_all([b"during"])
            await b.send_all([b"back"])
            assert await arrives(a, 5) == (b"back" if one_way else b"")
            network.heal()
            await a.send_all([b"after"])
            watch = Stopwatch()
            assert await receive(b, 17) == b"beforeduringafter"
            assert 0.5 < watch.seconds < 5  # when the sender tries again, after 6.2 s
            assert await arrives(a, 5) == (b"" if one_way else b"back")

    play(scenario)


def test_a_partition_behind_a_queue_at_the_downlink() -> None:
    """The first segment lands, and is acknowledged, after the second was lost."""

    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            await a.send_all([bytes(10_000)])
            await trio.sleep(1)
            network.partition(["a"], ["b"], one_way=True)
            await a.send_all([bytes(10_000)])
            assert len(await arrives(b, 12)) == 10_000
            network.heal()
            assert len(await arrives(b, 30)) == 10_000
            await a.send_all([bytes(10_000)])
            await trio.sleep(1)
            network.partition(["a"], ["b"], one_way=True)
            await a.send_all([b"x"])
            watch = Stopwatch()
            with pytest.raises(LinkBroken, match="acknowledged nothing"):
                await a.receive_into(block())
            assert watch.seconds == pytest.approx(9 + LATENCY + USER_TIMEOUT_SECONDS)  # since the first was heard of

    play(scenario, rates=Rates(down=1_000))


def test_a_sender_that_hears_nothing_does_not_fill_its_uplink() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b), trio.open_nursery() as nursery:
            nursery.start_soon(send_for_ever, a)
            nursery.start_soon(take_for_ever, b)
            await trio.sleep(1)
            network.partition(["a"], ["b"])
            before = network.statistics().hosts["a"].sent_bytes
            await trio.sleep(10)
            assert network.statistics().hosts["a"].sent_bytes - before < 60_000
            network.heal()
            await trio.sleep(10)
            assert network.statistics().hosts["a"].sent_bytes - before > 300_000
            nursery.cancel_scope.cancel()

    play(scenario, rates=Rates(up=100_000))


def test_a_long_partition_breaks_a_link_with_data_in_flight_and_no_other() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (busy, busy_far), linked(network) as (idle, idle_far):
            network.partition(["a", "c"], ["b"])
            await busy.send_all([b"x"])
            watch = Stopwatch()
            with pytest.raises(LinkBroken, match="acknowledged nothing"):
                await busy.receive_into(block())
            assert watch.seconds == pytest.approx(USER_TIMEOUT_SECONDS + LATENCY)
            await trio.sleep(100)
            network.heal()
            await idle.send_all([b"still here"])
            assert await receive(idle_far, 10) == b"still here"
            # The other end of the broken one learns of it when it says something.
            await busy_far.send_all([b"hello?"])
            watch = Stopwatch()
            with pytest.raises(LinkBroken, match="a reset it"):
                await busy_far.receive_into(block())
            assert watch.seconds == pytest.approx(2 * LATENCY)

    play(scenario)


def test_one_way_partition_delivers_but_is_not_acknowledged() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            network.partition(["b"], ["a"], one_way=True)
            await a.send_all([b"heard"])
            watch = Stopwatch()
            assert await receive(b, 5) == b"heard"
            assert watch.seconds == pytest.approx(LATENCY)
            with pytest.raises(LinkBroken, match="acknowledged nothing"):
                await a.receive_into(block())
            assert watch.seconds == pytest.approx(USER_TIMEOUT_SECONDS + LATENCY)

    play(scenario)


def test_a_lost_acknowledgement_is_made_up_for_when_the_partition_heals() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            network.partition(["b"], ["a"], one_way=True)
            await a.send_all([b"heard"])
            await receive(b, 5)
            await trio.sleep(15)
            network.heal()
            await trio.sleep(100)
            await b.send_all([b"fine"])
            assert await receive(a, 4) == b"fine"

    play(scenario)


@pytest.mark.parametrize("way", ["ab", "ba", "both"])
@pytest.mark.parametrize("seconds", [5, 100])
@pytest.mark.parametrize("reads", [False, True])
def test_a_sender_with_a_closed_window_notices_a_partition(way: str, seconds: float, reads: bool) -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b), trio.open_nursery() as nursery:
            failures = []

            async def send() -> None:
                try:
                    await a.send_all([bytes(4 * MIB)])
                except LinkBroken as error:
                    failures.append(error)

            nursery.start_soon(send)
            await trio.sleep(3)
            network.partition(way[0], way[1], one_way=True) if way != "both" else network.partition("a", "b")
            await trio.sleep(1)
            if reads:
                await receive(b, MIB)  # opens the window, which the sender may not hear
            await trio.sleep(seconds)
            network.heal()
            await trio.sleep(20)
            assert bool(failures) == (seconds > 20)
            if not failures:
                await receive(b, 3 * MIB if reads else 4 * MIB)

    play(scenario)


def test_a_window_that_opened_unheard_is_asked_for() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            await a.send_all([bytes(100 * KIB)])
            await trio.sleep(1)
            network.partition("b", "a", one_way=True)
            await receive(b, 100 * KIB)
            await trio.sleep(30)  # nothing is unacknowledged
            network.heal()
            await a.send_all([b"x"])
            assert await arrives(b, 5) == b"x"

    play(scenario, path=replace(EXACT, window=100 * KIB))


def test_a_partition_ends_at_its_border() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network, "a", "c") as (a, c):
            network.partition(["a", "c"], ["b"])
            await a.send_all([b"x"])
            assert await receive(c, 1) == b"x"

    play(scenario)


# clogs


def test_a_clog_holds_and_then_releases_in_order() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            await a.send_all([b"0"])
            network.clog("a", "b")
            for number in b"123":
                await a.send_all([bytes([number])])
                await trio.sleep(1)
            await b.send_all([b"free"])  # the other direction flows
            assert await receive(a, 4) == b"free"
            network.unclog("a", "b")
            watch = Stopwatch()
            await a.send_all([b"4"])
            assert await receive(b, 4) == b"0123"
            assert watch.seconds == 0
            assert await receive(b, 1) == b"4"
            assert watch.seconds == pytest.approx(LATENCY)
            network.unclog("a", "b")

    play(scenario)


def test_patience_ends_with_a_long_clog() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            network.clog("a", "b")
            await a.send_all([b"x"])
            with pytest.raises(LinkBroken, match="acknowledged nothing"):
                await a.receive_into(block())
            network.unclog("a", "b")
            assert await receive(b, 1) == b"x"

    play(scenario)


def test_a_clog_and_a_partition_together_keep_the_order() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            await a.send_all([b"0"])
            network.clog("a", "b")
            await trio.sleep(0.1)
            await a.send_all([b"1"])
            network.partition(["a"], ["b"])
            await trio.sleep(0.1)
            await a.send_all([b"2"])
            await trio.sleep(0.1)
            network.unclog("a", "b")  # into the partition
            await a.send_all([b"3"])
            await trio.sleep(1)
            network.clog("a", "b")
            network.heal()
            assert await arrives(b, 5) == b""
            await a.send_all([b"4"])
            await trio.sleep(1)
            network.unclog("a", "b")
            assert await receive(b, 5) == b"01234"

    play(scenario)


def test_a_dial_through_a_clog_waits_for_its_end() -> None:
    async def scenario(network: SimNetwork) -> None:
        listener = await network.binding.listen(PEERS["b"])
        network.clog("b", "a")
        async with trio.open_nursery() as nursery:

            async def unclog() -> None:
                await trio.sleep(4.5)
                network.unclog("b", "a")

            nursery.start_soon(unclog)
            watch = Stopwatch()
            await network.binding.dial(listener.address, PEERS["a"], None)
            assert watch.seconds == 4.5
        await listener.accept()
        with trio.move_on_after(100) as scope:
            await listener.accept()
        assert scope.cancelled_caught

    play(scenario)


# ends


def test_reset_breaks_every_stream_between_two_hosts() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as ends, linked(network, "b", "a") as others, linked(network, "a", "c") as (a, c):
            network.reset("a", "b")
            for link in (*ends, *others):
                with pytest.raises(LinkBroken, match="reset on its way"):
                    await link.receive_into(block())
            await a.send_all([b"x"])
            assert await receive(c, 1) == b"x"

    play(scenario)


def test_an_abort_is_heard_after_the_latency() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            await a.send_all([b"sent before"])
            a.abort()
            watch = Stopwatch()
            got, error = await drain(b)
            assert got == b"sent before"
            assert isinstance(error, LinkBroken)
            assert watch.seconds == pytest.approx(LATENCY)

    assert len(play(scenario).of_kind("reset")) == 1


def test_what_was_sent_before_a_close_arrives_though_the_reader_is_slow() -> None:
    data = noise(900_000)

    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            watch = Stopwatch()
            async with trio.open_nursery() as nursery:

                async def send() -> None:
                    await a.send_all([data])
                    await a.aclose()

                nursery.start_soon(send)
                got = bytearray()
                while len(got) < len(data):
                    await trio.sleep(1)
                    got += await receive(b, 100_000)
                assert got == data
            assert watch.seconds == pytest.approx(9)
            assert await drain(b) == (b"", None)
            await b.send_all([b"too late"])
            with pytest.raises(LinkBroken):
                await b.send_all([await rest(1) or b"x"])

    async def rest(seconds: float) -> bytes:
        await trio.sleep(seconds)
        return b""

    play(scenario, path=replace(EXACT, window=100_000))


def test_a_close_waits_for_an_acknowledgement_and_no_longer_than_it_promises() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b), linked(network) as (c, _):
            await a.send_all([b"x"])
            watch = Stopwatch()
            await a.aclose()
            assert watch.seconds == pytest.approx(2 * LATENCY)
            assert await drain(b) == (b"x", None)
            watch = Stopwatch()
            network.partition(["a"], ["b"])
            await c.send_all([b"x"])
            await c.aclose()
            assert watch.seconds == pytest.approx(1.0)

    play(scenario)


# crashes


def test_a_crash_is_told_to_the_others_after_the_latency() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b), linked(network, "a", "c") as (other, far):
            await b.send_all([b"unread"])
            await trio.sleep(1)
            network.crash("a")
            for link in (a, other):
                for call in (link.receive_into(block()), link.send_all([b"x"])):
                    with pytest.raises(LinkBroken, match="a has crashed"):
                        await call
            watch = Stopwatch()
            for link in (b, far):
                with pytest.raises(LinkBroken, match="a reset it"):
                    await link.receive_into(block())
            assert watch.seconds == pytest.approx(LATENCY)

    play(scenario)


def test_who_waits_on_a_crashed_host_is_woken() -> None:
    async def scenario(network: SimNetwork) -> None:
        async def expect(error: type[FleetError], call: Callable[..., object], *args: object) -> None:
            with pytest.raises(error):
                await call(*args)  # type: ignore[misc]

        listener = await network.binding.listen(PEERS["a"])
        socket = network.datagrams("a")
        network.partition(["c"], ["a"])
        async with linked(network) as (a, _), trio.open_nursery() as nursery:
            nursery.start_soon(expect, LinkBroken, a.receive_into, block())
            nursery.start_soon(expect, LinkBroken, a.send_all, [bytes(4 * MIB)])
            nursery.start_soon(expect, LinkClosed, listener.accept)
            nursery.start_soon(expect, LinkClosed, socket.receive_from)
            nursery.start_soon(expect, LinkBroken, network.binding.dial, "c:80", PEERS["a"], None)
            await trio.sleep(5)
            watch = Stopwatch()
            network.crash("a")
        assert watch.seconds == 0
        with pytest.raises(LinkBroken, match="a has crashed"):
            await network.binding.dial("b:80", PEERS["a"], None)
        with pytest.raises(LocalMisuse, match="restore it first"):
            await network.binding.listen(PEERS["a"])
        with pytest.raises(LocalMisuse, match="restore it first"):
            network.datagrams("a")
        network.restore("a")
        await network.binding.listen(PEERS["a"], listener.address)

    play(scenario)


def test_a_crashed_machine_with_power_refuses_and_one_without_does_not_answer() -> None:
    async def scenario(network: SimNetwork) -> None:
        listener = await network.binding.listen(PEERS["b"])
        for silent, seconds in ((False, 2 * LATENCY), (True, CONNECT_SECONDS)):
            network.crash("b", silent=silent)
            watch = Stopwatch()
            with pytest.raises(LinkBroken):
                await network.binding.dial(listener.address, PEERS["a"], None)
            assert watch.seconds == pytest.approx(seconds)

    play(scenario)


def test_power_loss_leaves_the_other_end_half_open_until_it_speaks() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, _):
            network.crash("b", silent=True)
            with trio.move_on_after(1_000) as scope:
                await a.receive_into(block())
            assert scope.cancelled_caught
            watch = Stopwatch()
            await a.send_all([b"anybody?"])
            with pytest.raises(LinkBroken, match="acknowledged nothing"):
                await a.receive_into(block())
            assert watch.seconds == pytest.approx(USER_TIMEOUT_SECONDS + LATENCY)

    play(scenario)


@pytest.mark.parametrize("when", ["speaks after", "speaks before", "window closed"])
def test_a_machine_that_is_back_answers_old_packets_with_a_reset(when: str) -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, _), trio.open_nursery() as nursery:
            if when == "window closed":
                nursery.start_soon(send_for_ever, a)
                await trio.sleep(2)
            network.crash("b", silent=True)
            if when == "speaks before":
                await a.send_all([b"x"])
            await trio.sleep(10)
            network.restore("b")
            await network.binding.listen(PEERS["b"])
            watch = Stopwatch()
            if when == "speaks after":
                await a.send_all([b"x"])
            with pytest.raises(LinkBroken, match="b reset it"):
                await a.receive_into(block())
            if when == "speaks after":
                assert watch.seconds == pytest.approx(2 * LATENCY)
            else:
                assert 0 < watch.seconds < 10  # when the sender next tries

    play(scenario)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_arrives_from_behind_what_a_crashed_sender_never_repeated(seed: int) -> None:
    """The receiver's bytes are a prefix of the sender's, whatever was lost when the sender died."""
    sent = bytes(number % 251 for number in range(200_000))

    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (near, far), trio.open_nursery() as nursery:

            async def send() -> None:
                with suppress(FleetError):
                    await near.send_all([sent])

            nursery.start_soon(send)
            await trio.sleep(0.3)
            network.crash("a", silent=bool(seed % 2))
            got = bytearray()
            block = memoryview(bytearray(1 << 16))
            with trio.move_on_after(60), suppress(FleetError):
                while count := await far.receive_into(block):
                    got += block[:count]
            assert sent.startswith(got)

    lossy = Path(latency=Constant(LATENCY), loss=0.2, crumble=0.3)
    play(scenario, path=lossy, rates=Rates(up=100_000), seed=seed)


def test_what_a_crashed_process_had_not_sent_is_lost() -> None:
    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b):
            with trio.move_on_after(5):
                await a.send_all([bytes(100 * KIB)])
            network.crash("a", silent=True)
            got = 0
            with trio.move_on_after(100):
                while count := await b.receive_into(block()):
                    got += count
            assert 5 * KIB <= got <= 5 * KIB + SEGMENT

    play(scenario, rates=Rates(up=KIB))


@pytest.mark.parametrize("fault", ["partition", "loss"])
@pytest.mark.parametrize("window", ["open", "closed"])
def test_a_reset_that_is_lost_is_made_up_for(fault: str, window: str) -> None:
    """With a closed window the sender would never hear of the other end's death by sending."""

    async def scenario(network: SimNetwork) -> None:
        async with linked(network) as (a, b), trio.open_nursery() as nursery:
            if window == "closed":
                nursery.start_soon(send_for_ever, a)
                await trio.sleep(2)
            if fault == "partition":
                network.partition(["a"], ["b"])
            else:
                network.set_path("b", "a", replace(EXACT, loss=1))
            b.abort()
            await trio.sleep(0.1)
            if window == "open":
                await a.send_all([b"x"])  # and the answer to this is lost too
            await trio.sleep(2)
            network.heal()
            network.set_path("b", "a", EXACT)
            watch = Stopwatch()
            with pytest.raises(LinkBroken, match="b reset it"):
                await a.receive_into(block())
            assert watch.seconds < 5

    play(scenario)


# the whole


@pytest.mark.parametrize("seed", range(3))
def test_one_seed_is_one_history(seed: int) -> None:
    async def scenario(network: SimNetwork) -> None:
        async with trio.open_nursery() as nursery:
            for pair in ("ab", "bc", "ca", "ab"):
                listener = await network.binding.listen(PEERS[pair[1]])
                link = await network.binding.dial(listener.address, PEERS[pair[0]], None)
                nursery.start_soon(send_for_ever, link)
                nursery.start_soon(take_for_ever, await listener.accept())
            await trio.sleep(1)
            network.partition(["a"], ["b"])
            await trio.sleep(3)
            network.heal()
            network.clog("b", "c")
            await trio.sleep(2)
            network.unclog("b", "c")
            network.crash("c")
            await trio.sleep(1)
            nursery.cancel_scope.cancel()

    path = Path(latency=Uniform(0.01, 0.1), jitter=0.01, loss=0.01)
    first, second = (play(scenario, path=path, rates=Rates(up=MIB), seed=seed) for _ in range(2))
    assert first.digest == second.digest
    assert first.events == second.events
    assert len(first.events) > 300
    assert play(scenario, path=path, rates=Rates(up=MIB), seed=seed + 100).digest != first.digest


FAULTS = st.sampled_from(["partition", "one way", "heal", "clog", "unclog", "path", "rates", "lossy", "pause"])


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 60_000), min_size=1, max_size=12),
    faults=st.lists(st.tuples(st.floats(0, 4), FAULTS), max_size=8),
    seed=st.integers(0, 100),
)
def test_whatever_strikes_the_bytes_that_arrive_are_those_that_were_sent(
    sizes: list[int], faults: list[tuple[float, str]], seed: int
) -> None:
    data = [noise(size, index) for index, size in enumerate(sizes)]

    async def scenario(network: SimNetwork) -> None:
        rng = random.Random(seed)

        async def strike() -> None:
            for pause, fault in faults:
                await trio.sleep(pause)
                match fault:
                    case "partition" | "one way":
                        network.partition(["a"], ["b"], one_way=fault == "one way")
                    case "heal":
                        network.heal()
                    case "clog":
                        network.clog("a", "b")
                    case "unclog":
                        network.unclog("a", "b")
                    case "path":
                        network.set_path(
                            "a", "b", Path(latency=Constant(rng.random()), window=rng.choice([1, 5_000, MIB]))
                        )
                    case "lossy":
                        network.set_path("a", "b", Path(latency=Uniform(0, 0.1), jitter=0.1, loss=0.5, crumble=0.5))
                    case "rates":
                        network.set_rates("a", Rates(up=rng.choice([20_000, 1e6, None])))
                        network.set_rates("b", Rates(down=rng.choice([20_000, 1e6, None])))
            await trio.sleep(1)
            network.heal()
            network.unclog("a", "b")
            network.set_path("a", "b", EXACT)

        async def send(link: SimLink) -> None:
            try:
                for piece in data:
                    await link.send_all([piece])
                    await trio.sleep(rng.random())
                await link.aclose()
            except LinkBroken as error:
                broken.append(error)

        broken: list[LinkBroken] = []
        async with linked(network) as (a, b), trio.open_nursery() as nursery:
            nursery.start_soon(strike)
            nursery.start_soon(send, a)
            whole = b"".join(data)
            with trio.move_on_after(2_000):  # an end whose other one gave up would wait for ever
                got, error = await drain(b)
                assert whole.startswith(got)
                assert got == whole or error is not None
                return
            assert broken

    play(scenario, path=Path(latency=Uniform(0.01, 0.05)), seed=seed)
