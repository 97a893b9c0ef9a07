"""The space-time picture: its axis, what is kept of a run's events, and the page it becomes."""

from __future__ import annotations

import itertools
import random
import xml.etree.ElementTree as ET

import pytest
import trio
from hypothesis import example, given
from hypothesis import strategies as st

from fleet.sim.history import Event
from fleet.sim.path import Constant, Path
from fleet.sim.world import simulate
from stress.harness.plots import draw
from stress.harness.space_time import MAX_HOSTS, RECENT, Kept, SpaceTime
from stress.harness.space_time_picture import Bar, Cut, Mark, Message
from stress.harness.time_axis import time_axis

# ---- the axis

TIMES = st.lists(st.floats(0, 1e4, allow_subnormal=False), min_size=1, max_size=60)


@given(TIMES)
@example([0.0, 1e-12])
@example([5.0])
@example([0.0, 1e-6, 1e4])
def test_time_never_runs_backward_and_fills_the_height(times):
    axis = time_axis(times, 400.0)
    places = [axis.position(time) for time in sorted(times)]
    assert places == sorted(places)
    assert (axis.spans[0].top, axis.spans[-1].bottom) == (0.0, pytest.approx(400.0))
    for before, after in itertools.pairwise(axis.spans):
        assert (before.end, before.bottom) == (after.begin, after.top)
    assert axis.position(-1.0) == 0.0
    assert axis.position(1e6) == pytest.approx(400.0)


@given(TIMES)
def test_ticks_are_apart_and_say_where_they_are(times):
    axis = time_axis(times, 400.0)
    ticks = axis.ticks(20.0)
    for before, after in itertools.pairwise(ticks):
        assert after[0] - before[0] >= 20.0 - 1e-3
    for place, label in ticks:
        assert axis.position(float(label)) == pytest.approx(place, abs=0.1)


def test_a_burst_gets_the_room_and_a_silence_is_cut_short():
    rng = random.Random(1)
    burst = [rng.uniform(0, 0.2) for _ in range(1_000)]
    axis = time_axis([*burst, 90.0, 90.1], 800.0)
    assert axis.position(0.2) > 400
    assert axis.position(45.1) - axis.position(0.3) < 100
    assert [span.quiet for span in axis.spans if span.begin < 45 < span.end] == [True]
    assert not any(span.quiet for span in axis.spans if span.end <= 0.19)


def test_ticks_of_neighbouring_spans_are_apart_too():
    rng = random.Random(3)
    ends = [(begin, begin + length) for begin, length in ((0, 0.2), (1, 1e-3), (3, 5), (30, 0.7), (60, 0.01), (99, 1))]
    axis = time_axis([rng.uniform(*end) for end in ends for _ in range(200)], 800.0)
    for room in range(12, 40):
        places = [place for place, _ in axis.ticks(room)]
        assert len(places) > 3
        assert min(after - before for before, after in itertools.pairwise(places)) >= room - 1e-3


def test_there_are_never_too_many_spans():
    rng = random.Random(4)
    times = [burst + rng.uniform(0, 0.01) for burst in range(40) for _ in range(30)]
    spans = time_axis(times, 800.0).spans
    assert 1 < len(spans) <= 12
    assert min(span.bottom - span.top for span in spans) >= 14.0


def test_an_even_run_is_one_span():
    assert len(time_axis([number / 10 for number in range(500)], 800.0).spans) == 1


def test_behind_very_many_moments_the_few_still_count():
    rng = random.Random(2)
    burst = [rng.uniform(0, 0.1) for _ in range(40_000)]
    axis = time_axis([*burst, *range(1, 60)], 800.0)
    assert axis.position(0.1) > 400
    assert [span.quiet for span in axis.spans if span.begin < 30 < span.end] == [False]


# ---- what is kept


@given(st.integers(0, 400), st.integers(1, 20))
def test_the_last_are_all_kept_and_the_older_thinned_evenly(count, most):
    kept = Kept(most)
    for number in range(count):
        kept.add(number)
    items = kept.items()
    assert kept.added == count
    assert len(items) <= 2 * most
    assert items[-most:] == list(range(count))[-most:]
    older = [0, *items[:-most]] if count > most else [0]
    assert items[:1] == [0][:count]
    steps = {after - before for before, after in itertools.pairwise(older[1:])}
    assert len(steps) <= 1


