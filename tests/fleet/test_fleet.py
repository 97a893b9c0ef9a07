"""The fleet: its graph, and peers that start, stop, are killed and restarted. Real sockets, both bindings."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from fleet.environment import Environment
from fleet.errors import DeadlineExceeded, LinkClosed, LocalMisuse, StorageFailed
from fleet.fleet import BINDINGS, MAX_PEERS, Fleet
from fleet.storage import Directory
from tests.conformance.links import guarded
from tests.helpers.events import Recorder
from tests.helpers.toy import Artifact, nothing_left_open, toy_fleet


@pytest.fixture(params=list(BINDINGS))
def name(request: pytest.FixtureRequest) -> str:
    """Of the binding."""
    return str(request.param)


@pytest.fixture(autouse=True)
def nothing_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Neither a descriptor nor a temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with nothing_left_open():
        yield
    assert list(folder.iterdir()) == []


def neighbours(fleet: Fleet) -> list[set[int]]:
    """The indices of each peer's neighbours."""
    index = {peer.peer_id: peer.index for peer in fleet.peers}
    return [{index[peer_id] for peer_id in peer.neighbours} for peer in fleet.peers]


def reachable(graph: list[set[int]]) -> set[int]:
    seen, ahead = {0}, [0]
    while ahead:
        for other in graph[ahead.pop()] - seen:
            seen.add(other)
            ahead.append(other)
    return seen


# the graph


@pytest.mark.parametrize("peers", [1, 2, 5])
@guarded
async def test_a_small_fleet_is_a_full_mesh(name: str, peers: int) -> None:
    async with Fleet(peers, name) as fleet:
        assert neighbours(fleet) == [set(range(peers)) - {index} for index in range(peers)]
        assert len({peer.peer_id for peer in fleet.peers}) == len(fleet) == peers
        assert fleet.start_seconds > 0


@guarded
async def test_a_larger_fleet_is_connected_and_everyone_has_the_degree(name: str) -> None:
    async with Fleet(12, name, degree=4) as fleet:
        graph = neighbours(fleet)
        assert reachable(graph) == set(range(12))
        assert min(map(len, graph)) >= 4
        assert max(map(len, graph)) <= 6
        assert {(a, b) for a in range(12) for b in graph[a]} == {
            pair for a, b in fleet.edges() for pair in ((a, b), (b, a))
        }


@pytest.mark.parametrize(("peers", "degree"), [(10, 8), (11, 4), (50, 8), (200, 3), (7, 1), (3, 1), (300, 8)])
def test_the_graph_is_decided_by_the_seed(peers: int, degree: int) -> None:
    def edges(seed: int) -> list[tuple[int, int]]:
        return Fleet(peers, seed=seed, degree=degree).edges()

    graph: list[set[int]] = [set() for _ in range(peers)]
    for a, b in edges(1):
        assert a != b
        assert b not in graph[a]  # no edge twice
        graph[a].add(b)
        graph[b].add(a)
    assert reachable(graph) == set(range(peers))
    assert min(map(len, graph)) >= degree
    assert max(map(len, graph)) <= degree + 3
    assert edges(1) == edges(1)
    assert peers <= 7 or edges(1) != edges(2)


@guarded
async def test_identities_are_decided_by_the_seed(name: str) -> None:
    found = []
    for seed in (1, 1, 2):
        async with Fleet(2, name, seed=seed) as fleet:
            found.append([peer.peer_id for peer in fleet.peers])
    assert found[0] == found[1]
    assert found[0] != found[2]


# stop, kill, restart


@guarded
async def test_stop_says_goodbye(name: str) -> None:
    async with toy_fleet(3, name) as toy:
        await toy.fleet.stop(1)
        assert not toy.fleet.running(1)
        gone = toy.fleet[1].peer_id
        for index in (0, 2):
            down = await toy.trace.wait_for("neighbour_down", f"peer-{index}", neighbour=gone.short)
            assert down.fields["reason"] == f"{gone.short} said goodbye: this side is stopping"
        assert toy.is_mesh()


