"""Real peers, many in one process: identities, links, swarms.

The names below are the library's surface; everything else may change. ``Fleet`` is where to begin.
"""

from fleet.environment import Environment
from fleet.errors import (
    DeadlineExceeded,
    FleetError,
    LimitExceeded,
    LinkBroken,
    LinkClosed,
    LocalMisuse,
    PeerViolation,
    StorageFailed,
)
from fleet.fleet import BINDINGS, Fleet
from fleet.identity.keys import Identity, PeerId
from fleet.peer import Peer
from fleet.swarm.holding import Holding
from fleet.swarm.manifest import Manifest

__all__ = [
    "BINDINGS",
    "DeadlineExceeded",
    "Environment",
    "Fleet",
    "FleetError",
    "Holding",
    "Identity",
    "LimitExceeded",
    "LinkBroken",
    "LinkClosed",
    "LocalMisuse",
    "Manifest",
    "Peer",
    "PeerId",
    "PeerViolation",
    "StorageFailed",
]
