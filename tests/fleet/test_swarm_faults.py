"""Swarms whose peers die, whose disks fail and whose files change: who can finish finishes, and who cannot says why."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
import trio
import trio.testing

from fleet.errors import FleetError, LinkBroken, LocalMisuse, StorageFailed
from fleet.fleet import BINDINGS
from fleet.limits import MAX_ARTIFACTS
from fleet.sim.disk import Fault, SimDisk
from fleet.swarm.announcing import Announcing
from fleet.swarm.piece_store import PieceStore
from fleet.wire.messages import Bitfield, Join, Leave, SwarmMessage, WantManifest
from tests.conformance.links import guarded
from tests.helpers.hostile import hostile
from tests.helpers.toy import Artifact, Toy, memory_file, nothing_left_open, toy_fleet

if TYPE_CHECKING:
    from fleet.environment import Environment
    from fleet.net.neighbour import Neighbour
    from fleet.swarm.holding import Holding

T = TypeVar("T")
ARTIFACT = Artifact.of(32)


@pytest.fixture(params=list(BINDINGS))
def name(request: pytest.FixtureRequest) -> str:
    """Of the binding."""
    return str(request.param)


@pytest.fixture(autouse=True)
def no_descriptor_left() -> Iterator[None]:
    with nothing_left_open():
        yield


async def share(toy: Toy, index: int, artifact: Artifact = ARTIFACT, *, super_seed: bool = False) -> Holding:
    return await toy.fleet[index].share(artifact.file(), artifact.manifest.piece_size, super_seed=super_seed)


def stored(toy: Toy, index: int, artifact: Artifact = ARTIFACT) -> bytes:
    return bytes(toy.disks[index].contents(f"{artifact.root.hex()}.data"))


def preload(disk: SimDisk, pieces: list[int], artifact: Artifact = ARTIFACT) -> None:
    """Put a store with these pieces on a disk, as an earlier run would have left it."""
    store = PieceStore.create(disk, artifact.manifest)
    for piece in pieces:
        store.write(piece, 0, memoryview(artifact.piece(piece)))
        store.mark_verified(piece)
    store.close()


# shapes


SHAPES = {
    "empty": Artifact.of(size=0),
    "one byte": Artifact.of(size=1),
    "smaller than a piece": Artifact.of(size=1_000),
    "exactly a piece": Artifact.of(1),
    "a byte more": Artifact.of(size=1_025),
    "a byte less than two": Artifact.of(size=2_047),
    "pieces of a byte": Artifact.of(size=150, piece_size=1),
    "no multiple": Artifact.of(size=20_001, piece_size=777),
    "many pieces": Artifact.of(300, 256),
}


@pytest.mark.parametrize("super_seed", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@guarded
async def test_artifacts_of_all_shapes_reach_everyone(name: str, shape: str, super_seed: bool) -> None:
    artifact = SHAPES[shape]
    async with toy_fleet(3, name) as toy:
        await share(toy, 0, artifact, super_seed=super_seed)
        for peer in toy.fleet.peers[1:]:
            await (await peer.fetch(artifact.root)).wait()
        for index in (1, 2):
            assert stored(toy, index, artifact) == artifact.data
            assert toy.fleet[index].swarm.holdings[artifact.root].state().startswith("complete")


@guarded
async def test_fetch_before_share_and_share_before_the_link(name: str) -> None:
    async with toy_fleet(3, name) as toy:
        early = await toy.fleet[1].fetch(ARTIFACT.root)
        assert early.state() == "has no manifest: no neighbour has offered it"
        await share(toy, 0)
        await early.wait()
        await toy.fleet.stop(2)
        await toy.fleet.start(2)
        late = await toy.fleet[2].fetch(ARTIFACT.root)
        await toy.fleet.join(2)
        await late.wait()


@guarded
async def test_many_artifacts_of_small_pieces_at_once_between_two_peers(name: str) -> None:
    """Together they ask for more than one artifact may, and nobody takes offence."""
    artifacts = [Artifact.of(400, 16, seed=seed) for seed in range(8)]
    async with toy_fleet(2, name) as toy:
        for artifact in artifacts:
            await share(toy, 0, artifact)
        holdings = [await toy.fleet[1].fetch(artifact.root) for artifact in artifacts]
        for holding in holdings:
            await holding.wait()
        assert toy.blamed() == set()


# seeders that die


@guarded
async def test_the_seeder_dies_once_every_piece_is_elsewhere(name: str) -> None:
    """Two fetchers hold half each, from an earlier run; neither has it all."""
    async with toy_fleet(3, name) as toy:
        await share(toy, 0)
        preload(toy.disks[1], list(range(16)))
        preload(toy.disks[2], list(range(16, 32)))
        await toy.fleet.kill(0)
        holdings = [await toy.fleet[index].fetch(ARTIFACT.root) for index in (1, 2)]
        for index, holding in zip((1, 2), holdings, strict=True):
            await holding.wait()
            assert stored(toy, index) == ARTIFACT.data
            assert holding.download is not None
            assert holding.download.needed_bytes == 16 * 1_024


@guarded
async def test_the_seeder_dies_before_and_everyone_names_what_nobody_has(name: str) -> None:
    async with toy_fleet(4, name) as toy:
        preload(toy.disks[1], [0, 1, 2, 3, 4, 5])
        preload(toy.disks[2], [4, 5, 6, 7, 8])
        preload(toy.disks[3], [])
        holdings = [await toy.fleet[index].fetch(ARTIFACT.root) for index in (1, 2, 3)]
        await toy.fleet.kill(0)
        for index in (1, 2, 3):
            await toy.trace.until(
                lambda index=index: toy.fleet[index].swarm.holdings[ARTIFACT.root].verified == 9  # type: ignore[misc]
            )
        for holding in holdings:
            assert holding.state() == (
                "holds 9 of 32 pieces; no neighbour has 23 of the rest: "
                "9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, …"
            )
        await toy.fleet.restart(0)
        await share(toy, 0)
        for holding in holdings:
            await holding.wait()


@pytest.mark.parametrize("super_seed", [True, False])
@pytest.mark.parametrize("after", [1, 9, 20, 31])
@guarded
async def test_the_seeder_is_killed_at_any_time_and_comes_back(name: str, after: int, super_seed: bool) -> None:
    async with toy_fleet(3, name) as toy:
        await share(toy, 0, super_seed=super_seed)
        holdings = [await peer.fetch(ARTIFACT.root) for peer in toy.fleet.peers[1:]]
        await toy.trace.wait_for("piece", count=after)
        await toy.fleet.kill(0)
        await toy.fleet.restart(0)
        await share(toy, 0, super_seed=super_seed)
        for index, holding in zip((1, 2), holdings, strict=True):
            await holding.wait()
            assert stored(toy, index) == ARTIFACT.data
        assert toy.blamed() == set()


# fetchers that die


@guarded
async def test_a_fetcher_fetches_only_what_its_journal_lacks(name: str) -> None:
    async with toy_fleet(2, name) as toy:
        holding = await toy.fleet[1].fetch(ARTIFACT.root)
        await share(toy, 0)
        await toy.trace.wait_for("piece", "peer-1", count=10)
        held = holding.verified
        assert 10 <= held < 32
        await toy.fleet.kill(1)
        peer = await toy.fleet.restart(1)
        again = await peer.fetch(ARTIFACT.root)
        resumed = await toy.trace.wait_for("resumed", "peer-1")
        kept = int(str(resumed.fields["kept"]))
        assert kept >= held
        assert resumed.fields["dropped"] == resumed.fields["journal_bytes_cut"] == 0
        await again.wait()
        assert again.received_bytes == (32 - kept) * 1_024
        assert stored(toy, 1) == ARTIFACT.data


@pytest.mark.parametrize("tail", [b"\0", b"garbage", b"\0" * 8, b"\xff" * 24])
@guarded
async def test_a_torn_journal_and_a_rotten_piece(name: str, tail: bytes) -> None:
    async with toy_fleet(2, name) as toy:
        await toy.fleet.kill(1)
        preload(toy.disks[1], list(range(20)))
        stem = ARTIFACT.root.hex()
        toy.disks[1].contents(f"{stem}.journal").extend(tail)
        toy.disks[1].contents(f"{stem}.data")[3 * 1_024] ^= 1
        await share(toy, 0)
        peer = await toy.fleet.restart(1)
        holding = await peer.fetch(ARTIFACT.root)
        await holding.wait()
        resumed = await toy.trace.wait_for("resumed", "peer-1")
        assert resumed.fields["kept"] == 19
        assert resumed.fields["dropped"] == 1
        assert resumed.fields["journal_bytes_cut"] == len(tail)
        assert holding.received_bytes == 13 * 1_024
        assert stored(toy, 1) == ARTIFACT.data


@guarded
async def test_fetchers_killed_over_and_over(name: str) -> None:
    async with toy_fleet(3, name) as toy:
        await share(toy, 0)
        await toy.fleet[2].fetch(ARTIFACT.root)
        for turns in range(0, 40, 5):
            await toy.fleet[1].fetch(ARTIFACT.root)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            await toy.fleet.kill(1)
            await toy.fleet.restart(1)
        await (await toy.fleet[1].fetch(ARTIFACT.root)).wait()
        assert stored(toy, 1) == ARTIFACT.data
        assert toy.blamed() == set()


# disks


@guarded
async def test_a_disk_too_small_for_the_artifact(name: str) -> None:
    """It fails at the start, says so, and the peer lives on; the others finish, and a smaller artifact fits."""
    async with toy_fleet(3, name, capacities={1: 20_000}) as toy:
        await share(toy, 0)
        poor, rich = [await peer.fetch(ARTIFACT.root) for peer in toy.fleet.peers[1:]]
        with pytest.raises(StorageFailed, match="full"):
            await poor.wait()
        await rich.wait()
        assert "full" in poor.state()
        assert toy.disks[1].names() == []
        small = Artifact.of(8, seed=7)
        await share(toy, 2, small)
        await (await toy.fleet[1].fetch(small.root)).wait()
        assert toy.is_mesh()
        assert toy.blamed() == set()


@pytest.mark.parametrize("suffix", [".data", ".journal"])
@pytest.mark.parametrize("skip", [0, 5, 30])
@guarded
async def test_a_disk_that_fails_in_the_middle(name: str, suffix: str, skip: int) -> None:
    """The fetch fails; pieces already on their way are no offence of their senders, and all links stay."""
    artifact = Artifact.of(64, 4_096)
    async with toy_fleet(4, name) as toy:
        toy.disks[1].faults.append(Fault("write", suffix, skip=skip, reason="input/output error"))
        await share(toy, 0, artifact)
        await share(toy, 3, artifact)
        failing, other = [await peer.fetch(artifact.root) for peer in toy.fleet.peers[1:3]]
        with pytest.raises(StorageFailed, match="input/output"):
            await failing.wait()
        await other.wait()
        assert toy.blamed() == set()
        assert toy.is_mesh()
        # Once the disk is well again, the same peer can take up where it was.
        toy.fleet[1].swarm.leave(artifact.root)
        again = await toy.fleet[1].fetch(artifact.root)
        await again.wait()
        assert stored(toy, 1, artifact) == artifact.data
        assert toy.blamed() == set()
        assert toy.trace.of("neighbour_down") == []


@guarded
async def test_a_disk_that_cannot_be_read_at_the_start(name: str) -> None:
    async with toy_fleet(2, name) as toy:
        await share(toy, 0)
        preload(toy.disks[1], [0, 1])
        toy.disks[1].faults.append(Fault("read", ".data", reason="input/output error"))
        with pytest.raises(StorageFailed):
            await toy.fleet[1].fetch(ARTIFACT.root)
        assert toy.fleet[1].swarm.holdings == {}
        await (await toy.fleet[1].fetch(ARTIFACT.root)).wait()


@guarded
async def test_a_shared_file_that_is_cut_while_it_is_served(name: str, tmp_path: Path) -> None:
    """The sharing peer says so and stops serving; who was in the middle of a piece of it loses the link, no more."""
    path = tmp_path / "file"
    path.write_bytes(ARTIFACT.data)
    async with toy_fleet(3, name) as toy:
        holding = await toy.fleet[0].share(path, 1_024, super_seed=False)
        with path.open("r+b") as file:
            file.truncate(10 * 1_024)
        fetching = await toy.fleet[1].fetch(ARTIFACT.root)
        failed = await toy.trace.wait_for("failed", "peer-0")
        assert "cut" in str(failed.fields["reason"])
        with pytest.raises(StorageFailed):
            await holding.wait()
        await share(toy, 2)
        await fetching.wait()
        assert stored(toy, 1) == ARTIFACT.data
        assert toy.blamed() == set()
        assert len(toy.trace.of("failed")) == 1
        # New neighbours are not offered what has failed, nor is its manifest given away.
        async with hostile(toy.fleet.environment.binding, toy.fleet[0]) as late:
            await late.control.send(Join(holding.root), WantManifest(holding.root, 0))
            assert await late.control.next() == Leave(holding.root)


@guarded
async def test_a_shared_file_that_changes_while_it_is_served(name: str, tmp_path: Path) -> None:
    """Its sharer notices before a byte of it is sent: nobody is lied to, nobody is banned, and others can serve it."""
    path = tmp_path / "file"
    path.write_bytes(ARTIFACT.data)
    async with toy_fleet(3, name) as toy:
        await toy.fleet[0].share(path, 1_024, super_seed=False)
        path.write_bytes(bytes(len(ARTIFACT.data)))
        fetching = await toy.fleet[1].fetch(ARTIFACT.root)
        failed = await toy.trace.wait_for("failed", "peer-0")
        assert "was changed" in str(failed.fields["reason"])
        await share(toy, 2)
        await fetching.wait()
        assert stored(toy, 1) == ARTIFACT.data
        assert toy.blamed() == set()
        assert toy.is_mesh()


@guarded
async def test_a_fetcher_whose_disk_cannot_be_read_stops_serving(name: str) -> None:
    async with toy_fleet(3, name) as toy:
        await share(toy, 0)
        await (await toy.fleet[1].fetch(ARTIFACT.root)).wait()
        toy.disks[1].faults.append(Fault("read", ".data", reason="input/output error"))
        toy.fleet[0].swarm.leave(ARTIFACT.root)
        fetching = await toy.fleet[2].fetch(ARTIFACT.root)
        await toy.trace.wait_for("failed", "peer-1")
        await share(toy, 0)
        await fetching.wait()
        assert toy.blamed() == set()


# choke and leave


@pytest.mark.parametrize("when", ["before", "at the manifest", "in the middle"])
@guarded
async def test_a_choked_only_source_is_waited_for(name: str, when: str) -> None:
    async with toy_fleet(2, name) as toy:
        await share(toy, 0)
        if when == "before":
            toy.fleet[0].swarm.choke(ARTIFACT.root)
        holding = await toy.fleet[1].fetch(ARTIFACT.root)
        if when != "before":
            await toy.trace.wait_for("manifest" if when == "at the manifest" else "piece", "peer-1")
            toy.fleet[0].swarm.choke(ARTIFACT.root)
            toy.fleet[0].swarm.choke(ARTIFACT.root)  # twice is once
        await toy.trace.wait_for("manifest", "peer-1")
        assert not holding.complete
        toy.fleet[0].swarm.choke(ARTIFACT.root, choked=False)
        await holding.wait()
        assert toy.blamed() == set()


@guarded
async def test_a_choke_in_the_middle_and_another_source(name: str) -> None:
    async with toy_fleet(3, name) as toy:
        await share(toy, 0)
        holding = await toy.fleet[1].fetch(ARTIFACT.root)
        await toy.trace.wait_for("piece", "peer-1")
        toy.fleet[0].swarm.choke(ARTIFACT.root)
        await share(toy, 2)
        await holding.wait()
        assert toy.fleet[0].swarm.holdings[ARTIFACT.root].choked


@guarded
async def test_choking_what_is_not_held(name: str) -> None:
    async with toy_fleet(1, name) as toy:
        with pytest.raises(LocalMisuse, match="does not hold"):
            toy.fleet[0].swarm.choke(bytes(32))
        toy.fleet[0].swarm.leave(bytes(32))  # no error: it takes no part


@pytest.mark.parametrize("leaver", ["source", "fetcher"])
@pytest.mark.parametrize("turns", [0, 3, 7, 15, 40])
@guarded
async def test_leaving_in_the_middle_and_coming_back_costs_no_link(name: str, leaver: str, turns: int) -> None:
    """Whatever is on its way when a peer leaves is nobody's offence; who stays finishes when it is shared again."""
    artifact = Artifact.of(64, 16_384)
    async with toy_fleet(3, name) as toy:
        source = await share(toy, 0, artifact)
        holdings = [await peer.fetch(artifact.root) for peer in toy.fleet.peers[1:]]
        await toy.trace.wait_for("piece", count=4)
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        if leaver == "source":
            toy.fleet[0].swarm.leave(artifact.root)
            assert source.root not in toy.fleet[0].swarm.holdings
            await share(toy, 0, artifact)
        else:
            complete = holdings[0].complete
            toy.fleet[1].swarm.leave(artifact.root)
            if not complete:
                with pytest.raises(LocalMisuse, match="left"):
                    await holdings[0].wait()
            holdings[0] = await toy.fleet[1].fetch(artifact.root)
        for index, holding in zip((1, 2), holdings, strict=True):
            await holding.wait()
            assert stored(toy, index, artifact) == artifact.data
        assert toy.blamed() == set()
        assert toy.trace.of("neighbour_down") == []