@guarded
async def test_kill_says_nothing(name: str) -> None:
    async with toy_fleet(3, name) as toy:
        lost = [toy.fleet[index].neighbours[toy.fleet[1].peer_id] for index in (0, 2)]
        await toy.fleet.kill(1)
        for index, neighbour in zip((0, 2), lost, strict=True):
            await toy.trace.wait_for("neighbour_down", f"peer-{index}")
            assert type(neighbour.reason).__name__ == "LinkBroken"
            assert "said goodbye" not in str(neighbour.reason)
        assert toy.is_mesh()


@pytest.mark.parametrize("how", ["stop", "kill"])
@guarded
async def test_a_restarted_peer_keeps_identity_address_and_storage(name: str, how: str, tmp_path: Path) -> None:
    artifact = Artifact.of(8)
    async with Fleet(3, name, folder=tmp_path / "fleet") as fleet:
        await fleet[0].share(artifact.file(), artifact.manifest.piece_size)
        await (await fleet[1].fetch(artifact.root)).wait()
        before, address = fleet[1], fleet[1].address
        await (fleet.stop if how == "stop" else fleet.kill)(1)
        after = await fleet.restart(1)
        assert after is fleet[1]
        assert after is not before
        assert after.peer_id == before.peer_id
        assert after.address == address
        assert neighbours(fleet) == [{1, 2}, {0, 2}, {0, 1}]
        holding = await after.fetch(artifact.root)
        await holding.wait()
        assert holding.received_bytes == 0
    assert (tmp_path / "fleet" / "peer-1" / f"{artifact.root.hex()}.data").read_bytes() == artifact.data


@guarded
async def test_a_restarted_peer_whose_address_is_taken_gets_another(name: str) -> None:
    async with Fleet(2, name) as fleet:
        address = fleet[1].address
        await fleet.stop(1)
        squatter = await fleet.environment.binding.listen(fleet[1].identity, address)
        try:
            await fleet.restart(1)
            assert fleet[1].address != address
            assert neighbours(fleet) == [{1}, {0}]
        finally:
            await squatter.aclose()


@guarded
async def test_many_restarts_in_turn_and_at_once(name: str) -> None:
    async with toy_fleet(4, name) as toy:
        for round_number in range(3):
            async with trio.open_nursery() as nursery:
                for index in (1, 2):
                    nursery.start_soon(toy.fleet.kill if round_number % 2 else toy.fleet.stop, index)
            await toy.fleet.start(1)
            await toy.fleet.start(2)
            await toy.fleet.join()
            assert toy.is_mesh()
        assert toy.trace.of("banned") == []


@guarded
async def test_a_join_that_loses_its_link_ends_in_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet(2, name) as fleet:
        monkeypatch.setattr("fleet.fleet.HANDSHAKE_SECONDS", 0.05)
        fleet[0].neighbours.clear()
        fleet[1].neighbours.pop(fleet[0].peer_id)
        fleet[0].neighbours[fleet[1].peer_id] = next(iter(fleet[0]._roster.sessions.values()))
        with pytest.raises(DeadlineExceeded, match="lost its link"):
            await fleet.join()


# keeping


@guarded
async def test_a_link_of_the_fleet_that_breaks_comes_back(name: str) -> None:
    async with toy_fleet(3, name) as toy:
        for a, b in toy.fleet.edges():
            toy.fleet[a].neighbours[toy.fleet[b].peer_id].abort()
        await toy.trace.until(lambda: len(toy.trace.of("neighbour_down")) >= 6)
        await toy.trace.until(toy.is_mesh)
        assert toy.trace.of("redial")
        assert toy.trace.of("banned") == []


@guarded
async def test_a_peer_restarts_while_its_neighbours_are_down_and_they_find_it(name: str) -> None:
    async with toy_fleet(3, name) as toy:
        fleet = toy.fleet
        for index in (0, 1, 2):
            await fleet.kill(index)
        await fleet.restart(1)
        assert neighbours(fleet)[1] == set()
        await fleet.restart(2)
        assert neighbours(fleet)[1:] == [{2}, {1}]
        await fleet.start(0)  # it dials nobody: the others keep it
        await toy.trace.until(toy.is_mesh)


