"""Runs one scenario from command line to exit code: the only part of the harness that a scenario module calls.

A scenario module builds a ``Scenario`` and ends with ``if __name__ == "__main__": main(SCENARIO)``. Its ``run`` gets a
``Context``, starts its peers, and leaves what it measured in ``context.metrics``. Everything else is here, in this
order: arguments, bounds (so that no peer starts for a file that cannot be judged), run folder, the run itself under
deadline and signals, judgement, report. Which exit code a failure has follows from who is to blame for it.
"""

from __future__ import annotations

import contextlib
import datetime
import importlib
import importlib.util
import math
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import click
import trio

from fleet.errors import (
    DeadlineExceeded,
    FleetError,
    LimitExceeded,
    LinkBroken,
    LinkClosed,
    LocalMisuse,
    StorageFailed,
)
from stress.harness import options
from stress.harness.bindings import run_on_binding
from stress.harness.bounds import Check, Metric, Number, Verdict, judge, load_bounds, run_verdict
from stress.harness.events import EventLog
from stress.harness.lag import LoopLag
from stress.harness.progress import Progress
from stress.harness.report import build_report, render_html, render_text, to_text, write_atomically
from stress.harness.simulated import audit, check_simulation, disturbance, simulation_options

if TYPE_CHECKING:
    from fleet.sim.world import World
    from stress.harness.plots import Figure

_SIGNAL_EXITS: Final = {
    signal.SIGINT: options.EXIT_INTERRUPTED,
    signal.SIGTERM: options.EXIT_TERMINATED,
    signal.SIGHUP: options.EXIT_HUNG_UP,
}
_PIPE_WIDTH: Final = 100
_MAX_WIDTH: Final = 120

