"""The runs of one exploration over a pool of workers: many seeds, and then smaller runs that fail alike.

Everything that waits looks at ``Watch`` now and then, which draws the progress and tells of a signal, so whatever was
found before one is kept. What is found does not depend on the number of workers: candidates that run ahead are looked
at in their order.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from fleet.errors import LocalMisuse
from fleet.sim.faults import format_schedule, parse_faults
from stress.harness import options
from stress.harness.findings import grouped
from stress.harness.progress import REFRESH_SECONDS
from stress.harness.shrink import Case, shrink
from stress.harness.trial import Trial
from stress.harness.workers import Lost, Pool

if TYPE_CHECKING:
    from stress.harness.run import Scenario

MAX_SHRUNK: Final = 3
"""Groups that are made small, the largest first."""
_GRACE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Job:
    """One run for a worker; ``key`` tells the asker which of its own this is."""

    key: int
    seed: int
    argv: tuple[str, ...]


class Stopped(Exception):
    """Whoever asked for the exploration wants it no longer."""


class Watch(Protocol):
    """Looks at the world while workers run."""

    state: Callable[[float], str]
    """What is being done, in one line, given the seconds since the start."""

    def look(self) -> None:
        """Show the state; raises ``Stopped`` when it is time to stop."""
        ...


Runs: TypeAlias = Pool[Job, Trial | LocalMisuse]


@dataclass(slots=True)
class Smallest:
    """A failure made small."""

    failure: str
    trial: Trial
    notes: list[str]
    report: str | None = None

    def to_json(self) -> dict[str, Any]:
        return {
            "failure": self.failure,
            "replay": self.trial.replay,
            "schedule": self.trial.schedule,
            "virtual_seconds": self.trial.virtual_seconds,
            "notes": self.notes,
            "report": self.report,
        }


class Exploration:
    """The runs of one exploration, over the workers of ``pool``."""

    def __init__(
        self, scenario: Scenario, rest: Sequence[str], args: Mapping[str, Any], pool: Runs, watch: Watch
    ) -> None:
        self._scenario = scenario
        self._rest = rest
        self._args = args
        self._pool = pool
        self._watch = watch
        self._endless: set[str] = set()
        """Failures of runs that took too long in real time."""
        self.trials: list[Trial] = []
        self.smallest: list[Smallest] = []

    # ---- seeds

    def run(self, seeds: range, max_failures: int | None, note: Callable[[Trial], None]) -> None:
        """Run the seeds, none any more once so many failed; ``note`` each trial as it ends. Raises ``Stopped``."""
        failed = 0

        def state(elapsed: float) -> str:
            done = len(self.trials)
            return (
                f"{elapsed:.0f} s, {done:,} of {len(seeds):,} seeds, {failed:,} failed, "
                f"{done / max(elapsed, 1e-9):.1f} seeds/s"
            )

        self._watch.state = state
        left = iter(seeds)
        while True:
            while self._pool.idle and (max_failures is None or failed < max_failures):
                seed = next(left, None)
                if seed is None:
                    break
                self._pool.start(self._job(seed, seed))
            if not self._pool.busy:
                return
            for _, ended in self._wait():
                if isinstance(ended, LocalMisuse):
                    raise ended
                self.trials.append(ended)
                failed += ended.verdict in ("FAIL", "BROKEN")
                note(ended)

    def _job(self, key: int, seed: int, more: Iterable[str] = ()) -> Job:
        return Job(key, seed, (*self._rest, "--binding", "sim", "--seed", str(seed), *more))

    def _wait(self) -> list[tuple[Job, Trial | LocalMisuse]]:
        """What ended within a moment."""
        self._watch.look()
        ended = self._pool.wait(REFRESH_SECONDS)
        return [(job, self._lost(job, answer) if isinstance(answer, Lost) else answer) for job, answer in ended]

    def _lost(self, job: Job, lost: Lost) -> Trial:
        if lost.late:
            self._endless.add(lost.reason)
        return Trial(
            seed=job.seed,
            verdict="BROKEN" if lost.raised else "FAIL",
            failure=lost.reason,
            message="",
            schedule="",
            replay=shlex.join(["python", "-m", self._scenario.module, *job.argv]),
            virtual_seconds=0.0,
            real_seconds=0.0,
        )

    # ---- shrinking

    def shrink(self, trials: int, folder: Path) -> None:
        """Make the failures of the largest groups small, each with so many trials. Raises ``Stopped``."""
        groups = [group for group in grouped(self.trials) if group.replayed.verdict != "INCONCLUSIVE"]
        for number, group in enumerate(groups[:MAX_SHRUNK], 1):
            wanted = group.replayed
            if wanted.failure in self._endless:
                note = "not shrunk: it has no end, so each try would take as long"
                self.smallest.append(Smallest(wanted.failure, wanted, [note]))
                continue
            self._shrink(wanted, trials, f"{number} of {min(len(groups), MAX_SHRUNK)}")
            smallest = self.smallest[-1]
            smallest.report = self._write_report(smallest, folder / f"smallest-{number}")

    def _shrink(self, wanted: Trial, trials: int, which: str) -> None:
        sizes = {name.replace("-", "_"): least for name, least in self._scenario.shrinkable.items()}
        values = tuple((name, self._args[name]) for name in sizes if self._args[name] is not None)
        strikes = parse_faults(wanted.schedule or self._args["faults"]).given
        start = best = Case(values, wanted.seed, strikes)
        drawn = bool(self._args["faults"]) and not strikes  # it ended before it could say what it drew
        known: dict[Case, Trial] = {}
        ran = 0
        smallest = Smallest(wanted.failure, wanted, [])
        self.smallest.append(smallest)

        def state(elapsed: float) -> str:
            return f"{elapsed:.0f} s, shrinking {which}, {len(known):,} of at most {trials:,} trials, {_sizes(best)}"

        self._watch.state = state
        if drawn:
            smallest.notes.append("its faults are not known: they are drawn again for each run")
        if self._first([start], wanted, known, drawn=drawn) is None:
            smallest.notes.append(
                "not shrunk: with its faults written out one by one, the run does not fail in this way"
            )
            return
        search = shrink(start, sizes, trials=trials)
        try:
            batch = next(search)
            while True:
                index = self._first(batch, wanted, known, drawn=drawn)
                ran += len(batch) if index is None else index + 1
                if index is not None:
                    best = batch[index]
                    smallest.trial = known[best]
                batch = search.send(index)
        except StopIteration:
            limit = " (no more were allowed: --shrink-trials)" if ran >= trials else ""
            smallest.notes.append(f"from {_sizes(start)} to {_sizes(best)} in {ran} trials{limit}")
        again: dict[Case, Trial] = {}
        if self._first([best], wanted, again, drawn=drawn) is None:
            smallest.notes.append("run once more, it did not fail in this way: something in it is left to chance")

    def _first(self, batch: Sequence[Case], wanted: Trial, known: dict[Case, Trial], *, drawn: bool) -> int | None:
        """The index of the first case in the batch that fails as ``wanted`` did, whichever ends first.

        Idle workers run cases ahead; what comes of them is ``known`` if they are asked for again.
        """
        refused: set[Case] = set()
        following = 0
        for index, case in enumerate(batch):
            while case not in known and case not in refused:
                while self._pool.idle and following < len(batch):
                    if batch[following] not in known:
                        self._pool.start(self._case_job(following, batch[following], drawn=drawn))
                    following += 1
                for job, ended in self._wait():
                    if isinstance(ended, LocalMisuse):
                        refused.add(batch[job.key])
                    else:
                        known[batch[job.key]] = ended
            if case in known and _alike(known[case], wanted):
                while self._pool.busy:
                    for job, ended in self._wait():
                        if isinstance(ended, Trial):
                            known[batch[job.key]] = ended
                return index
        return None

    def _case_job(self, key: int, case: Case, *, drawn: bool) -> Job:
        sizes = [word for name, value in case.options for word in (f"--{name.replace('_', '-')}", str(value))]
        faults = [] if drawn else ["--faults", format_schedule(case.strikes)]
        return self._job(key, case.seed, [*sizes, *faults])

    def _write_report(self, smallest: Smallest, folder: Path) -> str | None:
        """Run it as its replay line does, for its report; returns where that is."""
        self._watch.state = lambda elapsed: f"{elapsed:.0f} s, writing {folder}"
        command = [sys.executable, *shlex.split(smallest.trial.replay)[1:], "--out", str(folder), "--quiet"]
        try:
            started = subprocess.Popen(  # noqa: S603 - ourselves; a signal to the group is for this process alone
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            smallest.notes.append(f"it could not be run on its own ({error.strerror}): its line may be too long")
            return None
        with started as process:
            try:
                while process.poll() is None:
                    self._watch.look()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(REFRESH_SECONDS)
            except Stopped:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_GRACE_SECONDS)  # it removes what it made
                raise
            finally:
                process.kill()
        if process.returncode in (options.EXIT_PASS, options.EXIT_INCONCLUSIVE, options.EXIT_MISUSE):
            smallest.notes.append(
                f"in a process of its own it ends with code {process.returncode}: "
                "it needs what this process has changed"
            )
            return None
        found = [path for name in ("report.html", "traceback.txt") if (path := folder / name).exists()]
        return str(found[0]) if found else None


def _alike(found: Trial, wanted: Trial) -> bool:
    return (found.verdict, found.failure) == (wanted.verdict, wanted.failure)


def _sizes(case: Case) -> str:
    sizes = [f"{name.replace('_', ' ')} {value:,}" for name, value in case.options]
    return ", ".join([*sizes, f"strikes {len(case.strikes)}"])
