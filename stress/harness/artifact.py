"""The data that scenarios and benchmarks move."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import numpy as np
import trio

from fleet.errors import FleetError, StorageFailed
from fleet.limits import MIB
from fleet.storage import Directory

if TYPE_CHECKING:
    from pathlib import Path

    from fleet.environment import OffLoop
    from fleet.peer import Peer
    from fleet.swarm.holding import Holding
    from fleet.swarm.manifest import Manifest

_STRIDE: Final = 64  # MiB written before a deadline or Ctrl-C is heard: a thread cannot be cancelled


@asynccontextmanager
async def shared(peer: Peer, path: Path, manifest: Manifest, *, super_seed: bool = True) -> AsyncIterator[Holding]:
    """``peer`` shares the file while the block runs; what makes that impossible ends the block and is raised.

    Raises ``StorageFailed`` when the file is not any more what ``manifest`` was made from.
    """
    holding = await peer.share(path, manifest.piece_size, super_seed=super_seed)
    if holding.root != manifest.root:
        raise StorageFailed(f"{path} was changed during the run: run again, on a copy that nobody writes to")
    failures: list[FleetError] = []

    async def watch(scope: trio.CancelScope) -> None:
        failures.append(await holding.fails())
        scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch, nursery.cancel_scope)
        yield holding
        nursery.cancel_scope.cancel()
    if failures:
        raise failures[0]


async def make_file(path: Path, size: int, seed: int, off_loop: OffLoop) -> Path:
    """A file of ``size`` random bytes that ``seed`` decides, at ``path``; raises ``StorageFailed``."""
    rng = np.random.Generator(np.random.PCG64(seed))
    with Directory(path.parent) as folder:
        file = folder.open(path.name, create=True)
        file.allocate(size)
        blocks = -(-size // MIB)

        def write(first: int) -> None:
            for number in range(first, min(first + _STRIDE, blocks)):
                file.write(rng.bytes(min(MIB, size - number * MIB)), number * MIB)

        for first in range(0, blocks, _STRIDE):
            await off_loop(functools.partial(write, first))
    return path