Main: TypeAlias = Callable[[], Awaitable[None]]
Runner: TypeAlias = Callable[["Context", Main], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One scenario. ``name`` is its module in ``stress`` and its name in the bounds file.

    ``summary`` is the text of --help. ``options`` are its own (see ``harness.options.option``), ``check_arguments``
    raises ``LocalMisuse`` for arguments that do not fit together, before anything starts. ``modes`` adds a required
    --mode. ``runner`` runs the async main function; a simulated binding brings its own.
    """

    name: str
    summary: str
    run: Callable[[Context], Awaitable[None]]
    options: Sequence[click.Option] = ()
    bindings: Sequence[str] = ("tcp", "tls")
    modes: Sequence[str] = ()
    shrinkable: Mapping[str, int] = field(default_factory=dict)
    """Options that make a run smaller, by name without dashes, and their least values: what explore reduces."""
    check_arguments: Callable[[Mapping[str, Any]], None] | None = None
    runner: Runner = run_on_binding

    @property
    def module(self) -> str:
        """What ``python -m`` runs."""
        return f"stress.{self.name}"


@dataclass(slots=True)
class Context:
    """What a scenario gets, and where it leaves what it found.

    ``args`` are the command line's values by option name. ``scratch`` is an empty folder that is deleted when the run
    ends, however it ends. What is in ``metrics``, ``parameters`` (the run's sizes, which the bounds' ``when`` speaks
    of), ``details`` (anything JSON can carry; the key ``run`` is the harness's), ``summary`` (lines under the table)
    and ``figures`` when the run ends is judged and reported, also after a deadline; so fill them as results arrive.
    ``describe_state`` is called when the deadline passes, while the peers still live.
    """

    args: Mapping[str, Any]
    seed: int
    binding: str
    mode: str | None
    folder: Path
    scratch: Path
    events: EventLog
    progress: Progress
    metrics: dict[str, Metric] = field(default_factory=dict)
    parameters: dict[str, Number] = field(default_factory=dict)
    details: dict[str, object] = field(default_factory=dict)
    summary: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    describe_state: Callable[[], Sequence[str]] = list
    world: World | None = None
    """Where the scenario runs when the binding is ``sim``."""
    lag: LoopLag = field(default_factory=LoopLag)
    """On sockets, how late the event loop is; ``with context.lag.measured():`` is where latencies are measured."""
    failed_at: tuple[float, str, str] | None = None
    """Virtual time, peer and words of the first failure under faults, for the picture."""
    state: list[str] = field(default_factory=list)
    """What ``describe_state`` said when the deadline passed."""


def find_scenario(name: str) -> Scenario:
    """The scenario of ``python -m stress.NAME``; raises ``LocalMisuse`` where there is none."""
    known = name.isidentifier() and importlib.util.find_spec(f"stress.{name}") is not None
    scenario = getattr(importlib.import_module(f"stress.{name}"), "SCENARIO", None) if known else None
    if not isinstance(scenario, Scenario):
        raise LocalMisuse(f"there is no scenario {name!r}: name one, such as content_swarm")
    return scenario


def main(scenario: Scenario) -> NoReturn:
    """Run the scenario with this process's arguments and exit with its code."""
    sys.exit(run_scenario(scenario, sys.argv[1:]))


def run_scenario(scenario: Scenario, argv: Sequence[str]) -> int:
    """Run the scenario as ``python -m stress.NAME argv…`` does, and return the exit code. Needs the main thread."""
    return options.invoke(command_of(scenario, lambda context: _run(scenario, context)), argv)


def command_of(scenario: Scenario, callback: Callable[[click.Context], int]) -> click.Command:
    """The command of ``python -m stress.NAME``."""
    simulation = simulation_options() if "sim" in scenario.bindings else []
    parameters = [*scenario.options, *simulation, *options.shared_options(scenario.bindings, scenario.modes)]
    return options.build_command(scenario.module, scenario.summary, parameters, callback)


def checked_arguments(scenario: Scenario, click_context: click.Context) -> dict[str, Any]:
    """The values of a command line by option name; raises ``LocalMisuse`` for those that do not fit together."""
    named = [parameter.name for parameter in click_context.command.params if parameter.name is not None]
    args = {name: click_context.params[name] for name in named}  # click's own order is that of the command line
    if "sim" in scenario.bindings:
        check_simulation(args)
    if scenario.check_arguments is not None:
        scenario.check_arguments(args)
    return args


def _run(scenario: Scenario, click_context: click.Context) -> int:
    args = checked_arguments(scenario, click_context)
    bounds = options.find_bounds(args["bounds"])
    options.check_not_replaced(args["out"], [bounds, args.get("file")])
    checks = load_bounds(bounds, scenario.name)
    started = datetime.datetime.now(datetime.UTC)
    folder = options.make_run_folder(args["out"], scenario.name, args["seed"], started)
    try:
        with EventLog(folder / "events.jsonl") as events, _scratch(folder) as scratch:
            context = Context(
                args=args,
                seed=args["seed"],
                binding=args["binding"],
                mode=args.get("mode"),
                folder=folder,
                scratch=scratch,
                events=events,
                progress=Progress(scenario.name, quiet=args["quiet"], tail=events.tail),
                parameters=disturbance(args),
            )
            clock = time.perf_counter()
            failure = execute(scenario, context)
            seconds = time.perf_counter() - clock
            replay = options.replay_command(scenario.module, click_context, bounds)
            if context.world is not None and args["audit"] and failure is None:
                events.flush()
                _audit(context, replay)
        run = {
            "started": started.isoformat(timespec="seconds"),
            "seconds": seconds,
            "binding": context.binding,
            "mode": context.mode,
            "parameters": context.parameters,
            "bounds": bounds,
            "summary": context.summary,
            "failure": failure,
            "state": context.state,
        }
        return _conclude(scenario, context, checks, run, replay)
    except (Exception, BaseExceptionGroup, KeyboardInterrupt) as error:  # noqa: BLE001 - the outermost boundary
        return _explain(error, folder)


def _audit(context: Context, replay: str) -> None:
    simulation = context.details["simulation"]
    assert isinstance(simulation, dict)  # noqa: S101 - filled in by the runner
    context.progress.announce("audit: the same run in a fresh process")
    difference = audit(replay, simulation["trace_hash"], context.folder / "events.jsonl", context.scratch / "audit")
    context.parameters["replays"] = 2
    context.metrics["trace_hashes_equal"] = int(difference is None)
    if difference is not None:
        context.summary.append(f"audit: the two runs part at an event: {difference}")


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix=".scratch-", dir=folder))  # a name that no file of the user can have
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


# ---- running


class _Interrupted(Exception):
    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.number = number


def execute(scenario: Scenario, context: Context, *, heed_signals: bool = True) -> str | None:
    """Run the scenario to its end; return None, or why it counts as failed. Raises what else went wrong."""

    async def supervised() -> None:
        if not heed_signals:
            await _supervise(scenario, context, _no_signals())
            return
        with trio.open_signal_receiver(*_SIGNAL_EXITS) as signals:
            await _supervise(scenario, context, signals)

    try:
        scenario.runner(context, supervised)
    except Exception as error:
        causes = leaves(error)
        late = [cause for cause in causes if isinstance(cause, DeadlineExceeded)]
        if len(late) < len(causes):
            raise
        if not context.state:
            context.state.extend(context.describe_state())
        return f"deadline exceeded: {late[0]}"
    return None


async def _no_signals() -> AsyncIterator[int]:
    """For a run in a process whose parent heeds them."""
    while True:
        await trio.sleep(math.inf)
        yield 0