@guarded
async def test_a_join_that_fails_for_good_raises_what_the_dial_did(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Fleet(2, name) as fleet:
        monkeypatch.setattr("fleet.fleet.HANDSHAKE_SECONDS", 0.05)
        fleet[0]._roster.ban(fleet[1].peer_id, "lied")
        await fleet[1].until(lambda: not fleet[1]._roster.sessions)
        with pytest.raises(LinkClosed, match="banned: lied"):
            await fleet.join()


# what is released


@pytest.mark.parametrize("how", ["end", "error", "cancelled", "cancelled while starting", "peers stopped before"])
@guarded
async def test_everything_is_released_however_the_block_ends(name: str, how: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    tasks = trio.lowlevel.current_statistics().tasks_living
    artifact = Artifact.of(16)
    with trio.CancelScope() as scope:
        try:
            if how == "cancelled while starting":
                scope.deadline = trio.current_time()
            async with Fleet(4, name) as fleet:
                await fleet[0].share(artifact.file(), artifact.manifest.piece_size)
                for peer in fleet.peers[1:]:
                    await peer.fetch(artifact.root)
                if how == "error":
                    raise ZeroDivisionError
                if how == "cancelled":
                    scope.cancel()
                    await trio.lowlevel.checkpoint()
                if how == "peers stopped before":
                    await fleet.stop(0)
                    await fleet.kill(1)
        except ZeroDivisionError:
            assert how == "error"
    assert scope.cancelled_caught == how.startswith("cancelled")
    assert set(os.listdir("/proc/self/fd")) == before
    assert trio.lowlevel.current_statistics().tasks_living == tasks


@guarded
async def test_cancelled_after_each_number_of_turns_while_starting(name: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for turns in range(0, 100, 7):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:

                async def later(turns: int = turns, scope: trio.CancelScope = scope) -> None:
                    for _ in range(turns):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()

                nursery.start_soon(later)
                async with Fleet(3, name):
                    await trio.sleep_forever()
        assert set(os.listdir("/proc/self/fd")) == before


@guarded
async def test_a_peer_that_cannot_start_ends_the_fleet(name: str) -> None:
    def storage(index: int) -> Directory:
        if index == 2:
            raise StorageFailed("no disk")
        return Directory(Path(tempfile.gettempdir()).parent / f"{index}")

    with pytest.raises(StorageFailed, match="no disk"):
        async with Fleet(3, environment=Environment(BINDINGS[name]()), storage=storage):
            raise AssertionError("must not start")


@guarded
async def test_errors_in_the_block_come_out_as_themselves(name: str) -> None:
    with pytest.raises(LocalMisuse):
        async with Fleet(2, name) as fleet:
            await fleet.start(0)


# misuse


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"peers": 0}, "1 to"),
        ({"peers": MAX_PEERS + 1}, "1 to"),
        ({"peers": 2, "degree": 0}, "degree"),
        ({"peers": 2, "binding": "udp"}, "binding"),
    ],
)
def test_fleets_that_cannot_be(arguments: dict[str, int | str], words: str) -> None:
    with pytest.raises(LocalMisuse, match=words):
        Fleet(**arguments)  # type: ignore[arg-type]


@guarded
async def test_operations_out_of_order(name: str) -> None:
    fleet_before = Fleet(2, name)
    with pytest.raises(LocalMisuse, match="not up"):
        await fleet_before.start(0)
    async with Fleet(2, name) as fleet:
        with pytest.raises(LocalMisuse, match="running already"):
            await fleet.start(0)
        await fleet.stop(0)
        with pytest.raises(LocalMisuse, match="not running"):
            await fleet.stop(0)
        with pytest.raises(LocalMisuse, match="not running"):
            await fleet.kill(0)
        with pytest.raises(LocalMisuse, match="not running"):
            await fleet[0].fetch(bytes(32))
        await fleet.join()  # nobody to join: not an error


@guarded
async def test_a_trace_given_to_the_fleet_is_used(name: str) -> None:
    trace = Recorder()
    async with Fleet(2, name, trace=trace):
        assert len(trace.of("neighbour_up")) == 2