def picture_of(*events, failure=None, hosts=()):
    space_time = SpaceTime(hosts)
    for number, (time, peer, kind, fields) in enumerate(events):
        space_time.note(Event(number, time, peer, kind, tuple(fields.items())))
    return space_time.figure(failure).data["picture"]


def deliver(sent, source, arrived, target):
    return arrived, target, "deliver", {"source": source, "link": 1, "sent": sent, "size": 1, "check": 0}


def drop(time, source, target):
    return time, source, "drop", {"target": target, "reason": "loss", "size": 1}


def fault(time, kind, phase, hosts, detail=""):
    return time, "", "fault", {"fault": kind, "phase": phase, "hosts": hosts, "others": "", "detail": detail}


def texts(picture):
    return [note.text for note in picture.notes]


def test_a_message_is_late_when_it_was_lost_or_held_and_only_then():
    picture = picture_of(
        deliver(0.00, "peer-0", 0.02, "peer-1"),
        drop(1.02, "peer-0", "peer-1"),
        deliver(1.01, "peer-0", 1.03, "peer-1"),  # had arrived, and waited for the downlink
        deliver(1.00, "peer-0", 1.30, "peer-1"),  # the lost one, sent again
        deliver(1.00, "peer-1", 1.31, "peer-0"),  # the other direction
        deliver(1.10, "peer-0", 1.32, "peer-1"),
        (2.0, "peer-0", "clog", {"target": "peer-1"}),
        (2.1, "peer-0", "unclog", {"target": "peer-1"}),
        deliver(2.05, "peer-0", 2.10, "peer-1"),
        deliver(2.15, "peer-0", 2.16, "peer-1"),
        deliver(3.0, "peer-2", 3.1, "peer-2"),  # to itself
    )
    assert [each for each in picture.messages if each.late] == [
        Message(1.00, "peer-0", 1.30, "peer-1", late=True),
        Message(2.05, "peer-0", 2.10, "peer-1", late=True),
    ]
    assert len(picture.messages) == 7
    assert picture.marks == [Mark(1.02, "peer-1", "lost", "peer-0")]
    assert picture.bars == [Bar(2.0, 2.1, "peer-1", "clog")]
    assert texts(picture) == ["clog peer-0 to peer-1", "unclog peer-0 to peer-1"]


def test_a_datagram_is_a_message_too():
    fields = {"source": "peer-0:40000", "sent": 1.0, "size": 3, "check": 0}
    assert picture_of((1.5, "peer-1", "datagram", fields)).messages == [
        Message(1.0, "peer-0", 1.5, "peer-1", late=False)
    ]


def test_a_crash_is_a_gap_that_ends_with_the_restart_or_the_picture():
    crash = [
        (1.0, "peer-3", "pause", {}),
        (2.0, "peer-3", "crash", {"silent": True}),
        (2.0, "peer-3", "disk", {"operation": "crash", "how": "torn", "used": 5}),
    ]
    picture = picture_of(*crash, (5.0, "peer-3", "restore", {}), (6.0, "peer-3", "complete", {"root": "x"}))
    assert picture.bars == [Bar(1.0, 2.0, "peer-3", "pause"), Bar(2.0, 5.0, "peer-3", "down")]
    assert [mark.kind for mark in picture.marks] == ["crash", "restart", "complete"]
    assert texts(picture) == ["pause peer-3", "crash peer-3 silent (disk: torn)", "restart peer-3"]
    assert picture_of(*crash, (9.0, "", "phase", {"name": "heal"})).bars[-1] == Bar(2.0, 9.0, "peer-3", "down")


def test_a_partition_that_outlasts_the_heal_of_another_goes_on():
    first = {"a": "peer-0 peer-1 peer-2", "b": "peer-3", "one_way": False}
    second = {"a": "peer-1", "b": "peer-2", "one_way": True}
    picture = picture_of(
        (1.0, "", "partition", first),
        (2.0, "", "partition", second),
        (3.0, "", "heal", {}),
        (3.0, "", "partition", first),
        (8.0, "", "heal", {}),
        (9.0, "", "heal", {}),
    )
    whole = Cut(1.0, 8.0, ("peer-0", "peer-1", "peer-2"), ("peer-3",))
    assert whole in picture.cuts
    assert Cut(2.0, 3.0, ("peer-1",), ("peer-2",)) in picture.cuts
    assert texts(picture) == [
        "partition 0-2 | 3",
        "one-way partition 1 to 2",
        "partition ends",
        "partition ends",
    ]
    assert picture.hosts == ("peer-0", "peer-1", "peer-2", "peer-3")