async def _supervise(scenario: Scenario, context: Context, signals: AsyncIterator[int]) -> None:
    work = trio.CancelScope()
    received: list[int] = []
    deadline = float(context.args["deadline_seconds"])
    late = stopped = False

    async def watch_signals() -> None:
        async for number in signals:
            if received:  # the clean-up hangs, and the user has asked twice
                context.progress.release_terminal()
                shutil.rmtree(context.scratch, ignore_errors=True)
                os._exit(_SIGNAL_EXITS[signal.Signals(number)])
            received.append(number)
            events = context.folder / "events.jsonl"
            context.progress.say(f"interrupted; stopping the peers, the events so far go to {events} (again: stop now)")
            work.cancel()

    async def watch_deadline() -> None:
        nonlocal late
        await trio.sleep(deadline)
        late = True
        context.state.extend(context.describe_state())
        work.cancel()

    try:
        async with trio.open_nursery() as nursery:
            if context.world is None:  # progress is told in real time
                nursery.start_soon(context.progress.run)
            nursery.start_soon(watch_signals)
            nursery.start_soon(watch_deadline)
            with work:
                await scenario.run(context)
            nursery.cancel_scope.cancel()
    except (FleetError, ExceptionGroup) as error:
        # who is stopped while it dials may say so by the end of its link; anything else went wrong
        stopped = late or bool(received)
        if not stopped or not all(isinstance(cause, LinkClosed | LinkBroken) for cause in leaves(error)):
            raise
    finally:
        if received:
            # what the clean-up raised, if anything, stays visible as this error's context
            raise _Interrupted(received[0])
    if late and (work.cancelled_caught or stopped):
        raise DeadlineExceeded(f"the run had not finished after {deadline:g} s (--deadline-seconds)")


# ---- concluding


def _conclude(
    scenario: Scenario, context: Context, checks: Sequence[Check], run: Mapping[str, object], replay: str
) -> int:
    """Judge, write the reports, print the result; return the exit code."""
    rows = judge(checks, context.metrics, context.parameters, context.binding, context.mode)
    verdict = Verdict.FAIL if run["failure"] else run_verdict(rows)
    report = build_report(
        scenario=scenario.name,
        args=context.args,
        seed=context.seed,
        verdict=verdict,
        exit_code=options.EXIT_OF_VERDICT[verdict],
        rows=rows,
        metrics=context.metrics,
        details={**context.details, "run": run},
        replay=replay,
    )
    text = to_text(report)
    html = context.folder / "report.html"
    try:
        write_atomically(context.folder / "report.json", text)
        write_atomically(html, render_html(report, context.figures))
    except OSError as error:
        raise StorageFailed(f"cannot write the report to {context.folder} ({error.strerror})") from error
    if context.args["format"] == "text":
        terminal = options.on_terminal()
        width = min(shutil.get_terminal_size().columns, _MAX_WIDTH) if terminal else _PIPE_WIDTH
        text = render_text(report, width=width, colour=terminal, html=html)
    options.print_result(text)
    return options.EXIT_OF_VERDICT[verdict]


def leaves(error: BaseException) -> list[BaseException]:
    """The errors inside nested exception groups, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves(each)]
    return [error]


BLAMELESS: Final = (LocalMisuse, StorageFailed, LimitExceeded)
"""What ends a run without a fault of ours: the arguments, or the machine."""


def culprit(error: BaseException) -> BaseException:
    """Of all that went wrong, what tells most: what nobody foresaw, then what other peers and the network did."""
    causes = leaves(error)
    foreign = [cause for cause in causes if not isinstance(cause, FleetError)]
    return (foreign or [cause for cause in causes if not isinstance(cause, BLAMELESS)] or causes)[0]


def _explain(error: BaseException, folder: Path) -> int:
    """Say in one line on stderr what ended the run, and return the exit code of whoever is to blame."""
    if any(isinstance(cause, KeyboardInterrupt) for cause in leaves(error)):  # outside the watch for signals
        click.echo(f"interrupted; no report was written to {folder}", err=True)
        return options.EXIT_INTERRUPTED
    if isinstance(error, _Interrupted):
        if error.__context__ is not None:
            click.echo(f"interrupted; the clean-up failed, see {_write_traceback(error, folder)}", err=True)
        return _SIGNAL_EXITS[signal.Signals(error.number)]
    cause = culprit(error)
    if isinstance(cause, BLAMELESS):
        return options.misuse(str(cause))
    name = type(cause).__name__
    place = _write_traceback(error, folder)
    click.echo(options.one_line(f"error: {name}: {cause}: the run broke; its traceback is in {place}"), err=True)
    return options.EXIT_BROKEN


def _write_traceback(error: BaseException, folder: Path) -> str:
    """Write ``traceback.txt``; return its path, or, where the disk refuses that too, why there is none."""
    path = folder / "traceback.txt"
    try:
        write_atomically(path, "".join(traceback.format_exception(error)))
    except OSError as refusal:
        return f"no file ({path}: {refusal.strerror})"
    return str(path)
