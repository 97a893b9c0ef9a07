"""Shrinking, by itself: what is left still fails, cannot lose a strike, is larger in nothing, and took few trials."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.sim.faults import Strike, parse_faults
from stress.harness.shrink import Case, fit, shrink

LEAST = {"peers": 2, "pieces": 1}
PLENTY = 100_000


def case_of(schedule: str = "", *, peers: int = 6, pieces: int = 16, seed: int = 7) -> Case:
    return Case((("peers", peers), ("pieces", pieces)), seed, parse_faults(schedule).given)


def drive(start: Case, fails: Callable[[Case], bool], trials: int = PLENTY, seeds: int = 3) -> tuple[Case, list[Case]]:
    """Run the search against a predicate; return what it found and what it had to run."""
    search = shrink(start, LEAST, trials=trials, seeds=seeds)
    ran: list[Case] = []
    index: int | None = None
    try:
        batch = next(search)
        while True:
            index = next((number for number, case in enumerate(batch) if fails(case)), None)
            ran += batch if index is None else batch[: index + 1]
            batch = search.send(index)
    except StopIteration as end:
        return end.value, ran


def text(case: Case) -> str:
    return ",".join(map(str, case.strikes))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    peers = draw(st.integers(2, 7))
    host = st.integers(0, peers - 1)
    time = st.floats(0, 50).map(lambda x: float(f"{x:.3g}"))

    def one() -> Strike:
        match draw(st.sampled_from(["crash", "pause", "partition", "reset"])):
            case "partition":
                order = draw(st.permutations(range(peers)))
                cut = draw(st.integers(1, peers - 1))
                sides = tuple(sorted(order[:cut])), tuple(sorted(order[cut:]))
                return Strike("partition", draw(time), draw(time), *sides)
            case "reset":
                here, there = draw(st.permutations(range(peers)))[:2]
                return Strike("reset", draw(time), 0.0, (here,), (there,))
            case kind:
                return Strike(kind, draw(time), draw(time), (draw(host),), detail="torn" if kind == "crash" else "")

    strikes = tuple(one() for _ in range(draw(st.integers(0, 7))))
    return Case((("peers", peers), ("pieces", draw(st.integers(1, 40)))), draw(st.integers(0, 100)), strikes)


@st.composite
def predicates(draw: st.DrawFn) -> Callable[[Case], bool]:
    """Failures that need some kinds of strikes and some size, or (not monotone) are as good as random."""
    if draw(st.booleans()):
        salt, share = draw(st.integers(0, 999)), draw(st.integers(1, 128))
        return lambda case: hashlib.blake2b(f"{salt}{case}".encode(), digest_size=1).digest()[0] < share
    kinds = draw(st.lists(st.sampled_from(["crash", "pause", "partition", "reset"]), max_size=3, unique=True))
    peers, pieces, least = draw(st.integers(2, 4)), draw(st.integers(1, 9)), draw(st.floats(0, 9))

    def fails(case: Case) -> bool:
        sizes = dict(case.options)
        there = {strike.kind for strike in case.strikes if strike.end >= least}
        return there.issuperset(kinds) and sizes["peers"] >= peers and sizes["pieces"] >= pieces

    return fails


def hosts(case: Case) -> int:
    return sum(len(strike.hosts + strike.others) for strike in case.strikes)


@given(cases(), predicates(), st.sampled_from([1, 3]))
def test_the_result_fails_is_minimal_and_never_larger(start, predicate, seeds):
    fails = lambda case: case == start or predicate(case)  # noqa: E731
    found, ran = drive(start, fails, seeds=seeds)
    assert fails(found)
    assert len(ran) == len(set(ran))
    for case in [found, *ran]:
        assert all(value <= most for (_, value), (_, most) in zip(case.options, start.options, strict=True))
        assert all(value >= LEAST[name] for name, value in case.options)
        assert len(case.strikes) <= len(start.strikes)
        assert hosts(case) <= hosts(start)
        for field in ("at", "seconds"):
            assert sum(getattr(each, field) for each in case.strikes) <= sum(
                getattr(each, field) for each in start.strikes
            )
        parsed = parse_faults(text(case)).given
        assert parsed == case.strikes
        assert all(host < dict(case.options)["peers"] for each in parsed for host in each.hosts + each.others)
    for number in range(len(found.strikes)):
        without = Case(found.options, found.seed, found.strikes[:number] + found.strikes[number + 1 :])
        assert not fails(without)


@given(cases(), predicates(), st.integers(0, 60))
def test_the_trials_are_bounded_and_what_was_found_until_then_fails(start, predicate, trials):
    fails = lambda case: case == start or predicate(case)  # noqa: E731
    found, ran = drive(start, fails, trials=trials)
    assert len(ran) <= trials
    assert fails(found)


@given(cases(), predicates())
def test_the_same_start_takes_the_same_way(start, predicate):
    assert drive(start, predicate) == drive(start, predicate)


def test_nothing_to_shrink_takes_no_trial():
    start = case_of(peers=2, pieces=1)
    assert drive(start, lambda _: True) == (start, [])


def test_a_failure_that_needs_nothing_ends_at_the_least_in_three_trials():
    found, ran = drive(case_of("crash@0.31+1.2:3:torn,pause@2+1:5,partition@1+2:0.1-2.3.4.5"), lambda _: True)
    assert found == case_of(peers=2, pieces=1)
    assert len(ran) == 2


def test_one_strike_of_many_is_found_and_rounded():
    schedule = ",".join(f"pause@{at}.37+2.81:{at % 6}" for at in range(16)) + ",crash@4.83+1.27:5:torn"

    def fails(case: Case) -> bool:
        crashes = [strike for strike in case.strikes if strike.kind == "crash"]
        return bool(crashes) and crashes[0].at >= 2.5 and crashes[0].seconds > 0.1 and dict(case.options)["peers"] >= 3

    found, ran = drive(case_of(schedule), fails)
    assert text(found) == "crash@3+0.2:2:torn"
    assert found.options == (("peers", 3), ("pieces", 1))
    assert len(ran) < 120


def test_a_partition_of_many_ends_as_one_of_two():
    def fails(case: Case) -> bool:
        return any(strike.kind == "partition" and strike.seconds >= 3 for strike in case.strikes)

    found, _ = drive(case_of("partition@0.2+25:0.1-2.3.4.5"), fails)
    assert text(found) == "partition@0+3:1-0"
    assert found.options == (("peers", 2), ("pieces", 1))


def test_a_smaller_fleet_may_need_another_seed():
    def fails(case: Case) -> bool:
        peers = dict(case.options)["peers"]
        return peers == 6 or (peers == 2 and case.seed == 9)

    assert drive(case_of(pieces=1), fails)[0] == case_of(peers=2, pieces=1, seed=9)
    assert drive(case_of(pieces=1), fails, seeds=1)[0] == case_of(pieces=1)


@pytest.mark.parametrize(
    ("before", "peers", "after"),
    [
        ("crash@1+1:3:torn", 4, "crash@1+1:3:torn"),
        ("crash@1+1:5:torn", 3, "crash@1+1:2:torn"),
        (
            "crash@1+1:5:torn,pause@2+1:2,pause@3+1:4,clog@4+1:4-5",
            3,
            "crash@1+1:0:torn,pause@2+1:2,pause@3+1:1,clog@4+1:1-0",
        ),
        ("pause@1+1:0,pause@1+1:1,pause@1+1:4", 2, "pause@1+1:0,pause@1+1:1"),
        ("partition@1+1:0.1-2.3", 2, ""),
        ("partition@1+1:0.2-1.3", 2, "partition@1+1:0-1"),
    ],
)
def test_strikes_are_made_to_fit_the_peers(before, peers, after):
    assert ",".join(map(str, fit(parse_faults(before).given, peers))) == after
