"""What a peer tells its neighbours that it holds: BITFIELDs, HAVEs, and what an origin reveals to whom.

HAVEs are kept back a little, while the processor is busy, to travel with requests (``news``).
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

import numpy as np
import trio

from fleet.limits import HAVE_BATCH
from fleet.swarm.alarm import TIMER_SLACK
from fleet.swarm.bitfield import from_wire_untrusted, to_wire
from fleet.swarm.news import News
from fleet.wire.messages import Bitfield, Choke, Have, Join, SwarmMessage

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fleet.identity.keys import PeerId
    from fleet.net.neighbour import Neighbour
    from fleet.swarm.context import SwarmContext
    from fleet.swarm.holding import Holding


class Announcing:
    """All that one peer announces."""

    def __init__(self, context: SwarmContext) -> None:
        self._context = context
        self._news = News()

    # --- all that is held ---

    def send_bitfield(self, holding: Holding, neighbour: Neighbour) -> None:
        """Say what is held: nothing yet while the manifest is unknown, and nothing more after a failure."""
        if holding.store is None or holding.failure is not None:
            return
        have: NDArray[np.bool_] = holding.store.have
        if holding.super_seed is not None:
            # Pieces are revealed to those who take part; everyone else only hears that the manifest is here.
            if neighbour.peer in holding.members:
                neighbours = len(self._context.neighbours)
                have = holding.super_seed.bitfield(neighbour.peer, neighbours, trio.current_time())
                self._context.alarm.reconsider()  # what was offered just now may turn stale
            else:
                have = have & False
        holding.told.add(neighbour.peer)
        neighbour.send(Bitfield(holding.root, to_wire(have)))
        if holding.choked:
            neighbour.send(Choke(holding.root))

    def greet(self, holding: Holding, neighbour: Neighbour, message: SwarmMessage) -> None:
        """Make sure that a neighbour heard of for the first time knows that this peer takes part too.

        It may have come later than what this peer said before. Who holds the manifest answers a JOIN anyway; one that
        offers pieces hears of this peer when it is asked for one.
        """
        if isinstance(message, Join):
            if holding.store is None:
                neighbour.send(Join(holding.root))  # for its news; a member by now, it is not asked back
        elif holding.store is not None:
            self.send_bitfield(holding, neighbour)
        elif isinstance(message, Bitfield) and not any(message.bits):
            neighbour.send(Join(holding.root))

    # --- news ---

    def add_news(self, holding: Holding, peer: PeerId, piece: int | None, now: float, *, busy: bool) -> None:
        """A piece, or with None the manifest, is news to ``peer``. ``busy``: requests of either wait at the other."""
        age = now - holding.started_at
        alarm = self._context.alarm
        alarm.due_at(self._news.add(peer, holding.root, piece, now, age=age, busy=busy, lag=alarm.lag))

    def before_frame(self, neighbour: Neighbour) -> None:
        """Let the news travel with the frame that is about to go."""
        for root, pieces in self._news.take(neighbour.peer).items():
            holding = self._context.holdings.by_root.get(root)
            if holding is None:
                continue
            if neighbour.peer not in holding.told:
                self.send_bitfield(holding, neighbour)  # the first news: it holds this piece and says all else too
                continue
            for start in range(0, len(pieces), HAVE_BATCH):
                neighbour.send(Have(root, tuple(pieces[start : start + HAVE_BATCH])))

    def hurry_overdue(self, now: float) -> None:
        """News that has waited long enough goes out in a frame of its own."""
        for peer in self._news.overdue(now):
            self._context.neighbours[peer].wake()

    # --- super-seeding ---

    def elsewhere_untrusted(self, holding: Holding, message: Bitfield) -> None:
        """What a neighbour holds when it joins has gone out before, perhaps from an earlier run of this origin."""
        if holding.super_seed is None or holding.store is None:
            return
        held = from_wire_untrusted(message.bits, holding.store.manifest.pieces) & holding.super_seed.unsent
        holding.super_seed.held_elsewhere(map(int, np.flatnonzero(held)), trio.current_time())
        self.reveal_all_round(holding)
        self._context.alarm.reconsider()

    def sent(self, holding: Holding, peer: PeerId, piece: int) -> None:
        """A piece has gone out to ``peer``."""
        if holding.super_seed is None:
            return
        holding.super_seed.sent(piece, trio.current_time())
        self._reveal_more(holding, peer)
        self._context.alarm.reconsider()

    def _reveal_more(self, holding: Holding, peer: PeerId) -> None:
        if holding.super_seed is not None:
            more = holding.super_seed.more(peer, len(self._context.neighbours), trio.current_time())
            if more:
                self._context.neighbours[peer].send(Have(holding.root, tuple(more)))
                self._context.alarm.reconsider()

    def reveal_all_round(self, holding: Holding) -> None:
        """Offer what may be offered by now: once every piece has gone out, all of them to everyone."""
        if holding.super_seed is None:
            return
        if holding.super_seed.done(trio.current_time()):
            holding.super_seed = None
            self._context.trace.emit("super_seed_done", root=holding.root.hex())
            for peer in holding.members:
                self.send_bitfield(holding, self._context.neighbours[peer])
        for peer in holding.members:
            self._reveal_more(holding, peer)

    # --- ends ---

    def forget_member(self, holding: Holding, peer: PeerId) -> None:
        """A neighbour takes no part any more."""
        holding.told.discard(peer)
        if holding.super_seed is not None:
            holding.super_seed.remove(peer)
            self.reveal_all_round(holding)

    def forget_neighbour(self, peer: PeerId) -> None:
        """A neighbour is gone."""
        self._news.forget_neighbour(peer)

    def forget_artifact(self, holding: Holding) -> None:
        """There is nothing more to tell of an artifact."""
        self._news.forget_artifact(holding.root)

    # --- time ---

    def next_deadline(self) -> float:
        """When ``hurry_overdue``, or ``reveal_all_round`` for some artifact, is next worth calling."""
        reveals = [
            holding.super_seed.next_deadline()
            for holding in self._context.holdings.by_root.values()
            if holding.super_seed is not None
        ]
        reveal_at = max(min(reveals), trio.current_time() + TIMER_SLACK) if reveals else inf
        return min(self._news.next_deadline(), reveal_at)
