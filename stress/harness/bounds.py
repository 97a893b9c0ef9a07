"""The bounds file: which measured value must hold which bound, and the judgement of a run against it.

The loader is strict, since a bound that silently does not apply is worse than none: whatever it does not know, it
refuses, naming the file, the line and the repair. Judging is a pure function from checks and measurements to rows.

A row is PASS, FAIL, INCONCLUSIVE (nothing was measured, so nothing can be said) or NOT_JUDGED (the run does not meet
the row's conditions; it says which). Only ``gate`` rows decide the run.

A latency is INCONCLUSIVE also when the event loop that it was measured on was too late for its bound (``harness.lag``).
"""

from __future__ import annotations

import difflib
import enum
import math
import operator
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final, Literal, NoReturn, TypeAlias, cast

from fleet.errors import LocalMisuse
from fleet.metrics import Histogram
from stress.harness.lag import too_late
from stress.harness.metric_names import (
    ANY_SCENARIO,
    BINDINGS,
    LOOP_LAG_MAX,
    METRICS,
    MODES,
    PARAMETER_REASONS,
    PARAMETERS,
    STATISTICS,
)

Number: TypeAlias = int | float
Metric: TypeAlias = int | float | Histogram | None
Kind: TypeAlias = Literal["gate", "record"]

OPERATORS: Final[Mapping[str, Callable[[Number, Number], bool]]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
    "==": operator.eq,
}
_REQUIRED: Final = ("id", "title", "scenario", "metric", "op", "bound", "unit", "kind", "source")
_KEYS: Final = (*_REQUIRED, "row", "mode", "when", "binding", "latency")
_TEXT_KEYS: Final = tuple(key for key in _KEYS if key not in ("bound", "when", "latency"))
_UNITS_OF_TIME: Final[Mapping[str, int]] = {"ms": 1, "s": 1000}
_HEADER: Final = re.compile(r"\s*\[\[\s*[\"']?check[\"']?\s*\]\]")
_LARGEST: Final = 1e300  # any bound beyond it is a typing error, and floats end soon after

MAX_BOUNDS_BYTES: Final = 1 << 20
"""Of a bounds file: ours has 30 KiB."""


class BoundsError(LocalMisuse):
    """The bounds file cannot be used; one line that names the file, the line and what to write instead."""


class Verdict(enum.StrEnum):
    """What is said of a row, and (NOT_JUDGED aside) of a run."""

    PASS = "PASS"  # noqa: S105 - a verdict, not a password
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOT_JUDGED = "NOT_JUDGED"


