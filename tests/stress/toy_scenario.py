"""A scenario that sends nothing: it shows what a scenario module looks like, and how each way of ending is judged.

Tests import it, or run this file as a program (as ``python -m stress.NAME`` would run) to send it signals.
"""

from __future__ import annotations

import trio

from fleet.errors import DeadlineExceeded, LinkBroken, LinkClosed, LocalMisuse, StorageFailed
from fleet.metrics import Histogram
from stress.harness.options import option
from stress.harness.plots import cdf, heat_map, steps_over_time
from stress.harness.run import Context, Scenario, main

NAME = "content_swarm"  # so that the real bounds file judges the toy


def check_arguments(args):
    if args["peers"] == 13:
        raise LocalMisuse("13 peers bring bad luck: ask for 12 or 14")


async def run(context: Context) -> None:
    peers = context.args["peers"]
    fetchers = [f"peer-{index}" for index in range(1, peers)]
    context.parameters.update(peers=peers, pieces=64)
    context.describe_state = lambda: ["peer-1 holds 3 of 64 pieces"]
    context.progress.phase("swarm")
    with context.lag.measured():
        pass  # no latency at all: how busy the machine is must not decide what the toy is judged
    for name in fetchers:
        context.progress.track(name, 64)
    (context.scratch / "piece").write_bytes(b"x" * 1024)
    context.metrics["seeder_share"] = 0.15
    await ending(context)
    latency = Histogram()
    series = {}
    for index, name in enumerate(fetchers):
        series[name] = [(0.0, 0)]
        for piece in range(64):
            at = (piece + 1) * (0.02 + 0.0005 * index)
            context.events.emit(at, name, "verified", piece=piece)
            latency.record(0.001 * (1 + (piece * 37 + index) % 50))
            series[name].append((at, piece + 1))
            context.progress.update(name, piece + 1)
    context.metrics.update(
        aggregate_over_raw_stream=0.7,
        aggregate_over_single_stream=0.86,
        longest_stall_seconds=0.0 if context.args["ending"] != "zero" else 3.5,
        bytes_received_over_needed=1.0,
        time_ratio_to_single_stream=7.4,
        piece_seconds=latency,
        aggregate_mib_s=634.2,
        empty_sample=Histogram(),
    )
    context.details["peers"] = {"count": peers}
    context.summary.append(f"{peers} peers moved nothing at 634.2 MiB/s")
    names = ["seeder", *fetchers]
    matrix = [
        [0.0 if x == y else (40.0 / peers if y else 64.0 / peers + x % 3) for x in range(peers)] for y in range(peers)
    ]
    context.figures += [
        steps_over_time("Pieces over time", "Each line is one fetcher.", series),
        heat_map("Who sent to whom", "MiB of verified pieces.", matrix, names, names),
        cdf("Piece latency", "From request to verified piece.", {"all": latency}, x_label="seconds"),
    ]


async def ending(context: Context) -> None:
    match context.args["ending"]:
        case "hang":
            context.progress.say("toy: hanging")
            try:
                await trio.sleep_forever()
            finally:
                context.progress.say("toy: cleaned up")
        case "hang-dialling":
            context.progress.say("toy: hanging")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                try:
                    await trio.sleep_forever()
                finally:
                    raise LinkClosed("this side is stopping")
        case "hang-badly":
            context.progress.say("toy: hanging")
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("the clean-up tripped")
        case "hang-shielded":
            context.progress.say("toy: hanging")
            with trio.CancelScope(shield=True):
                await trio.sleep_forever()
        case "crash":
            raise ValueError("the toy\nbroke")
        case "crash-in-group":
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
                raise ValueError("the toy broke")
        case "misuse":
            raise LocalMisuse("the toy cannot do that: ask for less")
        case "misuse-in-group":
            async with trio.open_nursery():
                raise LocalMisuse("the toy cannot do that: ask for less")
        case "misuse-and-crash":
            raise ExceptionGroup("both", [LocalMisuse("ask for less"), ValueError("the toy broke")])
        case "disk":
            raise StorageFailed("the toy's disk is full; free some space")
        case "link":
            raise LinkBroken("peer-3 went away")
        case "late":
            raise DeadlineExceeded("peer-1 was given 3 s")
        case "interrupt":
            raise KeyboardInterrupt
        case "text-metric":
            context.metrics["seeder_share"] = "a lot"


SCENARIO = Scenario(
    name=NAME,
    summary="A toy that sends nothing.",
    run=run,
    options=[
        option("--peers", type=int, default=8, help="Peers, the seeder among them."),
        option("--ending", default="well", help="How the toy ends."),
    ],
    check_arguments=check_arguments,
)

if __name__ == "__main__":
    main(SCENARIO)
