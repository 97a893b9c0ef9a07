"""Content swarm: one peer has a file, everyone else wants it, and whoever has a piece serves it.

First the same bytes go over a single stream, from one peer to another with nobody beside them
(``harness.single_stream``); then the fleet starts, the seeder shares the file, all others fetch it at once, and the run
ends when the last fetcher has verified every piece. Rows LB-Q-PRF-01 and FL-SWM-01 to FL-SWM-05.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import numpy as np
import trio

from fleet.environment import Environment, off_loop_checkpoint
from fleet.errors import LocalMisuse
from fleet.fleet import BINDINGS, FULL_MESH, MAX_PEERS, Fleet, default_degree
from fleet.limits import KIB, MAX_PIECE_SIZE, MAX_PIECES, MIB
from fleet.storage import Directory, DirectoryFile, Storage
from fleet.swarm.manifest import Manifest
from stress.harness.artifact import make_file, shared
from stress.harness.baselines import raw_stream_seconds, single_stream_seconds
from stress.harness.options import option
from stress.harness.ordeal import Ordeal
from stress.harness.page_cache import warm
from stress.harness.plots import heat_map, steps_over_time
from stress.harness.process import allow_open_files, anonymous_mib, cpu_seconds, peak_rss_mib, quiet_collector
from stress.harness.run import Context, Scenario, main
from stress.swarm.checker import SwarmChecker
from stress.swarm.summary import fluid_bound, lines_on

if TYPE_CHECKING:
    from fleet.peer import Peer
    from fleet.swarm.holding import Holding

SAMPLE_SECONDS: Final = 0.1
"""How often memory and progress are looked at."""
_FILES_PER_PEER: Final = 8  # a listener, a store's three files, and room for links that are being made
_OTHER_FILES: Final = 64

SUMMARY: Final = """\
Move one file from one peer to all others, and judge how the swarm does it.

Starts real peers in this process, each with its own identity, listener and piece store, lets the first one share a
file of random bytes (or --file), and has all others fetch it from whoever holds a piece. Before that, one peer fetches
the same bytes from another over a single stream, with the same protocol and nobody beside them: the swarm is measured
against that.

\b
Examples:
  python -m stress.content_swarm --peers 8
  python -m stress.content_swarm --peers 8 --binding tls --mebibytes 256
  python -m stress.content_swarm --file backup.tar --piece-kib 256 --format json | jq .rows
