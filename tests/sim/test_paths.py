"""Latencies, paths, rates and regions: what they draw, and what they refuse."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable

import pytest

from fleet.errors import LocalMisuse
from fleet.sim.path import MAX_DATAGRAM, Constant, LogNormal, Path, Rates, Uniform, regions

NAN = math.nan


def draws(latency: Constant | Uniform | LogNormal, count: int = 2_000) -> list[float]:
    rng = random.Random(4)
    return [latency.draw(rng) for _ in range(count)]


def test_constant() -> None:
    assert set(draws(Constant(0.25))) == {0.25}
    assert Constant(0.25).typical == 0.25


def test_uniform_fills_its_range() -> None:
    drawn = draws(Uniform(0.1, 0.3))
    assert 0.1 <= min(drawn) < 0.101
    assert 0.299 < max(drawn) <= 0.3
    assert statistics.fmean(drawn) == pytest.approx(Uniform(0.1, 0.3).typical, rel=0.02)


def test_log_normal_has_its_median_and_deviation() -> None:
    latency = LogNormal(0.04, 0.5)
    logs = [math.log(drawn) for drawn in draws(latency, 5_000)]
    assert math.exp(statistics.median(logs)) == pytest.approx(latency.typical, rel=0.03)
    assert statistics.stdev(logs) == pytest.approx(0.5, rel=0.03)
    assert set(draws(LogNormal(0.04, 0), 10)) == {0.04}


def test_a_path_adds_jitter_to_its_latency() -> None:
    rng = random.Random(1)
    path = Path(latency=Constant(1.0), jitter=0.5)
    drawn = [path.delay(rng) for _ in range(1_000)]
    assert 1.0 <= min(drawn) < 1.01
    assert 1.49 < max(drawn) <= 1.5


def test_a_constant_path_takes_no_chance() -> None:
    rng = random.Random(1)
    before = rng.getstate()
    Path(latency=Constant(1.0)).delay(rng)
    assert rng.getstate() == before


def test_latency_is_never_zero_by_accident() -> None:
    assert Path().latency.typical > 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: Constant(-0.1),
        lambda: Constant(NAN),
        lambda: Constant(math.inf),
        lambda: Uniform(-1, 1),
        lambda: Uniform(0.2, 0.1),
        lambda: Uniform(0, NAN),
        lambda: LogNormal(-1, 0),
        lambda: LogNormal(1, -0.1),
        lambda: LogNormal(1, 5),
        lambda: LogNormal(1, NAN),
        lambda: Path(jitter=-1),
        lambda: Path(loss=1.01),
        lambda: Path(loss=NAN),
        lambda: Path(duplication=-0.1),
        lambda: Path(reordering=2),
        lambda: Path(refuse=2),
        lambda: Path(crumble=2),
        lambda: Path(connect_seconds=-1),
        lambda: Path(max_datagram=0),
        lambda: Path(max_datagram=MAX_DATAGRAM + 1),
        lambda: Path(window=0),
        lambda: Rates(up=0),
        lambda: Rates(down=-1),
        lambda: Rates(up=NAN),
        lambda: Rates(up=math.inf),
        lambda: Rates(queue_bytes=0),
    ],
)
def test_what_makes_no_sense_is_misuse(make: Callable[[], object]) -> None:
    with pytest.raises(LocalMisuse, match=r"give|lets nothing|sigma|holds nothing"):
        make()


MATRIX = {"east": {"east": 0.005, "west": Uniform(0.03, 0.04)}, "west": {"east": 0.05, "west": Constant(0.006)}}


def test_regions_give_each_direction_its_latency() -> None:
    base = Path(loss=0.1, crumble=0)
    between = regions(MATRIX, {"a": "east", "b": "west", "c": "east"}, base)
    assert between("a", "b") == Path(latency=Uniform(0.03, 0.04), loss=0.1, crumble=0)
    assert between("b", "a").latency == Constant(0.05)
    assert between("a", "c").latency == Constant(0.005)
    assert between("b", "b").latency == Constant(0.006)


def test_a_matrix_that_does_not_fit_is_misuse() -> None:
    with pytest.raises(LocalMisuse, match="region west has latencies to east, but the regions are east, west"):
        regions({"east": {"east": 0.1, "west": 0.1}, "west": {"east": 0.1}}, {})
    with pytest.raises(LocalMisuse, match="does not fit: region east has latencies to east, north"):
        regions({"east": {"east": 0.1, "north": 0.1}}, {})
    with pytest.raises(LocalMisuse, match="latency is -1"):
        regions({"east": {"east": -1}}, {})
    with pytest.raises(LocalMisuse, match="a is in region 'south', but the regions are east, west"):
        regions(MATRIX, {"a": "south"})
    with pytest.raises(LocalMisuse, match="b is in no region: assign it to one of east, west"):
        regions(MATRIX, {"a": "east"})("a", "b")
