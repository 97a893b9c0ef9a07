"""The endgame: which request that is out to send to an idle source too. Pure, a decision over a snapshot.

When every missing piece is asked for, a source without work may be asked for a piece that another has been sitting on
for long. A piece that is arriving already is taken from its source only where that one crawls: the two cannot both
write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from fleet.swarm.manifest import Manifest
    from fleet.swarm.pens import Pens
    from fleet.swarm.picker import Picker
    from fleet.swarm.source import Ask, Source

ENDGAME_SECONDS: Final = 0.1
"""How often the endgame looks for a request worth repeating elsewhere."""
MAX_COPIES: Final = 2
"""Requests out for one piece in the endgame."""


@dataclass(frozen=True, slots=True)
class Requests:
    """All that is out for one artifact; nothing here is written to."""

    manifest: Manifest
    picker: Picker
    pens: Pens
    sources: Iterable[Source]
    awaited: Mapping[int, int]
    """For each piece, the requests that are out and not given up."""


def worth_repeating(requests: Requests, source: Source, now: float) -> tuple[Source, Ask] | None:
    """The oldest request that ``source`` would likely answer sooner than who has it now, and who that is."""
    oldest: Ask | None = None
    holder = source
    for other in requests.sources:
        if other is source:
            continue
        for ask in other.asks.values():
            if (
                not ask.given_up
                and (oldest is None or ask.sent_at < oldest.sent_at)
                and requests.awaited.get(ask.piece, 0) < MAX_COPIES
                and requests.picker.offers(source.number, ask.piece)
                and _gains(requests, source, other, ask, now)
            ):
                oldest, holder = ask, other
    return None if oldest is None else (holder, oldest)


def _gains(requests: Requests, source: Source, other: Source, ask: Ask, now: float) -> bool:
    if ask.begun:
        return source.would_outrun(other, ask, requests.manifest.piece_length(ask.piece), now)
    if requests.pens.waited_for(ask.piece):
        return False
    return source.would_beat(other, now - ask.sent_at)
