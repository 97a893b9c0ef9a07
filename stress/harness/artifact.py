"""The data that scenarios and benchmarks move."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import trio

from fleet.limits import MIB
from fleet.storage import Directory

if TYPE_CHECKING:
    from pathlib import Path


async def make_file(path: Path, mebibytes: int, seed: int) -> Path:
    """A file of random bytes that ``seed`` decides, at ``path``; raises ``StorageFailed``."""

    def write() -> None:
        rng = np.random.Generator(np.random.PCG64(seed))
        with Directory(path.parent) as folder:
            file = folder.open(path.name, create=True)
            file.allocate(mebibytes * MIB)
            for number in range(mebibytes):
                file.write(rng.bytes(MIB), number * MIB)

    await trio.to_thread.run_sync(write)
    return path
