"""Fleets on a simulated network that loses, delays, cuts and resets: how they join, and how they come back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import trio

from fleet.environment import current_host
from fleet.errors import FleetError, LinkClosed
from fleet.fleet import Fleet
from fleet.limits import HANDSHAKE_SECONDS, KIB, LIVENESS_SECONDS
from fleet.net.redial import LONGEST_SECONDS
from fleet.sim.path import Constant, Path
from fleet.sim.runtime import pause, resume
from fleet.sim.world import World, simulate
from fleet.swarm.manifest import Manifest

if TYPE_CHECKING:
    from fleet.peer import Peer
    from fleet.sim.history import Event

ROUGH = Path(latency=Constant(0.03), jitter=0.01, loss=0.02)
WILD = Path(latency=Constant(0.03), jitter=0.1, loss=0.15)
BACK_SECONDS = HANDSHAKE_SECONDS + LONGEST_SECONDS + 5
"""When everyone is reachable again: the dial that is under way fails, the longest pause passes, and one more works."""


def one_link(a: Peer, b: Peer) -> bool:
    """Each is the other's neighbour, in the same session, and there is no other between them."""
    here, there = a.neighbours.get(b.peer_id), b.neighbours.get(a.peer_id)
    return here is not None and there is not None and here.session.session_id == there.session.session_id


def whole(fleet: Fleet) -> bool:
    """Every edge between running peers is one link."""
    return all(one_link(fleet[a], fleet[b]) for a, b in fleet.edges() if fleet.running(a) and fleet.running(b))


async def within(seconds: float, ready: Callable[[], bool]) -> float:
    """Wait until ``ready()``; returns after how many seconds it was."""
    started = trio.current_time()
    while not ready():
        assert trio.current_time() - started < seconds, f"not ready after {seconds} s"
        await trio.sleep(0.05)
    return trio.current_time() - started


def between(events: list[Event], kind: str) -> list[dict[str, object]]:
    return [dict(event.fields) for event in events if event.kind == kind]


def failed_handshakes(events: list[Event]) -> list[str]:
    return [str(fields["reason"]) for fields in between(events, "handshake_failed")]


# joining


@pytest.mark.parametrize("seed", range(12))
def test_a_fleet_joins_over_a_network_that_loses(seed: int) -> None:
    """Also where the bulk link overtakes the end of the control link's handshake, which is lost and sent again."""
    events: list[Event] = []

    async def join(world: World) -> None:
        async with world.fleet(20, degree=4) as fleet:
            assert whole(fleet)
            assert between(events, "redial") == []
            assert failed_handshakes(events) == []

    simulate(join, seed=seed, path=ROUGH, sink=events.append)


@pytest.mark.parametrize("seed", range(30))
def test_two_peers_that_dial_each_other_at_once_settle_on_one_link(seed: int) -> None:
    events: list[Event] = []

    async def dial(world: World) -> None:
        rng = world.rng("moments")
        world.place(2)
        fleet = Fleet(2, environment=world.environment, storage=world.storage, keep=False)
        fleet._edges = []  # nobody is joined: the peers do it themselves
        async with fleet:
            a, b = fleet.peers

            async def connect(this: Peer, other: Peer) -> None:
                await trio.sleep(rng.random() * 0.15)
                try:
                    await this.connect(other.address, other.peer_id)
                except FleetError:
                    failed.append(this)

            failed: list[Peer] = []
            async with trio.open_nursery() as nursery:
                for _ in range(1 + seed % 2):
                    nursery.start_soon(connect, a, b)
                    nursery.start_soon(connect, b, a)
            await within(1, lambda: one_link(a, b))
            assert failed == []
            assert len(a._roster.sessions) == len(b._roster.sessions) == 1
        assert between(events, "banned") == []
        assert not any("belongs to no session" in reason for reason in failed_handshakes(events))

    simulate(dial, seed=seed, path=ROUGH, sink=events.append)


def test_a_dial_that_nobody_answers_ends_when_the_other_side_has_dialled() -> None:
    async def cross(world: World) -> None:
        world.place(2)
        fleet = Fleet(2, environment=world.environment, storage=world.storage, keep=False)
        fleet._edges = []
        async with fleet:
            a, b = fleet.peers
            world.network.partition([a.name], [b.name])  # its first packet is lost, and sent again after a second

            async def later() -> None:
                await trio.sleep(0.1)
                world.network.heal()
                await b.connect(a.address, a.peer_id)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(later)
                assert not (await a.connect(b.address, b.peer_id)).dialled
            assert trio.current_time() < 0.5
            assert one_link(a, b)

    simulate(cross)


