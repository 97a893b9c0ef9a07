"""Warm memory before a measurement that writes files.

In a virtual machine the first write to a page of memory can make the host find that page: 2,000 us a MiB were seen
where a page that had been used before took 100. Whichever of two measurements in one run comes first would pay for
both. So the pages that the run will need are written once, and freed, before anything is timed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fleet.limits import MIB

if TYPE_CHECKING:
    from fleet.storage import Storage

MAX_WARM_BYTES: Final = 2048 * MIB
"""More would reach the kernel's limit of unwritten pages, and wait for the disk."""


def warm(storage: Storage, size: int) -> None:
    """Write ``size`` bytes (at most ``MAX_WARM_BYTES``) to a file in ``storage`` and remove it. Run it off the loop.

    Raises ``StorageFailed`` when the disk has no room for them.
    """
    block = bytes(MIB)
    name = "warm.data"
    file = storage.open(name, create=True)
    try:
        size = min(size, MAX_WARM_BYTES)
        file.allocate(size)
        for offset in range(0, size, MIB):
            file.write(block[: min(MIB, size - offset)], offset)
    finally:
        file.close()
        storage.remove(name)
