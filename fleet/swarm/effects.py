"""What a download decides: effects, that whoever owns it performs in their order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.swarm.manifest import Manifest
    from fleet.wire.messages import Message


@dataclass(frozen=True, slots=True)
class Say:
    """Send a message to a neighbour."""

    peer: PeerId
    message: Message


@dataclass(frozen=True, slots=True)
class ManifestFound:
    """The manifest is complete and matches the root: make a store and call ``begin``."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A neighbour made no progress for too long and is backed off; the trace should say so."""

    peer: PeerId
    pieces: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Every piece is verified."""


Effect: TypeAlias = Say | ManifestFound | TimedOut | Finished
