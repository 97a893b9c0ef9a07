"""When to dial lost neighbours again. Sans-IO: events and ``now`` go in, who is due comes out.

A neighbour that is kept, and has no link, is dialled after a pause that doubles with every dial, from ``FIRST_SECONDS``
to ``LONGEST_SECONDS``. A link that lived for ``STEADY_SECONDS`` starts the pauses anew; one that breaks sooner does
not, so that a neighbour which comes and goes is not dialled without end. Each pause is drawn from its upper half:
peers that lost each other at one instant, as at a partition's end, come back spread out, and of two that keep each
other one usually dials first.

Where to: its last hello said where it listens, which it may have wrong, or be lying; so every second dial goes to the
address that it was kept at.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from random import Random

    from fleet.identity.keys import PeerId

FIRST_SECONDS: Final = 0.25
LONGEST_SECONDS: Final = 8.0
STEADY_SECONDS: Final = 10.0
_MOST_DOUBLINGS: Final = 16
"""More than ``LONGEST_SECONDS`` needs; the number of dials itself has no end."""


@dataclass(frozen=True, slots=True)
class Redial:
    """Dial ``peer`` at ``address`` now, for the ``attempt``-th time since a steady link to it; then say ``dialled``."""

    peer: PeerId
    address: str
    attempt: int


@dataclass(slots=True)
class _Kept:
    address: str
    told: str = ""
    up_since: float | None = None
    due: float = inf
    dialling: bool = False
    attempts: int = 0


class Redials:
    """The neighbours that a peer keeps. ``rng`` draws the pauses."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng
        self._kept: dict[PeerId, _Kept] = {}

    def __contains__(self, peer: PeerId) -> bool:
        return peer in self._kept

    def keep(self, peer: PeerId, address: str, now: float, *, up: bool) -> None:
        """Keep it from now on, at this address; ``up`` says that it has a link."""
        kept = self._kept.setdefault(peer, _Kept(address))
        kept.address = address
        if not up:
            self._schedule(kept, now)
        elif kept.up_since is None:
            kept.up_since = now

    def let_go(self, peer: PeerId) -> None:
        """Do not dial it any more."""
        self._kept.pop(peer, None)

    def up(self, peer: PeerId, address: str, now: float) -> None:
        """It has a link, whoever dialled; its hello says that it listens at ``address``."""
        kept = self._kept.get(peer)
        if kept is not None:
            kept.told = address
            kept.up_since = now
            kept.due = inf

    def down(self, peer: PeerId, now: float) -> None:
        """The link that was ``up`` has ended."""
        kept = self._kept.get(peer)
        if kept is not None and kept.up_since is not None:
            if now - kept.up_since >= STEADY_SECONDS:
                kept.attempts = 0
            kept.up_since = None
            self._schedule(kept, now)

    def dialled(self, peer: PeerId, now: float) -> None:
        """The dial that ``take_due`` asked for is over. What came of it, ``up`` has told."""
        kept = self._kept.get(peer)
        if kept is not None:
            kept.dialling = False
            if kept.up_since is None:
                self._schedule(kept, now)

    def next_due(self) -> float:
        """When ``take_due`` is next worth calling."""
        return min((kept.due for kept in self._kept.values() if not kept.dialling), default=inf)

    def take_due(self, now: float, banned: Container[PeerId]) -> list[Redial]:
        """Whom to dial now. Who is ``banned`` is looked at again later."""
        redials = []
        for peer, kept in self._kept.items():
            if kept.due > now or kept.dialling:
                continue
            if peer in banned:
                kept.due = now + LONGEST_SECONDS
                continue
            kept.due = inf
            kept.dialling = True
            kept.attempts += 1
            told = kept.told if kept.attempts % 2 else ""
            redials.append(Redial(peer, told or kept.address, kept.attempts))
        return redials

    def _schedule(self, kept: _Kept, now: float) -> None:
        """The next dial, unless one is under way or set already."""
        if kept.due == inf and not kept.dialling:
            pause = min(LONGEST_SECONDS, FIRST_SECONDS * 2 ** min(kept.attempts, _MOST_DOUBLINGS))
            kept.due = now + pause * (1 + self._rng.random()) / 2
