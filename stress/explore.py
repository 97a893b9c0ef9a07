"""One scenario, many seeds, in parallel processes: which of them fail, grouped by what failed, and how to replay each.

Every seed is one simulated run (``harness.trial``) in a worker process (``harness.workers``), so a seed that kills or
hangs its process is a failure like any other. With ``--shrink`` the failures of the largest groups are then made small
(``harness.shrink``) over the same workers. Signals are noted and looked at between the answers of workers: what was
found until then is always printed.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import click
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fleet.errors import FleetError, LocalMisuse, StorageFailed
from stress.harness import options
from stress.harness.bounds import load_bounds
from stress.harness.exploration import MAX_SHRUNK, Exploration, Job, Stopped
from stress.harness.findings import build_report, render_text
from stress.harness.options import build_command, invoke, option
from stress.harness.progress import LINE_SECONDS
from stress.harness.report import to_text, write_atomically
from stress.harness.run import Scenario, checked_arguments, command_of, find_scenario
from stress.harness.trial import Trial, trial
from stress.harness.workers import LIMIT_SECONDS, Pool

if TYPE_CHECKING:
    from types import FrameType

OUR_FILES: Final = ("report.json", "trials.jsonl")
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

SUMMARY: Final = """\
Run one scenario in the simulated world with many seeds, and say which fail, in which ways.

SCENARIO is the name of one, such as content_swarm; options that are not listed here go to it. What can go wrong in it
is mostly what --faults makes go wrong: python -m stress.content_swarm --help tells what that takes. Failures are
grouped by what failed, and each group has one line that replays its shortest run.

--shrink makes the failures small: fewer peers and operations, fewer faults, at earlier and rounder times. It prints a
line that replays the smallest run that still fails in the same way, and runs it once more for its report.html.

\b
Examples:
  python -m stress.explore content_swarm --peers 5 --pieces 16 --piece-kib 16 --faults all=1
  python -m stress.explore content_swarm --peers 5 --pieces 16 --piece-kib 16 --seeds 500 --jobs 2 \\
      --faults crash=2,partition=1,clog=3,pause=1,skew_ms=200,disk=torn --max-failures 10 --shrink
  python -m stress.explore content_swarm --peers 8 --pieces 16 --loss 0.05 --format json | jq .groups
"""


def perform(name: str, job: Job) -> Trial | LocalMisuse:
    """What a worker does."""
    try:
        return trial(find_scenario(name), job.argv)
    except LocalMisuse as error:
        return error


def check_options(scenario: Scenario, rest: Sequence[str]) -> dict[str, Any]:
    """The scenario's options by name, as every run will have them; raises ``LocalMisuse`` where it would be refused."""
    command = command_of(scenario, lambda _: 0)
    try:
        with command.make_context(command.name, ["--binding", "sim", *rest]) as context:
            if context.get_parameter_source("seed") is not click.core.ParameterSource.DEFAULT:
                raise LocalMisuse("every run has a seed of its own: give the first with --first-seed, not --seed")
            if context.params["binding"] != "sim":
                raise LocalMisuse(f"--binding {context.params['binding']} cannot be explored: leave it out")
            args = checked_arguments(scenario, context)
    except click.UsageError as error:
        text = (
            f"{error.format_message()}: python -m stress.explore --help and {command.name} --help list what they take"
        )
        raise LocalMisuse(text) from None
    except click.exceptions.Exit:
        raise LocalMisuse("-h is not the scenario's here: leave it out") from None
    load_bounds(options.find_bounds(args["bounds"]), scenario.name)
    return args


class Lookout:
    """Between the answers of workers: draws the state on standard error, and raises ``Stopped`` after a signal.

    On a terminal the state is one live line, else a plain one every ten seconds. A second signal ends the process as if
    nobody had listened to the first.
    """

    def __init__(self, title: str, console: Console, *, quiet: bool) -> None:
        self._title = title
        self._console = console
        self._quiet = quiet
        self._started = self._told = time.monotonic()
        self._live: Live | None = None
        self.number: int | None = None
        """The signal that came."""
        self.state: Callable[[float], str] = lambda _: "starting"

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        if not self._quiet and self._console.is_terminal:
            self._live = Live(
                console=self._console,
                auto_refresh=False,  # which would be a thread, and workers are forked
                transient=True,
                get_renderable=lambda: Text(self._line(), overflow="ellipsis", no_wrap=True),
                redirect_stdout=False,
                redirect_stderr=False,
            )
            self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._live is not None:
            self._live.stop()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.number = number
        for each in _SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    def _line(self) -> str:
        return f"{self._title}: {self.state(time.monotonic() - self._started)}"

    def look(self) -> None:
        """Draw, where it is time to; raises ``Stopped`` when a signal has come."""
        if self.number is not None:
            raise Stopped
        if self._live is not None:
            self._live.refresh()
        elif not self._quiet and time.monotonic() - self._told >= LINE_SECONDS:
            self._told = time.monotonic()
            self._console.print(self._line(), markup=False, highlight=False, soft_wrap=True)


