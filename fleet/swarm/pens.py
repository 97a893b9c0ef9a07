"""Who may write to a piece that is on its way in. Pure state.

At most one answer writes to a piece at a time: it *holds the pen*. A second one that arrives meanwhile is thrown away.
Whose pen is taken has lost it for good. A late answer, which nobody waits for any more, may take a free pen, but gives
it up to the first answer that is waited for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.swarm.source import Ask


@dataclass(slots=True, eq=False)
class Incoming:
    """One piece on its way in. While ``holds_pen``, its bytes are hashed and written; else they are thrown away."""

    peer: PeerId
    ask: Ask
    piece: int
    length: int
    holds_pen: bool
    lost_pen: bool = False
    """It held the pen once."""


class Pens:
    """The pens of one artifact, by piece."""

    def __init__(self) -> None:
        self._held: dict[int, Incoming] = {}

    def begin(self, peer: PeerId, ask: Ask, length: int, *, missing: bool) -> Incoming:
        """The answer to ``ask`` begins to arrive; it gets the pen if the piece is ``missing`` and nobody keeps it."""
        holder = self._held.get(ask.piece)
        if holder is not None and holder.ask.given_up and not ask.given_up:
            self.take(holder.ask)
            holder = None
        incoming = Incoming(peer, ask, ask.piece, length, holds_pen=missing and holder is None)
        if incoming.holds_pen:
            self._held[ask.piece] = incoming
        return incoming

    def take(self, ask: Ask) -> None:
        """Whatever is still to come for this request does not touch the piece."""
        incoming = self._held.get(ask.piece)
        if incoming is not None and incoming.ask is ask:
            incoming.holds_pen = False
            incoming.lost_pen = True
            del self._held[ask.piece]

    def put_down(self, incoming: Incoming) -> None:
        """The holder has written the whole piece."""
        del self._held[incoming.piece]

    def waited_for(self, piece: int) -> bool:
        """Whether somebody writes to the piece whose answer is waited for."""
        holder = self._held.get(piece)
        return holder is not None and not holder.ask.given_up
