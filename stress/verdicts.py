"""One scenario, one seed, every binding: do the simulated network and real sockets come to the same verdicts?

Runs ``python -m stress.SCENARIO`` once for each binding, one after the other, each in a process of its own, and puts
the rows' values side by side. A row whose verdict depends on the binding is marked: either the simulation leaves out
what decides it (a processor's time, say), or one of the bindings has a fault.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click
from rich.console import Console
from rich.table import Table

from stress.harness.options import EXIT_MISUSE, build_command, invoke, option
from stress.harness.run import checked_arguments, command_of, find_scenario

BINDINGS: Final = ("sim", "tcp", "tls")
_JUDGED: Final = ("PASS", "FAIL", "INCONCLUSIVE")

SUMMARY: Final = """\
Run one scenario on every binding with one seed, and compare the verdicts.

SCENARIO is the name of one, such as content_swarm; all other options go to it. The exit code is the worst of the runs'
own: a row that only one binding fails is a failure, and the table shows which.

\b
Examples:
  python -m stress.verdicts content_swarm --peers 8
  python -m stress.verdicts content_swarm --peers 16 --mebibytes 4 --bindings sim,tcp
"""


def _bindings(_context: click.Context, _parameter: click.Parameter, value: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in value.split(",")))
    unknown = [name for name in names if name not in BINDINGS]
    if unknown:
        raise click.BadParameter(f"there is no binding {unknown[0]!r}: write some of {','.join(BINDINGS)}")
    return names


def run_on(scenario: str, binding: str, rest: Sequence[str], folder: Path) -> tuple[int, dict[str, Any] | None]:
    """The exit code and, unless it was refused or broke, the report of the scenario on ``binding``."""
    command = [sys.executable, "-m", f"stress.{scenario}", *rest, "--binding", binding, "--out", str(folder), "--quiet"]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)  # noqa: S603 - ourselves
    try:
        report: dict[str, Any] = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return done.returncode, None
    return done.returncode, report


def compare(reports: Mapping[str, Mapping[str, Any]]) -> tuple[Table, list[str]]:
    """The rows' values by binding, and the checks whose verdicts differ between bindings that judged them."""
    table = Table("row", "bound", *reports, title="verdicts")
    rows: dict[str, dict[str, Mapping[str, Any]]] = {}
    for binding, report in reports.items():
        for row in report["rows"]:
            rows.setdefault(row["check"], {})[binding] = row
    differing = []
    for check, by_binding in rows.items():
        any_row = next(iter(by_binding.values()))
        verdicts = {row["verdict"] for row in by_binding.values() if row["verdict"] in _JUDGED}
        if len(verdicts) > 1:
            differing.append(check)
        cells = [_cell(by_binding.get(binding)) for binding in reports]
        style = "bold" if len(verdicts) > 1 else None
        table.add_row(check, f"{any_row['op']} {any_row['bound']:g} {any_row['unit']}", *cells, style=style)
    return table, differing


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    value = "-" if row["value"] is None else f"{row['value']:.4g}"
    return f"{value} {row['verdict']}" + (" (record)" if row["kind"] == "record" else "")


def _run(context: click.Context) -> int:
    scenario: str = context.params["scenario"]
    found = find_scenario(scenario)
    command = command_of(found, lambda _: 0)
    for binding in context.params["bindings"]:  # what one of them would refuse, before any of them runs
        with command.make_context(command.name, [*context.params["rest"], "--binding", binding]) as parsed:
            checked_arguments(found, parsed)
    reports: dict[str, Mapping[str, Any]] = {}
    worst = 0
    with tempfile.TemporaryDirectory(prefix="peerfleet-verdicts-") as folder:
        for binding in context.params["bindings"]:
            click.echo(f"{scenario} on {binding} ...", err=True)
            code, report = run_on(scenario, binding, context.params["rest"], Path(folder) / binding)
            if report is None:
                click.echo(f"error: the run on {binding} ended with code {code} and no report", err=True)
                return code or EXIT_MISUSE
            worst = max(worst, code)
            reports[binding] = report
    table, differing = compare(reports)
    console = Console()
    console.print(table)
    console.print(
        f"{len(differing)} verdicts differ: {', '.join(differing)}"
        if differing
        else "no verdict depends on the binding"
    )
    return worst


COMMAND: Final = build_command(
    "stress.verdicts",
    SUMMARY,
    [
        click.Argument(["scenario"]),
        option(
            "--bindings",
            default=",".join(BINDINGS),
            callback=_bindings,
            help="Which to run on, in this order.",
        ),
        click.Argument(["rest"], nargs=-1, type=click.UNPROCESSED),
    ],
    _run,
)
COMMAND.context_settings.update(ignore_unknown_options=True)

if __name__ == "__main__":
    sys.exit(invoke(COMMAND, sys.argv[1:]))
