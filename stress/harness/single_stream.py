"""The baseline that a swarm is measured against: the same bytes over a single stream between two peers.

Two peers of the same kind, over the same binding, with the same store and the same work per byte, of which one has the
file and the other fetches it: all pieces over one bulk link, nobody to share with. What a swarm of many peers moves in
aggregate, beside this, tells what being many costs. (What the protocol itself costs, beside raw sockets, is measured by
``python -m bench swarm``.)
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import trio

from fleet.fleet import Fleet
from fleet.limits import MIB
from fleet.storage import Directory

if TYPE_CHECKING:
    from pathlib import Path

    from fleet.environment import Environment

MIN_BYTES: Final = 256 * MIB
"""A small file is copied again until so much has moved, and the median counts: one copy lasts mere milliseconds."""
MAX_COPIES: Final = 15


async def single_stream_seconds(
    environment: Environment, file: Path, size: int, piece_size: int, folder: Path
) -> float:
    """The median seconds of a copy of ``file`` (``size`` bytes) between two new peers with stores in ``folder``."""
    copies = min(MAX_COPIES, max(3, -(-MIN_BYTES // max(1, size))))
    return statistics.median([await _copy(environment, file, piece_size, folder) for _ in range(copies)])


async def _copy(environment: Environment, file: Path, piece_size: int, folder: Path) -> float:
    async with Fleet(2, environment=environment, storage=lambda index: Directory(folder / f"{index}")) as fleet:
        artifact = await fleet[0].share(file, piece_size)
        started = trio.current_time()
        copy = await fleet[1].fetch(artifact.root)
        await copy.wait()
        seconds = trio.current_time() - started
        if copy.store is not None:
            copy.store.remove()  # the next copy finds the same memory and disk
        return seconds
