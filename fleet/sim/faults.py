"""Which faults strike a fleet, whom, when and for how long: written down, or drawn from a seed.

The text form is a list of items with commas between them. Either it says what to draw::

    crash=2,partition=1,clog=3,pause=1,skew_ms=200,disk=torn,seconds=10

or, strike by strike, what to do, ``kind@at+seconds:peers[-others][:detail]``, which is what a drawn schedule is printed
as, so that a run can be repeated with fewer of them::

    crash@0.31+1.2:3:torn,partition@0.2+25:0.1-2.3.4,clog@0.05+3:1-4

Times are virtual seconds since the faults began, peers the fleet's indexes. ``fleet.sim.chaos`` performs a schedule.
Starts and lengths are drawn evenly on a logarithmic scale: what matters in a run happens within milliseconds of its
start as often as within seconds, and timeouts of tens of seconds must be outlasted too.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet.errors import LocalMisuse

__all__ = ["KINDS", "SURVIVALS", "Faults", "Strike", "format_schedule", "parse_faults"]

SURVIVALS: Final = ("keep", "drop", "torn", "reorder", "flip", "wipe")
"""What a crash leaves of the disk: as ``fleet.sim.disk`` has them, and all but some flipped bits, and nothing."""

IO_OPERATIONS: Final = ("open", "allocate", "read", "write", "truncate", "sync")
"""What an ``io`` fault fails."""

DEFAULT_SECONDS: Final = 10.0
_MAX_COUNT: Final = 1_000
_MAX_SECONDS: Final = 3_600.0
_LATEST_OVER_EARLIEST: Final = 3_000.0
_SHORTEST: Final = 0.001
_LONGEST: Final = 45.0
"""Seconds: longer than any timeout of a link or a neighbour."""
_MAX_JUMP_SECONDS: Final = 3_600.0


@dataclass(frozen=True, slots=True)
class Strike:
    """One fault: ``kind`` strikes ``hosts`` (peers' indexes) at ``at`` and ends ``seconds`` later.

    ``others`` is the far side of a partition, clog or reset. ``detail``: what a crash leaves of the disk, the operation
    that an io fault fails, ``one-way`` of a partition, ``FACTORxLOSS`` of a degradation, seconds of a skew or jump.
    """

    kind: str
    at: float
    seconds: float
    hosts: tuple[int, ...]
    others: tuple[int, ...] = ()
    detail: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise LocalMisuse(f"there is no fault {self.kind!r}: use {', '.join(KINDS)}")
        for name, value in (("start", self.at), ("length", self.seconds)):
            if not 0 <= value <= _MAX_SECONDS:
                raise LocalMisuse(
                    f"the {name} of {self.kind} is {value:g}: give 0 to {_MAX_SECONDS:,g} virtual seconds"
                )
        KINDS[self.kind].check(self)
        if self.kind in ("skew", "jump") and not abs(self.number) <= _MAX_JUMP_SECONDS:
            raise LocalMisuse(
                f"{self.kind} by {self.detail} seconds: give at most {_MAX_JUMP_SECONDS:,.0f}, either way"
            )

    def __str__(self) -> str:
        others = f"-{_peers(self.others)}" if self.others else ""
        detail = f":{self.detail}" if self.detail else ""
        return f"{self.kind}@{self.at:.12g}+{self.seconds:.12g}:{_peers(self.hosts)}{others}{detail}"

    @property
    def end(self) -> float:
        """When it is over."""
        return self.at + self.seconds

    @property
    def number(self) -> float:
        """The detail of a skew or jump: seconds."""
        return float(self.detail)

    @property
    def degradation(self) -> tuple[float, float]:
        """The detail of a degradation: by what latencies are multiplied, and the loss that is added."""
        factor, _, loss = self.detail.partition("x")
        return float(factor), float(loss)


def format_schedule(strikes: Sequence[Strike]) -> str:
    """The text that ``parse_faults`` reads as these strikes."""
    return ",".join(map(str, strikes))


def _peers(indexes: Sequence[int]) -> str:
    return ".".join(map(str, indexes))


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind of fault is drawn and what its strikes look like."""

    lasts: bool
    far_side: bool
    detail: str | None
    """A pattern for the detail; None where it must be empty."""
    detail_hint: str
    draw: Callable[[random.Random, int, str], tuple[tuple[int, ...], tuple[int, ...], str]]
    """Hosts, others and detail, for so many peers and the ``disk`` setting."""

    def check(self, strike: Strike) -> None:
        """Raise ``LocalMisuse`` for a strike that cannot be performed."""
        if not strike.hosts:
            raise LocalMisuse(f"{strike.kind} strikes nobody: name peers, as in crash@0.5+1:3")
        if len(set(strike.hosts + strike.others)) < len(strike.hosts + strike.others):
            raise LocalMisuse(f"{strike.kind} names a peer twice: {_peers(strike.hosts)}-{_peers(strike.others)}")
        if self.far_side != bool(strike.others):
            how = "two sides, as in 0.1-2.3" if self.far_side else "one side"
            raise LocalMisuse(f"{strike.kind} has {how}")
        if not self.lasts and strike.seconds:
            raise LocalMisuse(f"{strike.kind} is over at once: give it 0 seconds")
        if re.fullmatch(self.detail or "", strike.detail) is None:
            raise LocalMisuse(f"{strike.kind} with {strike.detail!r}: {self.detail_hint}")


def _one(rng: random.Random, peers: int) -> tuple[int, ...]:
    return (rng.randrange(peers),)


def _draw_crash(rng: random.Random, peers: int, disk: str) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    how = rng.choice(SURVIVALS) if disk == "any" else disk
    return _one(rng, peers), (), how + ("/silent" if rng.random() < 0.5 else "")


def _draw_pause(rng: random.Random, peers: int, _disk: str) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    return _one(rng, peers), (), ""


def _draw_partition(rng: random.Random, peers: int, _disk: str) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    order = rng.sample(range(peers), peers)
    size = rng.randint(1, peers - 1)
    return tuple(sorted(order[:size])), tuple(sorted(order[size:])), "one-way" if rng.random() < 0.3 else ""


def _draw_pair(rng: random.Random, peers: int, _disk: str) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    here, there = rng.sample(range(peers), 2)
    return (here,), (there,), ""


def _draw_degrade(rng: random.Random, peers: int, _disk: str) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    factor, loss = rng.choice((1, 5, 20, 100)), rng.choice((0, 0.02, 0.1, 0.3))
    return _one(rng, peers), (), f"{factor}x{loss:g}"


def _draw_jump(rng: random.Random, peers: int, _disk: str) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    size = _log_uniform(rng, 0.01, _MAX_JUMP_SECONDS)
    return _one(rng, peers), (), f"{size * rng.choice((-1, 1)):.3g}"


def _draw_io(rng: random.Random, peers: int, _disk: str) -> tuple[tuple[int, ...], tuple[int, ...], str]:
    return _one(rng, peers), (), rng.choice(IO_OPERATIONS)


_SECONDS: Final = r"-?\d+(\.\d+)?(e[+-]?\d+)?"
_SHIFT: Final = "its detail is by how many seconds the clock is off, as in jump@1+0:2:-30"
_NONE: Final = "it takes no detail"

KINDS: Final[Mapping[str, _Kind]] = {
    "crash": _Kind(
        lasts=True,
        far_side=False,
        detail=f"({'|'.join(SURVIVALS)})(/silent)?",
        detail_hint=f"its detail is one of {', '.join(SURVIVALS)}, with /silent behind it when nobody is told",
        draw=_draw_crash,
    ),
    "pause": _Kind(lasts=True, far_side=False, detail=None, detail_hint=_NONE, draw=_draw_pause),
    "partition": _Kind(
        lasts=True,
        far_side=True,
        detail="(one-way)?",
        detail_hint="its detail is one-way, or nothing",
        draw=_draw_partition,
    ),
    "clog": _Kind(lasts=True, far_side=True, detail=None, detail_hint=_NONE, draw=_draw_pair),
    "reset": _Kind(lasts=False, far_side=True, detail=None, detail_hint=_NONE, draw=_draw_pair),
    "degrade": _Kind(
        lasts=True,
        far_side=False,
        detail=r"[1-9]\d{0,3}(\.\d{1,6})?x(0(\.\d{1,6})?)",
        detail_hint="its detail is FACTORxLOSS, as in 20x0.1: latencies twentyfold, one segment in ten lost",
        draw=_draw_degrade,
    ),
    "skew": _Kind(lasts=False, far_side=False, detail=_SECONDS, detail_hint=_SHIFT, draw=_draw_jump),
    "jump": _Kind(lasts=False, far_side=False, detail=_SECONDS, detail_hint=_SHIFT, draw=_draw_jump),
    "io": _Kind(
        lasts=True,
        far_side=False,
        detail="|".join(IO_OPERATIONS),
        detail_hint=f"its detail is the operation that fails: {', '.join(IO_OPERATIONS)}",
        draw=_draw_io,
    ),
    "full": _Kind(lasts=True, far_side=False, detail=None, detail_hint=_NONE, draw=_draw_pause),
    "slow": _Kind(lasts=True, far_side=False, detail=None, detail_hint=_NONE, draw=_draw_pause),
}
"""Every kind of fault. Of ``skew``, ``skew_ms`` gives each peer one; the others are counted."""

COUNTED: Final = tuple(kind for kind in KINDS if kind != "skew")


@dataclass(frozen=True, slots=True)
class Faults:
    """What to inject: so many of each kind, or the ``given`` strikes."""

    counts: Mapping[str, int] = field(default_factory=dict)
    skew_ms: float = 0.0
    """Each peer's clock is off by up to so much, either way, from the start."""
    disk: str = "any"
    """What crashes leave of the disk; ``any`` draws one for each."""
    seconds: float = DEFAULT_SECONDS
    """Strikes begin within so many virtual seconds."""
    given: tuple[Strike, ...] = ()

    def schedule(self, rng: random.Random, peers: int) -> tuple[Strike, ...]:
        """The strikes on a fleet of so many peers, in order of time; raises ``LocalMisuse`` when they do not fit it."""
        if self.given:
            highest = max(index for strike in self.given for index in strike.hosts + strike.others)
            if highest >= peers:
                raise LocalMisuse(f"the faults strike peer {highest}, and the fleet has peers 0 to {peers - 1}")
            return tuple(sorted(self.given, key=lambda strike: strike.at))
        strikes = []
        if self.skew_ms:
            for peer in range(peers):
                shift = rng.uniform(-self.skew_ms, self.skew_ms) / 1e3
                strikes.append(Strike("skew", 0.0, 0.0, (peer,), detail=f"{shift:.3f}"))
        for kind, count in self.counts.items():
            if KINDS[kind].far_side and peers < 2:
                raise LocalMisuse(f"{kind} needs two peers")
            for _ in range(count):
                at = _log_uniform(rng, self.seconds / _LATEST_OVER_EARLIEST, self.seconds)
                lasts = _log_uniform(rng, _SHORTEST, _LONGEST) if KINDS[kind].lasts else 0.0
                hosts, others, detail = KINDS[kind].draw(rng, peers, self.disk)
                strikes.append(Strike(kind, at, lasts, hosts, others, detail))
        return tuple(sorted(strikes, key=lambda strike: strike.at))


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    """Three digits of it, so that what is printed is what was drawn."""
    return float(f"{math.exp(rng.uniform(math.log(low), math.log(high))):.3g}")


_STRIKE: Final = re.compile(
    r"(?P<kind>[a-z]+)@(?P<at>[^+:]+)\+(?P<seconds>[^:]+):(?P<hosts>[\d.]+)(-(?P<others>[\d.]+))?(:(?P<detail>.*))?"
)


def parse_faults(text: str) -> Faults:
    """Read the text form; raises ``LocalMisuse`` for anything that it does not say."""
    items = [item.strip() for item in text.split(",") if item.strip()]
    given = [item for item in items if "@" in item]
    if given and len(given) < len(items):
        other = next(item for item in items if "@" not in item)
        raise LocalMisuse(f"{other!r} is to be drawn and {given[0]!r} is given: write one or the other")
    if given:
        return Faults(given=tuple(_parse_strike(item) for item in given))
    counts: dict[str, int] = {}
    settings: dict[str, float] = {"skew_ms": 0.0, "seconds": DEFAULT_SECONDS}
    disk = "any"
    named: set[str] = set()
    for item in items:
        name, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise LocalMisuse(f"{item!r} is no fault: write NAME=NUMBER, as in crash=2, or crash@0.5+1:3:torn")
        if name in named:
            raise LocalMisuse(f"{name} stands twice: give one number for it")
        named.add(name)
        if name == "disk" and value in (*SURVIVALS, "any"):
            disk = value
        elif name == "disk":
            raise LocalMisuse(f"{item!r}: a crash leaves a disk {', '.join(SURVIVALS)}, or any of them")
        elif name in settings:
            least, most = (0.001, _MAX_SECONDS) if name == "seconds" else (0.0, 1e3 * _MAX_JUMP_SECONDS)
            settings[name] = _number(item, value, least, most)
        elif name in (*COUNTED, "all"):
            counts[name] = int(_number(item, value, 0.0, _MAX_COUNT, whole=True))
        else:
            raise LocalMisuse(f"there is no fault {name!r}: use {', '.join(COUNTED)}, all, skew_ms, seconds or disk")
    every = counts.pop("all", 0)
    counts = {**(dict.fromkeys(COUNTED, every) if every else {}), **counts}  # what is named outweighs all
    return Faults(counts, settings["skew_ms"], disk, settings["seconds"])


def _number(item: str, value: str, least: float, most: float, *, whole: bool = False) -> float:
    try:
        number = float(int(value)) if whole else float(value)
    except ValueError:
        number = math.nan
    if not least <= number <= most:
        raise LocalMisuse(f"{item!r}: give {'a whole number' if whole else 'a number'} from {least:g} to {most:,g}")
    return number


def _parse_strike(item: str) -> Strike:
    match = _STRIKE.fullmatch(item)
    try:
        if match is None:
            raise ValueError
        at, seconds = float(match["at"]), float(match["seconds"])
        hosts = tuple(int(index) for index in match["hosts"].split("."))
        others = tuple(int(index) for index in match["others"].split(".")) if match["others"] else ()
    except ValueError:
        raise LocalMisuse(
            f"{item!r} is no strike: write KIND@START+SECONDS:PEERS[-OTHERS][:DETAIL], as in crash@0.5+1:3:torn"
        ) from None
    return Strike(match["kind"], at, seconds, hosts, others, match["detail"] or "")