def test_faults_without_a_trace_of_their_own_come_from_their_performer():
    picture = picture_of(
        fault(1.0, "slow", "begin", "peer-1"),
        fault(1.5, "full", "begin", "peer-1"),
        (2.0, "peer-1", "pause", {}),
        (2.1, "peer-1", "resume", {}),
        fault(3.0, "slow", "end", "peer-1"),
        fault(4.0, "full", "end", "peer-1"),
        fault(4.0, "full", "skipped", "peer-2"),
        fault(5.0, "degrade", "begin", "peer-0", "20x0.1"),
        fault(5.0, "crash", "begin", "peer-0", "torn"),
    )
    assert picture.bars == [
        Bar(2.0, 2.1, "peer-1", "pause"),
        Bar(1.0, 4.0, "peer-1", "slow"),
        Bar(5.0, 5.0, "peer-0", "degrade"),
    ]
    # no word of the pauses: a slow disk stops its process at every turn
    assert texts(picture) == ["disk slow: peer-1", "disk full: peer-1", "paths degraded: peer-0 20x0.1"]


def test_disks_and_clocks_are_marked_and_the_same_of_many_is_one_line():
    done = {"file": "a", "size": 1, "offset": 0, "crc": 0}
    picture = picture_of(
        *[(0.0, f"peer-{index}", "clock", {"shift": index - 1.5}) for index in range(3)],
        (1.0, "peer-0", "disk", {"operation": "write", **done, "fault": None}),
        (2.0, "peer-0", "disk", {"operation": "sync", **done, "fault": "input/output error"}),
        (3.0, "peer-0", "disk", {"operation": "flip", "file": "a", "size": 3}),
    )
    assert texts(picture) == ["clock moved peers 0-2", "sync fails on peer-0", "bits flipped on peer-0"]
    assert [mark.kind for mark in picture.marks] == ["clock"] * 3 + ["disk"] * 2


def test_what_is_said_again_and_again_is_counted():
    name = "0123456789abcdef" * 4
    again = [(float(second), "peer-1", "failed", {"root": "r", "reason": f"no {name}.part"}) for second in range(9)]
    assert texts(picture_of(*again)) == [
        "peer-1 failed: no 01234567….part",
        "peer-1 failed: no 01234567….part",
        "7 times: peer-1 failed: no 01234567….part",
    ]


def test_the_picture_ends_with_the_failure():
    picture = picture_of(
        deliver(0.0, "peer-0", 1.0, "peer-1"),
        (1.5, "peer-0", "pause", {}),
        (2.5, "peer-0", "resume", {}),
        deliver(1.9, "peer-0", 2.1, "peer-1"),
        (3.0, "peer-1", "piece", {"piece": 1, "source": "x"}),
        failure=(2.0, "peer-1", "it broke"),
    )
    assert [each.arrived for each in picture.messages] == [1.0]
    assert picture.bars == [Bar(1.5, 2.0, "peer-0", "pause")]
    assert not picture.marks
    assert texts(picture) == ["pause peer-0", "it broke"]
    assert picture.failed == "peer-1"
    assert max(picture.times()) == 2.0


def test_hosts_are_in_their_natural_order_those_given_first_and_strangers_last():
    events = [deliver(0.0, "peer-10", 1.0, "peer-9"), deliver(0.0, "host-a", 1.0, "peer-2")]
    assert picture_of(*events).hosts == ("peer-2", "peer-9", "peer-10", "host-a")
    assert picture_of(*events, hosts=["peer-10"]).hosts == ("peer-10", "peer-2", "peer-9", "host-a")


def test_of_too_many_hosts_those_that_faults_struck_are_shown():
    events = [deliver(0.0, "peer-0", 1.0, f"peer-{index}") for index in range(1, 200)]
    picture = picture_of(*events, (2.0, "peer-150", "pause", {}), failure=(3.0, "peer-170", "it broke"))
    assert len(picture.hosts) == MAX_HOSTS
    assert {"peer-0", "peer-1", "peer-150", "peer-170"} <= set(picture.hosts)


