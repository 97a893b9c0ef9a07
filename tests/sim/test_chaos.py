"""Each kind of strike does what it says, and everything is mended at the end."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import trio

from fleet.sim.chaos import Chaos
from fleet.sim.disk_faults import Speed
from fleet.sim.faults import parse_faults
from fleet.sim.path import Constant
from fleet.sim.world import START_OF_TIME, World, simulate

if TYPE_CHECKING:
    from fleet.sim.history import Event


def perform(faults: str, probe_at: dict[float, str]) -> tuple[dict[str, object], list[Event]]:
    """Strike a fleet of four, evaluate each expression at its time after the start, and collect what came out."""
    events: list[Event] = []

    async def main(world: World) -> dict[str, object]:
        seen: dict[str, object] = {}
        down: list[tuple[int, str]] = []
        back: list[int] = []
        steps = [0]
        async with world.fleet(4) as fleet, trio.open_nursery() as nursery:
            names: dict[str, object] = {"world": world, "fleet": fleet, "down": down, "back": back, "steps": steps}

            async def step() -> None:
                while True:
                    steps[0] += 1
                    await trio.sleep(0.1)

            async def probe(at: float, expression: str) -> None:
                await trio.sleep(at)
                seen[expression] = eval(expression, names)  # noqa: S307 - of this file

            world.spawn(nursery, "peer-1", step)
            for at, expression in probe_at.items():
                nursery.start_soon(probe, at, expression)
            strikes = parse_faults(faults).schedule(world.rng("faults"), 4)
            await Chaos(
                world,
                fleet,
                strikes,
                going_down=lambda index, survival: down.append((index, survival)),
                came_back=back.append,
            ).run()
            seen["paths"] = {repr(world.network.path("peer-1", f"peer-{other}")) for other in (0, 2, 3)}
            seen["running"] = [fleet.running(index) for index in range(4)]
            nursery.cancel_scope.cancel()
        return seen

    return simulate(main, seed=1, sink=events.append).value, events


def kinds(events: list[Event], kind: str) -> list[dict[str, object]]:
    return [dict(event.fields) for event in events if event.kind == kind]


def test_a_crash_ends_a_peer_and_a_restart_brings_it_back() -> None:
    seen, events = perform("crash@1+2:1:torn/silent", {2.0: "fleet.running(1)", 2.1: "list(down)", 2.2: "list(back)"})
    assert seen["fleet.running(1)"] is False
    assert seen["list(down)"] == [(1, "torn")]
    assert seen["list(back)"] == []
    assert seen["running"] == [True] * 4
    assert [fault["phase"] for fault in kinds(events, "fault")] == ["begin", "end"]
    assert kinds(events, "crash") == [{"silent": True}]


def test_a_peer_that_is_down_is_not_struck_again() -> None:
    _, events = perform("crash@1+2:1:keep,crash@2+1:1:keep,pause@2.5+1:1", {})
    assert [(fault["fault"], fault["phase"]) for fault in kinds(events, "fault")] == [
        ("crash", "begin"),
        ("crash", "skipped"),
        ("pause", "skipped"),
        ("crash", "end"),
    ]


def test_a_pause_stops_the_tasks_of_its_peer_alone() -> None:
    seen, _ = perform("pause@1+10:1", {1.5: "steps[0]", 10.5: "steps[0] + 0", 12.0: "steps[0] > 15"})
    assert seen["steps[0]"] == seen["steps[0] + 0"]


def test_partitions_that_overlap_end_one_by_one() -> None:
    cut = "world.network._route('peer-{}', 'peer-{}').cut"
    probes = {2.5: cut.format(0, 1), 2.6: cut.format(1, 0), 3.5: cut.format(0, 2), 3.6: cut.format(2, 0)}
    probes[4.5] = "any(route.cut for route in world.network._fabric.routes())"
    seen, _ = perform("partition@1+2:0-1,partition@2+2:0.1-2.3:one-way,jump@5+0:0:1", probes)
    assert [seen[probe] for probe in probes.values()] == [True, True, True, False, False]


def test_a_clog_holds_until_the_last_that_holds_it_ends() -> None:
    held = "world.network._route('peer-0', 'peer-1').held is not None"
    seen, _ = perform("clog@1+3:0-1,clog@2+1:0-1,jump@5+0:0:1", {3.5: held, 4.5: f"bool({held})"})
    assert seen[held] is True
    assert seen[f"bool({held})"] is False


def test_degradations_add_up_and_leave_the_path_as_it_was() -> None:
    latency = "world.network.path('peer-0', 'peer-1').latency"
    loss = "world.network.path('peer-1', 'peer-0').loss"
    other = "world.network.path('peer-2', 'peer-3').latency"
    seen, _ = perform("degrade@1+3:0:10x0.5,degrade@2+1:1:10x0.5", {2.5: latency, 2.6: loss, 2.7: other})
    assert seen[latency] == Constant(0.1)
    assert seen[loss] == 0.75
    assert seen[other] == Constant(0.001)
    assert len(seen["paths"]) == 1  # type: ignore[arg-type]


def test_a_reset_breaks_links_and_they_come_back() -> None:
    _, events = perform("reset@1+0:0-1,jump@3+0:0:1", {})
    assert kinds(events, "reset_all") == [{"target": "peer-1"}]
    assert sum(event.kind == "neighbour_up" and event.time > 1 for event in events) >= 2


def test_clocks_are_off_and_jump() -> None:
    async def main(world: World) -> list[float]:
        shown: list[float] = []

        async def look() -> None:
            shown.append(round(world.environment.wall_clock() - START_OF_TIME - trio.current_time(), 3))

        async with world.fleet(2) as fleet:
            strikes = parse_faults("skew@0+0:1:-0.2,jump@1+0:1:30").schedule(world.rng("faults"), 2)
            await Chaos(
                world, fleet, strikes, going_down=lambda index, survival: None, came_back=lambda index: None
            ).run()
            async with trio.open_nursery() as nursery:
                world.spawn(nursery, "peer-1", look)
            async with trio.open_nursery() as nursery:
                world.spawn(nursery, "peer-0", look)
        return shown

    assert simulate(main).value == [29.8, 0.0]


def test_disks_fail_fill_up_and_slow_down() -> None:
    slow = "world.disk('peer-1').speed"
    full = "world.disk('peer-2').capacity"
    faults = "[fault.operation for fault in world.disk('peer-3').faults]"
    seen, _ = perform("slow@1+2:1,full@1+2:2,io@1+2:3:sync", {2.0: slow, 2.1: full, 2.2: faults, 3.5: f"({full})"})
    assert seen[slow] != Speed()
    assert seen[full] == 0
    assert seen[faults] == ["sync"]


def test_a_slow_disk_stops_the_process_that_uses_it() -> None:
    async def main(world: World) -> list[float]:
        done: list[float] = []

        async def write() -> None:
            file = world.storage(0).open("a", create=True)
            file.write(bytes(1000), 0)
            await trio.lowlevel.checkpoint()
            done.append(trio.current_time())

        async with world.fleet(1), trio.open_nursery() as nursery:
            started = trio.current_time()
            world.disk("peer-0").speed = Speed(operation_seconds=0.5, bytes_per_second=1000)
            world.spawn(nursery, "peer-0", write)
            await trio.sleep(1)
            world.disk("peer-0").contents("a")  # an onlooker waits for nothing
            done.append(trio.current_time() - started)
        return [done[0], done[1] - started]

    assert simulate(main).value == [1.0, 2.0]


def test_the_same_seed_is_struck_in_the_same_way() -> None:
    async def main(world: World) -> None:
        async with world.fleet(4) as fleet:
            strikes = parse_faults("all=2").schedule(world.rng("faults"), 4)
            await Chaos(
                world, fleet, strikes, going_down=lambda index, survival: None, came_back=lambda index: None
            ).run()

    assert simulate(main, seed=3).digest == simulate(main, seed=3).digest
    assert simulate(main, seed=3).digest != simulate(main, seed=4).digest


def test_a_slow_disk_slows_the_process_that_comes_after_a_crash_too() -> None:
    async def main(world: World) -> list[float]:
        steps: list[float] = []

        async def use_disk() -> None:
            while True:
                world.storage(0).exists("a")
                await trio.lowlevel.checkpoint()
                steps.append(trio.current_time())

        async with world.fleet(1) as fleet, trio.open_nursery() as nursery:
            world.disk("peer-0").speed = Speed(operation_seconds=0.5)
            world.spawn(nursery, "peer-0", use_disk)
            await trio.sleep(0.7)
            await world.crash(fleet, 0)
            steps.clear()
            await world.restart(fleet, 0)
            await trio.sleep(10)
            nursery.cancel_scope.cancel()
        return steps

    steps = simulate(main).value
    assert all(b - a >= 0.5 for a, b in itertools.pairwise(steps))
    assert len(steps) > 5
