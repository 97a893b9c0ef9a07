"""Errors whose type says who is to blame and whose message says what to do.

``LocalMisuse`` is the caller's fault, ``PeerViolation`` the remote peer's, ``LinkClosed`` and ``LinkBroken`` the
network's (an orderly end and a disorderly one), ``StorageFailed`` the disk's. ``LimitExceeded`` and
``DeadlineExceeded`` name the limit or the deadline that was reached.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId

__all__ = [
    "DeadlineExceeded",
    "FleetError",
    "LimitExceeded",
    "LinkBroken",
    "LinkClosed",
    "LocalMisuse",
    "PeerViolation",
    "StorageFailed",
]


class FleetError(Exception):
    """Base of every error that this library raises on purpose."""


class LocalMisuse(FleetError):
    """The calling program asked for something that cannot be; the message says what to ask for instead."""


class PeerViolation(FleetError):
    """A remote peer broke the protocol. ``peer`` names it where its identity had been proved."""

    def __init__(self, message: str, peer: PeerId | None = None) -> None:
        super().__init__(message)
        self.peer = peer


class LinkClosed(FleetError):
    """The link ended in order: the other side said goodbye, or this side closed it."""


class LinkBroken(FleetError):
    """The link ended without a goodbye: reset, refused, truncated or timed out."""


class StorageFailed(FleetError):
    """The disk refused: full, unreadable, unwritable or failing."""


class LimitExceeded(FleetError):
    """A named limit in ``fleet.limits`` was reached by this program's own request."""


class DeadlineExceeded(FleetError):
    """Work did not finish before its deadline."""


@contextmanager
def lone_error() -> Iterator[None]:
    """Around a nursery that callers do not know of: an error that is alone in its group is raised as itself."""
    try:
        yield
    except BaseExceptionGroup as group:
        if len(group.exceptions) != 1:
            raise
        (alone,) = group.exceptions
        context = alone.__context__
        try:
            raise alone
        finally:
            alone.__context__ = context  # not the group: an error would be its own context
