"""The ports that a peer is built on: clock, chance, disk, network and the off-loop executor.

Production hands in the machine's own; a simulation hands in its own and nothing above notices. Deadlines use
``trio.current_time()``, which a simulation controls through trio's clock.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import time
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar

import blake3
import trio

from fleet.identity.keys import Identity
from fleet.limits import KIB
from fleet.trace import NoTrace, Trace

if TYPE_CHECKING:
    from fleet.net.link import Binding

T = TypeVar("T")

SCRATCH_SIZE = 1024 * KIB
"""A piece is received, hashed and written in blocks of at most this size: half of a core's level 2 cache."""

current_host: ContextVar[str | None] = ContextVar("current_host", default=None)
"""Which process a task belongs to in a simulation, where each peer of a fleet is one (``peer-3``); child tasks inherit
it, and pausing a process stops its tasks. None for tasks of no process. Nothing reads it outside of a simulation."""


class OffLoop(Protocol):
    """Runs work of milliseconds away from the event loop, and returns its result."""

    async def __call__(self, work: Callable[[], T], /) -> T: ...


_threads: trio.lowlevel.RunVar[trio.CapacityLimiter] = trio.lowlevel.RunVar("fleet off-loop threads")


async def in_thread(work: Callable[[], T], /) -> T:
    """The production executor: one thread a core, shared by all peers of the process."""
    try:
        limiter = _threads.get()
    except LookupError:
        limiter = trio.CapacityLimiter(os.cpu_count() or 1)
        _threads.set(limiter)
    return await trio.to_thread.run_sync(work, limiter=limiter)


def off_loop_checkpoint() -> None:
    """For work off the loop to call now and then: raises ``trio.Cancelled`` there when whoever waits was cancelled.

    Work that runs inline cannot be cancelled half-way, and goes on.
    """
    with contextlib.suppress(RuntimeError):  # not in a thread of trio's
        trio.from_thread.check_cancelled()


def derive(seed: int, purpose: str, index: int) -> bytes:
    """32 bytes that depend on all three and on nothing else."""
    material = f"{seed}/{index}/{purpose}".encode()
    return blake3.blake3(material, derive_key_context="peerfleet seed derivation 1").digest()


@dataclass(frozen=True, slots=True)
class PeerTrace:
    """The trace of one peer: its events carry its name and the time."""

    trace: Trace
    peer: str

    def emit(self, kind: str, **fields: str | float) -> None:
        """Note that something happened just now."""
        self.trace.emit(trio.current_time(), self.peer, kind, **fields)


@dataclass(frozen=True, slots=True)
class Environment:
    """What one fleet runs on. ``index`` in its methods is a peer's position in the fleet."""

    binding: Binding
    seed: int = 0
    off_loop: OffLoop = field(default=in_thread)
    entropy: Callable[[int], bytes] = field(default=secrets.token_bytes)
    trace: Trace = field(default_factory=NoTrace)
    wall_clock: Callable[[], float] = field(default=time.time)
    """Seconds since 1970, as far as this machine knows: it may be wrong, and jump."""
    scratch: memoryview = field(default_factory=lambda: memoryview(bytearray(SCRATCH_SIZE)))
    """Where every link of the fleet receives into. Never in use across a yield, so one block, hot in the processor's
    cache, serves them all."""

    def rng(self, purpose: str, index: int) -> random.Random:
        """A source of chance of its own for each purpose and peer, decided by the fleet's seed."""
        return random.Random(derive(self.seed, purpose, index))

    def identity(self, index: int) -> Identity:
        """The identity of the fleet's peer ``index``: a test identity, as anyone who knows the seed knows it."""
        return Identity(derive(self.seed, "identity", index))