@pytest.mark.parametrize("turns", [0, 1, 2, 4, 8, 16])
@guarded
async def test_leaving_while_the_store_is_being_made_or_reopened(name: str, turns: int) -> None:
    """Again and again, so that old and new work on the same files meet if they can."""
    async with toy_fleet(2, name) as toy:
        await share(toy, 0)
        peer = toy.fleet[1]
        for _ in range(6):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(peer.fetch, ARTIFACT.root)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
                peer.swarm.leave(ARTIFACT.root)
            peer.swarm.leave(ARTIFACT.root)
        await (await peer.fetch(ARTIFACT.root)).wait()
        assert stored(toy, 1) == ARTIFACT.data
        assert toy.blamed() == set()


class Gate:
    """An environment whose off-loop work waits to be let through, and counts how much of it runs at once."""

    def __init__(self, inner: Environment) -> None:
        self._inner = inner
        self.waiting = 0
        self.most = 0
        self.arrived = trio.Event()
        self.open = trio.Event()

    def __getattr__(self, attribute: str) -> object:
        return getattr(self._inner, attribute)

    async def off_loop(self, work: Callable[[], T]) -> T:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        self.arrived.set()
        try:
            await self.open.wait()
            return work()
        finally:
            self.waiting -= 1


@guarded
async def test_work_on_one_artifacts_files_is_never_done_twice_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that was left while its store was being made, and the fetch after it."""
    async with toy_fleet(2, name) as toy:
        peer = toy.fleet[1]
        await share(toy, 0)
        holding = await peer.fetch(ARTIFACT.root)
        gate = Gate(toy.fleet.environment)
        monkeypatch.setattr(peer.swarm._fetching, "_environment", gate)
        await gate.arrived.wait()  # the manifest has come, and the store is being made
        peer.swarm.leave(ARTIFACT.root)
        with pytest.raises(LocalMisuse, match="left"):
            await holding.wait()
        found: list[Holding] = []

        async def fetch() -> None:
            found.append(await peer.fetch(ARTIFACT.root))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await trio.testing.wait_all_tasks_blocked()
            gate.open.set()
        await found[0].wait()
        assert gate.most == 1
        assert found[0].received_bytes == len(ARTIFACT.data)


@guarded
async def test_a_store_that_cannot_be_made_for_whatever_reason_fails_the_fetch_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with toy_fleet(2, name) as toy:
        holding = await toy.fleet[1].fetch(ARTIFACT.root)
        preload(toy.disks[1], [])  # somebody else put one there meanwhile
        await share(toy, 0)
        with pytest.raises(LocalMisuse, match="already stored"):
            await holding.wait()
        assert toy.is_mesh()


@pytest.mark.parametrize("news", [True, False])
@guarded
async def test_a_super_seeder_whose_first_offers_nobody_needs_goes_on_to_others(
    name: str, news: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restarted origin may offer what everyone holds from its earlier run: from their bitfields it knows better, and
    without them it offers other pieces after a while."""
    monkeypatch.setattr("fleet.swarm.offers.STALE_SECONDS", 0.05 if not news else 1e9)
    if not news:
        monkeypatch.setattr(Announcing, "elsewhere_untrusted", lambda *_: None)
    async with toy_fleet(2, name) as toy:
        preload(toy.disks[1], list(range(31)))
        holding = await toy.fleet[1].fetch(ARTIFACT.root)
        await share(toy, 0, super_seed=True)
        await holding.wait()
        assert holding.received_bytes == 1_024


