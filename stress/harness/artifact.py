"""The data that scenarios and benchmarks move."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import trio

from fleet.limits import MIB
from fleet.storage import Directory

if TYPE_CHECKING:
    from pathlib import Path

_STRIDE: Final = 64  # MiB written before a deadline or Ctrl-C is heard: a thread cannot be cancelled


async def make_file(path: Path, mebibytes: int, seed: int) -> Path:
    """A file of random bytes that ``seed`` decides, at ``path``; raises ``StorageFailed``."""
    rng = np.random.Generator(np.random.PCG64(seed))
    with Directory(path.parent) as folder:
        file = folder.open(path.name, create=True)
        file.allocate(mebibytes * MIB)

        def write(first: int) -> None:
            for number in range(first, min(first + _STRIDE, mebibytes)):
                file.write(rng.bytes(MIB), number * MIB)

        for first in range(0, mebibytes, _STRIDE):
            await trio.to_thread.run_sync(write, first)
    return path
