"""The progress lines and bars, on a virtual clock."""

from __future__ import annotations

import io

import pytest
import trio
from rich.console import Console

from fleet.sim import guard
from stress.harness.progress import EVENTS_PER_LOOK, MAX_BARS, MAX_NAMED, Progress


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None, legacy_windows=False)


def printed(progress: Progress) -> list[str]:
    return progress._console.file.getvalue().splitlines()


async def run_for(progress: Progress, seconds: float) -> None:
    with trio.move_on_after(seconds):
        await progress.run()


async def test_without_a_terminal_there_is_a_line_every_ten_seconds(autojump_clock):
    progress = Progress("toy", console=console(terminal=False))
    progress.phase("swarm")
    progress.track("peer-1", 64)
    progress.track("peer-2", 64)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, progress, 25)
        await trio.sleep(1)
        progress.update("peer-1", 64)
        progress.update("peer-2", 16)
        await trio.sleep(14)
        progress.update("peer-2", 64)
    assert printed(progress) == [
        "toy: 10 s, swarm, 62% done: peer-1 64/64, peer-2 16/64",
        "toy: 20 s, swarm, 100% done: peer-1 64/64, peer-2 64/64",
    ]


async def test_the_interval_can_be_chosen_and_no_peer_is_needed(autojump_clock):
    progress = Progress("toy", console=console(terminal=False), line_seconds=60)
    await run_for(progress, 130)
    assert printed(progress) == ["toy: 60 s, starting", "toy: 120 s, starting"]


async def test_a_stalled_peer_has_its_trace_printed_once_for_each_stall(autojump_clock):
    traces = {"peer-1": ["sent 3", "got 7"], "peer-2": []}
    progress = Progress("toy", console=console(terminal=False), tail=lambda peer: traces[peer])
    for name in ("peer-1", "peer-2", "done"):
        progress.track(name, 10)
    progress.update("done", 10)
    progress.update("peer-1", 5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_for, progress, 101)
        await trio.sleep(55)
        progress.update("peer-1", 6)
    lines = [line for line in printed(progress) if not line.startswith("toy:")]
    assert lines == [
        "peer-1 made no progress for 30 s at 5/10; the end of its trace:",
        "  sent 3",
        "  got 7",
        "peer-2 made no progress for 30 s at 0/10; the end of its trace:",
        "  no events",
        "peer-1 made no progress for 35 s at 6/10; the end of its trace:",
        "  sent 3",
        "  got 7",
    ]


async def test_a_simulated_run_has_its_lines_by_the_real_clock(autojump_clock, monkeypatch):
    real = 100.0
    monkeypatch.setattr(guard, "real_seconds", lambda: real)
    progress = Progress("toy", console=console(terminal=False), tail=lambda _peer: ["not on a virtual clock"])
    progress.track("peer-1", 10)
    with progress.by_events() as tick:
        for _ in range(12):  # of 2 real and 100 virtual seconds each
            await trio.sleep(100)
            real += 2
            for _ in range(EVENTS_PER_LOOK):
                tick()
    assert printed(progress) == [
        "toy: 500.000 virtual s in 10 s, starting, 0% done: peer-1 0/10",
        "toy: 1000.000 virtual s in 20 s, starting, 0% done: peer-1 0/10",
    ]


async def test_a_simulated_run_looks_at_the_real_clock_once_in_many_events(autojump_clock, monkeypatch):
    progress = Progress("toy", console=console(terminal=False))
    with progress.by_events() as tick:
        monkeypatch.setattr(guard, "real_seconds", lambda: pytest.fail("looked"))
        for _ in range(EVENTS_PER_LOOK - 1):
            tick()


