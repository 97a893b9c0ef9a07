"""Watches a simulated run and makes the space-time picture of it: a Lamport diagram of the fleet, faults included.

``SpaceTime.note`` takes every event of the run, so the rule is that it stays cheap and its memory bounded: of each kind
of thing the last ones are kept, and the older ones thinned evenly. Of events it does not know it forgets all.

::

    picture = SpaceTime()
    outcome = simulate(run, sink=picture.note)
    context.figures.append(picture.figure(None))
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Generic, TypeAlias, TypeVar

from fleet.sim.fabric import MIN_RETRANSMISSION_SECONDS
from stress.harness.plots import Figure
from stress.harness.space_time_picture import FAILURE, PHASE, Bar, Cut, Mark, Message, Note, Picture

if TYPE_CHECKING:
    from fleet.sim.history import Event
    from fleet.trace import Field

T = TypeVar("T")
_Fields: TypeAlias = Mapping[str, "Field"]

MAX_HOSTS: Final = 64
"""Columns of the picture; of more hosts those that faults struck, then the first."""
RECENT: Final = 1_000
"""The last messages, all of which are kept; and so many at most of all that came before. Of other things fewer."""

_RANKS: Final[Mapping[str, int]] = {FAILURE: 9, PHASE: 8, "crash": 6, "partition": 6, "trouble": 5, "pause": 4}
"""Which notes stay when there are too many; those that say that something is over rank lower by two."""
_OTHER_RANK: Final = 3
_FOLDED: Final = ("trouble", "disk", "pause")
_REPEATED: Final = 3
"""Of notes of these kinds that say the same the last one that is made; it counts the others."""
_INSTANT: Final = 1e-6
_HOW_TO_READ: Final = (
    "Each peer is a line. Virtual time runs downward, at a scale of its own between any two notches of the axis; a "
    "zigzag cuts a silence short. Messages go from where and when they left to where and when they arrived."
)


class Kept(Generic[T]):
    """The last ``most`` of what was added, and evenly chosen at most ``most`` of what was before."""

    def __init__(self, most: int = RECENT) -> None:
        self.added = 0
        self._most = most
        self._recent: deque[T] = deque()
        self._older: list[T] = []
        self._stride = 1
        self._passed = 0

    def add(self, item: T) -> None:
        """One more."""
        self.added += 1
        self._recent.append(item)
        if len(self._recent) > self._most:
            oldest = self._recent.popleft()
            if self._passed % self._stride == 0:
                self._older.append(oldest)
                if len(self._older) > self._most:
                    del self._older[1::2]
                    self._stride *= 2
            self._passed += 1

    def items(self) -> list[T]:
        """Those that are kept, in order."""
        return [*self._older, *self._recent]


@dataclass(slots=True)
class _Said:
    """A note in the making: the same of several hosts at once becomes one line."""

    time: float
    kind: str
    verb: str
    hosts: list[str]
    detail: str
    over: bool
    times: int = 1

    def note(self) -> Note:
        count = f"{self.times} times:" if self.times > 1 else ""
        whom = f"peers {_numbers(self.hosts)}" if len(self.hosts) > 1 else "".join(self.hosts)
        text = " ".join(part for part in (count, self.verb, whom, self.detail) if part)
        return Note(self.time, self.kind, text, _RANKS.get(self.kind, _OTHER_RANK) - 2 * self.over)


class SpaceTime:
    """One run's events, as far as a picture needs them. ``hosts`` come first, in their order; others as they appear."""

    def __init__(self, hosts: Sequence[str] = ()) -> None:
        self._given = tuple(hosts)
        self._hosts: dict[str, None] = {}
        self._messages: Kept[Message] = Kept()
        self._late: Kept[Message] = Kept(RECENT // 2)
        self._marks: dict[str, Kept[Mark]] = {}
        self._bars: Kept[Bar] = Kept(RECENT // 6)
        self._cuts: Kept[Cut] = Kept(RECENT // 10)
        self._said: Kept[_Said] = Kept(RECENT // 10)
        self._last: _Said | None = None
        self._repeated: dict[tuple[str, str], list[_Said]] = {}
        """The first notes that say the same, by it."""
        self._open: dict[tuple[str, str], float] = {}
        """Of bars by kind and host, since when they last."""
        self._strikes: dict[tuple[str, str], int] = {}
        """Of bars by kind and host, how many faults make them last."""
        self._parted: dict[tuple[tuple[str, ...], tuple[str, ...], bool], float] = {}
        """Partitions that hold, since when."""
        self._mended: dict[tuple[tuple[str, ...], tuple[str, ...], bool], tuple[float, float]] = {}
        """Those that the last heal ended: since when they had lasted, and the time of the heal."""
        self._lost: dict[tuple[str, str], float] = {}
        self._released: dict[tuple[str, str], float] = {}
        """By route, when it last lost something, and let go what it had held."""
        self._now = 0.0
        self._handlers: dict[str, Callable[[float, str, _Fields], None]] = {
            "deliver": self._deliver,
            "datagram": self._deliver,
            "drop": self._drop,
            "piece": self._piece,
            "complete": self._complete,
            "neighbour_up": self._up,
            "neighbour_down": self._down,
            "crash": self._crash,
            "restore": self._restore,
            "pause": self._pause,
            "resume": self._resume,
            "partition": self._partition,
            "heal": self._heal,
            "clog": self._clog,
            "unclog": self._unclog,
            "reset_all": self._reset,
            "clock": self._clock,
            "disk": self._disk,
            "banned": self._trouble,
            "failed": self._trouble,
            "fault": self._fault,
            "phase": self._phase,
        }

    def note(self, event: Event) -> None:
        """Take one event; they come in order."""
        handler = self._handlers.get(event.kind)
        if handler is not None:
            self._now = event.time
            handler(event.time, event.peer, dict(event.fields))

    def figure(self, failure: tuple[float, str, str] | None) -> Figure:
        """The picture of what was noted. ``failure``: virtual time, peer or "", and text; the picture ends with it."""
        picture = self._picture(self._now if failure is None else failure[0], failure)
        return Figure("Space and time", self._caption(picture), "space_time", {"picture": picture})

    # ---- what travels

    def _deliver(self, now: float, host: str, fields: _Fields) -> None:
        source = str(fields["source"]).partition(":")[0]
        if source == host:
            return
        self._hosts[source] = self._hosts[host] = None
        sent = float(fields["sent"] or 0.0)
        # whatever was lost is sent again, and that takes a while
        again = now - sent >= MIN_RETRANSMISSION_SECONDS and sent <= self._lost.get((source, host), -1.0)
        late = again or sent <= self._released.get((source, host), -1.0)
        (self._late if late else self._messages).add(Message(sent, source, now, host, late))

    def _drop(self, now: float, source: str, fields: _Fields) -> None:
        target = str(fields["target"])
        self._lost[source, target] = now
        self._mark(now, target, "lost", source)

    # ---- what peers say

    def _piece(self, now: float, host: str, _: _Fields) -> None:
        self._mark(now, host, "piece")

    def _complete(self, now: float, host: str, _: _Fields) -> None:
        self._mark(now, host, "complete")

    def _up(self, now: float, host: str, _: _Fields) -> None:
        self._hosts[host] = None
        self._mark(now, host, "up")

    def _down(self, now: float, host: str, _: _Fields) -> None:
        self._mark(now, host, "down")

    def _trouble(self, now: float, host: str, fields: _Fields) -> None:
        self._mark(now, host, "trouble")
        verb = "failed:" if "root" in fields else f"banned {fields['neighbour']}:"
        reason = re.sub(r"\b([0-9a-f]{8})[0-9a-f]{8,}", r"\1…", str(fields["reason"]))  # names of files
        self._say(now, "trouble", f"{host} {verb} {reason}")

    # ---- faults of processes and their disks

    def _crash(self, now: float, host: str, fields: _Fields) -> None:
        self._hosts[host] = None
        self._mark(now, host, "crash")
        self._close("pause", host, now)
        self._open["down", host] = now
        self._say(now, "crash", "crash", host, "silent" if fields["silent"] else "")

    def _restore(self, now: float, host: str, _: _Fields) -> None:
        self._mark(now, host, "restart")
        self._close("down", host, now)
        self._say(now, "crash", "restart", host, over=True)

    def _pause(self, now: float, host: str, _: _Fields) -> None:
        self._open["pause", host] = now
        if ("slow", host) not in self._open:  # a slow disk stops its process at every turn
            self._say(now, "pause", "pause", host)

    def _resume(self, now: float, host: str, _: _Fields) -> None:
        if self._close("pause", host, now) and ("slow", host) not in self._open:
            self._say(now, "pause", "resume", host, over=True)

    def _clock(self, now: float, host: str, fields: _Fields) -> None:
        self._mark(now, host, "clock")
        self._say(now, "clock", "clock moved", host, f"{float(fields['shift'] or 0.0):+.3g} s")

    def _disk(self, now: float, host: str, fields: _Fields) -> None:
        operation = fields["operation"]
        if operation == "crash":
            last = self._last
            if last is not None and (last.time, last.verb, last.hosts) == (now, "crash", [host]):
                last.detail = f"{last.detail} (disk: {fields['how']})".strip()
        elif operation == "flip" or fields["fault"] is not None:
            self._mark(now, host, "disk")
            self._say(now, "disk", "bits flipped on" if operation == "flip" else f"{operation} fails on", host)

    # ---- faults of the network

    def _partition(self, now: float, _: str, fields: _Fields) -> None:
        a, b = (tuple(str(fields[side]).split()) for side in "ab")
        parted = (a, b, bool(fields["one_way"]))
        since, healed = self._mended.pop(parted, (now, now))
        if healed < now or (parted in self._parted):
            since = self._parted.get(parted, now)
        self._hosts.update(dict.fromkeys((*a, *b)))
        self._parted[parted] = since
        if since == now:
            verb, bar = ("one-way partition", "to") if fields["one_way"] else ("partition", "|")
            self._say(now, "partition", f"{verb} {_numbers(a)} {bar} {_numbers(b)}")

    def _heal(self, now: float, _: str, __: _Fields) -> None:
        if not self._parted:
            return
        self._mended = {parted: (since, now) for parted, since in self._parted.items()}
        for (a, b, _one_way), since in self._parted.items():
            self._cuts.add(Cut(since, now, a, b))
        self._parted.clear()
        self._say(now, "partition", "partition ends", over=True)

    def _clog(self, now: float, source: str, fields: _Fields) -> None:
        target = str(fields["target"])
        if self._open.setdefault(("clog", f"{source} {target}"), now) == now:
            self._say(now, "clog", f"clog {source} to {target}")

    def _unclog(self, now: float, source: str, fields: _Fields) -> None:
        target = str(fields["target"])
        self._released[source, target] = now
        if self._close("clog", f"{source} {target}", now):
            self._say(now, "clog", f"unclog {source} to {target}", over=True)

    def _reset(self, now: float, host: str, fields: _Fields) -> None:
        self._say(now, "down", f"links of {host} and {fields['target']} reset")

    # ---- the performer of faults: what leaves no trace of its own, and how far it is

    def _fault(self, now: float, _: str, fields: _Fields) -> None:
        fault, phase = str(fields["fault"]), fields["phase"]
        kind = "slow" if fault == "full" else fault
        if kind not in ("slow", "degrade") or phase == "skipped":
            return
        verb = {"slow": "disk slow:", "full": "disk full:"}.get(fault, "paths degraded:")
        for host in str(fields["hosts"]).split():
            strikes = self._strikes.get((kind, host), 0) + (1 if phase == "begin" else -1)
            self._strikes[kind, host] = strikes
            if phase == "begin":
                self._hosts[host] = None
                self._open.setdefault((kind, host), now)
                self._say(now, kind, verb, host, str(fields["detail"]))
            elif strikes == 0:
                self._close(kind, host, now)

    def _phase(self, now: float, _: str, fields: _Fields) -> None:
        text = {"faults": "faults begin", "heal": "faults are over"}.get(str(fields["name"]), str(fields["name"]))
        self._say(now, PHASE, text)

    # ---- keeping

    def _mark(self, now: float, host: str, kind: str, source: str = "") -> None:
        kept = self._marks.get(kind)
        if kept is None:
            kept = self._marks[kind] = Kept(RECENT // 2 if kind == "piece" else RECENT // 6)
        kept.add(Mark(now, host, kind, source))

    def _close(self, kind: str, where: str, now: float) -> bool:
        """End what lasted; returns whether it did."""
        begin = self._open.pop((kind, where), None)
        if begin is not None:
            self._bars.add(
                Bar(begin, now, where.rsplit(maxsplit=1)[-1], kind)
            )  # a clog shows where it holds things back
        return begin is not None

    def _say(self, now: float, kind: str, verb: str, host: str = "", detail: str = "", *, over: bool = False) -> None:
        last = self._last
        if last is not None and host and now - last.time < _INSTANT and (last.kind, last.verb) == (kind, verb):
            last.hosts.append(host)
            if last.detail != detail:
                last.detail = ""
            return
        folds = kind in _FOLDED and len(self._repeated) < RECENT
        same = self._repeated.setdefault((verb, host), []) if folds else []
        if len(same) >= _REPEATED:
            same[-1].times += 1
            return
        self._last = _Said(now, kind, verb, [host] if host else [], detail, over)
        same.append(self._last)
        self._said.add(self._last)

    # ---- the picture

    def _picture(self, now: float, failure: tuple[float, str, str] | None) -> Picture:
        lasting = [Bar(begin, now, where.rsplit(maxsplit=1)[-1], kind) for (kind, where), begin in self._open.items()]
        cuts = self._cuts.items() + [Cut(since, now, a, b) for (a, b, _), since in self._parted.items()]
        notes = [said.note() for said in self._said.items() if said.time <= now]
        if failure is not None:
            notes.append(Note(now, FAILURE, failure[2], _RANKS[FAILURE]))
        failed = "" if failure is None else failure[1]
        bars = [bar for bar in self._bars.items() + lasting if bar.begin <= now]
        messages = self._messages.items() + self._late.items()
        return Picture(
            hosts=self._columns(failed, bars),
            messages=[each for each in messages if each.arrived <= now],
            marks=[mark for kept in self._marks.values() for mark in kept.items() if mark.time <= now],
            bars=[replace(bar, end=min(bar.end, now)) for bar in bars],
            cuts=[replace(cut, end=min(cut.end, now)) for cut in cuts if cut.begin <= now],
            notes=notes,
            failed=failed,
        )

    def _columns(self, failed: str, bars: Sequence[Bar]) -> tuple[str, ...]:
        everyone = [*self._given, *sorted((host for host in self._hosts if host not in self._given), key=_natural)]
        struck = dict.fromkeys([failed, *(bar.host for bar in bars)])
        first = [host for host in everyone if host in struck] + [host for host in everyone if host not in struck]
        chosen = set(first[:MAX_HOSTS])
        return tuple(host for host in everyone if host in chosen)

    def _caption(self, picture: Picture) -> str:
        parts = [_HOW_TO_READ]
        kept = len(self._messages.items())
        if kept < self._messages.added:
            parts.append(
                f"Shown are {kept:,} of {self._messages.added:,} messages that came in time: the last, and some before."
            )
        if len(picture.hosts) < len({*self._given, *self._hosts}):
            parts.append(f"{len(picture.hosts)} of {len({*self._given, *self._hosts})} peers are shown.")
        return " ".join(parts)


def _natural(host: str) -> tuple[bool, str, int]:
    """So that peer-10 comes after peer-9, and whoever is no peer of the fleet last."""
    match = re.fullmatch(r"(.*?)(\d{1,9})", host)
    name, number = (host, -1) if match is None else (match[1], int(match[2]))
    return name != "peer-", name, number


def _numbers(hosts: Sequence[str]) -> str:
    """``0-2,5`` for peers of a fleet; other hosts by name."""
    numbers = sorted(int(host.removeprefix("peer-")) for host in hosts if re.fullmatch(r"peer-\d{1,9}", host))
    if len(numbers) < len(hosts):
        return " ".join(hosts)
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)