def test_memory_is_bounded_whatever_happens():
    picture = SpaceTime()
    number = 0
    for number in range(20_000):
        time = number / 100
        kind, fields = [
            ("deliver", {"source": "peer-1", "sent": time}),
            ("drop", {"target": "peer-1"}),
            ("failed", {"root": "r", "reason": str(number)}),
            ("partition", {"a": "peer-1", "b": "peer-2", "one_way": False}),
            ("heal", {}),
            ("pause", {}),
            ("resume", {}),
        ][number % 7]
        picture.note(Event(number, time, "peer-0", kind, tuple(fields.items())))
    drawn = picture.figure(None).data["picture"]
    things = (drawn.messages, drawn.marks, drawn.bars, drawn.cuts, drawn.notes)
    assert sum(map(len, things)) < 5 * RECENT


# ---- the page


SVG = "{http://www.w3.org/2000/svg}"


def svg_of(figure):
    svg = draw(figure)
    return ET.fromstring(svg), svg  # noqa: S314 - our own


def words(root):
    return ["".join(text.itertext()).strip() for text in root.iter(f"{SVG}text")]


async def troubled(world):
    async with world.fleet(3):
        world.network.partition(["peer-0"], ["peer-2"])
        await trio.sleep(30)
        world.network.heal()


@pytest.mark.slow
def test_a_simulated_run_becomes_a_page():
    space_time = SpaceTime()
    path = Path(latency=Constant(0.02))
    outcome = simulate(troubled, path=path, sink=space_time.note)
    assert outcome.digest == simulate(troubled, path=path).digest
    figure = space_time.figure((20.0, "peer-1", "a <strange> & costly $5 failure"))
    picture = figure.data["picture"]
    assert picture.hosts == ("peer-0", "peer-1", "peer-2")
    assert picture.messages
    assert all(each.arrived == pytest.approx(each.sent + 0.02) for each in picture.messages if not each.late)
    root, svg = svg_of(figure)
    shown = words(root)
    assert {"peer-0", "peer-1", "peer-2", "partition 0 | 2", "message", "lost", "link up"} <= set(shown)
    assert "a <strange> & costly $5 failure" in " ".join(shown)
    assert 'href="http' not in svg
    assert svg == draw(figure)


@pytest.mark.slow
def test_notes_of_one_moment_stand_below_each_other():
    space_time = SpaceTime()
    for number, kind in enumerate(["crash", "clog", "pause", "clock", "reset_all", "restore"]):
        fields = {"silent": False, "target": "peer-1", "shift": 1.0}
        space_time.note(Event(number, 5.0, "peer-0", kind, tuple(fields.items())))
    root, _ = svg_of(space_time.figure((5.0, "", "one failure")))
    texts = [text for text in root.iter(f"{SVG}text") if "peer-0" in (text.text or "") or text.text == "one failure"]
    heights = sorted(float(text.attrib["y"]) for text in texts if text.text != "peer-0")
    assert len(heights) == 7
    assert min(after - before for before, after in itertools.pairwise(heights)) >= 10.9


def test_nothing_at_all_is_a_page_too():
    root, _ = svg_of(SpaceTime().figure(None))
    assert words(root) == ["nothing was recorded"]


@pytest.mark.slow
def test_what_would_cover_the_same_points_is_drawn_once():
    space_time = SpaceTime()
    for number in range(500):
        space_time.note(Event(number, 1.0, "peer-1", "deliver", (("source", "peer-0"), ("sent", 0.0))))
    assert len(svg_of(space_time.figure(None))[1]) < 10_000


@pytest.mark.slow
def test_a_wild_run_of_many_peers_stays_a_small_page():
    rng = random.Random(1)
    space_time = SpaceTime()
    time = 0.0
    for number in range(30_000):
        time += rng.expovariate(500 if number % 5_000 < 4_000 else 5)
        here, there = rng.sample(range(40), 2)
        kind = rng.choice([*["deliver"] * 12, "drop", "piece", "neighbour_up", "neighbour_down", "crash", "restore"])
        fields = {"source": f"peer-{there}", "target": f"peer-{there}", "sent": time - rng.random(), "silent": False}
        space_time.note(Event(number, time, f"peer-{here}", kind, tuple(fields.items())))
    root, svg = svg_of(space_time.figure((time, "peer-3", "broken " * 100)))
    assert len(svg) < 240_000
    shown = words(root)
    assert {"0", "2", "38"} <= set(shown)
    assert any(line.endswith("…") for line in shown)
