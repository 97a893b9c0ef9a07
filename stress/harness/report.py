"""The result of a run, three times over: report.json for programs, a table for the terminal, report.html to look at.

report.json is the source: the other two are made from the same dictionary. Its schema is version 1 and every number
in it is finite. ``details["run"]`` is the harness's own (start, duration, parameters, failure); the rest of
``details`` is the scenario's.
"""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import platform
import ssl
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from fleet.metrics import Histogram
from stress.harness.bounds import Metric, RowResult, Verdict, as_number
from stress.harness.plots import Figure, draw

SCHEMA: Final = 1
_PACKAGES: Final = ("peerfleet", "trio", "pynacl", "cryptography", "pyopenssl", "cbor2", "blake3", "numpy")
_COLOURS: Final = {"PASS": "green", "FAIL": "red", "INCONCLUSIVE": "yellow", "NOT_JUDGED": "dim"}
_NOT_JUDGED: Final = "NOT_JUDGED"
_MAX_STATES: Final = 64  # lines on a terminal; the files have all
_QUIET_UNITS: Final = ("ratio", "yes/no")  # the title says it, so the figure stands alone

Json = Any


def build_report(
    *,
    scenario: str,
    args: Mapping[str, object],
    seed: int,
    verdict: Verdict,
    exit_code: int,
    rows: Iterable[RowResult],
    metrics: Mapping[str, Metric],
    details: Mapping[str, object],
    replay: str,
) -> dict[str, Json]:
    """The content of report.json. Raises ``TypeError`` for a metric that is no number, Histogram or None."""
    return {
        "schema": SCHEMA,
        "scenario": scenario,
        "args": plain(args),
        "seed": seed,
        "verdict": verdict.value,
        "exit_code": exit_code,
        "environment": environment(),
        "rows": [_row(row) for row in rows],
        "metrics": {name: _metric(value) for name, value in sorted(metrics.items())},
        "replay": replay,
        "details": plain(details),
    }


def _row(row: RowResult) -> dict[str, Json]:
    check = row.check
    return {
        "row": check.row,
        "check": check.id,
        "title": check.title,
        "metric": check.metric,
        "value": row.value,
        "op": check.op,
        "bound": check.bound,
        "unit": check.unit,
        "kind": check.kind,
        "verdict": row.verdict.value,
        "margin": row.margin,
        "reason": row.reason,
        "source": check.source,
    }


def _metric(value: Metric) -> Json:
    if isinstance(value, Histogram):
        return value.to_json()
    return None if value is None else as_number(value)


def plain(value: object) -> Json:
    """``value`` as JSON can carry it: NaN and infinities become None, unknown objects their text."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Histogram):
        return value.to_json()
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain(each) for each in value]
    try:
        return as_number(value)
    except TypeError:
        return str(value)


def environment() -> dict[str, Json]:
    """What the run ran on: processor, cores, Python, platform and the versions that decide its speed."""
    versions = {"openssl": ssl.OPENSSL_VERSION.removeprefix("OpenSSL ")}
    for package in _PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": dict(sorted(versions.items())),
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no Linux
        lines = []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, "") or platform.processor() or platform.machine() or "unknown"


def to_text(report: Mapping[str, Json]) -> str:
    """The exact text of report.json, and of ``--format json``."""
    return json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old content or the new, never a part. Raises ``OSError``."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
        Path(name).chmod(0o644)  # mkstemp's 0600 would hide a report from the colleague it is meant for
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


# ---- figures for people


def format_number(value: float | None) -> str:
    """A number for people: whole ones with separators, others with four significant digits; a dash for None."""
    if value is None:
        return "-"
    if isinstance(value, int) or (value.is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def format_measured(row: Mapping[str, Json]) -> str:
    """A row's measured value, with its unit where the title does not say it."""
    return _with_unit(row["value"], row["unit"])


def format_bound(row: Mapping[str, Json]) -> str:
    """A row's bound, such as ``<= 1.02`` or ``= yes``."""
    op = "=" if row["op"] == "==" else row["op"]
    return f"{op} {_with_unit(row['bound'], row['unit'])}"


def format_margin(row: Mapping[str, Json]) -> str:
    """A row's margin in percent of its bound, or in its unit when the bound is 0; a dash for an equality that holds."""
    margin = row["margin"]
    if margin is None or (row["op"] == "==" and margin == 0):
        return "-"
    if not row["bound"]:
        return f"{'+' if margin > 0 else ''}{format_number(margin)}"
    return f"{100 * margin:+.1f} %" if abs(margin) < 9.995 else f"{100 * margin:+,.0f} %"


def _with_unit(value: float | None, unit: str) -> str:
    if unit == "yes/no" and value in (0, 1):
        return "yes" if value else "no"
    text = format_number(value)
    return text if value is None or unit in _QUIET_UNITS else f"{text} {unit}"


