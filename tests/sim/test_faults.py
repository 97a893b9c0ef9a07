"""Schedules of faults: what they are drawn from, what is refused, and that text says all of it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import LocalMisuse
from fleet.sim.faults import COUNTED, KINDS, Faults, Strike, format_schedule, parse_faults


@given(seed=st.integers(0, 10_000), peers=st.integers(2, 40), count=st.integers(1, 3))
def test_a_drawn_schedule_reads_back_as_itself(seed: int, peers: int, count: int) -> None:
    drawn = parse_faults(f"all={count},skew_ms=200").schedule(random.Random(seed), peers)
    assert {strike.kind for strike in drawn} == set(KINDS)
    assert parse_faults(format_schedule(drawn)).schedule(random.Random(0), peers) == drawn


@given(at=st.floats(0, 3600), seconds=st.floats(0, 3600), hosts=st.lists(st.integers(0, 999), min_size=2, unique=True))
def test_a_strike_reads_back_as_itself(at: float, seconds: float, hosts: list[int]) -> None:
    at, seconds = float(f"{at:.12g}"), float(f"{seconds:.12g}")
    strike = Strike("partition", at, seconds, tuple(hosts[:1]), tuple(hosts[1:]), "one-way")
    assert parse_faults(str(strike)).given == (strike,)


def test_a_seed_decides_a_schedule() -> None:
    faults = parse_faults("all=2")
    assert faults.schedule(random.Random(1), 5) == faults.schedule(random.Random(1), 5)
    assert faults.schedule(random.Random(1), 5) != faults.schedule(random.Random(2), 5)


def test_so_many_of_each_kind_are_drawn_within_their_time() -> None:
    drawn = parse_faults("crash=3,clog=2,seconds=0.5,disk=torn").schedule(random.Random(1), 5)
    assert [strike.kind for strike in drawn].count("crash") == 3
    assert [strike.kind for strike in drawn].count("clog") == 2
    assert all(0 < strike.at <= 0.5 for strike in drawn)
    assert all(strike.detail.startswith("torn") for strike in drawn if strike.kind == "crash")
    assert drawn == tuple(sorted(drawn, key=lambda strike: strike.at))


def test_no_text_is_no_fault() -> None:
    assert parse_faults("") == Faults()
    assert parse_faults(" , ").schedule(random.Random(1), 5) == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("crahs=2", "no fault 'crahs'"),
        ("crushed", "write NAME=NUMBER"),
        ("crash=-1", "a whole number from 0"),
        ("crash=1.5", "a whole number"),
        ("crash=many", "a whole number"),
        ("crash=1001", "to 1,000"),
        ("skew=3", "no fault 'skew'"),
        ("skew_ms=-1", "a number from 0"),
        ("skew_ms=nan", "a number from 0"),
        ("seconds=0", "a number from 0.001"),
        ("disk=burnt", "keep, drop, torn"),
        ("crash=1,crash@1+1:2:keep", "one or the other"),
        ("fly@1+1:2", "no fault 'fly'"),
        ("crash@1:2", "is no strike"),
        ("crash@x+1:2", "is no strike"),
        ("crash@-1+1:2:keep", "the start of crash"),
        ("crash@1+inf:2:keep", "the length of crash"),
        ("crash@nan+1:2:keep", "the start of crash"),
        ("crash@1+1:2", "its detail is one of keep"),
        ("crash@1+1:2-3:keep", "crash has one side"),
        ("clog@1+1:2", "clog has two sides"),
        ("clog@1+1:2-2", "names a peer twice"),
        ("reset@1+1:2-3", "reset is over at once"),
        ("degrade@1+1:2:20", "FACTORxLOSS"),
        ("jump@1+0:2:soon", "by how many seconds"),
        ("io@1+1:2:fly", "the operation that fails"),
        ("jump@1+0:2:4000", "give at most 3,600"),
        ("degrade@1+1:2:0x0", "FACTORxLOSS"),
        ("crash=1,crash=2", "crash stands twice"),
        ("pause@1+1:2:x", "takes no detail"),
        ("pause@1+1:2..3", "is no strike"),
    ],
)
def test_what_it_does_not_say_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(LocalMisuse, match=r"^[^\n]*$") as refused:
        parse_faults(text)
    assert says in str(refused.value)


def test_faults_that_do_not_fit_the_fleet_are_refused() -> None:
    with pytest.raises(LocalMisuse, match="strike peer 7, and the fleet has peers 0 to 4"):
        parse_faults("pause@1+1:7").schedule(random.Random(1), 5)
    with pytest.raises(LocalMisuse, match="needs two peers"):
        parse_faults("clog=1").schedule(random.Random(1), 1)


def test_what_is_named_outweighs_all() -> None:
    assert parse_faults("all=1,crash=5").counts == parse_faults("crash=5,all=1").counts
    assert parse_faults("all=1,crash=5").counts["crash"] == 5


def test_every_kind_is_counted_but_skew() -> None:
    assert set(COUNTED) == set(KINDS) - {"skew"}
