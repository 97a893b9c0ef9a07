"""What must hold of a content swarm under faults.

Safety: a piece that a peer takes for verified has the right bytes on its disk, and a crash that spares the disk costs
no verified piece. Then every fetcher must have the whole file. In some of the runs the origin leaves as soon as the
others hold every piece between them; it comes back after the faults if they have lost one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import trio

from fleet.errors import LocalMisuse

if TYPE_CHECKING:
    from fleet.fleet import Fleet
    from fleet.sim.world import Survival, World
    from fleet.swarm.holding import Holding
    from fleet.swarm.manifest import Manifest

ORIGIN: Final = 0
_ORIGIN_LEAVES: Final = 0.5
"""Chance that the origin leaves early."""
_LOOK_SECONDS: Final = (0.002, 1.0)
"""How often it looks whether it may: at first, and at last."""


class SwarmChecker:
    """The origin shares ``path``, everyone else fetches it. ``on_holding`` is told of each fetcher's new holding."""

    def __init__(
        self,
        world: World,
        fleet: Fleet,
        path: Path,
        manifest: Manifest,
        on_holding: Callable[[int, Holding], None],
    ) -> None:
        self._world = world
        self._fleet = fleet
        self._path = path
        self._manifest = manifest
        self._on_holding = on_holding
        self._content = path.read_bytes()
        self._spared: dict[int, int] = {}
        """By peer that crashed and whose disk is as it was: the pieces it held."""
        self._lost: set[int] = set()
        """Peers that have come back with less than they held."""
        self._leaving = trio.Event()
        self._leaving.set()
        """Unset while the origin says its goodbyes."""
        self._origin_leaves = world.rng("origin leaves").random() < _ORIGIN_LEAVES

    async def work(self, index: int, done: Callable[[], None]) -> None:
        """Share or fetch until all of it is held, and then serve."""
        peer = self._fleet[index]
        if self._manifest.root in peer.swarm.holdings:  # an attempt before this one failed half-way
            peer.swarm.leave(self._manifest.root)
        if index == ORIGIN:
            await peer.share(self._path, self._manifest.piece_size)
            done()
            if self._origin_leaves:
                await self._leave_when_possible()
            return
        spared = self._spared.pop(index, None)
        holding = await peer.fetch(self._manifest.root)
        if spared is not None and holding.verified < spared:
            self._lost.add(index)
        self._on_holding(index, holding)
        await holding.wait()
        done()
        raise await holding.fails()

    def inspect(self, index: int) -> list[str]:
        """See the module."""
        peer = self._fleet[index]
        wrong = ["a crash that spared the disk cost verified pieces"] if index in self._lost else []
        holding = peer.swarm.holdings.get(self._manifest.root)
        if index != ORIGIN and holding is not None and holding.store is not None:
            wrong += self._compare(index, holding)
        return wrong

    def _compare(self, index: int, holding: Holding) -> list[str]:
        store = holding.store
        assert store is not None  # noqa: S101 - the caller looked
        held = np.flatnonzero(store.have)
        if not len(held):
            return []
        try:
            stored = self._world.disk(f"peer-{index}").contents(store.file.name)
        except LocalMisuse:
            return ["a store that holds pieces has no file on the disk"]
        for piece in map(int, held):
            start = self._manifest.piece_offset(piece)
            end = start + self._manifest.piece_length(piece)
            if stored[start:end] != self._content[start:end]:
                return ["a piece that counts as verified has other bytes on the disk"]
        return []

    def going_down(self, index: int, survival: Survival) -> None:
        """Remember what must still be there when the peer is back."""
        holding = self._fleet[index].swarm.holdings.get(self._manifest.root)
        self._spared.pop(index, None)
        if survival == "keep" and index != ORIGIN and holding is not None:
            self._spared[index] = holding.verified

    async def healed(self) -> None:
        """Bring the origin back when it left and a piece has been lost since."""
        await self._leaving.wait()
        if not self._fleet.running(ORIGIN) and not self._others_hold_all():
            origin = await self._fleet.start(ORIGIN)
            await origin.share(self._path, self._manifest.piece_size)
            await self._fleet.join(ORIGIN, whole=False)

    async def _leave_when_possible(self) -> None:
        pause, longest = _LOOK_SECONDS
        while not self._others_hold_all():
            await trio.sleep(pause)
            pause = min(longest, 1.1 * pause)
        if self._fleet.running(ORIGIN):
            self._world.history.record("origin_leaves", f"peer-{ORIGIN}")
            self._leaving = trio.Event()
            try:
                await self._fleet.stop(ORIGIN)
            finally:
                self._leaving.set()

    def _others_hold_all(self) -> bool:
        """Whether the running fetchers have every piece between them."""
        between_them = np.zeros(self._manifest.pieces, np.bool_)
        for index in range(1, len(self._fleet)):
            if not self._fleet.running(index):
                continue
            holding = self._fleet[index].swarm.holdings.get(self._manifest.root)
            if holding is not None and holding.store is not None:
                between_them |= holding.store.have
        return bool(between_them.all())
