"""A protocol of one's own under simulation: an invariant, and the bug that some seeds find.

A counter on one host; two clients add to it with a read and a write, which is not atomic. Run it:
``python -m pytest examples/find_a_bug.py`` shows the seeds that lose an addition, each with the line that replays it.
"""

import pytest
import trio

from fleet.identity.keys import Identity
from fleet.sim.path import Path, Uniform
from fleet.sim.world import World, simulate

SERVER, *CLIENTS = (Identity(bytes([n]) * 32) for n in (1, 2, 3))


async def two_clients(world: World) -> int:
    value = 0
    for name, who in zip(("server", "ann", "bob"), (SERVER, *CLIENTS), strict=True):
        world.network.add_host(name, who.peer_id)
    listener = await world.network.binding.listen(SERVER)

    async def serve() -> None:  # "r" is answered by the value, any other byte is the new value
        nonlocal value
        async with trio.open_nursery() as clients:
            while True:
                clients.start_soon(answer, await listener.accept())

    async def answer(link) -> None:
        nonlocal value
        await link.handshake()
        request = memoryview(bytearray(1))
        while await link.receive_into(request):
            if bytes(request) == b"r":
                await link.send_all([bytes([value])])
            else:
                value = request[0]
                await link.send_all([b"k"])

    async def add_one(who: Identity) -> None:
        link = await world.network.binding.dial(listener.address, who, SERVER.peer_id)
        await link.handshake()
        await trio.sleep(world.rng("think", who.peer_id[0]).random())
        got = memoryview(bytearray(1))
        await link.send_all([b"r"])
        await link.receive_into(got)
        await link.send_all([bytes([got[0] + 1])])
        await link.receive_into(got)

    async with trio.open_nursery() as nursery:
        world.spawn(nursery, "server", serve)
        async with trio.open_nursery() as clients:
            for name, who in zip(("ann", "bob"), CLIENTS, strict=True):
                world.spawn(clients, name, add_one, who)
        nursery.cancel_scope.cancel()
    return value


@pytest.mark.fleet_seeds(50)
def test_no_addition_is_lost(fleet_seed: int) -> None:
    assert simulate(two_clients, seed=fleet_seed, path=Path(latency=Uniform(0.01, 0.05))).value == 2
