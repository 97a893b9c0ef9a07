"""One run of a scenario in the simulated world without a report: what an exploration does with every seed.

It says whether the run passed and, if not, what failed in words that are the same whenever the same fails, so that
failures can be counted by kind and a smaller run can be recognised as failing in the same way.
"""

from __future__ import annotations

import functools
import re
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import click

import fleet
import stress
from fleet.errors import LocalMisuse
from stress.harness import options
from stress.harness.bindings import LeftOpen, simulated
from stress.harness.bounds import Check, Verdict, judge, load_bounds, run_verdict
from stress.harness.events import EventLog
from stress.harness.progress import Progress
from stress.harness.run import Context, checked_arguments, command_of, culprit, execute
from stress.harness.simulated import disturbance

if TYPE_CHECKING:
    from stress.harness.run import Scenario

Outcome: TypeAlias = Literal["PASS", "FAIL", "INCONCLUSIVE", "BROKEN"]

_OURS: Final = (Path(fleet.__file__).parent, Path(stress.__file__).parent)


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one seed. ``BROKEN``: an error that nobody expected ended the run."""

    seed: int
    verdict: Outcome
    failure: str
    """What failed, equal for equal failures; empty when it passed."""
    message: str
    """One line of detail, of this seed alone."""
    schedule: str
    """The strikes that were drawn or given, as ``--faults`` takes them; empty without faults."""
    replay: str
    virtual_seconds: float
    real_seconds: float


def trial(scenario: Scenario, argv: Sequence[str]) -> Trial:
    """Run the scenario as ``python -m stress.NAME argv…`` does, without report and audit.

    Raises ``LocalMisuse`` for arguments that it does not take.
    """
    results: list[Trial] = []

    def run(click_context: click.Context) -> int:
        results.append(_try(scenario, click_context))
        return 0

    command = command_of(scenario, run)
    try:
        command.main(list(argv), prog_name=command.name, standalone_mode=False)
    except click.ClickException as error:
        raise LocalMisuse(error.format_message()) from None
    if not results:
        raise LocalMisuse("--help runs nothing: leave it out")
    return results[0]


def _try(scenario: Scenario, click_context: click.Context) -> Trial:
    args = checked_arguments(scenario, click_context)
    if args["binding"] != "sim":
        raise LocalMisuse("only simulated runs can be explored: use --binding sim")
    bounds = options.find_bounds(args["bounds"])
    checks = _checks(bounds, scenario.name)
    quiet = replace(scenario, runner=lambda context, main: simulated(context, main, None))
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="peerfleet-trial-") as folder, EventLog(Path(folder) / "events") as events:
        context = Context(
            args=args,
            seed=args["seed"],
            binding="sim",
            mode=args.get("mode"),
            folder=Path(folder),
            scratch=Path(folder),
            events=events,
            progress=Progress(scenario.name, quiet=True, tail=events.tail),
            parameters=disturbance(args),
        )
        verdict, failure, message = _outcome(quiet, context, checks)
    return Trial(
        seed=context.seed,
        verdict=verdict,
        failure=failure,
        message=message,
        schedule=_schedule(context),
        replay=options.replay_command(scenario.module, click_context, bounds),
        virtual_seconds=_number(context, "virtual_seconds"),
        real_seconds=time.perf_counter() - started,
    )


@functools.lru_cache
def _checks(bounds: Path, scenario: str) -> Sequence[Check]:
    return load_bounds(bounds, scenario)


def _outcome(scenario: Scenario, context: Context, checks: Sequence[Check]) -> tuple[Outcome, str, str]:
    """The verdict, what failed, and in detail."""
    try:
        late = execute(scenario, context, heed_signals=False)
    except Exception as error:  # noqa: BLE001 - to be counted, whatever it is
        cause = culprit(error)
        name = type(cause).__name__
        where = ", ".join(cause.kinds) if isinstance(cause, LeftOpen) else _place(cause)
        return "BROKEN", f"{name}: {where}", options.one_line(f"{name}: {cause}")
    rows = judge(checks, context.metrics, context.parameters, context.binding, context.mode)
    verdict = run_verdict(rows)
    unsafe = _violations(context)
    if unsafe:
        return "FAIL", f"unsafe: {_kind(unsafe[0][0])}", "; ".join(map(": ".join, unsafe))
    if late is not None:
        return "FAIL", re.sub(r"peer-\d+(:\d+)?", "a peer", late), "; ".join(context.state)
    failing = [row for row in rows if row.verdict is Verdict.FAIL and row.check.kind == "gate"]
    if failing:
        what = ", ".join(row.check.id for row in failing)
        values = ", ".join(f"{row.check.id} {row.value} {row.check.op} {row.check.bound:g}" for row in failing)
        return "FAIL", f"gate failed: {what}", values
    if verdict is Verdict.INCONCLUSIVE:
        return "INCONCLUSIVE", "inconclusive: a gate was not measured", "no gate was judged, or one lacks its metric"
    return "PASS", "", ""


def _kind(what: str) -> str:
    """The same for the same kind of failure, whichever piece it struck."""
    return re.sub(r"\d[\d,]*", "N", what)


def _place(error: BaseException) -> str:
    """Where in our own code it was raised, without line numbers: file and function."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        for package in _OURS:
            if (path := Path(frame.filename)).is_relative_to(package):
                return f"{path.relative_to(package.parent)}, {frame.name}"
    return "outside of this package"


def _faults(context: Context) -> dict[str, Any]:
    found = context.details.get("faults", {})
    return found if isinstance(found, dict) else {}


def _schedule(context: Context) -> str:
    schedule: str = _faults(context).get("schedule", "")
    return schedule


def _violations(context: Context) -> list[tuple[str, str]]:
    return list(_faults(context).get("violations", {}).items())


def _number(context: Context, name: str) -> float:
    value = context.metrics.get(name, 0.0)
    return float(value) if isinstance(value, int | float) else 0.0