@dataclass(frozen=True, slots=True)
class Check:
    """One bound on one metric: ``metric op bound``, in ``unit``."""

    id: str
    row: str
    title: str
    scenario: str
    metric: str
    op: str
    bound: Number
    unit: str
    kind: Kind
    source: str
    mode: str | None = None
    binding: str | None = None
    when: Mapping[str, Number] = field(default_factory=dict)
    latency: bool = False
    """Of a time that some task waited on the event loop: a late loop makes it longer."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """The verdict on one check. ``margin`` is None unless the row is PASS or FAIL; ``reason`` unless it is neither."""

    check: Check
    verdict: Verdict
    value: Number | None = None
    margin: float | None = None
    reason: str | None = None


# ---- loading


def load_bounds(
    path: Path, scenario: str | None = None, known: Mapping[str, Collection[str]] = METRICS
) -> tuple[Check, ...]:
    """Read and check the whole bounds file; return the checks of ``scenario`` (and of "any"), or all of them.

    ``known`` maps each scenario to the metrics that a bound may name. Raises ``BoundsError``.
    """
    lines, document = _parse(path)
    loader = _Loader(path, lines, known)
    checks = loader.checks(document)
    return tuple(check for check in checks if scenario is None or check.scenario in (scenario, ANY_SCENARIO))


def _parse(path: Path) -> tuple[list[str], dict[str, Any]]:
    try:
        if path.exists() and not path.is_file():
            raise BoundsError(f"the bounds file {path} is no regular file: name one with --bounds")
        with path.open("rb") as file:
            data = file.read(MAX_BOUNDS_BYTES + 1)
        if len(data) > MAX_BOUNDS_BYTES:
            raise BoundsError(f"{path} has more than {MAX_BOUNDS_BYTES:,} bytes: that is no bounds file")
    except OSError as error:
        raise BoundsError(f"cannot read the bounds file {path} ({error.strerror}): name one with --bounds") from None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BoundsError(f"{path}:{line}: not UTF-8 text: save the file as UTF-8") from None
    lines = text.splitlines()
    try:
        return lines, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = int(where[1]) if where and where[1] else max(1, len(lines))
        problem = str(error)[: where.start()] if where else str(error)
        raise BoundsError(f"{path}:{line}: not TOML ({problem}): mend the line or the one above it") from None
    except ValueError:  # more digits than int() takes; tomllib does not say where
        line = next((number for number, text in enumerate(lines, 1) if re.search(r"[\d_]{4300}", text)), 1)
        raise BoundsError(f"{path}:{line}: a number of thousands of digits: write a shorter one") from None
    except RecursionError:
        raise BoundsError(f"{path}:1: nested too deeply: write plain [[check]] tables") from None


def _hint(word: str, choices: Iterable[str]) -> str:
    """What to write instead of ``word``: the closest choice, or all of them."""
    ordered = sorted(choices)
    close = difflib.get_close_matches(word, ordered, n=1) if len(word) > 2 else []  # no guessing at operators
    return f"did you mean {close[0]!r}?" if close else f"write one of {', '.join(ordered)}"


class _Loader:
    """Turns the parsed document into checks, knowing for each complaint the line it is about."""

    def __init__(self, path: Path, lines: Sequence[str], known: Mapping[str, Collection[str]]) -> None:
        self._path = path
        self._lines = lines
        self._known = known
        self._headers = [number for number, line in enumerate(lines, 1) if _HEADER.match(line)]
        self._table = 0  # the check at hand, counted from 0

    def checks(self, document: Mapping[str, Any]) -> list[Check]:
        for name in document:
            if name != "check":
                self._refuse_at(self._line_of(name, 1, len(self._lines)), f"unknown table {name!r}", "use [[check]]")
        tables = document.get("check", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            self._refuse_at(self._line_of("check", 1, len(self._lines)), "'check' is no list", "write [[check]]")
        if not tables:
            self._refuse_at(1, "the file holds no bounds", "add [[check]] tables")
        checks: list[Check] = []
        first_line: dict[str, int] = {}
        for self._table, table in enumerate(tables):
            check = self._check(table)
            if check.id in first_line:
                self._refuse(
                    "id", f"{check.id!r} is taken by line {first_line[check.id]}", "give each check its own id"
                )
            first_line[check.id] = self._line("id")
            checks.append(check)
        return checks

    def _check(self, table: Mapping[str, Any]) -> Check:
        for key in table:
            if key not in _KEYS:
                self._refuse(key, f"unknown key {key!r}", _hint(key, _KEYS))
        for key in _REQUIRED:
            if key not in table:
                self._refuse(None, f"this check has no {key!r}", f"add a line {key} = …")
        for key in _TEXT_KEYS:
            if key in table:
                self._text(key, table[key])
        scenario, metric, binding = table["scenario"], table["metric"], table.get("binding")
        self._one_of("scenario", scenario, self._known)
        base, dot, statistic = metric.partition(".")
        self._one_of("metric", base, self._known[scenario])
        if dot:
            self._one_of("metric", statistic, STATISTICS)
        self._one_of("op", table["op"], OPERATORS)
        self._one_of("kind", table["kind"], ("gate", "record"))
        if binding is not None:
            self._one_of("binding", binding, BINDINGS)
        self._mode(scenario, table.get("mode"))
        self._number("bound", "the bound", table["bound"])
        return Check(
            id=table["id"],
            row=table.get("row", table["id"].partition("/")[0]),
            title=table["title"],
            scenario=scenario,
            metric=metric,
            op=table["op"],
            bound=table["bound"],
            unit=table["unit"],
            kind=cast("Kind", table["kind"]),
            source=table["source"],
            mode=table.get("mode"),
            binding=binding,
            when=self._when(table.get("when", {})),
            latency=self._latency(table),
        )

    def _text(self, key: str, value: object) -> None:
        if not isinstance(value, str):
            self._refuse(key, f"{key} is {value!r}, not text", f'write {key} = "…"')
        if not value.strip() or not value.isprintable():
            self._refuse(key, f"{key} is empty or not one line of text", f'write {key} = "…" on one line')
        if key == "id" and (any(c.isspace() for c in value) or not value.partition("/")[0]):
            self._refuse(key, f"{value!r} is no id", "write a row's name, then /measure where it has several")

    def _number(self, key: str, what: str, value: object) -> None:
        if isinstance(value, bool):
            self._refuse(key, f"{what} is {str(value).lower()}", "write 1 for yes and 0 for no")
        if not isinstance(value, int | float):
            self._refuse(key, f"{what} is {value!r}, not a number", "write a number without quotes")
        if not -_LARGEST <= value <= _LARGEST:  # NaN fails both comparisons
            self._refuse(key, f"{what} is not a finite number", "write a finite one")

    def _one_of(self, key: str, word: str, choices: Iterable[str]) -> None:
        if word not in (allowed := tuple(choices)):
            self._refuse(key, f"unknown {key} {word!r}", _hint(word, allowed))

    def _mode(self, scenario: str, mode: str | None) -> None:
        modes = MODES.get(scenario)
        if modes and mode is None:
            self._refuse(None, f"scenario {scenario!r} has modes and this check names none", "add a line mode = …")
        if mode is not None and not modes:
            self._refuse("mode", f"scenario {scenario!r} has no modes", "remove the line")
        if mode is not None and modes:
            self._one_of("mode", mode, modes)

    def _when(self, when: object) -> Mapping[str, Number]:
        if not isinstance(when, dict):
            self._refuse("when", f"when is {when!r}, not a table", "write when = { peers = 8 }")
        for name, least in when.items():
            if name not in PARAMETERS:
                self._refuse("when", f"unknown run parameter {name!r}", _hint(name, PARAMETERS))
            self._number("when", f"when.{name}", least)
        return cast("Mapping[str, Number]", when)

    def _latency(self, table: Mapping[str, Any]) -> bool:
        if "latency" not in table:
            return False
        if table["latency"] is not True:
            self._refuse("latency", f"latency is {table['latency']!r}", "write latency = true or remove the line")
        if table["unit"] not in _UNITS_OF_TIME:
            self._refuse("latency", f"a latency in {table['unit']!r}", "give it in ms or s, or remove the line")
        if table["op"] not in ("<=", "<"):
            self._refuse("latency", f"a latency that must be {table['op']}", 'write op = "<=" or remove the line')
        return True

    def _line_of(self, key: str, first: int, last: int) -> int:
        """The first line from ``first`` to ``last`` that sets ``key`` or opens its table, else ``first``."""
        quoted = re.escape(key)
        setting = re.compile(rf"\s*(?:\[+\s*)?(?:[\w\"'-]+\s*\.\s*)*[\"']?{quoted}[\"']?\s*[=.\]]")
        return next((n for n in range(first, last + 1) if setting.match(self._lines[n - 1])), first)

    def _line(self, key: str | None) -> int:
        """The line of ``key`` in the check at hand, or of the check's header for None."""
        if self._table >= len(self._headers):  # written as an inline array: the list's own line must do
            return self._line_of("check", 1, len(self._lines))
        first = self._headers[self._table]
        if key is None:
            return first
        following = self._headers[self._table + 1 : self._table + 2]
        return self._line_of(key, first, following[0] - 1 if following else len(self._lines))

    def _refuse(self, key: str | None, problem: str, repair: str) -> NoReturn:
        self._refuse_at(self._line(key), problem, repair)

    def _refuse_at(self, line: int, problem: str, repair: str) -> NoReturn:
        raise BoundsError(" ".join(f"{self._path}:{line}: {problem}: {repair}".split()))