@guarded
async def test_what_is_offered_while_the_store_is_reopened_is_not_lost(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at half and back: a neighbour that answers before this side can listen is asked again."""
    async with toy_fleet(2, name) as toy:
        preload(toy.disks[1], list(range(8)))
        swarm = toy.fleet[1].swarm
        gate = Gate(toy.fleet.environment)
        monkeypatch.setattr(swarm._fetching, "_environment", gate)
        offered = trio.Event()
        handle = swarm.handle_untrusted

        def listen(neighbour: Neighbour, message: SwarmMessage) -> None:
            handle(neighbour, message)
            if isinstance(message, Bitfield) and any(message.bits):
                offered.set()

        monkeypatch.setattr(swarm, "handle_untrusted", listen)
        found: list[Holding] = []

        async def fetch() -> None:
            found.append(await toy.fleet[1].fetch(ARTIFACT.root))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await gate.arrived.wait()
            await share(toy, 0, super_seed=True)
            await offered.wait()  # the origin has said what it offers, and met no download
            gate.open.set()
        await found[0].wait()
        assert found[0].received_bytes == 24 * 1_024


@guarded
async def test_a_manifest_that_arrives_while_the_store_is_reopened_waits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk: neighbours offer the artifact while its old store is still being hashed."""
    async with toy_fleet(2, name) as toy:
        preload(toy.disks[1], list(range(8)))
        gate = Gate(toy.fleet.environment)
        monkeypatch.setattr(toy.fleet[1].swarm._fetching, "_environment", gate)
        found: list[Holding] = []

        async def fetch() -> None:
            found.append(await toy.fleet[1].fetch(ARTIFACT.root))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fetch)
            await gate.arrived.wait()
            await share(toy, 0)
            while toy.fleet[0].peer_id not in toy.fleet[1].swarm.holdings[ARTIFACT.root].members:
                await trio.lowlevel.checkpoint()
            assert toy.fleet[1].swarm.holdings[ARTIFACT.root].download is None  # it asks for no manifest yet
            gate.open.set()
        await found[0].wait()
        assert found[0].received_bytes == 24 * 1_024


