"""The swarm beside its ceiling: ``python -m bench swarm``.

Each round measures, one after the other in the same process, the ceiling (``bench.ceiling``: as many raw readers at
once), the two baselines (``stress.harness.baselines``) and the swarm. What counts is the median of the rounds' own
ratios: the machine's speed may drift, the ratio of neighbours less so.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

import click
import trio
from rich.console import Console
from rich.table import Table

from bench.ceiling import ceiling_seconds, tls_wrap
from bench.rival import rival_seconds
from fleet.environment import Environment, in_thread
from fleet.fleet import BINDINGS, Fleet
from fleet.limits import KIB, MIB
from fleet.storage import Directory, DirectoryFile
from fleet.swarm.manifest import Manifest
from stress.harness.artifact import make_file
from stress.harness.baselines import raw_stream_seconds, single_stream_seconds
from stress.harness.bounds import Verdict, judge, load_bounds, run_verdict
from stress.harness.options import EXIT_OF_VERDICT, find_bounds
from stress.harness.page_cache import warm

if TYPE_CHECKING:
    from stress.harness.bounds import RowResult

PIECE_SIZE: Final = 1024 * KIB
CEILING: Final = "ceiling"
SWARM: Final = "swarm"


@click.command()
@click.option("--peers", type=click.IntRange(2, 64), default=8, show_default=True, help="One seeder, the rest fetch.")
@click.option("--mebibytes", type=click.IntRange(1, 4096), default=256, show_default=True, help="Size of the file.")
@click.option(
    "--binding",
    "bindings",
    type=click.Choice(list(BINDINGS)),
    multiple=True,
    help="Only these; may be given more than once.  [default: all]",
)
@click.option("--rounds", type=click.IntRange(1, 100), default=3, show_default=True, help="The medians count.")
@click.option("--rival", is_flag=True, help="Also move the file with libtorrent (pip install 'peerfleet[peers]').")
@click.option("--bounds", type=click.Path(path_type=Path), metavar="FILE", help="Judge by this bounds file.")
@click.pass_context
def swarm(
    context: click.Context,
    peers: int,
    mebibytes: int,
    bindings: tuple[str, ...],
    rounds: int,
    rival: bool,
    bounds: Path | None,
) -> None:
    """Move a file to every peer of a fleet, beside raw readers and a single stream that do the same work per byte."""
    checks = load_bounds(find_bounds(bounds), "bench")
    rows: list[RowResult] = []
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="peerfleet-bench-"))
    try:
        for binding in bindings or tuple(BINDINGS):
            rates = trio.run(_measure, folder, binding, peers, mebibytes, rounds, rival and binding == "tcp")
            ratios = {name: median(a / b for a, b in zip(rates[name], rates[CEILING], strict=True)) for name in rates}
            table = Table("", "MiB/s", "of the ceiling", title=f"{binding}, {peers} peers, {mebibytes} MiB", box=None)
            for name in rates:
                table.add_row(name, f"{median(rates[name]):,.0f}", f"{ratios[name]:.2f}")
            console.print(table)
            rows += [
                row
                for row in judge(checks, {"swarm_over_ceiling": ratios[SWARM]}, {"peers": peers}, binding, "swarm")
                if row.value is not None and row.verdict is not Verdict.NOT_JUDGED
            ]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for row in rows:
        console.print(f"{row.verdict}  {row.check.id}  {row.value:.2f} {row.check.op} {row.check.bound}")
    context.exit(EXIT_OF_VERDICT[run_verdict(rows)])


async def _measure(
    folder: Path, binding: str, peers: int, mebibytes: int, rounds: int, rival: bool = False
) -> dict[str, list[float]]:
    """Rates in MiB/s, summed over the readers, by round: of the ceiling, the baselines, the swarm and the rival."""
    path = await make_file(folder / "artifact", mebibytes * MIB, 1, in_thread)
    file = DirectoryFile(path, writable=False)
    manifest = await trio.to_thread.run_sync(Manifest.of_file, file, PIECE_SIZE)
    file.close()
    readers = peers - 1
    total = readers * mebibytes
    wrap = {"wrap": tls_wrap(folder)} if binding == "tls" else {}
    environment = Environment(BINDINGS[binding]())

    def places(name: str) -> Directory:
        return Directory(folder / "baselines" / name)

    with Directory(folder / "work") as storage:
        contenders: dict[str, Callable[[], Awaitable[float]]] = {
            CEILING: lambda: ceiling_seconds(path, folder / "work", readers, **wrap),
            "raw stream": lambda: raw_stream_seconds(environment, path, manifest, places),
            "single stream": lambda: single_stream_seconds(environment, path, manifest, places),
            SWARM: lambda: _swarm(path, binding, peers),
        }
        if rival:
            contenders["libtorrent"] = lambda: trio.to_thread.run_sync(
                rival_seconds, path, folder / "rival", peers, PIECE_SIZE
            )
        rates: dict[str, list[float]] = {name: [] for name in contenders}
        for number in range(rounds):
            # Forwards and backwards in turn, so that nobody always comes first or last.
            for name in list(contenders)[:: -1 if number % 2 else 1]:
                await trio.to_thread.run_sync(warm, storage, total * MIB)
                moved = mebibytes if name.endswith("stream") else total
                rates[name].append(moved / await contenders[name]())
                shutil.rmtree(folder / "rival", ignore_errors=True)
    return rates


async def _swarm(path: Path, binding: str, peers: int) -> float:
    async with Fleet(peers, binding, folder=path.parent / "peers") as fleet:
        artifact = await fleet[0].share(path, PIECE_SIZE)
        started = trio.current_time()
        holdings = [await peer.fetch(artifact.root) for peer in fleet.peers[1:]]
        for holding in holdings:
            await holding.wait()
        seconds = trio.current_time() - started
    shutil.rmtree(path.parent / "peers")
    return seconds
