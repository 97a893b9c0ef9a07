"""The bounds loader's refusals, each with its line; the judgement of rows and runs; the project's own bounds file."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import stress
from fleet.metrics import Histogram
from stress.harness.bounds import BoundsError, Check, Verdict, judge, load_bounds, margin, run_verdict
from stress.harness.metric_names import METRICS

REPOSITORY = Path(stress.__file__).parent.parent

ROW_IDS = """
LB-Q-PRF-01 PD-Q-PRF-01 PD-Q-PRF-02 PD-Q-PRF-03 PD-Q-PRF-04 PD-Q-PRF-06 PD-Q-PRF-07 PD-Q-PRF-08 P2-B-05 P2-Z-03
P2-Q-PRF-08 P2-Q-PRF-02 P2-Q-PRF-04a P2-Q-PRF-04b P2-P-03 P2-Q-PRF-05 P2-Q-PRF-05w P2-Q-PRF-06 P2-Q-PRF-07
P2-Q-PRF-09 FL-SWM-01 FL-SWM-02 FL-SWM-03 FL-SWM-04 FL-SWM-05 FL-SIM-01 FL-MAP-01 FL-BLB-01 FL-BLB-02 FL-BLB-03
FL-CAT-01 FL-CLD-01 FL-CLD-02 FL-WIN-01 FL-REC-01 FL-VEC-01 FL-TXT-01 FL-TAK-01 FL-TAK-02 FL-GSP-01 FL-GSP-02
FL-CHN-01 FL-BEN-01 FL-FLT-01 FL-FLT-02
"""

GOOD = """\
# a comment
[[check]]
id = "FL-SWM-02"
title = "seeder's share"
scenario = "content_swarm"
when = { peers = 8, pieces = 64 }
metric = "seeder_share"
op = "<="
bound = 0.2
unit = "ratio"
kind = "gate"
source = "peerfleet"

