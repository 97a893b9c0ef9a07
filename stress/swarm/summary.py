"""What the content swarm's summary says of its fetchers, and the bound that its time is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet.limits import MIB

MAX_LISTED: Final = 12
"""Fetchers that the summary lists one by one; of more it lists those that stand out."""


def fluid_bound(size: int, rates: Sequence[float]) -> float:
    """The least seconds in which one seeder (the first) and fetchers with these link rates (bytes/s, up and down alike)
    can all have ``size`` bytes (Kumar and Ross, "Peer-Assisted File Distribution", 2006).
    """
    fetchers = len(rates) - 1
    return max(size / rates[0], size / min(rates[1:]), fetchers * size / sum(rates))


def lines_on(fetchers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What the summary says of each fetcher or, of a crowd, of those that stand out."""
    if len(fetchers) <= MAX_LISTED:
        return [f"{name}: {_told(fetcher)}" for name, fetcher in fetchers.items()]

    def most(key: str) -> str:
        return max(fetchers, key=lambda name: fetchers[name][key])

    first, *_, third_last, second_last, last = sorted(fetchers, key=lambda name: fetchers[name]["seconds"])
    lines = [
        ("first to finish", first),
        ("third last", third_last),
        ("second last", second_last),
        ("last to finish", last),
        ("longest stall", most("longest_stall_seconds")),
        ("most from the seeder", most("bytes_from_seeder")),
    ]
    return [
        *(f"{what}: {name}, {_told(fetchers[name])}" for what, name in lines),
        f"all {len(fetchers)} fetchers are in report.json, under details.fetchers",
    ]


def _told(fetcher: Mapping[str, Any]) -> str:
    by_source = {source: count for source, count in fetcher["bytes_from"].items() if count}
    others = len(by_source) - (fetcher["bytes_from_seeder"] > 0)
    elsewhere = sum(by_source.values()) - fetcher["bytes_from_seeder"]
    return (
        f"{fetcher['seconds']:.2f} s, {fetcher['bytes_from_seeder'] / MIB:,.1f} MiB from the seeder, "
        f"{elsewhere / MIB:,.1f} from {others} {'other' if others == 1 else 'others'}, "
        f"longest stall {fetcher['longest_stall_seconds']:.3f} s"
    )
