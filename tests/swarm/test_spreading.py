"""How a swarm spreads over links that take time: what a peer learns it tells onward at once."""

from __future__ import annotations

import numpy as np
import trio

from fleet.limits import KIB, MIB
from fleet.sim.disk import SimDisk
from fleet.sim.path import Constant, Path, Rates
from fleet.sim.world import World, simulate

LATENCY = 0.03
PIECE = 64 * KIB


def test_the_manifest_runs_ahead_of_the_pieces() -> None:
    async def main(world: World) -> None:
        file = SimDisk().open("artifact", create=True)
        file.write(np.random.default_rng(1).bytes(16 * PIECE), 0)
        async with world.fleet(4, degree=2) as fleet:  # a ring: the third peer knows the second and the fourth
            origin = await fleet[0].share(file, PIECE)
            start = trio.current_time()
            near, far = [await fleet[index].fetch(origin.root) for index in (1, 2)]
            while far.store is None:
                assert near.verified == 0
                await trio.sleep(0.001)
            # BITFIELD, WANT, the page: three steps to the near one, and three more to the far one
            assert trio.current_time() - start < 7.5 * LATENCY
            await far.wait()

    simulate(main, seed=1, path=Path(Constant(LATENCY)), rates=Rates(MIB / 4, MIB / 4))


def test_a_piece_is_told_of_at_once() -> None:
    async def main(world: World) -> None:
        file = SimDisk().open("artifact", create=True)
        file.write(np.random.default_rng(1).bytes(PIECE), 0)
        async with world.fleet(4, degree=2) as fleet:
            origin = await fleet[0].share(file, PIECE)
            near, far = [await fleet[index].fetch(origin.root) for index in (1, 2)]
            await near.wait()
            start = trio.current_time()
            await far.wait()
            assert trio.current_time() - start < 3.5 * LATENCY  # HAVE, REQUEST, the piece

    simulate(main, seed=1, path=Path(Constant(LATENCY)))