@pytest.mark.parametrize("terminal", [True, False])
async def test_quiet_prints_nothing_but_what_must_be_said(autojump_clock, terminal):
    progress = Progress("toy", console=console(terminal=terminal), quiet=True)
    progress.track("peer-1", 10)
    await run_for(progress, 100)
    progress.announce("audit")
    with progress.by_events() as tick:
        for _ in range(EVENTS_PER_LOOK):
            tick()
    assert printed(progress) == []
    progress.say("interrupted; [bold] is no markup")
    assert printed(progress) == ["interrupted; [bold] is no markup"]


async def test_a_terminal_gets_a_bar_for_each_peer(autojump_clock):
    progress = Progress("toy", console=console(terminal=True))
    progress.track("peer-1", 64)
    progress.track("peer-2", 64)
    progress.update("peer-2", 32)
    await run_for(progress, 3)
    shown = progress._console.file.getvalue()
    assert "toy: 2 s, starting, 25% done" in shown
    assert "peer-1" in shown
    assert "32/64" in shown
    assert "no progress for 2 s" in shown
    assert shown.rstrip().endswith("\x1b[2K")  # the bars make way for the result


async def test_of_a_large_fleet_the_slowest_are_shown(autojump_clock):
    progress = Progress("toy", console=console(terminal=False))
    for index in range(63):
        progress.track(f"peer-{index:02}", 100)
        progress.update(f"peer-{index:02}", 99 - index)
    progress._console.print(progress.bars())
    lines = printed(progress)
    assert lines[-1] == "and 51 that are as far or further"
    assert [line.split()[0] for line in lines[1:-1]] == [f"peer-{index:02}" for index in range(63 - MAX_BARS, 63)]


async def test_the_line_of_a_large_fleet_gives_the_range_and_names_the_slowest(autojump_clock):
    progress = Progress("toy", console=console(terminal=False))
    for index in range(MAX_NAMED + 1):
        progress.track(f"peer-{index}", 1000)
        progress.update(f"peer-{index}", 1000 if index < 2 else 400 - index)
    assert progress.line() == (
        "toy: 0 s, starting, 48% done, 2 of 13 finished: least 388, median 394, most 1,000; "
        "slowest peer-12 388/1,000, peer-11 389/1,000, peer-10 390/1,000, peer-9 391/1,000"
    )
    for index in range(MAX_NAMED + 1):
        progress.update(f"peer-{index}", 1000)
    assert progress.line() == (
        "toy: 0 s, starting, 100% done, 13 of 13 finished: least 1,000, median 1,000, most 1,000"
    )


async def test_all_but_done_is_not_called_done(autojump_clock):
    progress = Progress("toy", console=console(terminal=False))
    progress.track("peer-1", 100_000)
    progress.update("peer-1", 99_999)
    assert progress.line() == "toy: 0 s, starting, 99% done: peer-1 99,999/100,000"


async def test_bars_with_a_note_fit_eighty_columns(autojump_clock):
    narrow = Console(file=io.StringIO(), force_terminal=False, width=80, color_system=None, legacy_windows=False)
    progress = Progress("content_swarm", console=narrow)
    for index in range(990, 990 + MAX_BARS):
        progress.track(f"peer-{index}", 262_144)
        progress.update(f"peer-{index}", 131_072)
    await trio.sleep(1234)
    progress._console.print(progress.bars())
    _, *rows = printed(progress)
    assert len(rows) == MAX_BARS
    assert all(row.rstrip().endswith("131,072/262,144 no progress for 1234 s") for row in rows)


async def test_a_peer_with_nothing_to_do_is_finished(autojump_clock):
    progress = Progress("toy", console=console(terminal=False))
    progress.track("peer-1", 0)
    assert progress.line() == "toy: 0 s, starting, 100% done: peer-1 0/0"
    progress._console.print(progress.bars())


async def test_phases_start_afresh_and_late_updates_are_ignored(autojump_clock):
    progress = Progress("toy", console=console(terminal=False))
    progress.track("peer-1", 10)
    progress.clear()
    progress.update("peer-1", 5)
    assert progress.line() == "toy: 0 s, starting"