def test_a_bulk_link_is_dialled_no_longer_than_its_session_lives() -> None:
    async def lose(world: World) -> None:
        world.place(2)
        fleet = Fleet(2, environment=world.environment, storage=world.storage, keep=False)
        fleet._edges = []
        async with fleet:
            a, b = fleet.peers

            async def end() -> None:
                while b.peer_id not in a._roster.sessions:  # noqa: ASYNC110 - in virtual time
                    await trio.sleep(0.001)
                world.network.partition([a.name], [b.name])
                await trio.sleep(0.2)
                a._roster.sessions[b.peer_id].end(LinkClosed("gone"))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(end)
                with pytest.raises(LinkClosed, match="gone"):
                    await a.connect(b.address, b.peer_id)
            assert trio.current_time() < 1

    simulate(lose, path=Path(latency=Constant(0.03)))


@pytest.mark.parametrize("seed", range(6))
def test_a_bulk_link_whose_control_link_never_comes_is_refused_with_it(seed: int) -> None:
    """The end of the control link's handshake is lost for good: nobody waits longer than for a handshake."""

    async def lose(world: World) -> None:
        async with world.fleet(2) as fleet:
            low, high = sorted(fleet.peers, key=lambda peer: peer.peer_id)
            low.let_go(high.peer_id)
            high.let_go(low.peer_id)
            low.kill()
            await within(5, lambda: not low._roster.sessions and not high._roster.sessions)

            async def cut() -> None:
                await trio.sleep(0.2 + 0.03 * seed)
                world.network.partition([low.name], [high.name], one_way=True)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(cut)
                started = trio.current_time()
                try:
                    await low.connect(high.address, high.peer_id)
                    await within(1, lambda: bool(high.neighbours))
                except FleetError:
                    assert trio.current_time() - started <= HANDSHAKE_SECONDS + 1
            world.network.heal()
            await within(
                LIVENESS_SECONDS * 2, lambda: one_link(low, high) or not (low._roster.sessions or high._roster.sessions)
            )
            await low.connect(high.address, high.peer_id)
            await within(5, lambda: one_link(low, high))
            assert not high._handshakes._shaking
            assert not low._handshakes._shaking

    simulate(lose, seed=seed, path=Path(latency=Constant(0.1)))


def test_a_dial_that_fails_for_good_is_told() -> None:
    async def fail(world: World) -> None:
        world.place(3)
        world.network.partition(["peer-0"], ["peer-2"])
        with pytest.raises(FleetError, match="peer-2"):
            async with world.fleet(3):
                raise AssertionError("must not start")
        assert trio.current_time() <= 2 * HANDSHAKE_SECONDS + 1

    simulate(fail)


def test_chance_refusals_at_the_start_are_dialled_again() -> None:
    events: list[Event] = []

    async def start(world: World) -> None:
        async with world.fleet(8) as fleet:
            assert whole(fleet)

    simulate(start, path=Path(latency=Constant(0.01), refuse=0.2), sink=events.append)
    assert between(events, "redial")


# partitions


@pytest.mark.parametrize("seed", range(4))
def test_a_partition_that_heals_leaves_one_fleet(seed: int) -> None:
    async def split(world: World) -> None:
        async with world.fleet(8) as fleet:
            halves = [peer.name for peer in fleet.peers[:4]], [peer.name for peer in fleet.peers[4:]]
            world.network.partition(*halves)
            await trio.sleep(2 * LIVENESS_SECONDS)
            for peer in fleet.peers:
                assert len(peer.neighbours) == 3
            world.network.heal()
            await within(BACK_SECONDS, lambda: whole(fleet))
            await trio.sleep(LIVENESS_SECONDS)
            assert whole(fleet)
            assert all(len(peer._roster.sessions) == 7 for peer in fleet.peers)

    simulate(split, seed=seed, path=ROUGH)


def test_links_that_are_reset_all_at_once_come_back_soon() -> None:
    async def strike(world: World) -> None:
        async with world.fleet(8) as fleet:
            for _ in range(5):
                await trio.sleep(20)
                for a in range(8):
                    for b in range(a):
                        world.network.reset(f"peer-{a}", f"peer-{b}")
                await trio.sleep(0.05)
                assert not whole(fleet)
                assert await within(5, lambda: whole(fleet)) < 2
            assert all(not peer.banned for peer in fleet.peers)

    simulate(strike, path=Path(latency=Constant(0.03), jitter=0.01))


