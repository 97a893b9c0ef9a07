"""Measurements in bounded memory: a log-linear histogram and monotone counters.

``Histogram`` splits every power of two into 64 equal buckets (the layout of HdrHistogram), so a percentile is within
1 % of the exact nearest-rank value however many values were recorded, and memory depends on the spread of the values,
never on their number. Count, minimum, maximum and sum are exact. Both classes are plain values: no clock, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Final, TypeAlias

from fleet.errors import LocalMisuse

__all__ = ["Counters", "Histogram", "nearest_rank"]

Number: TypeAlias = int | float

_SUB_BUCKETS: Final = 64
_MIN_EXPONENT: Final = -40  # values below 2**-41 (half a picosecond, as a time) count as zero
_MAX_EXPONENT: Final = 64  # 2**64 bytes is more than any disk holds
_ZERO_BUCKET: Final = -1

PERCENTILES: Final = {"p50": 50.0, "p90": 90.0, "p99": 99.0, "p99_9": 99.9}
"""The percentiles that ``Histogram.to_json`` lists, by the name it gives them."""


def nearest_rank(percentile: float, count: int) -> int:
    """The rank, from 1 to ``count``, of the nearest-rank percentile: ``ceil(percentile / 100 * count)``, at least 1.

    ``percentile`` is taken as the decimal number it is written as, so that 99.9 of 1,000 values is rank 999. Raises
    ``LocalMisuse`` outside 0 to 100 and for an empty sample.
    """
    if not 0 <= percentile <= 100:
        raise LocalMisuse(f"a percentile lies between 0 and 100, not {percentile}")
    if count < 1:
        raise LocalMisuse("an empty sample has no ranks: look at its count first")
    return max(1, math.ceil(Fraction(str(percentile)) * count / 100))


def _bucket(value: float) -> int:
    mantissa, exponent = math.frexp(value)
    if exponent < _MIN_EXPONENT or not mantissa:
        return _ZERO_BUCKET
    return (exponent - _MIN_EXPONENT) * _SUB_BUCKETS + int((mantissa - 0.5) * 2 * _SUB_BUCKETS)


def _middle(bucket: int) -> float:
    """The value that stands for a bucket: its middle, at most 1/128 away from anything in it, relatively."""
    if bucket == _ZERO_BUCKET:
        return 0.0
    exponent, sub = divmod(bucket, _SUB_BUCKETS)
    return math.ldexp(0.5 + (sub + 0.5) / (2 * _SUB_BUCKETS), exponent + _MIN_EXPONENT)


class Histogram:
    """A distribution of non-negative numbers, of one unit that its name says."""

    __slots__ = ("_buckets", "_count", "_max", "_min", "_sum")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}  # sparse: at most 6,721 keys
        self._count = 0
        self._min: Number | None = None
        self._max: Number | None = None
        self._sum: Number = 0

    @property
    def count(self) -> int:
        """How many values were recorded."""
        return self._count

    @property
    def min(self) -> Number | None:
        """The smallest value, exact; None when nothing was recorded."""
        return self._min

    @property
    def max(self) -> Number | None:
        """The largest value, exact; None when nothing was recorded."""
        return self._max

    @property
    def sum(self) -> Number:
        """The sum of all values; exact for integers."""
        return self._sum

    @property
    def mean(self) -> float | None:
        """Sum over count; None when nothing was recorded."""
        return self._sum / self._count if self._count else None

    def record(self, value: Number) -> None:
        """Count one value. Raises ``LocalMisuse`` for a negative, NaN or infinite one, and from 2**64 up."""
        if not 0 <= value < 2**_MAX_EXPONENT:  # NaN fails both comparisons
            raise LocalMisuse(f"a histogram takes numbers from 0 up to 2**{_MAX_EXPONENT}, not {value}")
        bucket = _bucket(value)
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self._count += 1
        self._sum += value
        if self._min is None or value < self._min:
            self._min = value
        if self._max is None or value > self._max:
            self._max = value

    def percentile(self, percentile: float) -> Number | None:
        """The nearest-rank percentile within 1 %; None when nothing was recorded.

        The first and the last rank (so also 0 and 100) are exact.
        """
        if self._min is None or self._max is None:
            nearest_rank(percentile, 1)  # a senseless percentile is refused whatever the sample
            return None
        rank = nearest_rank(percentile, self._count)
        if rank == 1:
            return self._min
        if rank == self._count:
            return self._max
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(max(_middle(bucket), self._min), self._max)
        raise AssertionError("the buckets hold fewer values than the count says")

    def cumulative(self) -> list[tuple[float, float]]:
        """The distribution as (value, share of values at or below it) pairs, rising; empty for an empty sample."""
        if self._min is None or self._max is None:
            return []
        points: list[tuple[float, float]] = []
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            points.append((float(min(max(_middle(bucket), self._min), self._max)), seen / self._count))
        return points

    def merge(self, other: Histogram) -> None:
        """Add everything that ``other`` recorded, as if it had been recorded here."""
        for bucket, count in list(other._buckets.items()):
            self._buckets[bucket] = self._buckets.get(bucket, 0) + count
        self._count += other._count
        self._sum += other._sum
        self._min = min((m for m in (self._min, other._min) if m is not None), default=None)
        self._max = max((m for m in (self._max, other._max) if m is not None), default=None)

    def to_json(self) -> dict[str, Number | None]:
        """Count, sum, min, max, mean and the percentiles of ``PERCENTILES``; None where the sample is empty."""
        summary: dict[str, Number | None] = {
            "count": self._count,
            "sum": self._sum,
            "min": self._min,
            "max": self._max,
            "mean": self.mean,
        }
        summary.update((name, self.percentile(p)) for name, p in PERCENTILES.items())
        return summary


class Counters(Mapping[str, int]):
    """Named counts that only grow. Reading a name that was never counted gives 0, as with ``collections.Counter``."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}

    def add(self, name: str, amount: int = 1) -> None:
        """Count ``amount`` more of ``name``. Raises ``LocalMisuse`` for a negative amount."""
        if amount < 0:
            raise LocalMisuse(f"counter {name!r} only grows: cannot add {amount}")
        self._counts[name] = self._counts.get(name, 0) + amount

    def merge(self, other: Mapping[str, int]) -> None:
        """Add another set of counters to this one, name by name."""
        for name, amount in list(other.items()):
            self.add(name, amount)

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)

    def __contains__(self, name: object) -> bool:
        return name in self._counts

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._counts))

    def __len__(self) -> int:
        return len(self._counts)

    def to_json(self) -> dict[str, int]:
        """Every counted name with its count, sorted by name."""
        return dict(sorted(self._counts.items()))