"""


def check_arguments(args: Mapping[str, Any]) -> None:
    """Refuse what cannot run before anything starts; raises ``LocalMisuse``."""
    size = _size(args)
    if args["file"] is not None:
        path: Path = args["file"]
        file = _open(path)
        size = file.size()
        file.close()
    if size > MAX_PIECES * MAX_PIECE_SIZE:
        raise LocalMisuse(f"{size:,} bytes are too many: the largest file has {MAX_PIECES * MAX_PIECE_SIZE:,}")
    if -(-size // (args["piece_kib"] * KIB)) > MAX_PIECES:
        least = -(-size // (MAX_PIECES * KIB))
        raise LocalMisuse(f"{size:,} bytes are more than {MAX_PIECES:,} pieces: use --piece-kib {least} or more")
    needed = _open_files(args["peers"])
    if (allowed := allow_open_files(needed)) < needed:
        raise LocalMisuse(
            f"{args['peers']} peers need {needed:,} open files and this process may have {allowed:,}: "
            f"run it after `ulimit -n {needed}`, or with fewer peers"
        )


def _size(args: Mapping[str, Any]) -> int:
    """Bytes of the file that is made for the run."""
    made: int = args["mebibytes"] * MIB if args["pieces"] is None else args["pieces"] * args["piece_kib"] * KIB
    return made


def _open(path: Path) -> DirectoryFile:
    if os.path.isdir(path):  # unlike Path's, it takes any name
        raise LocalMisuse(f"{path} is a folder: name a file with --file")
    return DirectoryFile(path, writable=False)


def _open_files(peers: int) -> int:
    """Sockets and files that a fleet opens, with room for what else the process has open."""
    neighbours = default_degree(peers)
    ends = 2 * neighbours * peers  # of a control and a bulk link to each neighbour
    return ends + _FILES_PER_PEER * peers + _OTHER_FILES


class _Run:
    """The state of one run, and what is made of it."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.piece_size: int = context.args["piece_kib"] * KIB
        self.single_seconds = 0.0
        self.raw_seconds = 0.0
        self.seconds = 0.0
        self.fetchers: list[str] = []
        self.holdings: dict[str, Holding] = {}
        self.started = 0.0
        self.cpu = 0.0
        self.anonymous = 0.0
        self.done = False
        self.phase = "starting"

    async def run(self) -> None:
        context = self.context
        args = context.args
        context.describe_state = self._state
        self._enter("making the file")
        environment, storage = self._ports()
        path = args["file"] or await make_file(
            context.scratch / "artifact", _size(args), context.seed, environment.off_loop
        )
        file = _open(path)
        try:
            manifest = await environment.off_loop(
                lambda: Manifest.of_file(file, self.piece_size, on_piece=lambda _: off_loop_checkpoint())
            )
            context.parameters.update(
                peers=args["peers"], pieces=manifest.pieces, bounded_links=int(args["rate_mib_s"] > 0)
            )
        finally:
            file.close()
        if not args["faults"]:
            await self._measure_baselines(environment, storage, path, manifest)
        if context.world is None:
            environment = replace(environment, trace=context.events)
        await self._warm(manifest)  # again: what the baselines freed, the host may have taken back meanwhile
        self._enter("starting peers")
        async with Fleet(args["peers"], environment=environment, storage=lambda i: storage(f"peer-{i}")) as fleet:
            if args["faults"]:
                await self._endure(fleet, path, manifest)
            else:
                await self._swarm(fleet, path, manifest)

    async def _measure_baselines(
        self, environment: Environment, storage: Callable[[str], Storage], path: Path, manifest: Manifest
    ) -> None:
        self._enter("single-stream baselines")
        await self._warm(manifest)
        self.raw_seconds = await raw_stream_seconds(environment, path, manifest, lambda n: storage(f"baseline-{n}"))
        self.single_seconds = await single_stream_seconds(
            environment, path, manifest, lambda name: storage(f"baseline-{name}")
        )

    def _ports(self) -> tuple[Environment, Callable[[str], Storage]]:
        """What the peers run on: the machine, with their files in the scratch folder, or the simulated world."""
        world, context = self.context.world, self.context
        if world is None:
            environment = Environment(BINDINGS[context.binding](), context.seed)
            return environment, lambda name: Directory(context.scratch / name)
        world.place(context.args["peers"])
        return world.environment, lambda name: world.disk(name).mount()

    async def _warm(self, manifest: Manifest) -> None:
        if self.context.world is not None:
            return
        with Directory(self.context.scratch) as storage:
            await trio.to_thread.run_sync(warm, storage, manifest.size * (self.context.args["peers"] - 1))

    async def _swarm(self, fleet: Fleet, path: Path, manifest: Manifest) -> None:
        context = self.context
        context.metrics["start_seconds"] = fleet.start_seconds
        self.fetchers = [peer.name for peer in fleet.peers[1:]]
        self._enter("swarm")
        async with shared(fleet[0], path, manifest), trio.open_nursery() as nursery:
            nursery.start_soon(self._sample)
            cpu = cpu_seconds()
            self.started = trio.current_time()
            try:
                for name in self.fetchers:
                    context.progress.track(name, manifest.pieces)
                # all at once: one after the other, the last would join a swarm that is over
                with quiet_collector(), context.lag.measured():
                    cpu = cpu_seconds()
                    self.started = trio.current_time()
                    async with trio.open_nursery() as fetches:
                        for peer in fleet.peers[1:]:
                            fetches.start_soon(self._fetch, peer, manifest.root)
                    for holding in self.holdings.values():
                        await holding.wait()
                    self.seconds = trio.current_time() - self.started
                self.done = True
            finally:
                self.seconds = self.seconds or trio.current_time() - self.started
                self.cpu = cpu_seconds() - cpu
                self._update_progress()
                self._report(fleet, manifest)
                nursery.cancel_scope.cancel()

    async def _endure(self, fleet: Fleet, path: Path, manifest: Manifest) -> None:
        """The swarm under faults: is it safe, and does it converge?"""
        world = self.context.world
        assert world is not None, "faults are of the simulated network"  # noqa: S101
        self.fetchers = [peer.name for peer in fleet.peers[1:]]
        for name in self.fetchers:
            self.context.progress.track(name, manifest.pieces)
        self.started = trio.current_time()

        def note(index: int, holding: Holding) -> None:
            self.holdings[f"peer-{index}"] = holding

        cpu = cpu_seconds()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sample)
            try:
                await Ordeal(self.context, world, fleet, SwarmChecker(world, fleet, path, manifest, note)).run()
            finally:
                self.seconds = trio.current_time() - self.started
                self.cpu = cpu_seconds() - cpu
                self._update_progress()
                self._report(fleet, manifest)
                nursery.cancel_scope.cancel()

    async def _fetch(self, peer: Peer, root: bytes) -> None:
        self.holdings[peer.name] = await peer.fetch(root)

    async def _sample(self) -> None:
        while True:
            self.anonymous = max(self.anonymous, anonymous_mib() or 0.0)
            self._update_progress()
            await trio.sleep(SAMPLE_SECONDS)

    def _update_progress(self) -> None:
        for name, holding in self.holdings.items():
            self.context.progress.update(name, holding.verified)

    def _enter(self, phase: str) -> None:
        self.phase = phase
        self.context.progress.phase(phase)

    def _state(self) -> list[str]:
        if not self.fetchers:
            return [f"no fetcher had begun; the run was at: {self.phase}"]
        return [
            f"{name} {self.holdings[name].state() if name in self.holdings else 'has not begun'}"
            for name in self.fetchers
        ]

    def _report(self, fleet: Fleet, manifest: Manifest) -> None:
        """Fill in what was measured; called however the swarm ended, so a late run shows how far it came."""
        names = {peer.peer_id: peer.name for peer in fleet.peers}
        matrix = np.zeros((len(fleet), len(fleet)))
        fetchers: dict[str, dict[str, Any]] = {}
        for column, peer in enumerate(fleet.peers):
            holding = self.holdings.get(peer.name)
            download = None if holding is None else holding.download
            if holding is None or download is None:
                continue
            by_source = {names[source]: count for source, count in sorted(download.bytes_from.items())}
            for row, source in enumerate(fleet.peers):
                matrix[row, column] = by_source.get(source.name, 0) / MIB
            fetchers[peer.name] = {
                "verified_pieces": holding.verified,
                "bytes_from_seeder": by_source.get(fleet[0].name, 0),
                "bytes_from": by_source,
                "duplicate_bytes": download.duplicate_bytes,
                "wasted_bytes": download.wasted_bytes,
                "received_bytes": holding.received_bytes,
                "longest_stall_seconds": self._stall(holding),
                "seconds": None if holding.finished_at is None else holding.finished_at - self.started,
            }
        self._fill_metrics(fleet, manifest, fetchers)
        self._draw(fleet, matrix)

    def _stall(self, holding: Holding) -> float:
        waiting = 0.0 if holding.finished_at is not None else trio.current_time() - holding.progress_at
        return max(holding.longest_stall, waiting)

    def _fill_metrics(self, fleet: Fleet, manifest: Manifest, fetchers: dict[str, dict[str, Any]]) -> None:
        context, metrics = self.context, self.context.metrics
        received = sum(fetcher["received_bytes"] for fetcher in fetchers.values())
        needed = manifest.size * (context.args["peers"] - 1)
        metrics["wall_seconds"] = self.seconds
        metrics["cpu_seconds"] = self.cpu
        metrics["peak_rss_mib"] = peak_rss_mib()
        metrics["peak_anonymous_mib"] = self.anonymous
        if self.single_seconds:
            metrics["single_stream_seconds"] = self.single_seconds
        metrics["duplicate_bytes"] = sum(fetcher["duplicate_bytes"] for fetcher in fetchers.values())
        metrics["wasted_bytes"] = sum(fetcher["wasted_bytes"] for fetcher in fetchers.values())
        if fetchers and needed:
            metrics["longest_stall_seconds"] = max(fetcher["longest_stall_seconds"] for fetcher in fetchers.values())
        if self.done and needed:
            aggregate = needed / MIB / self.seconds
            single = manifest.size / MIB / self.single_seconds
            metrics["aggregate_mib_per_second"] = aggregate
            metrics["single_stream_mib_per_second"] = single
            metrics["aggregate_over_single_stream"] = aggregate / single
            raw = metrics["raw_stream_mib_per_second"] = manifest.size / MIB / self.raw_seconds
            metrics["aggregate_over_raw_stream"] = aggregate / raw
            metrics["time_ratio_to_single_stream"] = self.seconds / self.single_seconds
            served = [sum(holding.served.values()) for peer in fleet.peers for holding in peer.swarm.holdings.values()]
            metrics["seeder_share"] = served[0] / sum(served)
            metrics["bytes_received_over_needed"] = received / needed
            rate = context.args["rate_mib_s"] * MIB
            if rate:
                metrics["time_over_fluid_bound"] = self.seconds / fluid_bound(manifest.size, [rate] * len(fleet))
            context.summary.append(
                f"{len(fetchers)} fetchers took {manifest.size / MIB:,.1f} MiB each in {self.seconds:.2f} s: "
                f"{aggregate:,.0f} MiB/s in aggregate, {single:,.0f} MiB/s over a single stream"
            )
        elif self.done:
            context.summary.append(
                f"the file is empty: {len(fetchers)} fetchers hold all of its 0 pieces, so no rate exists"
            )
        context.summary.append(
            f"{self.cpu:.2f} CPU seconds; {peak_rss_mib():,.0f} MiB of memory at the most in the whole run, and in the "
            f"swarm {self.anonymous:,.0f} MiB anonymous; {metrics['duplicate_bytes']:,} duplicate bytes"
        )
        if self.done and needed:  # else the harness lists how far each fetcher came
            context.summary += lines_on(fetchers)
        context.details["fetchers"] = fetchers

    def _draw(self, fleet: Fleet, matrix: np.ndarray[Any, np.dtype[np.float64]]) -> None:
        lines = {
            name: [(0.0, 0.0), *((at - self.started, n + 1.0) for n, at in enumerate(holding.verified_at))]
            for name in self.fetchers
            if (holding := self.holdings.get(name)) is not None
        }
        if self.context.args["faults"]:
            return  # of a peer that began anew these would tell its last life alone; the run is drawn in space and time
        names = [peer.name for peer in fleet.peers]
        self.context.figures[:] = [
            steps_over_time(
                "Pieces over time", "Pieces that each fetcher has verified, by seconds since all began to fetch.", lines
            ),
            heat_map(
                "Who served whom",
                "MiB of verified pieces, from the peer of the row to that of the column. The seeder is peer-0.",
                matrix.tolist(),
                names,
                names,
            ),
        ]