def test_a_fetch_whose_only_source_was_cut_off_ends_once_it_is_back() -> None:
    async def cut(world: World) -> None:
        async with world.fleet(2) as fleet:
            manifest = share(world, fleet[0])
            holding = await fleet[1].fetch(manifest.root)
            await within(5, lambda: holding.verified > 2)
            world.network.partition(["peer-0"], ["peer-1"])
            await trio.sleep(2 * LIVENESS_SECONDS)
            assert not fleet[1].neighbours
            world.network.heal()
            with trio.fail_after(BACK_SECONDS + 30):
                await holding.wait()

    simulate(cut, path=Path(latency=Constant(0.03), loss=0.01))


def share(world: World, peer: Peer, pieces: int = 16) -> Manifest:
    file = world.disk("origin").open("artifact", create=True)
    file.write(world.rng("content").randbytes(pieces * 16 * KIB), 0)
    manifest = Manifest.of_file(file, 16 * KIB)
    peer.swarm.share(manifest, file)
    return manifest


# crashes


async def idle(world: World, fleet: Fleet) -> None:
    await trio.sleep(15)


async def at_once(world: World, fleet: Fleet) -> None:
    await trio.lowlevel.checkpoint()


async def fetching(world: World, fleet: Fleet) -> None:
    manifest = share(world, fleet[0], 64)
    holding = await fleet[1].fetch(manifest.root)
    await within(20, lambda: holding.verified > 8)


async def cut_off(world: World, fleet: Fleet) -> None:
    world.network.partition(["peer-1"], [f"peer-{index}" for index in range(len(fleet)) if index != 1])
    await trio.sleep(2 * LIVENESS_SECONDS)


async def just_cut_off(world: World, fleet: Fleet) -> None:
    world.network.partition(["peer-1"], ["peer-0", "peer-2"])
    await trio.sleep(0.5)


async def another_down(world: World, fleet: Fleet) -> None:
    await world.crash(fleet, 2)


async def redialling(world: World, fleet: Fleet) -> None:
    world.network.reset("peer-1", "peer-0")
    world.network.reset("peer-1", "peer-2")
    await trio.sleep(0.3)


PHASES: list[Callable[[World, Fleet], Awaitable[None]]] = [
    idle,
    at_once,
    fetching,
    cut_off,
    just_cut_off,
    another_down,
    redialling,
]


