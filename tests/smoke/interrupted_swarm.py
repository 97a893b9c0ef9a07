"""A program: the content swarm, which sends itself SIGINT at the moment that its first argument names."""

from __future__ import annotations

import dataclasses
import os
import signal
import sys

import trio

from stress import content_swarm
from stress.content_swarm import SCENARIO
from stress.harness.run import run_scenario

MOMENTS = ("baseline", "neighbour_up", "piece", "complete")
"""During the single-stream baseline, or at the first event of that kind: while the fleet starts, in the middle of the
swarm, and when the first fetcher is done."""


def main() -> int:
    moment, *argv = sys.argv[1:]

    async def baseline(*_args):
        os.kill(os.getpid(), signal.SIGINT)
        await trio.sleep_forever()

    async def run(context):
        emit, seen = context.events.emit, set()

        def watch(time, peer, kind, **fields):
            emit(time, peer, kind, **fields)
            if kind == moment and not seen:
                seen.add(kind)
                os.kill(os.getpid(), signal.SIGINT)

        context.events.emit = watch
        await SCENARIO.run(context)

    if moment == "baseline":
        content_swarm.single_stream_seconds = baseline
    return run_scenario(dataclasses.replace(SCENARIO, run=run), argv)


if __name__ == "__main__":
    sys.exit(main())
