"""What an exploration found: trials counted, failures grouped by what failed, as JSON and as text.

A group is all trials with the same verdict and the same ``Trial.failure``. It is replayed by the seed whose run was
shortest in virtual time, as that is the quickest to follow.
"""

from __future__ import annotations

import io
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.text import Text

from stress.harness import options
from stress.harness.report import environment

if TYPE_CHECKING:
    from stress.harness.trial import Outcome, Trial

SCHEMA: Final = 1
"""Of the report of an exploration."""
MAX_NAMED: Final = 8
"""Seeds of a group that the text names; report.json has all."""

_GRAVEST_FIRST: Final[Mapping[Outcome, int]] = {
    "BROKEN": options.EXIT_BROKEN,
    "FAIL": options.EXIT_FAILED,
    "INCONCLUSIVE": options.EXIT_INCONCLUSIVE,
    "PASS": options.EXIT_PASS,
}
_COUNTED_AS: Final = {"PASS": "passed", "FAIL": "failed", "INCONCLUSIVE": "inconclusive", "BROKEN": "broken"}
_COLOURS: Final = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow", "BROKEN": "magenta"}

Json = Any


@dataclass(frozen=True, slots=True)
class Group:
    """Trials that failed alike, by seed."""

    trials: Sequence[Trial]

    @property
    def replayed(self) -> Trial:
        """The trial that stands for the group."""
        return min(self.trials, key=lambda trial: (trial.virtual_seconds, trial.seed))

    def to_json(self) -> dict[str, Json]:
        """The group in report.json."""
        first, replayed = self.trials[0], self.replayed
        return {
            "verdict": first.verdict,
            "failure": first.failure,
            "seeds": [trial.seed for trial in self.trials],
            "message": first.message,
            "replay": replayed.replay,
            "replay_seed": replayed.seed,
            "replay_virtual_seconds": replayed.virtual_seconds,
            "schedule": replayed.schedule,
        }


def verdict_of(trials: Sequence[Trial]) -> Outcome:
    """The gravest verdict: a harness that breaks judges nothing, then failures. Of no trial, INCONCLUSIVE."""
    verdicts = {trial.verdict for trial in trials}
    return next((each for each in _GRAVEST_FIRST if each in verdicts), "INCONCLUSIVE")


def exit_code_of(verdict: Outcome) -> int:
    """The exit code of an exploration that ran to its end."""
    return _GRAVEST_FIRST[verdict]


def grouped(trials: Sequence[Trial]) -> list[Group]:
    """What did not pass: failures before what is inconclusive, then the most frequent first, then by first seed."""
    groups: dict[tuple[str, str], list[Trial]] = {}
    for trial in sorted(trials, key=lambda trial: trial.seed):
        if trial.verdict != "PASS":
            groups.setdefault((trial.verdict, trial.failure), []).append(trial)
    ordered = sorted(groups.values(), key=lambda each: (each[0].verdict == "INCONCLUSIVE", -len(each), each[0].seed))
    return [Group(each) for each in ordered]


def build_report(
    *,
    scenario: str,
    command: str,
    asked: int,
    trials: Sequence[Trial],
    seconds: float,
    stopped_by: int | None,
    smallest: Sequence[Mapping[str, Json]],
) -> dict[str, Json]:
    """The content of report.json. ``seconds`` are real ones, ``stopped_by`` the signal that ended the exploration."""
    verdict = verdict_of(trials)
    if stopped_by is not None and verdict == "PASS":
        verdict = "INCONCLUSIVE"  # of the seeds that were not run nothing is known
    virtual = sum(trial.virtual_seconds for trial in trials)
    counts = {name: sum(trial.verdict == each for trial in trials) for each, name in _COUNTED_AS.items()}
    return {
        "schema": SCHEMA,
        "scenario": scenario,
        "verdict": verdict,
        "exit_code": exit_code_of(verdict) if stopped_by is None else 128 + stopped_by,
        "stopped_by": None if stopped_by is None else signal.Signals(stopped_by).name,
        "environment": environment(),
        "totals": {
            "asked": asked,
            "seeds": len(trials),
            **counts,
            "real_seconds": seconds,
            "virtual_seconds": virtual,
            "seeds_per_second": len(trials) / seconds,
            "virtual_over_real_seconds": virtual / seconds,
        },
        "groups": [group.to_json() for group in grouped(trials)],
        "smallest": list(smallest),
        "command": command,
    }


def render_text(report: Mapping[str, Json], *, colour: bool, path: str) -> str:
    """The report for a terminal: the groups, what they were shrunk to, the totals."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=colour, highlight=False, markup=False, soft_wrap=True)
    for group in report["groups"]:
        console.print(_headed(group["verdict"], f"  {_seeds(group['seeds'])}: {group['failure']}"))
        if group["message"]:
            console.print(f"  {group['message']}")
        console.print(f"  replay: {group['replay']}")
    for each in report["smallest"]:
        console.print(f"shrunk: {each['failure']}")
        for line in each["notes"]:
            console.print(f"  {line}")
        console.print(f"  replay: {each['replay']}")
        if each["report"]:
            console.print(f"  report: {each['report']}")
    console.print(_headed(report["verdict"], f": {_totals(report)}"))
    console.print(f"report: {path}")
    return out.getvalue()


def _headed(verdict: str, rest: str) -> Text:
    return Text.assemble((verdict, f"bold {_COLOURS[verdict]}"), rest)


def _seeds(seeds: Sequence[int]) -> str:
    named = ", ".join(map(str, seeds[:MAX_NAMED])) + (", ..." if len(seeds) > MAX_NAMED else "")
    return f"seed {named}" if len(seeds) == 1 else f"{len(seeds)} seeds ({named})"


def _totals(report: Mapping[str, Json]) -> str:
    totals = report["totals"]
    if not totals["seeds"]:
        return "no seed was run to its end, so nothing is proved"
    counts = ", ".join(f"{totals[name]:,} {name}" for name in _COUNTED_AS.values() if totals[name])
    stopped = f", stopped by {report['stopped_by']}" if report["stopped_by"] else ""
    missing = "" if totals["seeds"] == totals["asked"] else f" (of {totals['asked']:,} asked for{stopped})"
    return (
        f"of {totals['seeds']:,} seeds{missing}, {counts}; {totals['seeds_per_second']:.1f} seeds/s, "
        f"{totals['virtual_over_real_seconds']:,.0f} virtual seconds per real second"
    )