async def run(context: Context) -> None:
    """Run the scenario; see the module."""
    await _Run(context).run()


SCENARIO: Final = Scenario(
    name="content_swarm",
    summary=SUMMARY,
    run=run,
    bindings=(*BINDINGS, "sim"),
    shrinkable={"peers": 2, "pieces": 1},
    check_arguments=check_arguments,
    options=[
        option(
            "--peers",
            type=click.IntRange(2, MAX_PEERS),
            default=8,
            help=f"Peers in the fleet: one seeder, the rest fetch. Above {FULL_MESH}, each knows only log N + 1 or so.",
        ),
        option(
            "--mebibytes",
            type=click.IntRange(0, 65_536),
            default=64,
            help="Size of the file of random bytes that is made for the run.",
        ),
        option(
            "--pieces",
            type=click.IntRange(1, MAX_PIECES),
            show_default="what --mebibytes makes",
            help="Size of that file in pieces instead: for small ones.",
        ),
        option(
            "--file",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help="Swarm this file instead; it is read in place and never written.",
        ),
        option(
            "--piece-kib",
            type=click.IntRange(1, MAX_PIECE_SIZE // KIB),
            default=1024,
            help="Size of a piece: what is asked for, verified and passed on as a whole.",
        ),
    ],
)

if __name__ == "__main__":
    main(SCENARIO)
