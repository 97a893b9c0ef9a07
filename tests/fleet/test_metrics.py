"""Histogram against the exact nearest-rank percentile, and the counters' rules."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import LocalMisuse
from fleet.metrics import Counters, Histogram, nearest_rank

values = st.one_of(
    st.integers(min_value=0, max_value=2**63),
    st.floats(min_value=2.0**-40, max_value=2.0**63, allow_nan=False),
    st.just(0.0),
)
samples = st.lists(values, min_size=1, max_size=200)
percentiles = st.one_of(st.sampled_from([0, 1, 50, 90, 99, 99.9, 100]), st.floats(min_value=0, max_value=100))


def filled(sample):
    histogram = Histogram()
    for value in sample:
        histogram.record(value)
    return histogram


@given(samples, percentiles)
def test_percentile_is_within_one_percent_of_the_exact_nearest_rank(sample, percentile):
    exact = sorted(sample)[nearest_rank(percentile, len(sample)) - 1]
    assert filled(sample).percentile(percentile) == pytest.approx(exact, rel=0.01, abs=0)


@given(samples)
def test_count_min_max_are_exact_and_bound_every_percentile(sample):
    histogram = filled(sample)
    assert (histogram.count, histogram.min, histogram.max) == (len(sample), min(sample), max(sample))
    assert histogram.percentile(0) == min(sample)
    assert histogram.percentile(100) == max(sample)
    assert min(sample) <= histogram.percentile(50) <= max(sample)


@given(st.lists(st.integers(0, 2**60)))
def test_integer_sums_are_exact(sample):
    assert filled(sample).sum == sum(sample)


@given(st.lists(st.integers(0, 2**60)), st.lists(st.integers(0, 2**60)))
def test_merging_equals_recording_everything_in_one(left, right):
    merged = filled(left)
    merged.merge(filled(right))
    assert merged.to_json() == filled(left + right).to_json()
    assert merged.cumulative() == filled(left + right).cumulative()


def test_merging_a_histogram_into_itself_doubles_it():
    histogram = filled([1, 2, 3])
    histogram.merge(histogram)
    assert histogram.to_json() == filled([1, 1, 2, 2, 3, 3]).to_json()


@given(samples)
def test_the_cumulative_distribution_rises_to_one(sample):
    points = filled(sample).cumulative()
    assert points == sorted(points)
    assert points[-1][1] == 1.0


@pytest.mark.parametrize(
    ("percentile", "count", "rank"),
    [(50, 10, 5), (50, 11, 6), (99.9, 1000, 999), (99.9, 1001, 1000), (0, 5, 1), (100, 5, 5), (29, 100, 29)],
)
def test_nearest_rank_reads_the_percentile_as_the_decimal_it_is_written_as(percentile, count, rank):
    assert nearest_rank(percentile, count) == rank


def test_memory_does_not_grow_with_the_number_of_values():
    histogram = Histogram()
    for value in range(20_000):
        histogram.record(value)
    assert len(histogram.cumulative()) < 64 * 16


def test_an_empty_histogram_has_no_percentiles():
    histogram = Histogram()
    assert histogram.percentile(50) is None
    assert histogram.cumulative() == []
    assert histogram.to_json() == {
        "count": 0,
        "sum": 0,
        **dict.fromkeys(["min", "max", "mean", "p50", "p90", "p99", "p99_9"]),
    }


def test_values_too_small_to_matter_count_as_zero():
    histogram = filled([2.0**-60, 2.0**-60, 2.0**-60])
    assert histogram.percentile(60) == 2.0**-60  # clamped to the exact minimum
    assert histogram.count == 3


@pytest.mark.parametrize("value", [-1, -1e-9, math.nan, math.inf, 2**64])
def test_senseless_values_are_refused_and_leave_no_trace(value):
    histogram = Histogram()
    with pytest.raises(LocalMisuse):
        histogram.record(value)
    assert histogram.to_json() == Histogram().to_json()


@pytest.mark.parametrize("percentile", [-1, 100.1, math.nan])
@pytest.mark.parametrize("sample", [[], [1, 2]])
def test_senseless_percentiles_are_refused(percentile, sample):
    with pytest.raises(LocalMisuse):
        filled(sample).percentile(percentile)


def test_ranks_of_nothing_are_refused():
    with pytest.raises(LocalMisuse, match="empty sample"):
        nearest_rank(50, 0)


def test_counters_grow_and_come_out_sorted():
    counters = Counters()
    counters.add("wants")
    counters.add("haves", 3)
    counters.add("wants", 0)
    assert counters.to_json() == {"haves": 3, "wants": 1}
    assert list(counters.to_json()) == list(counters) == ["haves", "wants"]
    assert json.dumps(dict(counters)) == '{"haves": 3, "wants": 1}'
    assert counters["never"] == 0
    assert "never" not in counters
    assert len(counters) == 2


def test_counters_never_shrink():
    counters = Counters()
    with pytest.raises(LocalMisuse, match="only grows"):
        counters.add("haves", -1)


def test_counters_merge_by_name():
    left, right = Counters(), Counters()
    left.add("a", 1)
    right.add("a", 2)
    right.add("b", 5)
    left.merge(right)
    assert left.to_json() == {"a": 3, "b": 5}
