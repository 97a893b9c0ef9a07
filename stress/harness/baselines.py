"""What a swarm is measured against, in the same run and over the same binding.

The *single stream* is a fetch between two peers: same kind, same store, same protocol, of which one has the file and
the other wants it, so all pieces come over one bulk link and there is nobody to share with. A swarm's aggregate rate
beside it tells what being many costs.

The *raw stream* leaves out the protocol too: one link of the binding between two identities, the file sent from end to
end, each piece hashed against the manifest and written to a preallocated file. Nothing over this binding is simpler.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias

import blake3
import trio

from fleet.errors import LinkBroken, PeerViolation
from fleet.fleet import Fleet
from fleet.limits import MIB
from fleet.storage import DirectoryFile, Storage
from stress.harness.artifact import shared
from stress.harness.process import quiet_collector

if TYPE_CHECKING:
    from pathlib import Path

    from fleet.environment import Environment
    from fleet.net.link import Link, Listener
    from fleet.storage import File
    from fleet.swarm.manifest import Manifest

Storages: TypeAlias = Callable[[str], Storage]
"""A place for each name to keep files in."""

MIN_BYTES: Final = 256 * MIB
"""A small file is copied again until so much has moved, and the median counts: one copy lasts mere milliseconds."""
MIN_COPIES: Final = 3
MAX_COPIES: Final = 15


async def single_stream_seconds(environment: Environment, file: Path, manifest: Manifest, storage: Storages) -> float:
    """The median seconds of a fetch of ``file`` between two new peers with their stores in ``storage(name)``."""
    return await _median(environment, manifest, lambda: _fetch(environment, file, manifest, storage))


async def raw_stream_seconds(environment: Environment, file: Path, manifest: Manifest, storage: Storages) -> float:
    """The median seconds of a copy of ``file`` over one raw link into ``storage("raw")``.

    Raises ``PeerViolation`` when the bytes that arrive are not the manifest's.
    """
    return await _median(environment, manifest, lambda: _copy(environment, file, manifest, storage))


async def _median(environment: Environment, manifest: Manifest, once: Callable[[], Awaitable[float]]) -> float:
    if environment.binding.name == "sim":
        return await once()  # in virtual time nothing else runs, and a second copy takes as long
    copies = min(MAX_COPIES, max(MIN_COPIES, -(-MIN_BYTES // max(1, manifest.size))))
    return statistics.median([await once() for _ in range(copies)])


async def _fetch(environment: Environment, file: Path, manifest: Manifest, storage: Storages) -> float:
    async with (
        Fleet(2, environment=environment, storage=lambda index: storage(f"{index}")) as fleet,
        # No super-seeding: with one fetcher there is nobody to spread the pieces over, it would only hold them back.
        shared(fleet[0], file, manifest, super_seed=False) as artifact,
    ):
        with quiet_collector():
            started = trio.current_time()
            copy = await fleet[1].fetch(artifact.root)
            await copy.wait()
            seconds = trio.current_time() - started
        if copy.store is not None:
            copy.store.remove()  # the next copy finds the same memory and disk
        return seconds
    raise AssertionError("the block returns or raises")


async def _copy(environment: Environment, file: Path, manifest: Manifest, storage: Storages) -> float:
    sender, receiver = environment.identity(-1), environment.identity(-2)  # identities that no peer of the fleet has
    listener = await environment.binding.listen(sender)
    source = DirectoryFile(file, writable=False)
    seconds = 0.0
    try:
        with contextlib.closing(storage("raw")) as disk:
            target = disk.open("raw-stream.data", create=True)
            target.allocate(manifest.size)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_send, listener, source, manifest.size)
                link = await environment.binding.dial(listener.address, receiver, sender.peer_id)
                try:
                    await link.handshake()
                    started = trio.current_time()
                    await _receive(environment.scratch, link, manifest, target)
                    seconds = trio.current_time() - started
                finally:
                    link.abort()
                nursery.cancel_scope.cancel()
            disk.remove("raw-stream.data")
    finally:
        source.close()
        await listener.aclose()
    return seconds


async def _send(listener: Listener, source: File, size: int) -> None:
    link = await listener.accept()
    try:
        await link.handshake()
        await link.send_file(source, 0, size)
        await link.send_eof()
        await trio.sleep_forever()  # the receiver has its bytes when it says so, not when they have left here
    finally:
        link.abort()


async def _receive(scratch: memoryview, link: Link, manifest: Manifest, target: File) -> None:
    for piece in range(manifest.pieces):
        left = manifest.piece_length(piece)
        offset = manifest.piece_offset(piece)
        hasher = blake3.blake3()
        while left:
            count = await link.receive_into(scratch[:left])
            if count == 0:
                raise LinkBroken("the raw stream ended early")
            hasher.update(scratch[:count])
            target.write(scratch[:count], offset)
            offset += count
            left -= count
        if hasher.digest() != manifest.piece_hash(piece):
            raise PeerViolation(f"the raw stream delivered a wrong piece {piece}")
