"""A time axis that gives bursts the room and long silences little of it.

The rule: time never runs backward and within a span it runs evenly. Where the spans lie follows from the data: they are
Bayesian blocks (Scargle et al. 2013, the dynamic programme for event data), the likeliest piecewise constant rate of
events. A span's room grows with its events and, far slower, with its length. Positions are in points, downward from 0.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

_MAX_SPANS: Final = 12
_LEAST_ROOM: Final = 14.0
"""Points of the least span: a tick's label has room."""
_MAX_CELLS: Final = 1_200
"""Moments that the search looks at, as it takes quadratic time; of more, every second, third, … and the widest gaps."""
_PENALTY: Final = 8.0
"""What one more span must gain in log-likelihood; messages come in pairs of moments, so more than for lone events."""
_QUIET_SHARE: Final = 0.6
_CUT_SHORT: Final = 5.0
"""A span is quiet if nothing happens in so much of it, and its scale is so many times the finest."""


@dataclass(frozen=True, slots=True)
class Span:
    """Time from ``begin`` to ``end``, shown from ``top`` to ``bottom``."""

    begin: float
    end: float
    top: float
    bottom: float
    quiet: bool
    """Next to nothing happens in it, and it is cut short."""

    @property
    def seconds_per_point(self) -> float:
        """How much time a point is."""
        return (self.end - self.begin) / (self.bottom - self.top)


@dataclass(frozen=True, slots=True)
class TimeAxis:
    """Spans without gaps between them, in order; at least one."""

    spans: tuple[Span, ...]

    def position(self, time: float) -> float:
        """Where a time is; outside of the axis, its nearer end."""
        index = bisect.bisect_right(self.spans, time, key=lambda span: span.begin) - 1
        span = self.spans[max(index, 0)]
        inside = min(max(time, span.begin), span.end)
        return span.top + (inside - span.begin) / span.seconds_per_point

    def ticks(self, room: float) -> list[tuple[float, str]]:
        """Position and label of ticks at round times, at least ``room`` points apart.

        Spans that are too short for a round time of their own have none.
        """
        found: list[tuple[float, str]] = []
        for span in self.spans:
            step = _round_up(span.seconds_per_point * room)
            digits = max(0, -math.floor(math.log10(step) + 1e-9))
            for count in range(math.ceil(span.begin / step - 1e-6), math.floor(span.end / step + 1e-6) + 1):
                at = self.position(count * step)
                if not found or at - found[-1][0] >= room - 1e-6:
                    found.append((at, f"{count * step:.{digits}f}"))
        return found


def time_axis(times: Sequence[float], height: float) -> TimeAxis:
    """The axis of ``height`` points for events at ``times``, in any order; at least one."""
    moments, counts = _moments(times)
    if len(moments) == 1:
        return TimeAxis((Span(moments[0], moments[0] + 1.0, 0.0, height, quiet=False),))
    edges = _edges(moments)
    penalty = _PENALTY
    while len(cuts := _blocks(edges, counts, penalty)) - 1 > _MAX_SPANS:
        penalty *= 1.5
    weights = []
    for first, last in itertools.pairwise(cuts):
        weights.append(sum(counts[first:last]) ** 0.5 * (edges[last] - edges[first]) ** 0.15)
    least = min(_LEAST_ROOM, height / len(weights) / 2)
    spare = (height - least * len(weights)) / sum(weights)
    spans: list[Span] = []
    top = 0.0
    for (first, last), weight in zip(itertools.pairwise(cuts), weights, strict=True):
        begin, end, bottom = edges[first], edges[last], top + least + spare * weight
        stops = [begin, *moments[first:last], end]
        widest = max(after - before for before, after in itertools.pairwise(stops))
        spans.append(Span(begin, end, top, bottom, quiet=widest >= _QUIET_SHARE * (end - begin)))
        top = bottom
    finest = min(span.seconds_per_point for span in spans)
    return TimeAxis(
        tuple(replace(span, quiet=span.quiet and span.seconds_per_point >= _CUT_SHORT * finest) for span in spans)
    )


def _moments(times: Sequence[float]) -> tuple[list[float], list[int]]:
    """The distinct times in order, and how many events each stands for."""
    ordered = sorted(times)
    grain = max((ordered[-1] - ordered[0]) * 1e-9, 1e-9)  # closer ones differ by rounding
    moments, counts = [ordered[0]], [0]
    for time in ordered:
        if time - moments[-1] > grain:
            moments.append(time)
            counts.append(0)
        counts[-1] += 1
    if len(moments) <= _MAX_CELLS:
        return moments, counts
    gaps = sorted(range(1, len(moments)), key=lambda index: moments[index - 1] - moments[index])
    wide = gaps[: _MAX_CELLS // 4]
    every = range(0, len(moments), math.ceil(2 * len(moments) / _MAX_CELLS))
    kept = sorted({*every, *wide, *(index - 1 for index in wide), len(moments) - 1})
    merged = [sum(counts[first:after]) for first, after in itertools.pairwise([*kept, len(moments)])]
    return [moments[index] for index in kept], merged


def _edges(moments: Sequence[float]) -> list[float]:
    """Between which times each moment is the nearest."""
    middles = [(before + after) / 2 for before, after in itertools.pairwise(moments)]
    return [moments[0], *middles, moments[-1]]


def _blocks(edges: Sequence[float], counts: Sequence[int], penalty: float) -> list[int]:
    """The indexes of the edges at which the likeliest blocks begin, and of the last edge."""
    import numpy as np

    edge = np.asarray(edges)
    before = np.concatenate(([0], np.cumsum(counts)))
    best = np.zeros(len(edges))
    start = np.zeros(len(edges), dtype=int)
    for end in range(1, len(edges)):
        events = before[end] - before[:end]
        fitness = events * np.log(events / (edge[end] - edge[:end])) - penalty + best[:end]
        start[end] = np.argmax(fitness)
        best[end] = fitness[start[end]]
    cuts = [len(edges) - 1]
    while cuts[-1] > 0:
        cuts.append(int(start[cuts[-1]]))
    return cuts[::-1]


def _round_up(step: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * (1 - 1e-9))