[[check]]
id = "PD-Q-PRF-02/median"
title = "median bytes"
scenario = "pdt"
mode = "blob-edit"
metric = "edit_bytes_median"
op = "<="
bound = 131_072
unit = "bytes"
kind = "record"
source = "reference harness, measured 98,902"
"""


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "bounds.toml"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def check(**changes):
    return Check(
        **{
            "id": "X-1",
            "row": "X-1",
            "title": "t",
            "scenario": "content_swarm",
            "metric": "m",
            "op": "<=",
            "bound": 2,
            "unit": "s",
            "kind": "gate",
            "source": "peerfleet",
            **changes,
        }
    )


def judge_one(metrics, parameters=None, binding="tcp", **changes):
    (row,) = judge([check(**changes)], metrics, parameters or {}, binding)
    return row


# ---- loading


def test_a_good_file_gives_its_checks_in_order(written):
    swarm, pdt = load_bounds(written(GOOD))
    assert (swarm.id, swarm.row, swarm.bound, swarm.when) == ("FL-SWM-02", "FL-SWM-02", 0.2, {"peers": 8, "pieces": 64})
    assert (pdt.id, pdt.row, pdt.mode, pdt.kind) == ("PD-Q-PRF-02/median", "PD-Q-PRF-02", "blob-edit", "record")


def test_a_scenario_gets_its_own_rows_and_those_of_any(written):
    any_row = (
        GOOD.split("\n\n", maxsplit=1)[0]
        .replace('"content_swarm"', '"any"')
        .replace("seeder_share", "trace_hashes_equal")
    )
    path = written(GOOD + any_row.replace("FL-SWM-02", "FL-SIM-01"))
    assert [c.id for c in load_bounds(path, "pdt")] == ["PD-Q-PRF-02/median", "FL-SIM-01"]
    assert [c.id for c in load_bounds(path, "churn")] == ["FL-SIM-01"]


@pytest.mark.parametrize(
    ("old", "new", "line", "says"),
    [
        ('unit = "ratio"', 'units = "ratio"', 10, "unknown key 'units': did you mean 'unit'?"),
        ('unit = "ratio"', 'wibble = "ratio"', 10, "unknown key 'wibble': write one of binding, bound, id"),
        (
            'metric = "seeder_share"',
            'metric = "seeder_shar"',
            7,
            "unknown metric 'seeder_shar': did you mean 'seeder_s",
        ),
        ('metric = "seeder_share"', 'metric = "seeder_share.p98"', 7, "unknown metric 'p98': did you mean 'p9"),
        ('"edit_bytes_median"', '"seeder_share"', 19, "unknown metric 'seeder_share'"),
        ('scenario = "content_swarm"', 'scenario = "content-swarm"', 5, "did you mean 'content_swarm'?"),
        ('scenario = "pdt"\nmode = "blob-edit"', 'scenario = "pdt"', 14, "has modes and this check names none"),
        ('mode = "blob-edit"', 'mode = "blobedit"', 18, "unknown mode 'blobedit': did you mean 'blob-edit'?"),
        (
            'unit = "ratio"',
            'unit = "ratio"\nmode = "map"',
            11,
            "scenario 'content_swarm' has no modes: remove the line",
        ),
        ('op = "<="\nbound = 0.2', 'op = "=<"\nbound = 0.2', 8, "unknown op '=<': write one of <, <=, ==, >, >="),
        ('kind = "record"', 'kind = "records"', 23, "unknown kind 'records': did you mean 'record'?"),
        ('unit = "ratio"', 'unit = "ratio"\nbinding = "quic"', 11, "unknown binding 'quic': write one of dtls, sim"),
        ("bound = 0.2", 'bound = "0.2"', 9, "the bound is '0.2', not a number: write a number without quotes"),
        ("bound = 0.2", "bound = true", 9, "the bound is true: write 1 for yes and 0 for no"),
        ("bound = 0.2", "bound = nan", 9, "not a finite number"),
        ("bound = 0.2", "bound = -inf", 9, "not a finite number"),
        ("bound = 0.2", f"bound = 1{'0' * 400}", 9, "not a finite number"),
        ("bound = 0.2", f"bound = 1{'0' * 5000}", 9, "a number of thousands of digits"),
        ("bound = 0.2\n", "", 2, "this check has no 'bound': add a line bound = …"),
        ('title = "median bytes"\n', "", 14, "this check has no 'title'"),
        ('title = "median bytes"', "title = 3", 16, "title is 3, not text"),
        ('title = "median bytes"', 'title = " "', 16, "title is empty"),
        ('title = "median bytes"', 'title = "a\\nb"', 16, "not one line of text"),
        ('id = "PD-Q-PRF-02/median"', 'id = "PD-Q PRF"', 15, "'PD-Q PRF' is no id"),
        ('id = "PD-Q-PRF-02/median"', 'id = "/median"', 15, "'/median' is no id"),
        ('id = "PD-Q-PRF-02/median"', 'id = "FL-SWM-02"', 15, "'FL-SWM-02' is taken by line 3"),
        ("peers = 8, pieces", "peers = 8, pieecs", 6, "unknown run parameter 'pieecs': did you mean 'pieces'?"),
        ("{ peers = 8, pieces = 64 }", '{ peers = "8" }', 6, "when.peers is '8', not a number"),
        ("{ peers = 8, pieces = 64 }", "{ peers = nan }", 6, "when.peers is not a finite number"),
        ("{ peers = 8, pieces = 64 }", "8", 6, "when is 8, not a table: write when = { peers = 8 }"),
        ("# a comment", "version = 1", 1, "unknown table 'version': use [[check]]"),
        ("# a comment", "\n[checks]\nx = 1", 2, "unknown table 'checks': use [[check]]"),
        ('unit = "ratio"', 'unit = "ratio"\nlatency = true', 11, "a latency in 'ratio': give it in ms or s, or remove"),
        ('unit = "ratio"', 'unit = "s"\nlatency = false', 11, "latency is False: write latency = true or remove the"),
        ('unit = "ratio"', 'unit = "s"\nlatency = "true"', 11, "latency is 'true': write latency = true or remove"),
        (
            'op = "<="\nbound = 0.2\nunit = "ratio"',
            'op = ">="\nbound = 0.2\nunit = "ms"\nlatency = true',
            11,
            "must be >=: ",
        ),
        ('op = "<="\nbound = 0.2', "op = <=\nbound = 0.2", 8, "not TOML (Invalid value)"),
        ('unit = "ratio"', 'unit = "ratio"\nunit = "ratio"', 11, "not TOML (Cannot overwrite a value)"),
    ],
)
def test_refusals_name_the_line_and_the_repair(written, old, new, line, says):
    assert old in GOOD
    path = written(GOOD.replace(old, new, 1))
    with pytest.raises(BoundsError) as caught:
        load_bounds(path)
    message = str(caught.value)
    assert says in message
    assert message.startswith(f"{path}:{line}: ")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("content", "where", "says"),
    [
        ("", ":1: ", "the file holds no bounds: add [[check]] tables"),
        ("check = 3\n", ":1: ", "'check' is no list"),
        ("\n[check]\nid = 'a'\n", ":2: ", "'check' is no list"),
        ("\ncheck = [{ id = 'a' }]\n", ":2: ", "this check has no 'title'"),
        ("[[check]]\nid = 'a'\n[check.wehn]\npeers = 8\n", ":3: ", "unknown key 'wehn': did you mean 'when'?"),
        ("[[check]]\nid = 'a'\nwhem.peers = 8\n", ":3: ", "unknown key 'whem'"),
        ('[[check]]\n# ok\nid = "a', ":3: ", "not TOML"),
        (b"[[check]]\nid = '\xff'\n", ":2: ", "not UTF-8"),
        ("check = " + "[" * 50_000, ":1: ", "nested too deeply"),
    ],
)
def test_files_that_are_wrong_as_a_whole(written, content, where, says):
    path = written(content)
    with pytest.raises(BoundsError) as caught:
        load_bounds(path)
    assert str(caught.value).startswith(f"{path}{where}")
    assert says in str(caught.value)


def test_a_missing_file_says_which_option_names_one(tmp_path):
    with pytest.raises(BoundsError, match=r"cannot read .*nowhere.toml \(No such file or directory\).*--bounds"):
        load_bounds(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("unit", ["ms", "s"])
def test_a_row_says_that_it_is_a_latency(written, unit):
    text = GOOD.replace('unit = "ratio"', f'unit = "{unit}"\nlatency = true')
    assert [c.latency for c in load_bounds(written(text))] == [True, False]


def test_a_when_table_below_its_check_is_read(written):
    checks = load_bounds(written(GOOD.replace("when = { peers = 8, pieces = 64 }\n", "") + "[check.when]\nlevel = 2\n"))
    assert [c.when for c in checks] == [{}, {"level": 2}]


# ---- the project's file


def test_the_projects_bounds_cover_every_row():
    checks = load_bounds(REPOSITORY / "srad_bounds.toml")
    assert {row for c in checks for row in c.row.split(", ")} == set(ROW_IDS.split())


def test_every_registered_metric_has_a_bound():
    checks = load_bounds(REPOSITORY / "srad_bounds.toml")
    bounded = {(c.scenario, c.metric) for c in checks}
    assert bounded == {(scenario, metric) for scenario, metrics in METRICS.items() for metric in metrics}


def test_the_rows_of_content_swarm():
    rows = {c.id: c for c in load_bounds(REPOSITORY / "srad_bounds.toml", "content_swarm")}
    bounds = {name: (c.metric, c.op, c.bound, c.kind, c.binding, dict(c.when)) for name, c in rows.items()}
    assert bounds == {
        "LB-Q-PRF-01": ("time_ratio_to_single_stream", "<=", 2.5, "record", None, {"undisturbed": 1, "peers": 8}),
        "FL-SWM-01": ("aggregate_over_single_stream", ">=", 0.8, "gate", None, {"undisturbed": 1, "peers": 8}),
        "FL-SWM-01/raw-stream": (
            "aggregate_over_raw_stream",
            ">=",
            0.8,
            "record",
            None,
            {"undisturbed": 1, "peers": 8},
        ),
        "FL-SWM-02": ("seeder_share", "<=", 0.2, "gate", None, {"undisturbed": 1, "peers": 8, "pieces": 64}),
        "FL-SWM-03": ("longest_stall_seconds", "<=", 2, "gate", None, {"undisturbed": 1}),
        "FL-SWM-04": ("bytes_received_over_needed", "<=", 1.02, "gate", None, {"undisturbed": 1}),
        "FL-SWM-05": ("time_over_fluid_bound", "<=", 1.5, "gate", "sim", {"undisturbed": 1, "bounded_links": 1}),
        "FL-SIM-01": ("trace_hashes_equal", "==", 1, "gate", "sim", {"replays": 2}),
        "FL-FLT-01": ("safety_violations", "==", 0, "gate", "sim", {"disturbed": 1}),
        "FL-FLT-02": ("convergence_seconds", "<=", 120, "gate", "sim", {"disturbed": 1}),
    }


def test_the_latencies_among_the_rows():
    rows = load_bounds(REPOSITORY / "srad_bounds.toml")
    assert {c.id for c in rows if c.latency} == {"FL-SWM-03"}


# ---- judging


@pytest.mark.parametrize(
    ("op", "value", "bound", "verdict", "room"),
    [
        ("<=", 1.5, 2, "PASS", 0.25),
        ("<=", 2, 2, "PASS", 0),
        ("<=", 3, 2, "FAIL", -0.5),
        ("<", 2, 2, "FAIL", 0),
        (">=", 300, 200, "PASS", 0.5),
        (">=", 100, 200, "FAIL", -0.5),
        (">", 200, 200, "FAIL", 0),
        ("==", 1, 1, "PASS", 0),
        ("==", 0.9, 1, "FAIL", -0.1),
        ("==", 1.1, 1, "FAIL", -0.1),
        ("==", 0, 0, "PASS", 0),
        ("==", 3, 0, "FAIL", -3),
        ("<=", -2, 0, "PASS", 2),
        ("<=", 2, 0, "FAIL", -2),
        ("<=", -3, -2, "PASS", 0.5),
        (">=", -3, -2, "FAIL", -0.5),
    ],
)
def test_verdicts_and_margin_signs(op, value, bound, verdict, room):
    row = judge_one({"m": value}, op=op, bound=bound)
    assert row.verdict == verdict
    assert row.margin == pytest.approx(room)
    assert margin(op, value, bound) == row.margin
    assert row.reason is None


def test_yes_or_no_measures_are_one_or_zero():
    assert judge_one({"m": True}, op="==", bound=1).verdict is Verdict.PASS
    row = judge_one({"m": False}, op="==", bound=1)
    assert (row.verdict, row.value, type(row.value)) == (Verdict.FAIL, 0, int)


def test_numpy_numbers_are_judged_as_plain_ones():
    for value in (np.float32(1.5), np.float64(1.5), np.int64(1)):
        row = judge_one({"m": value})
        assert (row.verdict, type(row.value) in (int, float)) == (Verdict.PASS, True)


@pytest.mark.parametrize("metrics", [{}, {"m": None}, {"m": math.nan}, {"m": math.inf}, {"m": Histogram()}])
@pytest.mark.parametrize("op", ["<=", ">=", "<", ">", "=="])
def test_what_was_not_measured_is_inconclusive(metrics, op):
    row = judge_one(metrics, op=op)
    assert (row.verdict, row.value, row.margin) == (Verdict.INCONCLUSIVE, None, None)
    assert "m " in row.reason


def test_the_statistic_of_an_empty_sample_is_inconclusive():
    row = judge_one({"m": Histogram()}, metric="m.p99")
    assert (row.verdict, row.reason) == (Verdict.INCONCLUSIVE, "the sample of m is empty")


def test_a_histogram_is_judged_by_the_statistic_that_the_bound_names():
    histogram = Histogram()
    for value in (1, 2, 9):
        histogram.record(value)
    assert judge_one({"m": histogram}, metric="m.max", bound=9).verdict is Verdict.PASS
    assert judge_one({"m": histogram}, metric="m.min").value == 1
    assert judge_one({"m": histogram}, metric="m.count").verdict is Verdict.FAIL
    assert "must name a statistic" in judge_one({"m": histogram}).reason
    assert "must not ask for its max" in judge_one({"m": 1}, metric="m.max").reason


def test_a_metric_that_is_no_number_is_the_scenarios_mistake():
    with pytest.raises(TypeError, match="a metric is a number"):
        judge_one({"m": "fast"})


@pytest.mark.parametrize("value", [0.5, 3])
@pytest.mark.parametrize(("unit", "bound", "late"), [("s", 2, 200.5), ("ms", 20, 2.01), ("ms", 0, 1)])
def test_a_latency_on_a_loop_that_was_late_is_inconclusive_whatever_it_is(value, unit, bound, late):
    row = judge_one({"m": value, "loop_lag_max_ms": late}, unit=unit, bound=bound, latency=True)
    assert (row.verdict, row.value, row.margin) == (Verdict.INCONCLUSIVE, value, None)
    assert row.reason.startswith("the event loop itself was late by up to ")
    assert row.reason.endswith(" ms, more than a tenth of the bound: use fewer peers or a quieter machine")


@pytest.mark.parametrize("lag", [{"loop_lag_max_ms": 200}, {"loop_lag_max_ms": None}, {}, {"loop_lag_p99_ms": 300}])
@pytest.mark.parametrize(("value", "verdict"), [(0.5, "PASS"), (3, "FAIL")])
def test_a_latency_on_a_loop_that_was_not_late_is_judged(lag, value, verdict):
    assert judge_one({"m": value, **lag}, latency=True).verdict == verdict


def test_a_late_loop_says_nothing_of_rows_that_are_no_latencies():
    assert judge_one({"m": 0.5, "loop_lag_max_ms": 9000}).verdict is Verdict.PASS
    latency = check(latency=True, when={"peers": 8})
    (row,) = judge([latency], {"m": 0.5, "loop_lag_max_ms": 9000}, {"peers": 2}, "tcp")
    assert row.verdict is Verdict.NOT_JUDGED


def test_rows_whose_conditions_the_run_does_not_meet_are_listed_with_the_reason():
    row = judge_one({"m": 99}, {"peers": 4, "pieces": 64}, when={"peers": 8})
    assert (row.verdict, row.value, row.margin) == (Verdict.NOT_JUDGED, 99, None)
    assert row.reason == "needs peers >= 8, this run had 4"
    assert judge_one({"m": 1}, {"peers": 8}, when={"peers": 8}).verdict is Verdict.PASS


def test_rows_of_another_binding_are_not_judged():
    (row,) = judge([check(binding="sim")], {"m": 99}, {}, "tls")
    assert (row.verdict, row.reason) == (Verdict.NOT_JUDGED, "only on sim, this run used tls")
    (row,) = judge([check(binding="sim")], {"m": 1}, {}, "sim")
    assert row.verdict is Verdict.PASS


def test_a_parameter_that_the_run_forgot_to_report_is_inconclusive():
    row = judge_one({"m": 1}, {}, when={"peers": 8})
    assert (row.verdict, row.reason) == (Verdict.INCONCLUSIVE, "the run did not report its peers")


def test_rows_of_other_modes_are_left_out():
    checks = [check(id="a", mode="map"), check(id="b", mode="text"), check(id="c")]
    assert [row.check.id for row in judge(checks, {"m": 1}, {}, "tcp", "map")] == ["a", "c"]


@pytest.mark.parametrize(
    ("gates", "records", "verdict"),
    [
        ([1, 2], [], "PASS"),
        ([1, 3], [], "FAIL"),
        ([None, 3], [], "FAIL"),
        ([1, None], [], "INCONCLUSIVE"),
        ([1], [3, None], "PASS"),
        ([], [1, 3], "INCONCLUSIVE"),
        ([], [], "INCONCLUSIVE"),
    ],
)
def test_the_run_is_decided_by_its_gates_alone(gates, records, verdict):
    checks, metrics = [], {}
    for kind, values in (("gate", gates), ("record", records)):
        for index, value in enumerate(values):
            metrics[f"{kind}{index}"] = value
            checks.append(check(id=f"{kind}{index}", metric=f"{kind}{index}", kind=kind))
    assert run_verdict(judge(checks, metrics, {}, "tcp")) == verdict


def test_rows_that_are_not_judged_decide_nothing():
    skipped = check(id="a", when={"peers": 8})
    assert run_verdict(judge([skipped, check(id="b")], {"m": 1}, {"peers": 2}, "tcp")) is Verdict.PASS
    assert run_verdict(judge([skipped], {"m": 1}, {"peers": 2}, "tcp")) is Verdict.INCONCLUSIVE
