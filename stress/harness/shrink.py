"""Makes a failing case small: fewer peers and operations, fewer faults, at rounder times, while it fails alike.

Sans-IO: ``shrink`` yields candidates, smallest first, and is sent which of them was the first to fail as the original
did; running them is the caller's part. Every candidate that is taken is smaller than the case before it in one of
these, and larger in none: the options' values, the strikes, the peers they name, their times and lengths. Strikes are
removed by delta debugging (Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002). All ways
to shrink are tried in turn until none helps, so that at the end no single strike can be left out, unless the trials
ran out before.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Decimal
from typing import Final, TypeAlias

from fleet.errors import LocalMisuse
from fleet.sim.faults import Strike

PEERS: Final = "peers"
"""The option whose value bounds the peers that strikes name."""
SEEDS: Final = 3
"""Seeds tried for a candidate with other options or strikes, as it draws other chances than the case did."""

Schedule: TypeAlias = tuple[Strike, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """What is run: the values of the options that may shrink, the seed, and the faults."""

    options: tuple[tuple[str, int], ...]
    seed: int
    strikes: Schedule = ()

    def option(self, name: str) -> int | None:
        """The value of an option, None when it is not one that shrinks."""
        return dict(self.options).get(name)

    def with_options(self, values: Mapping[str, int]) -> Case:
        """With other values, and the strikes made to fit the peers there are then."""
        options = tuple((name, values.get(name, value)) for name, value in self.options)
        peers = dict(options).get(PEERS)
        return replace(self, options=options, strikes=self.strikes if peers is None else fit(self.strikes, peers))


Batch: TypeAlias = tuple[Case, ...]
Search: TypeAlias = Generator[Batch, int | None, Case]


def shrink(start: Case, least: Mapping[str, int], *, trials: int, seeds: int = SEEDS) -> Search:
    """The search for a smaller case than ``start``, which fails; ``least`` has each option's least value.

    Yields batches of candidates. Send the index of the first in a batch that fails like ``start``, or None when all
    were run and none does. Returns the smallest case that failed. At most ``trials`` candidates have to be run,
    counting those of a batch up to the index sent; none has to be run twice.
    """
    attempt = _Attempts(trials, start)
    case, before = start, None
    with contextlib.suppress(_Spent):
        while case != before:
            before = case
            case = yield from _fewer_strikes(case, attempt, seeds)
            case = yield from _smaller_options(case, attempt, least, seeds)
            case = yield from _fewer_hosts(case, attempt, seeds)
            case = yield from _rounder_times(case, attempt)
    return attempt.best


class _Spent(Exception):
    """No trial is left."""


class _Attempts:
    """Yields what has not been tried, within the trials that are left."""

    def __init__(self, trials: int, start: Case) -> None:
        self._left = trials
        self._tried = {start}
        self.best = start
        """The smallest case so far that failed."""

    def first(self, candidates: Iterable[Case], seeds: int = 1) -> Generator[Batch, int | None, Case | None]:
        """The first of the candidates, each with some seeds, that fails; None when none does.

        Raises ``_Spent`` when there are no trials to find out.
        """
        if not self._left:
            raise _Spent
        varied = (replace(case, seed=case.seed + more) for case in candidates for more in range(seeds))
        fresh = [case for case in dict.fromkeys(varied) if case not in self._tried]
        batch = tuple(fresh[: self._left])
        if not batch:
            return None
        index = yield batch
        run = batch if index is None else batch[: index + 1]
        self._tried.update(run)
        self._left -= len(run)
        if index is None:
            return None
        self.best = batch[index]
        return self.best


# ---- strikes


def _fewer_strikes(case: Case, attempt: _Attempts, seeds: int) -> Search:
    """Delta debugging: parts of the schedule alone, then what is left without each part, in ever finer parts."""
    parts = 1  # the first round tries no strike at all
    while case.strikes:
        chunks = list(_split(case.strikes, parts))
        alone = [chunk for chunk in chunks if len(chunk) < len(case.strikes)]
        without = [tuple(itertools.chain(*chunks[:number], *chunks[number + 1 :])) for number in range(len(chunks))]
        found = yield from attempt.first((replace(case, strikes=each) for each in [*alone, *without]), seeds)
        if found is not None:
            parts = 1 if len(found.strikes) <= -(-len(case.strikes) // parts) else max(parts - 1, 2)
            case = found
        elif parts >= len(case.strikes):
            break
        else:
            parts = min(2 * parts, len(case.strikes))
    return case


def _split(strikes: Schedule, parts: int) -> Iterator[Schedule]:
    edges = [len(strikes) * part // parts for part in range(parts + 1)]
    return (strikes[low:high] for low, high in itertools.pairwise(edges))


def fit(strikes: Schedule, peers: int) -> Schedule:
    """The strikes on a fleet of ``peers``: who is not there any more gives the strike to a peer that none strikes
    yet, the highest first; with no such peer it is left out, and so are strikes that have nobody left on a side.
    """
    named = {host for strike in strikes for host in strike.hosts + strike.others}
    free = [host for host in range(peers) if host not in named]
    new = {host: host if host < peers else free.pop() if free else None for host in sorted(named)}
    fitted = []
    for strike in strikes:
        hosts, others = (
            tuple(sorted(to for host in side if (to := new[host]) is not None))
            for side in (strike.hosts, strike.others)
        )
        fitted += _changed(strike, hosts=hosts, others=others)
    return tuple(fitted)


def _changed(strike: Strike, **values: object) -> list[Strike]:
    """The strike with other values, or nothing when there can be no such strike."""
    try:
        return [replace(strike, **values)]  # type: ignore[arg-type]
    except LocalMisuse:
        return []


def _fewer_hosts(case: Case, attempt: _Attempts, seeds: int) -> Search:
    """Leave peers out of the strikes that name several on a side."""
    position = 0
    while position < len(case.strikes):
        strike = case.strikes[position]
        candidates = [
            changed
            for side in ("hosts", "others")
            for host in getattr(strike, side)
            for changed in _changed(strike, **{side: tuple(each for each in getattr(strike, side) if each != host)})
        ]
        found = yield from attempt.first((_exchange(case, position, each) for each in candidates), seeds)
        if found is None:
            position += 1
        else:
            case = found
    return case


def _exchange(case: Case, position: int, strike: Strike) -> Case:
    return replace(case, strikes=(*case.strikes[:position], strike, *case.strikes[position + 1 :]))


# ---- options


def _smaller_options(case: Case, attempt: _Attempts, least: Mapping[str, int], seeds: int) -> Search:
    """All options at their least; then each alone, from its least value up to one below what it is."""
    lowest = case.with_options({name: min(value, least.get(name, value)) for name, value in case.options})
    if lowest == case:
        return case
    found = yield from attempt.first([lowest], seeds)
    if found is not None:
        return found
    for name, low in least.items():
        while (value := case.option(name)) is not None and value > low:
            values = dict.fromkeys(value - step for step in _halves(value - low))
            found = yield from attempt.first((case.with_options({name: each}) for each in values), seeds)
            if found is None:
                break
            case = found
    return case


def _halves(distance: int) -> Iterator[int]:
    while distance:
        yield distance
        distance //= 2


# ---- times


def _rounder_times(case: Case, attempt: _Attempts) -> Search:
    """Earlier and shorter strikes: all of them at once, then one time after the other."""
    for digits in (1, 2):
        rounded = tuple(
            changed
            for strike in case.strikes
            for changed in _changed(strike, at=_floor(strike.at, digits), seconds=_floor(strike.seconds, digits))
        )
        if len(rounded) == len(case.strikes):
            case = (yield from attempt.first([replace(case, strikes=rounded)])) or case
    for position, field in itertools.product(range(len(case.strikes)), ("at", "seconds")):
        while True:
            strike = case.strikes[position]
            candidates = [
                changed for time in _below(getattr(strike, field)) for changed in _changed(strike, **{field: time})
            ]
            found = yield from attempt.first(_exchange(case, position, each) for each in candidates)
            if found is None:
                break
            case = found
    return case


def _below(time: float) -> Sequence[float]:
    """Rounder times, all less than this one, lowest first."""
    short = _floor(time, 1)
    times = {0.0, _floor(time / 10, 1), _floor(time / 2, 1), _floor(short * 0.99, 1), short, _floor(time, 2)}
    return sorted(each for each in times if each < time)


def _floor(time: float, digits: int) -> float:
    """The next lower number with so many decimal digits that are not leading zeros."""
    exact = Decimal(repr(time))
    if not exact:
        return 0.0
    return float(exact.quantize(Decimal((0, (1,), exact.adjusted() - digits + 1)), ROUND_FLOOR))
