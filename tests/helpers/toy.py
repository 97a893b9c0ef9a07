"""Toy fleets and artifacts: peers on memory disks, a few pieces of noise, a trace to wait on."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.environment import Environment
from fleet.fleet import BINDINGS, Fleet
from fleet.sim.disk import SimDisk
from fleet.swarm.manifest import Manifest
from tests.helpers.events import Recorder

if TYPE_CHECKING:
    from fleet.storage import File

PIECE = 1_024


@dataclass(frozen=True)
class Artifact:
    """Bytes of noise and their manifest."""

    data: bytes
    manifest: Manifest

    @classmethod
    def of(cls, pieces: int = 32, piece_size: int = PIECE, *, size: int | None = None, seed: int = 1) -> Artifact:
        data = random.Random(seed).randbytes(pieces * piece_size if size is None else size)
        return cls(data, Manifest.of_file(memory_file(data), piece_size))

    @property
    def root(self) -> bytes:
        return self.manifest.root

    def piece(self, number: int) -> bytes:
        start = self.manifest.piece_offset(number)
        return self.data[start : start + self.manifest.piece_length(number)]

    def file(self) -> File:
        """A fresh open file of the data, for ``Peer.share``."""
        return memory_file(self.data)


def memory_file(data: bytes) -> File:
    file = SimDisk().open("artifact", create=True)
    file.write(data, 0)
    return file


@dataclass(frozen=True)
class Toy:
    """A fleet, its trace and its disks by peer."""

    fleet: Fleet
    trace: Recorder
    disks: dict[int, SimDisk]

    def blamed(self) -> set[bytes]:
        """Everyone whom any peer has banned."""
        return {bytes(peer_id) for peer in self.fleet.peers for peer_id in peer.banned}

    def is_mesh(self) -> bool:
        """Whether every running peer is a neighbour of every other."""
        running = [peer for peer in self.fleet.peers if self.fleet.running(peer.index)]
        return all(b.peer_id in a.neighbours for a in running for b in running if a is not b)


@asynccontextmanager
async def toy_fleet(
    peers: int, binding: str = "tcp", *, seed: int = 1, capacities: dict[int, int] | None = None
) -> AsyncIterator[Toy]:
    """Peers that are up and joined; ``capacities`` bounds the disks of some, in bytes."""
    trace = Recorder()
    disks = {index: SimDisk(capacity=(capacities or {}).get(index)) for index in range(peers)}
    environment = Environment(BINDINGS[binding](), seed, trace=trace)
    async with Fleet(peers, environment=environment, storage=disks.__getitem__) as fleet:
        yield Toy(fleet, trace, disks)


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """What was opened meanwhile is closed by now: nothing waits for the garbage collector."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert set(os.listdir("/proc/self/fd")) <= before