def render_text(report: Mapping[str, Json], *, width: int, colour: bool, html: Path) -> str:
    """The report for a terminal of ``width`` columns: the table of rows, the summary, the verdict, where to read on."""
    out = io.StringIO()
    # a terminal's own wishes (NO_COLOR, TERM=dumb) are rich's to read
    console = Console(file=out, width=width, force_terminal=colour, highlight=False, markup=False)
    run = report["details"]["run"]
    _print_rows(console, [row for row in report["rows"] if row["verdict"] != _NOT_JUDGED])
    _print_not_judged(console, [row for row in report["rows"] if row["verdict"] == _NOT_JUDGED])
    console.print()
    for line in run["summary"]:
        console.print(line, soft_wrap=True)
    if run["failure"]:
        console.print(Text(run["failure"], style="red"), soft_wrap=True)
        for line in run["state"][:_MAX_STATES]:
            console.print(f"  {line}", soft_wrap=True)
        if (more := len(run["state"]) - _MAX_STATES) > 0:
            console.print(f"  and {more} more in report.json, under details.run.state", soft_wrap=True)
    verdict = report["verdict"]
    ended = f"{run['failure'].partition(':')[0]}; " if run["failure"] else ""
    console.print(Text.assemble((verdict, f"bold {_COLOURS[verdict]}"), f": {ended}{_tally(report)}"), soft_wrap=True)
    console.print(f"report: {html}", soft_wrap=True)
    console.print(f"replay: {report['replay']}", soft_wrap=True)
    lines = out.getvalue().splitlines()
    return "".join(f"{line.rstrip()}\n" for line in lines)  # rich pads cells; pipes need no trailing blanks


def _print_rows(console: Console, rows: Sequence[Mapping[str, Json]]) -> None:
    """Two lines a row: verdict and figures in columns, then what they mean and where the bound comes from.

    Titles are sentences; beside the figures they would wrap to shreds at 80 columns.
    """
    cells = [("verdict", "row", "measured", "bound", "margin")]
    for each in rows:
        verdict = f"{each['verdict'].replace('_', ' ')}{' (record)' if each['kind'] == 'record' else ''}"
        cells.append((verdict, each["check"], format_measured(each), format_bound(each), format_margin(each)))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    about: list[Mapping[str, Json] | None] = [None, *rows]  # None: the heading
    for line, row in zip(cells, about, strict=True):
        style = _COLOURS[row["verdict"]] if row else ""
        names = [cell.ljust(width) for cell, width in zip(line[:2], widths[:2], strict=True)]
        figures = [cell.rjust(width) for cell, width in zip(line[2:], widths[2:], strict=True)]
        text = Text("  ".join(names + figures), style="" if row else "bold")
        text.stylize(f"bold {style}", 0, widths[0])
        console.print(text, soft_wrap=True)
        if row is not None:
            meaning = Text(row["title"]).append(f" ({row['source']})", style="dim")
            meaning.append(f"\n{row['reason']}" if row["reason"] else "", style=style)
            console.print(Padding(meaning, (0, 0, 0, widths[0] + 2)))


def _print_not_judged(console: Console, rows: Sequence[Mapping[str, Json]]) -> None:
    """A line for each reason: rows that do not speak of this run are not to bury those that do."""
    for reason in dict.fromkeys(row["reason"] for row in rows):
        names = ", ".join(row["check"] for row in rows if row["reason"] == reason)
        console.print(Text(f"not judged: {names}: {reason}", style=_COLOURS[_NOT_JUDGED]), soft_wrap=True)


def _tally(report: Mapping[str, Json]) -> str:
    gates = [row["verdict"] for row in report["rows"] if row["kind"] == "gate"]
    judged = [verdict for verdict in gates if verdict != "NOT_JUDGED"]
    if not judged:
        return "no gate was judged, so nothing is proved"
    words = {"PASS": "passed", "FAIL": "failed", "INCONCLUSIVE": "inconclusive"}
    counts = [f"{judged.count(verdict)} {word}" for verdict, word in words.items() if verdict in judged]
    skipped = len(gates) - len(judged)
    return f"of {len(judged)} gates judged, {', '.join(counts)}" + (f"; {skipped} not judged" if skipped else "")


def render_html(report: Mapping[str, Json], figures: Sequence[Figure]) -> str:
    """The self-contained page: no script, no outside file, figures inline."""
    # both are slow to import, and only a finished run needs them
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("stress.harness", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=format_number, measured=format_measured, bound=format_bound, margin=format_margin)
    metrics = report["metrics"]
    histograms = {name: value for name, value in metrics.items() if isinstance(value, dict)}
    drawn = [
        # matplotlib escapes the text it writes into the SVG
        {"title": each.title, "caption": each.caption, "svg": Markup(draw(each, number))}  # noqa: S704
        for number, each in enumerate(figures, 1)
    ]
    return environment.get_template("report.html.j2").render(
        report=report,
        run=report["details"]["run"],
        figures=drawn,
        numbers={name: value for name, value in metrics.items() if name not in histograms},
        histograms=histograms,
        columns=list(Histogram().to_json()),
    )
