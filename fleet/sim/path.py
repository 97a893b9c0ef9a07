"""What lies between two hosts: distributions of latency, the faults of a path, the rates of an access link.

All are plain values, so a scenario can print them and a schedule of faults can swap them while the network runs. Times
are seconds one way, rates bytes a second, chances 0 to 1. A value that makes no sense is ``LocalMisuse``.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from fleet.errors import LocalMisuse
from fleet.limits import KIB, MIB

MAX_DATAGRAM: Final = 65_507
"""Payload of the largest UDP datagram over IPv4 (RFC 768, RFC 791)."""


def _require_seconds(what: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise LocalMisuse(f"{what} is {value}: give seconds, 0 or more")


def _require_chance(what: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise LocalMisuse(f"{what} is {value}: give a chance from 0 to 1")


@dataclass(frozen=True, slots=True)
class Constant:
    """Always ``seconds``."""

    seconds: float

    def __post_init__(self) -> None:
        _require_seconds("latency", self.seconds)

    @property
    def typical(self) -> float:
        """The median, for estimates."""
        return self.seconds

    def draw(self, rng: random.Random) -> float:
        """One latency."""
        return self.seconds

    def times(self, factor: float) -> Constant:
        """The same, so many times as long."""
        return Constant(self.seconds * factor)


@dataclass(frozen=True, slots=True)
class Uniform:
    """Anything from ``low`` to ``high``, equally likely."""

    low: float
    high: float

    def __post_init__(self) -> None:
        _require_seconds("latency", self.low)
        _require_seconds("latency", self.high)
        if self.low > self.high:
            raise LocalMisuse(f"a latency from {self.low} to {self.high} is none: give the lower bound first")

    @property
    def typical(self) -> float:
        """The median, for estimates."""
        return (self.low + self.high) / 2

    def draw(self, rng: random.Random) -> float:
        """One latency."""
        return self.low + (self.high - self.low) * rng.random()

    def times(self, factor: float) -> Uniform:
        """The same, so many times as long."""
        return Uniform(self.low * factor, self.high * factor)


@dataclass(frozen=True, slots=True)
class LogNormal:
    """``median`` times e to the power of a normal draw with deviation ``sigma``: a body, and a long tail above it."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        _require_seconds("latency", self.median)
        if not 0 <= self.sigma <= 4:
            raise LocalMisuse(f"sigma is {self.sigma}: from 0 (always the median) to 4 (one in 40 is 2,500 times it)")

    @property
    def typical(self) -> float:
        """The median, for estimates."""
        return self.median

    def draw(self, rng: random.Random) -> float:
        """One latency."""
        return self.median * math.exp(rng.normalvariate(0.0, self.sigma))

    def times(self, factor: float) -> LogNormal:
        """The same, so many times as long."""
        return LogNormal(self.median * factor, self.sigma)


Latency: TypeAlias = Constant | Uniform | LogNormal


@dataclass(frozen=True, slots=True)
class Path:
    """One direction between two hosts, without their access links."""

    latency: Latency = field(default=Constant(0.001))
    """Never zero by accident: work that takes no time can go on for ever within one instant."""
    jitter: float = 0.0
    """Up to so many seconds more for each segment or datagram, drawn evenly. Streams keep their order nonetheless."""
    loss: float = 0.0
    """Chance that a datagram is lost, or that a stream's segment is sent again after a timeout."""
    duplication: float = 0.0
    """Chance that a datagram arrives twice."""
    reordering: float = 0.0
    """Chance that a datagram is held back for up to two latencies (two milliseconds at the least), and overtaken."""
    max_datagram: int = MAX_DATAGRAM
    """Larger datagrams vanish without a word: a black hole for path MTU discovery (RFC 4821)."""
    connect_seconds: float = 0.0
    """What opening a connection takes beyond its round trip."""
    refuse: float = 0.0
    """Chance that a connection is refused though somebody listens."""
    window: int = MIB
    """Bytes of one stream that may be under way or unread at the receiver (RFC 9293's window)."""
    crumble: float = 0.05
    """Chance that a segment is cut short at a random byte, and that a receive returns fewer bytes than have arrived."""

    def __post_init__(self) -> None:
        _require_seconds("jitter", self.jitter)
        _require_seconds("connect_seconds", self.connect_seconds)
        for name in ("loss", "duplication", "reordering", "refuse", "crumble"):
            _require_chance(name, getattr(self, name))
        if not 1 <= self.max_datagram <= MAX_DATAGRAM:
            raise LocalMisuse(f"max_datagram is {self.max_datagram:,}: give 1 to {MAX_DATAGRAM:,} bytes")
        if self.window < 1:
            raise LocalMisuse(f"a window of {self.window:,} bytes lets nothing through: give 1 or more")

    def degraded(self, factor: float, loss: float) -> Path:
        """This path with latencies ``factor`` times as long, and ``loss`` of what it carried besides its own."""
        survives = (1 - self.loss) * (1 - loss)
        return replace(self, latency=self.latency.times(factor), loss=1 - survives)

    def delay(self, rng: random.Random) -> float:
        """How long one segment or datagram is on its way."""
        if self.jitter:
            return self.latency.draw(rng) + self.jitter * rng.random()
        return self.latency.draw(rng)


@dataclass(frozen=True, slots=True)
class Rates:
    """One host's access link."""

    up: float | None = None
    """Bytes a second that leave; None is no limit."""
    down: float | None = None
    """Bytes a second that arrive; None is no limit."""
    queue_bytes: int = 256 * KIB
    """What may wait for the uplink: beyond it streams wait and datagrams are dropped. At the downlink it bounds
    datagrams alone, as the windows of streams bound them."""

    def __post_init__(self) -> None:
        for name, rate in (("up", self.up), ("down", self.down)):
            if rate is not None and not 0 < rate < math.inf:
                raise LocalMisuse(f"rate {name} is {rate}: give bytes a second above 0, or None for no limit")
        if self.queue_bytes < 1:
            raise LocalMisuse(f"a queue of {self.queue_bytes:,} bytes holds nothing: give 1 or more")


PathBetween: TypeAlias = Callable[[str, str], Path]
"""The path from a source host to a target host, by their names."""


def regions(
    matrix: Mapping[str, Mapping[str, float | Latency]], assignment: Mapping[str, str], base: Path | None = None
) -> PathBetween:
    """Paths by region: ``matrix[source region][target region]`` is the latency one way, a distribution or seconds.

    ``assignment`` maps hosts to regions, ``base`` holds everything but the latency. Raises ``LocalMisuse`` for a matrix
    that is not square, or a host in no region of it; for an unassigned host when its path is first wanted.
    """
    plain = Path() if base is None else base
    names = list(matrix)
    table: dict[tuple[str, str], Path] = {}
    for source, row in matrix.items():
        if set(row) != set(names):
            raise LocalMisuse(
                f"the matrix does not fit: region {source} has latencies to {', '.join(sorted(row)) or 'none'}, "
                f"but the regions are {', '.join(names)}"
            )
        for target, latency in row.items():
            drawn = latency if isinstance(latency, Constant | Uniform | LogNormal) else Constant(latency)
            table[source, target] = replace(plain, latency=drawn)
    for host, region in assignment.items():
        if region not in matrix:
            raise LocalMisuse(f"{host} is in region {region!r}, but the regions are {', '.join(names) or 'none'}")
    placed = dict(assignment)

    def between(source: str, target: str) -> Path:
        for host in (source, target):
            if host not in placed:
                raise LocalMisuse(f"{host} is in no region: assign it to one of {', '.join(names)}")
        return table[placed[source], placed[target]]

    return between
