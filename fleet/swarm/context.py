"""What the parts of one peer's swarm service share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleet.environment import PeerTrace
    from fleet.errors import FleetError
    from fleet.identity.keys import PeerId
    from fleet.net.neighbour import Neighbour
    from fleet.swarm.alarm import Alarm
    from fleet.swarm.holding import Holding, Holdings


@dataclass(frozen=True, slots=True)
class SwarmContext:
    """The artifacts and the neighbours of one peer. Its transfer alone adds to them and takes away."""

    holdings: Holdings
    neighbours: dict[PeerId, Neighbour]
    trace: PeerTrace
    alarm: Alarm
    fail: Callable[[Holding, FleetError], None]
    """The artifact cannot go on here; the peer and its other artifacts can."""
