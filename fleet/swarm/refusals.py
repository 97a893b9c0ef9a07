"""Pieces that a source has REJECTed, until it may be asked for them again. Pure state.

A new BITFIELD of the source, or its end, makes what it refused before void.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fleet.identity.keys import PeerId
    from fleet.swarm.source import Source

RETRY_SECONDS: Final = 1.0
"""How long a piece that one source REJECTed is not asked of that source again."""


class Refusals:
    """The refusals of all sources of one artifact, in the order of their times."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[float, Source, int, int]] = deque()
        """Until when, by whom, after how many of its BITFIELDs, which piece."""

    def add(self, source: Source, piece: int, now: float) -> None:
        """``source`` does not serve this piece now."""
        self._waiting.append((now + RETRY_SECONDS, source, source.bitfields, piece))

    def take_due(self, sources: Mapping[PeerId, Source], now: float) -> list[tuple[Source, int]]:
        """Who of ``sources`` may be asked again for what."""
        due = []
        while self._waiting and self._waiting[0][0] <= now:
            _, source, bitfields, piece = self._waiting.popleft()
            if sources.get(source.peer) is source and source.bitfields == bitfields:
                due.append((source, piece))
        return due

    def next_deadline(self) -> float:
        """When ``take_due`` is next worth calling; infinity when nothing is refused."""
        return self._waiting[0][0] if self._waiting else inf
