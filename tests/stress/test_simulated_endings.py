"""A scenario in the simulated world that ends badly: one line that names the culprit, and the right exit code."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from fleet.sim.guard import real_seconds
from fleet.sim.world import simulate
from stress.harness import bindings
from stress.harness.options import EXIT_BROKEN, EXIT_FAILED, EXIT_MISUSE
from stress.harness.run import Context, Scenario, run_scenario


async def keeps_the_loop(_context: Context) -> None:
    async def greedy() -> None:
        end = real_seconds() + 5
        while real_seconds() < end:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(greedy)


async def waits_for_nothing(_context: Context) -> None:
    await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.SUCCEEDED)


async def never_quiets(_context: Context) -> None:
    while True:  # noqa: ASYNC110 - that is its fault
        await trio.sleep(1)


async def reads_a_real_clock(_context: Context) -> None:
    time.time()


async def leaves_a_file_open(context: Context) -> None:
    assert context.world is not None
    context.world.disk("peer-3").open("forgotten", create=True)


def ends(run: Callable[[Context], Awaitable[None]], out: Path, *options: str) -> int:
    scenario = Scenario("content_swarm", "A toy.", run, bindings=("sim",))
    return run_scenario(scenario, ["--out", str(out), "--no-audit", "--quiet", *options])


@pytest.mark.parametrize(
    ("run", "says", "code"),
    [
        (keeps_the_loop, "greedy", EXIT_MISUSE),
        (reads_a_real_clock, "reads a real clock", EXIT_MISUSE),
        (leaves_a_file_open, "peer-3: file forgotten", EXIT_BROKEN),
    ],
)
def test_what_a_simulated_run_forbids_is_named_in_one_line(
    run: Callable[[Context], Awaitable[None]],
    says: str,
    code: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bindings, "simulate", functools.partial(simulate, watchdog_seconds=0.2))
    assert ends(run, tmp_path) == code
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("run", [never_quiets, waits_for_nothing])
def test_a_scenario_that_never_ends_fails_at_its_virtual_deadline(
    run: Callable[[Context], Awaitable[None]], tmp_path: Path
) -> None:
    assert ends(run, tmp_path, "--deadline-seconds", "1000") == EXIT_FAILED
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["details"]["run"]["failure"].startswith("deadline exceeded: the run had not finished after 1000 s")
    assert report["metrics"]["virtual_seconds"] == pytest.approx(1000, abs=5)