# ---- judging


def judge(
    checks: Iterable[Check],
    metrics: Mapping[str, Metric],
    parameters: Mapping[str, Number],
    binding: str,
    mode: str | None = None,
) -> list[RowResult]:
    """Judge each check by what the run measured, in the order of ``checks``; rows of other modes are left out.

    ``parameters`` are the run's sizes (peers, pieces, …) that ``when`` speaks of. A metric that is absent, None, not
    a finite number or the statistic of an empty histogram makes its row INCONCLUSIVE, never PASS. So does, for a
    latency, an event loop that ``metrics`` say was late by more than a tenth of the bound.
    """
    return [_judge(check, metrics, parameters, binding) for check in checks if check.mode in (None, mode)]


def _judge(check: Check, metrics: Mapping[str, Metric], parameters: Mapping[str, Number], binding: str) -> RowResult:
    value, missing = _value(check.metric, metrics)
    if check.binding not in (None, binding):
        return RowResult(check, Verdict.NOT_JUDGED, value, reason=f"only on {check.binding}, this run used {binding}")
    for name, least in check.when.items():
        if name not in parameters:
            return RowResult(check, Verdict.INCONCLUSIVE, value, reason=f"the run did not report its {name}")
        if not parameters[name] >= least:
            reason = PARAMETER_REASONS.get(name) or f"needs {name} >= {least}, this run had {parameters[name]}"
            return RowResult(check, Verdict.NOT_JUDGED, value, reason=reason)
    if value is None:
        return RowResult(check, Verdict.INCONCLUSIVE, reason=missing)
    if check.latency and (late := _late(check, metrics)) is not None:
        return RowResult(check, Verdict.INCONCLUSIVE, value, reason=late)
    verdict = Verdict.PASS if OPERATORS[check.op](value, check.bound) else Verdict.FAIL
    return RowResult(check, verdict, value, margin(check.op, value, check.bound))