def _run(context: click.Context) -> int:
    try:
        return _explore(context.params)
    except (FleetError, click.ClickException):
        raise
    except Exception:  # noqa: BLE001 - ours, whatever it is, and no seed's failure
        traceback.print_exc()
        return options.EXIT_BROKEN


def _explore(params: Mapping[str, Any]) -> int:
    name, rest = params["scenario"], params["rest"]
    scenario = find_scenario(name)
    if "sim" not in scenario.bindings:
        raise LocalMisuse(f"{name} cannot be simulated, so there is nothing to explore: run python -m stress.{name}")
    args = check_options(scenario, rest)
    options.check_not_replaced(params["out"], [options.find_bounds(args["bounds"]), args.get("file")], OUR_FILES)
    seeds = range(params["first_seed"], params["first_seed"] + params["seeds"])
    now = datetime.datetime.now(datetime.UTC)
    folder = options.make_folder(params["out"], f"explore-{name}-{options.utc_stamp(now)}", OUR_FILES, "trials.jsonl")
    jobs = params["jobs"] if params["shrink"] else min(params["jobs"], len(seeds))
    started = time.perf_counter()
    seconds: float | None = None
    failure: FleetError | None = None
    with (
        Lookout(f"explore {name}", Console(stderr=True), quiet=params["quiet"]) as lookout,
        Pool(functools.partial(perform, name), jobs, limit_seconds=LIMIT_SECONDS) as pool,
        _Log(folder / "trials.jsonl") as log,
    ):
        exploration = Exploration(scenario, rest, args, pool, lookout)
        try:
            exploration.run(seeds, params["max_failures"], log.note)
            seconds = time.perf_counter() - started
            if params["shrink"]:
                exploration.shrink(params["shrink_trials"], folder)
        except Stopped:
            pass
        except (LocalMisuse, StorageFailed) as error:
            failure = error  # for later: what was found so far is told first
    report = build_report(
        scenario=name,
        command=shlex.join(["python", "-m", "stress.explore", *_words(params)]),
        asked=len(seeds),
        trials=exploration.trials,
        seconds=seconds or time.perf_counter() - started,
        stopped_by=lookout.number,
        smallest=[each.to_json() for each in exploration.smallest],
    )
    text = to_text(report)
    try:
        write_atomically(folder / "report.json", text)
    except OSError as error:
        failure = failure or _refused(folder, error)
    if params["format"] == "text":
        text = render_text(report, colour=options.on_terminal(), path=str(folder / "report.json"))
    options.print_result(text)
    if failure is not None:
        return options.misuse(str(failure))
    code: int = report["exit_code"]
    return code


class _Log:
    """``trials.jsonl``: each seed as it ended."""

    def __init__(self, path: Path) -> None:
        self._folder = path.parent
        self._file = path.open("w", encoding="utf-8", buffering=1)

    def note(self, ended: Trial) -> None:
        """One more; raises ``StorageFailed``."""
        try:
            self._file.write(f"{json.dumps(asdict(ended))}\n")
        except OSError as error:
            raise _refused(self._folder, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        with contextlib.suppress(OSError):  # what it refuses to write now, it has refused before
            self._file.close()


def _refused(folder: Path, error: OSError) -> StorageFailed:
    return StorageFailed(f"cannot write to {folder} ({error.strerror}): choose another with --out")


def _words(params: Mapping[str, Any]) -> list[str]:
    """The arguments that explore the same seeds again."""
    return [
        params["scenario"],
        "--seeds",
        str(params["seeds"]),
        "--first-seed",
        str(params["first_seed"]),
        *params["rest"],
    ]


COMMAND: Final = build_command(
    "stress.explore",
    SUMMARY,
    [
        click.Argument(["scenario"]),
        option("--seeds", type=click.IntRange(min=1), default=200, help="How many seeds to run."),
        option("--first-seed", type=click.IntRange(min=0), default=0, help="The first; the others follow it."),
        option(
            "--jobs",
            type=click.IntRange(1, 1024),
            default=os.cpu_count() or 1,
            show_default="processors",
            help="How many run at once, each in a process of its own.",
        ),
        option("--max-failures", type=click.IntRange(min=1), help="Start no more seeds once so many have failed."),
        option("--shrink/--no-shrink", default=False, help=f"Make failures small, of the {MAX_SHRUNK} largest groups."),
        option(
            "--shrink-trials",
            type=click.IntRange(min=1),
            default=300,
            help="Smaller runs that are tried for each of them at the most.",
        ),
        option(
            "--out",
            type=click.Path(path_type=Path),
            metavar="DIR",
            show_default="runs/explore-SCENARIO-TIME",
            help="Folder for report.json, trials.jsonl (each seed as it ended) and reports of shrunken runs.",
        ),
        option(
            "--format",
            type=click.Choice(["text", "json"]),
            default="text",
            help="What to print on standard output: text for people, or exactly the content of report.json.",
        ),
        option("--quiet", is_flag=True, help="No progress on standard error; errors still appear there."),
        click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED),
    ],
    _run,
)
COMMAND.context_settings.update(ignore_unknown_options=True)

if __name__ == "__main__":
    sys.exit(invoke(COMMAND, sys.argv[1:]))