@guarded
async def test_stopping_while_stores_are_being_made(name: str) -> None:
    for turns in range(0, 40, 4):
        async with toy_fleet(2, name) as toy:
            await share(toy, 0)
            holding = await toy.fleet[1].fetch(ARTIFACT.root)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            await toy.fleet.stop(1)
            if not holding.complete:
                with pytest.raises(LinkBroken, match="stopped"):
                    await holding.wait()
            assert toy.disks[1].open_files == []


# misuse


@guarded
async def test_an_artifact_is_taken_part_in_once(name: str) -> None:
    async with toy_fleet(2, name) as toy:
        await share(toy, 0)
        with pytest.raises(LocalMisuse, match="already takes part"):
            await share(toy, 0)
        with pytest.raises(LocalMisuse, match="already takes part"):
            await toy.fleet[0].fetch(ARTIFACT.root)
        holding = await toy.fleet[1].fetch(ARTIFACT.root)
        with pytest.raises(LocalMisuse, match="already takes part"):
            await toy.fleet[1].fetch(ARTIFACT.root)
        await holding.wait()


@guarded
async def test_artifacts_up_to_the_cap(name: str) -> None:
    async with toy_fleet(2, name) as toy:
        peer = toy.fleet[0]
        roots = [number.to_bytes(32, "big") for number in range(MAX_ARTIFACTS)]
        for root in roots:
            await peer.fetch(root)
        with pytest.raises(LocalMisuse, match="leave one first"):
            await peer.fetch(b"\xff" * 32)
        peer.swarm.leave(roots[0])
        await peer.fetch(b"\xff" * 32)


@guarded
async def test_what_cannot_be_shared(name: str, tmp_path: Path) -> None:
    async with toy_fleet(1, name) as toy:
        peer = toy.fleet[0]
        with pytest.raises(StorageFailed):
            await peer.share(tmp_path / "missing")
        with pytest.raises(FleetError):
            await peer.share(tmp_path)
        with pytest.raises(LocalMisuse):
            await peer.share(memory_file(b"x"), 0)
        with pytest.raises(LocalMisuse):
            await peer.fetch(b"short")
        shrunk = memory_file(b"x" * 10)
        with pytest.raises(LocalMisuse):
            peer.swarm.share(ARTIFACT.manifest, shrunk)
        assert peer.swarm.holdings == {}


@guarded
async def test_cancelled_share_and_fetch_leave_nothing(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(ARTIFACT.data)
    async with toy_fleet(1, name) as toy:
        peer = toy.fleet[0]
        with trio.CancelScope() as scope:
            scope.cancel()
            await peer.share(path)
        with trio.CancelScope() as scope:
            scope.cancel()
            await peer.fetch(ARTIFACT.root)
        assert peer.swarm.holdings == {}