def _value(name: str, metrics: Mapping[str, Metric]) -> tuple[Number | None, str | None]:
    """The measured number, or None and the reason why there is none."""
    base, _, statistic = name.partition(".")
    measured = metrics.get(base)
    if measured is None:
        return None, f"{base} was not measured"
    if isinstance(measured, Histogram):
        if not statistic:
            return None, f"{base} is a distribution: the bound must name a statistic, such as {base}.max"
        if not measured.count:
            return None, f"the sample of {base} is empty"
        in_summary = measured.to_json()[statistic]
        return in_summary, None
    if statistic:
        return None, f"{base} is one number: the bound must not ask for its {statistic}"
    number = as_number(measured)
    return (number, None) if number is not None else (None, f"{base} is {measured}, which measures nothing")


def _late(check: Check, metrics: Mapping[str, Metric]) -> str | None:
    late_ms, _ = _value(LOOP_LAG_MAX, metrics)
    return None if late_ms is None else too_late(late_ms, check.bound * _UNITS_OF_TIME[check.unit])


def as_number(value: object) -> Number | None:
    """A plain int or finite float, from any real number (numpy's and booleans too); None for NaN and infinities.

    Raises ``TypeError`` for what is no number.
    """
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    raise TypeError(f"a metric is a number, a Histogram or None, not {value!r}")


def margin(op: str, value: Number, bound: Number) -> float:
    """By how much a bound holds: positive with room left, 0 at the bound, negative when it is broken.

    A fraction of the bound's size, except that for a bound of 0 it is the plain difference, in the row's unit. An
    equality leaves no room: its margin is 0 or negative.
    """
    room = {"<": bound - value, ">": value - bound}.get(op[0], -abs(value - bound))
    share = room / abs(bound) if bound else float(room)
    return share if math.isfinite(share) else math.copysign(sys.float_info.max, share)


def run_verdict(rows: Iterable[RowResult]) -> Verdict:
    """FAIL when any gate failed; else INCONCLUSIVE when any gate is, or when none was judged; else PASS."""
    gates = {row.verdict for row in rows if row.check.kind == "gate"}
    if Verdict.FAIL in gates:
        return Verdict.FAIL
    if Verdict.INCONCLUSIVE in gates or Verdict.PASS not in gates:
        return Verdict.INCONCLUSIVE
    return Verdict.PASS
