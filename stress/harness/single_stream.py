"""The baseline that a swarm is measured against: the same bytes over one stream between two identities.

Same binding, same handshake of the channel, same work per byte at the receiver (each piece hashed against the manifest
and written to a preallocated file), but one link, one sender, one receiver and no protocol above. Nothing that moves
this file from one peer to another over this binding is simpler.
"""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Final

import blake3
import trio

from fleet.errors import LinkBroken, PeerViolation

if TYPE_CHECKING:
    from fleet.environment import Environment
    from fleet.net.link import Link, Listener
    from fleet.storage import File, Storage
    from fleet.swarm.manifest import Manifest

MIN_BYTES: Final = 256 * 1024 * 1024
"""A small artifact is copied again until so much has moved, and the median counts: one copy of it lasts mere
milliseconds."""
MAX_COPIES: Final = 16


async def single_stream_seconds(environment: Environment, file: File, manifest: Manifest, storage: Storage) -> float:
    """The median seconds of a copy of ``file`` into ``storage``, over as many copies as ``MIN_BYTES`` takes.

    An empty artifact takes one copy of nothing. Raises ``PeerViolation`` when the bytes that arrive are not the
    manifest's.
    """
    copies = min(MAX_COPIES, max(1, -(-MIN_BYTES // max(1, manifest.size))))
    return statistics.median([await _copy_to_new(environment, file, manifest, storage) for _ in range(copies)])


async def _copy_to_new(environment: Environment, file: File, manifest: Manifest, storage: Storage) -> float:
    """One copy into a file of its own: as in the swarm, the kernel finds each page for the first time."""
    target = storage.open("single-stream.data", create=True)
    try:
        target.allocate(manifest.size)
        return await _copy(environment, file, manifest, target)
    finally:
        target.close()
        storage.remove("single-stream.data")


async def _copy(environment: Environment, file: File, manifest: Manifest, target: File) -> float:
    # Two identities that no peer of the fleet has.
    sender, receiver = environment.identity(-1), environment.identity(-2)
    listener = await environment.binding.listen(sender)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_send, listener, file, manifest.size)
            link = await environment.binding.dial(listener.address, receiver, sender.peer_id)
            try:
                await link.handshake()
                started = trio.current_time()
                await _receive(environment, link, manifest, target)
                return trio.current_time() - started
            finally:
                link.abort()
                nursery.cancel_scope.cancel()
    finally:
        await listener.aclose()
    raise AssertionError("the nursery's block returns or raises")


async def _send(listener: Listener, file: File, size: int) -> None:
    link = await listener.accept()
    try:
        await link.handshake()
        await link.send_file(file, 0, size)
        await link.send_eof()
        await trio.sleep_forever()  # the receiver has its bytes when it says so, not when they have left here
    finally:
        link.abort()


async def _receive(environment: Environment, link: Link, manifest: Manifest, target: File) -> None:
    scratch = environment.scratch
    for piece in range(manifest.pieces):
        length = manifest.piece_length(piece)
        offset = manifest.piece_offset(piece)
        hasher = blake3.blake3()
        while length:
            count = await link.receive_into(scratch[:length])
            if count == 0:
                raise LinkBroken("the single stream ended early")
            block = scratch[:count]
            hasher.update(block)
            target.write(block, offset)
            offset += count
            length -= count
        if hasher.digest() != manifest.piece_hash(piece):
            raise PeerViolation(f"the single stream delivered a wrong piece {piece}")
