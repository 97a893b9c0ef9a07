"""The trace port: structured events of each peer, for tests, reports and whoever asks why.

An event is a time (the run's clock, seconds), the peer's name, a kind and plain fields. Tests assert on these, never
on text meant for people.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

Field: TypeAlias = str | int | float | bool | None


class Trace(Protocol):
    """Takes events. Called on hot paths and while cleaning up: an implementation must neither wait nor raise."""

    def emit(self, time: float, peer: str, kind: str, **fields: Field) -> None:
        """Note one event."""
        ...


class NoTrace:
    """Takes events and forgets them."""

    def emit(self, time: float, peer: str, kind: str, **fields: Field) -> None:
        pass
