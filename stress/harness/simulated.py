"""The options of the simulated network, and what they make of it."""

from __future__ import annotations

import json
import math
import os
import random
import shlex
import subprocess
import sys
from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path as Folder
from typing import Any, Final

import click

from fleet.errors import LocalMisuse
from fleet.limits import MIB
from fleet.sim.faults import parse_faults
from fleet.sim.path import Constant, Path, Rates
from stress.harness.options import option

_DEFAULT_LATENCY_MS: Final = 1.0


def _finite(_context: click.Context, _parameter: click.Parameter, value: float) -> float:
    if not math.isfinite(value):
        raise click.BadParameter(f"{value} is no such number")
    return value


def _check_faults(_context: click.Context, _parameter: click.Parameter, value: str) -> str:
    parse_faults(value)  # what does not fit the fleet is refused when its size is known
    return value


def simulation_options() -> list[click.Option]:
    """What ``--binding sim`` takes besides the options of every binding."""
    return [
        option(
            "--latency-ms",
            type=click.FloatRange(min=0, min_open=True),
            default=_DEFAULT_LATENCY_MS,
            callback=_finite,
            help="On sim: how long a byte travels, one way.",
        ),
        option(
            "--jitter-ms",
            type=click.FloatRange(min=0),
            default=0.0,
            callback=_finite,
            help="On sim: at most so much is added to the latency, evenly drawn.",
        ),
        option(
            "--loss",
            type=click.FloatRange(0, 1, max_open=True),
            default=0.0,
            callback=_finite,
            help="On sim: the part of all segments that is lost and has to be sent again.",
        ),
        option(
            "--rate-mib-s",
            type=click.FloatRange(min=0),
            default=0.0,
            callback=_finite,
            help="On sim: what each peer's link carries up, and as much down; 0 is no limit.",
        ),
        option(
            "--faults",
            metavar="TEXT",
            default="",
            callback=_check_faults,
            help="On sim: what strikes the fleet, such as crash=2,partition=1,clog=3,pause=1,skew_ms=200,disk=torn or "
            "all=1: drawn from the seed. Or strike by strike, as the report of such a run has it. Then no speed is "
            "judged, but that no harm is done, and that the work is done once the faults are over.",
        ),
        option(
            "--converge-seconds",
            type=click.FloatRange(min=0, min_open=True),
            default=120.0,
            callback=_finite,
            help="On sim, with --faults: virtual seconds from the end of all faults to the end of all work.",
        ),
        option(
            "--audit/--no-audit",
            default=True,
            help="On sim: run once more in a fresh process with another hash seed, and compare the traces (FL-SIM-01).",
        ),
    ]


def check_simulation(args: Mapping[str, Any]) -> None:
    """Raise ``LocalMisuse`` for options of the simulated network where there is none."""
    if args["binding"] == "sim":
        if "peers" in args and args["faults"]:
            strikes = parse_faults(args["faults"]).schedule(random.Random(0), args["peers"])  # noqa: S311 - does it fit?
            if not strikes:
                raise LocalMisuse(f"--faults {args['faults']} strikes nobody: ask for some, such as crash=1")
        return
    defaults = {parameter.name: parameter.default for parameter in simulation_options()}
    for name, default in defaults.items():
        if name is not None and args[name] != default:
            flag = f"--{name.replace('_', '-')}"
            raise LocalMisuse(f"{flag} shapes the simulated network only: add --binding sim or leave it out")


def disturbance(args: Mapping[str, Any]) -> dict[str, int | float]:
    """The run parameters that tell rows of speed from those of faults: a run is judged by the one kind or the other."""
    disturbed = bool(args.get("faults"))
    return {"disturbed": int(disturbed), "undisturbed": int(not disturbed)}


def links_of(args: Mapping[str, Any]) -> tuple[Path, Rates]:
    """What lies between any two peers, and the rates of each peer's link."""
    rate = args["rate_mib_s"] * MIB or None
    path = Path(latency=Constant(args["latency_ms"] / 1e3), jitter=args["jitter_ms"] / 1e3, loss=args["loss"])
    return path, Rates(up=rate, down=rate)


def audit(replay: str, trace_hash: str, events: Folder, folder: Folder) -> str | None:
    """Run the ``replay`` command in a fresh process with another hash seed and its report in ``folder``.

    Returns None when its trace hash is ``trace_hash``, else the first event that differs from those in ``events``.
    """
    hash_seed = (int(os.environ["PYTHONHASHSEED"]) + 1) % 2**32 if os.environ.get("PYTHONHASHSEED", "").isdigit() else 1
    command = [sys.executable, *shlex.split(replay)[1:], "--no-audit", "--quiet", "--out", str(folder)]
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    done = subprocess.run(  # noqa: S603 - ourselves; a signal to the group is for this process alone
        command, env=environment, capture_output=True, text=True, check=False, start_new_session=True
    )
    try:
        report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
        if report["details"]["simulation"]["trace_hash"] == trace_hash:
            return None
    except (OSError, KeyError, ValueError):
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"the second run ended with code {done.returncode} and no trace: {last}"
    with events.open(encoding="utf-8") as first, (folder / "events.jsonl").open(encoding="utf-8") as second:
        for number, (one, other) in enumerate(zip_longest(first, second, fillvalue="no event\n")):
            if one != other:
                return f"event {number:,} was {one.strip()} in this process and {other.strip()} in a fresh one"
    return "the hashes differ and the logged events do not: a field was logged rounded"
