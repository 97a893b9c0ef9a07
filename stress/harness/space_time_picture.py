"""What a space-time picture shows: plain data, and how each kind of thing looks.

``stress.harness.space_time`` makes a ``Picture`` of a run's events, ``stress.harness.space_time_paint`` draws it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

INK: Final = "#343a40"
RED: Final = "#c92a2a"


@dataclass(frozen=True, slots=True)
class Look:
    """How one kind of thing is drawn: its colour, and what the legend calls it."""

    colour: str
    legend: str
    width: float = 0.0


LINES: Final[Mapping[str, Look]] = {
    "message": Look("#1f6feb", "message", 0.5),
    "late": Look("#e8590c", "late: lost or held on its way", 0.9),
}
MARKS: Final[Mapping[str, Look]] = {
    "piece": Look("#2b8a3e", "piece verified"),
    "complete": Look("#2b8a3e", "all pieces"),
    "lost": Look(RED, "lost"),
    "up": Look("#0b7285", "link up"),
    "down": Look("#0b7285", "link down"),
    "crash": Look(INK, "crash"),
    "restart": Look(INK, "restart"),
    "clock": Look("#e0a800", "clock moved"),
    "disk": Look("#a0522d", "disk fault"),
    "trouble": Look(RED, "failed, banned"),
}
BARS: Final[Mapping[str, Look]] = {
    "pause": Look("#868e96", "paused", 7.0),
    "clog": Look("#9c36b5", "clogged", 2.4),
    "slow": Look("#a0522d", "disk slow or full", 2.4),
    "degrade": Look("#5c940d", "paths degraded", 2.4),
}
SIDES: Final = ("#f08c00", "#7048e8")
"""The sides of a partition, of which the other hears nothing, or nothing is heard."""
PHASE: Final = "phase"
FAILURE: Final = "failure"


@dataclass(frozen=True, slots=True)
class Message:
    """``source`` to ``target``; ``late`` when its route lost or held something while it was under way."""

    sent: float
    source: str
    arrived: float
    target: str
    late: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """One thing of a kind in ``MARKS`` at a host. What was lost came from ``source``."""

    time: float
    host: str
    kind: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """What lasted, of a kind in ``BARS`` or ``down``, at a host."""

    begin: float
    end: float
    host: str
    kind: str


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition between hosts ``a`` and hosts ``b``."""

    begin: float
    end: float
    a: tuple[str, ...]
    b: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Note:
    """A line beside the picture. Of too many, those of lower ``rank`` go first; ``kind`` decides the colour."""

    time: float
    kind: str
    text: str
    rank: int


@dataclass(frozen=True, slots=True)
class Picture:
    """All that is drawn. ``hosts`` are the columns; what happens elsewhere is not shown."""

    hosts: tuple[str, ...]
    messages: Sequence[Message] = ()
    marks: Sequence[Mark] = ()
    bars: Sequence[Bar] = ()
    cuts: Sequence[Cut] = ()
    notes: Sequence[Note] = ()
    failed: str = ""
    """The host whose failure it was, where one is to blame."""

    def times(self) -> list[float]:
        """When anything happened."""
        found = [time for each in self.messages for time in (each.sent, each.arrived)]
        found += [mark.time for mark in self.marks]
        found += [note.time for note in self.notes]
        found += [time for bar in self.bars for time in (bar.begin, bar.end)]
        found += [time for cut in self.cuts for time in (cut.begin, cut.end)]
        return found
