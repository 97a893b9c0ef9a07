"""Whole fleets in a simulated world: a swarm by seed, crashes and restarts, and the world's own promises."""

from __future__ import annotations

import pytest
import trio

from fleet.errors import DeadlineExceeded
from fleet.limits import KIB
from fleet.sim.runtime import Deadlock
from fleet.sim.world import World, simulate
from fleet.swarm.manifest import Manifest

PIECE = 16 * KIB
PIECES = 8


async def share(world: World, peer: object) -> tuple[Manifest, bytes]:
    """An artifact on a disk of its own, and its bytes."""
    content = world.rng("content").randbytes(PIECES * PIECE - 5)
    file = world.disk("origin").open("artifact", create=True)
    file.write(content, 0)
    manifest = Manifest.of_file(file, PIECE)
    peer.swarm.share(manifest, file)  # type: ignore[attr-defined]
    return manifest, content


def held(world: World, index: int, manifest: Manifest) -> bytes:
    """What a fetcher's store has on its disk."""
    disk = world.disk(f"peer-{index}")
    (name,) = [name for name in disk.names() if name.endswith(".data")]
    content = bytearray(manifest.size)
    file = disk.open(name)
    file.read_into(memoryview(content), 0)
    file.close()
    return bytes(content)


async def swarm(world: World) -> int:
    async with world.fleet(4) as fleet:
        manifest, content = await share(world, fleet[0])
        holdings = [await peer.fetch(manifest.root) for peer in fleet.peers[1:]]
        for holding in holdings:
            await holding.wait()
    for index in (1, 2, 3):
        assert held(world, index, manifest) == content
    return sum(holding.verified for holding in holdings)


def test_a_swarm_is_the_same_whenever_its_seed_is() -> None:
    first = simulate(swarm, seed=3)
    assert first.value == 3 * PIECES
    assert first.events > 0
    assert first.virtual_seconds > 0
    again = simulate(swarm, seed=3)
    assert (again.digest, again.events, again.virtual_seconds) == (first.digest, first.events, first.virtual_seconds)
    assert simulate(swarm, seed=4).digest != first.digest


@pytest.mark.parametrize("how", ["keep", "drop", "torn", "reorder"])
def test_a_fetcher_that_crashed_finishes_after_its_restart(how: str) -> None:
    async def crashes(world: World) -> None:
        async with world.fleet(4) as fleet:
            manifest, content = await share(world, fleet[0])
            holding = await fleet[1].fetch(manifest.root)
            while holding.verified < PIECES // 2:  # noqa: ASYNC110 - in virtual time
                await trio.sleep(0.001)
            await world.crash(fleet, 1, how)  # type: ignore[arg-type]
            assert not fleet.running(1)
            await world.restart(fleet, 1)
            again = await fleet[1].fetch(manifest.root)
            await again.wait()
        assert held(world, 1, manifest) == content

    simulate(crashes, seed=5)


def test_a_world_that_never_quiets_ends_at_its_deadline() -> None:
    async def forever(world: World) -> None:
        async with world.fleet(2):
            await trio.sleep_forever()  # the neighbours' pings go on

    with pytest.raises(DeadlineExceeded, match="120"):
        simulate(forever, deadline=120)


def test_a_world_where_nothing_can_happen_any_more() -> None:
    async def stuck(_world: World) -> None:
        await trio.Event().wait()

    with pytest.raises(Deadlock):
        simulate(stuck)
