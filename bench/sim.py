"""What a simulated run costs in real time: ``python -m bench sim``.

Three figures, each beside its bound: a scheduling step (two tasks that pass an item to and fro), a message through the
whole session layer (ping and pong frames between two sessions over the simulated network, tags included), and chaos
runs of a small swarm (five peers, 16 pieces of 16 KiB, one fetcher crashes half-way and comes back) per second, start
of the run included.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Final

import click
import trio
from rich.console import Console
from rich.table import Table

from fleet.limits import KIB
from fleet.sim.world import World, simulate
from fleet.swarm.manifest import Manifest
from fleet.wire.messages import Leave

STEPS: Final = 20_000
MESSAGES: Final = 2_000
CHAOS_SEEDS: Final = 10
PIECES: Final = 16
PIECE_SIZE: Final = 16 * KIB


def step_microseconds() -> float:
    """Real microseconds of one scheduling step."""

    async def ping_pong(_world: World) -> None:
        there, here = trio.open_memory_channel[None](0), trio.open_memory_channel[None](0)

        async def answer() -> None:
            async for _ in there[1]:
                await here[0].send(None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            for _ in range(STEPS // 4):  # each round is four steps: two tasks that send and receive
                await there[0].send(None)
                await here[1].receive()
            nursery.cancel_scope.cancel()

    return simulate(ping_pong).real_seconds / STEPS * 1e6


def message_microseconds() -> float:
    """Real microseconds of one message, a frame of its own: encoded, tagged, carried, checked and handled."""

    async def talk(world: World) -> None:
        async with world.fleet(2) as fleet:
            (neighbour,) = fleet[0].neighbours.values()
            for _ in range(MESSAGES):
                neighbour.send(Leave(bytes(32)))  # of no artifact: handled, and not answered
                await trio.sleep(0.002)

    async def silent(world: World) -> None:
        async with world.fleet(2):
            for _ in range(MESSAGES):
                await trio.sleep(0.002)

    return (simulate(talk).real_seconds - simulate(silent).real_seconds) / MESSAGES * 1e6


async def _chaos(world: World) -> None:
    async with world.fleet(5) as fleet:
        file = world.disk("origin").open("artifact", create=True)
        file.write(world.rng("content").randbytes(PIECES * PIECE_SIZE), 0)
        manifest = Manifest.of_file(file, PIECE_SIZE)
        fleet[0].swarm.share(manifest, file)
        holdings = [await peer.fetch(manifest.root) for peer in fleet.peers[1:]]
        while holdings[0].verified < PIECES // 2:  # noqa: ASYNC110 - in virtual time
            await trio.sleep(0.001)
        await world.crash(fleet, 1, "torn")
        await world.restart(fleet, 1)
        holdings[0] = await fleet[1].fetch(manifest.root)
        for holding in holdings:
            await holding.wait()


def chaos_seeds_per_second() -> float:
    """Chaos runs a second on one core."""
    seconds = [simulate(_chaos, seed=seed).real_seconds for seed in range(CHAOS_SEEDS)]
    return CHAOS_SEEDS / sum(seconds)


ROWS: Final[tuple[tuple[str, Callable[[], float], str, float, str], ...]] = (
    ("a scheduling step", step_microseconds, "<=", 15, "us"),
    ("a message through the session layer", message_microseconds, "<=", 150, "us"),
    ("chaos runs of a 5-peer swarm", chaos_seeds_per_second, ">=", 15, "seeds/s"),
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="Medians are over so many.")
def sim(rounds: int) -> int:
    """Simulated runs: what a step, a message and a chaos run of a swarm cost in real time."""
    table = Table("", "median", "least", "most", "bound", "verdict", title="simulation")
    failed = False
    for name, measure, op, bound, unit in ROWS:
        values = [measure() for _ in range(rounds)]
        middle = median(values)
        passed = middle <= bound if op == "<=" else middle >= bound
        failed |= not passed
        figures = [f"{value:,.1f}" for value in (middle, min(values), max(values))]
        table.add_row(name, *figures, f"{op} {bound:g} {unit}", "PASS" if passed else "FAIL")
    Console().print(table)
    return int(failed)