@pytest.mark.parametrize("silent", [False, True], ids=["reset", "silent"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
@pytest.mark.parametrize("seed", range(2))
def test_a_peer_that_crashes_comes_back(
    phase: Callable[[World, Fleet], Awaitable[None]], silent: bool, seed: int
) -> None:
    """In whatever phase it crashes, its restart succeeds though neighbours may be down or cut off, and in the end all
    edges are links."""
    events: list[Event] = []

    async def crash(world: World) -> None:
        async with world.fleet(5) as fleet:
            await phase(world, fleet)
            await world.crash(fleet, 1, "torn", silent=silent)
            assert not fleet.running(1)
            await trio.sleep(seed * 3)
            started = trio.current_time()
            await world.restart(fleet, 1)
            assert trio.current_time() - started <= 2 * HANDSHAKE_SECONDS + 1
            world.network.heal()
            if not fleet.running(2):
                world.network.restore("peer-2")
                await fleet.start(2)  # it is not joined: those who keep it find it
            await within(BACK_SECONDS + LIVENESS_SECONDS, lambda: whole(fleet))
            await trio.sleep(LIVENESS_SECONDS)
            assert whole(fleet)
            assert between(events, "banned") == []

    simulate(crash, seed=seed, path=ROUGH, sink=events.append)


def test_a_peer_that_stays_away_is_dialled_less_and_less() -> None:
    events: list[Event] = []

    async def stay_away(world: World) -> None:
        async with world.fleet(3) as fleet:
            await trio.sleep(15)
            await fleet.stop(1)
            await trio.sleep(300)
            assert whole(fleet)
            for peer in (fleet[0], fleet[2]):
                mine = [event for event in events if event.kind == "redial" and event.peer == peer.name]
                attempts = [dict(event.fields)["attempt"] for event in mine]
                assert attempts == list(range(1, len(mine) + 1))
                assert 300 / LONGEST_SECONDS <= len(mine) <= 2 * 300 / LONGEST_SECONDS + 10
                gaps = [after.time - before.time for before, after in pairwise(mine)]
                assert gaps[0] < 1
                assert min(gaps[8:]) >= LONGEST_SECONDS / 2

    simulate(stay_away, sink=events.append)


def test_a_fleet_that_does_not_keep_its_edges() -> None:
    async def lose(world: World) -> None:
        world.place(3)
        async with Fleet(3, environment=world.environment, storage=world.storage, keep=False) as fleet:
            world.network.reset("peer-0", "peer-1")
            await trio.sleep(100)
            assert not whole(fleet)
            await fleet.join()
            assert whole(fleet)
            await world.crash(fleet, 0, silent=True)
            await world.crash(fleet, 1)
            world.network.partition(["peer-1"], ["peer-2"])
            with pytest.raises(FleetError):
                await world.restart(fleet, 1)

    simulate(lose)


# whose tasks


def test_all_tasks_of_a_peer_belong_to_its_process() -> None:
    async def look(world: World) -> None:
        async with world.fleet(3) as fleet:
            manifest = share(world, fleet[0])
            for peer in fleet.peers[1:]:
                await peer.fetch(manifest.root)
            world.network.reset("peer-0", "peer-1")
            await trio.sleep(1)
            await fleet.stop(2)
            await fleet.restart(2)
            assert current_host.get() is None
            for peer in fleet.peers:
                assert peer._local.nursery is not None
                tasks = list(peer._local.nursery.child_tasks)
                assert len(tasks) > 4
                while tasks:
                    task = tasks.pop()
                    assert task.context.get(current_host) == peer.name
                    tasks += [child for nursery in task.child_nurseries for child in nursery.child_tasks]

    simulate(look)


def test_a_paused_peer_is_silent_and_is_dialled_again() -> None:
    async def freeze(world: World) -> None:
        async with world.fleet(3) as fleet:
            pause("peer-1")
            await trio.sleep(2 * LIVENESS_SECONDS)
            assert fleet[1].peer_id not in fleet[0].neighbours
            assert one_link(fleet[0], fleet[2])
            resume("peer-1")
            await within(BACK_SECONDS, lambda: whole(fleet))

    simulate(freeze)


def test_a_world_of_redials_is_decided_by_its_seed() -> None:
    async def trouble(world: World) -> None:
        async with world.fleet(6) as fleet:
            world.network.partition(["peer-0", "peer-1"], ["peer-2", "peer-3"])
            await trio.sleep(50)
            await world.crash(fleet, 4)
            world.network.heal()
            await trio.sleep(5)
            await world.restart(fleet, 4)
            await within(60, lambda: whole(fleet))

    assert simulate(trouble, seed=2, path=WILD).digest == simulate(trouble, seed=2, path=WILD).digest


# who is not kept


async def both_down(fleet: Fleet, a: int, b: int) -> None:
    fleet[a].neighbours[fleet[b].peer_id].abort()
    for here, there in ((a, b), (b, a)):
        await fleet[here].until(lambda here=here, there=there: fleet[there].peer_id not in fleet[here].neighbours)


def test_a_fleet_that_keeps_nothing_leaves_broken_links_broken() -> None:
    async def broken(world: World) -> None:
        world.place(2)
        async with Fleet(2, environment=world.environment, storage=world.storage, keep=False) as fleet:
            await both_down(fleet, 0, 1)
            await trio.sleep(10 * LONGEST_SECONDS)
            assert not fleet[0].neighbours
            assert not fleet[1].neighbours
            await fleet.join()
            assert one_link(fleet[0], fleet[1])

    simulate(broken)


def test_a_neighbour_that_is_let_go_or_banned_stays_away() -> None:
    async def apart(world: World) -> None:
        async with world.fleet(3) as fleet:
            for a, b in ((0, 1), (1, 0)):
                fleet[a].let_go(fleet[b].peer_id)
            await both_down(fleet, 0, 1)
            fleet[0]._roster.ban(fleet[2].peer_id, "lied")
            await both_down(fleet, 0, 2)
            await trio.sleep(10 * LONGEST_SECONDS)
            assert not fleet[0].neighbours
            assert one_link(fleet[1], fleet[2])

    simulate(apart)


# swarming


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_who_fetches_before_its_only_neighbour_does_hears_of_the_file_all_the_same(order: tuple[int, int]) -> None:
    """peer-1 never reaches the origin: what it gets, it gets through peer-2."""

    async def relayed(world: World) -> None:
        file = world.disk("origin").open("artifact", create=True)
        file.write(world.rng("content").randbytes(5_000), 0)
        manifest = Manifest.of_file(file, KIB)
        async with world.fleet(3) as fleet:
            world.network.partition(["peer-0"], ["peer-1"])
            holdings = []
            for index in order:
                holdings.append(await fleet[index].fetch(manifest.root))
                await trio.sleep(1)
            fleet[0].swarm.share(manifest, file)
            with trio.fail_after(60):
                for holding in holdings:
                    await holding.wait()

    simulate(relayed)
