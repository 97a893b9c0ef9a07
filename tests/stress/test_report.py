"""report.json's schema, the terminal's table, the page and its figures."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fleet.errors import LocalMisuse
from fleet.metrics import Histogram
from stress.harness.bounds import Check, Verdict, judge
from stress.harness.plots import MAX_LEGEND, Figure, cdf, draw, heat_map, steps_over_time
from stress.harness.report import (
    build_report,
    format_bound,
    format_margin,
    format_measured,
    format_number,
    plain,
    render_html,
    render_text,
    to_text,
    write_atomically,
)

BASE = {"scenario": "content_swarm", "op": "<=", "bound": 2, "unit": "s", "kind": "gate", "source": "peerfleet"}
CHECKS = [
    Check(id="R-1", row="R-1", title="fine", metric="fine", **BASE),
    Check(id="R-2/max", row="R-2", title="over", metric="over", **{**BASE, "kind": "record", "unit": "bytes"}),
    Check(id="R-3", row="R-3", title="never <b>measured</b>", metric="missing", **BASE),
    Check(id="R-4", row="R-4", title="needs more peers", metric="fine", when={"peers": 8}, **BASE),
    Check(id="R-5", row="R-5", title="all equal", metric="same", **{**BASE, "op": "==", "bound": 1, "unit": "yes/no"}),
]


def sample(**changes):
    latency = Histogram()
    for value in range(1, 101):
        latency.record(value)
    metrics = {
        "fine": 1,
        "over": 3_000_000,
        "missing": math.nan,
        "same": True,
        "latency_ms": latency,
        "empty": Histogram(),
        "numpy": np.float32(0.5),
        "endless": math.inf,
    }
    run = {
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 1.25,
        "binding": "tcp",
        "mode": None,
        "parameters": {"peers": 2},
        "bounds": Path("srad_bounds.toml"),
        "summary": ["2 peers moved [bold] <nothing>"],
        "failure": None,
        "state": [],
        **changes,
    }
    rows = judge(CHECKS, metrics, {"peers": 2}, "tcp")
    return build_report(
        scenario="content_swarm",
        args={"peers": 2, "out": Path("x"), "quiet": False},
        seed=1,
        verdict=Verdict.INCONCLUSIVE,
        exit_code=2,
        rows=rows,
        metrics=metrics,
        details={"rates": {"peer-1": math.nan}, "run": run},
        replay="python -m stress.content_swarm --seed 1",
    )


# ---- report.json


def test_the_schema():
    report = json.loads(to_text(sample()))
    assert list(report) == [
        "schema",
        "scenario",
        "args",
        "seed",
        "verdict",
        "exit_code",
        "environment",
        "rows",
        "metrics",
        "replay",
        "details",
    ]
    assert (report["schema"], report["seed"], report["verdict"], report["exit_code"]) == (1, 1, "INCONCLUSIVE", 2)
    assert report["args"] == {"peers": 2, "out": "x", "quiet": False}
    assert report["rows"][1] == {
        "row": "R-2",
        "check": "R-2/max",
        "title": "over",
        "metric": "over",
        "value": 3_000_000,
        "op": "<=",
        "bound": 2,
        "unit": "bytes",
        "kind": "record",
        "verdict": "FAIL",
        "margin": -1_499_999.0,
        "reason": None,
        "source": "peerfleet",
    }
    assert [row["verdict"] for row in report["rows"]] == ["PASS", "FAIL", "INCONCLUSIVE", "NOT_JUDGED", "PASS"]


def test_the_environment_names_what_decides_the_speed():
    environment = sample()["environment"]
    assert list(environment) == ["cpu", "cores", "python", "platform", "versions"]
    assert environment["cpu"]
    assert environment["cores"] >= 1
    assert {"trio", "openssl", "cbor2", "numpy", "peerfleet"} <= set(environment["versions"])
    assert "not installed" not in environment["versions"].values()


def test_no_number_in_the_json_is_nan_or_infinite():
    def refuse(constant):
        pytest.fail(f"{constant} in the report")

    report = json.loads(to_text(sample()), parse_constant=refuse)
    assert report["metrics"]["missing"] is None
    assert report["metrics"]["endless"] is None
    assert report["metrics"]["numpy"] == 0.5
    assert report["metrics"]["empty"]["p50"] is None
    assert report["metrics"]["latency_ms"]["max"] == 100
    assert report["details"]["rates"] == {"peer-1": None}


def test_plain_keeps_what_json_can_carry():
    value = {1: (True, None, "x"), "set": frozenset([3]), "path": Path("a"), "bytes": b"z", "np": np.int64(4)}
    assert plain(value) == {"1": [True, None, "x"], "set": [3], "path": "a", "bytes": "b'z'", "np": 4}


def test_writing_replaces_the_file_whole_or_not_at_all(tmp_path):
    path = tmp_path / "report.json"
    write_atomically(path, "one")
    write_atomically(path, "two — é")
    assert path.read_text(encoding="utf-8") == "two — é"
    with pytest.raises(TypeError):
        write_atomically(path, 5)
    assert path.read_text(encoding="utf-8") == "two — é"
    assert list(tmp_path.iterdir()) == [path]
    write_atomically(path, "\udcff")  # of a file name that is not UTF-8
    assert path.read_text(encoding="utf-8") == "\\udcff"
    assert path.stat().st_mode & 0o777 == 0o644


# ---- for people


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (0, "0"),
        (1.0, "1"),
        (1_084_793, "1,084,793"),
        (0.14285, "0.1429"),
        (634.21, "634.2"),
        (12345.6, "12,346"),
        (-0.5, "-0.5"),
        (1.5e-7, "1.5e-07"),
    ],
)
def test_numbers(value, text):
    assert format_number(value) == text


@pytest.mark.parametrize(
    ("changes", "texts"),
    [
        ({"value": 0.86, "op": ">=", "bound": 0.8, "unit": "ratio", "margin": 0.075}, ("0.86", ">= 0.8", "+7.5 %")),
        ({"value": 3, "op": "<=", "bound": 2, "unit": "s", "margin": -0.5}, ("3 s", "<= 2 s", "-50.0 %")),
        ({"value": 0, "op": "==", "bound": 1, "unit": "yes/no", "margin": -1.0}, ("no", "= yes", "-100.0 %")),
        ({"value": 1, "op": "==", "bound": 1, "unit": "yes/no", "margin": 0.0}, ("yes", "= yes", "-")),
        ({"value": 3, "op": "==", "bound": 0, "unit": "tasks", "margin": -3}, ("3 tasks", "= 0 tasks", "-3")),
        ({"value": 2_000, "op": ">=", "bound": 1, "unit": "ratio", "margin": 1999}, ("2,000", ">= 1", "+199,900 %")),
        ({"value": None, "op": "<=", "bound": 2, "unit": "s", "margin": None}, ("-", "<= 2 s", "-")),
    ],
)
def test_figures_of_a_row(changes, texts):
    assert (format_measured(changes), format_bound(changes), format_margin(changes)) == texts


def test_the_text_names_verdict_value_bound_margin_source_and_replay():
    text = render_text(sample(), width=80, colour=False, html=Path("runs/x/report.html"))
    assert text.splitlines() == [
        "verdict        row             measured       bound          margin",
        "PASS           R-1                  1 s      <= 2 s         +50.0 %",
        "               fine (peerfleet)",
        "FAIL (record)  R-2/max  3,000,000 bytes  <= 2 bytes  -149,999,900 %",
        "               over (peerfleet)",
        "INCONCLUSIVE   R-3                    -      <= 2 s               -",
        "               never <b>measured</b> (peerfleet)",
        "               missing is nan, which measures nothing",
        "PASS           R-5                  yes       = yes               -",
        "               all equal (peerfleet)",
        "not judged: R-4: needs peers >= 8, this run had 2",
        "",
        "2 peers moved [bold] <nothing>",
        "INCONCLUSIVE: of 3 gates judged, 2 passed, 1 inconclusive; 1 not judged",
        "report: runs/x/report.html",
        "replay: python -m stress.content_swarm --seed 1",
    ]


def test_a_terminal_gets_colour_and_a_pipe_none(monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    report = sample(failure="deadline exceeded: 3 s", state=["peer-1 holds 3 of 64"])
    assert "\x1b[" not in render_text(report, width=100, colour=False, html=Path("r.html"))
    coloured = render_text(report, width=100, colour=True, html=Path("r.html"))
    assert "\x1b[" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    uncoloured = render_text(report, width=100, colour=True, html=Path("r.html"))
    assert not re.search("\x1b\\[[0-9;]*3[0-9]", uncoloured)
    assert "deadline exceeded: 3 s\n  peer-1 holds 3 of 64\n" in render_text(
        report, width=100, colour=False, html=Path("r.html")
    )


def test_no_gate_judged_says_so():
    report = sample()
    report["rows"] = []
    assert "no gate was judged" in render_text(report, width=80, colour=False, html=Path("r.html"))
    assert "nothing was judged" in render_html(report, [])


class _Balance(HTMLParser):
    """Fails on a tag that is never closed or closed twice."""

    VOID = frozenset({"meta"})

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def figures(peers):
    names = [f"peer-{index}" for index in range(peers)]
    latency = Histogram()
    for value in (1, 5, 2000):
        latency.record(value)
    return [
        steps_over_time("Pieces", "c", {name: [(0.0, 0), (1.0, 5), (2.0, 9)] for name in names}),
        heat_map("Who to whom", "c", [[float(x != y) for x in names] for y in names], names, names),
        cdf("Latency", "c", {"all": latency, "plain": [3, 1, 2]}, x_label="ms"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("peers", [8, 64])
def test_the_page_is_whole_self_contained_and_escaped(peers):
    report = sample(failure="<script>alert(1)</script>", state=["a < b"])
    page = render_html(report, [*figures(peers), steps_over_time("<i>t</i>", "<i>c</i>", {"<s>$x$": [(0, 1)]})])
    parser = _Balance()
    parser.feed(page)
    assert parser.open == []
    assert page.count("<svg") == 4
    assert "<script" not in page
    assert not re.search(r"<[is]>", page)
    assert "never &lt;b&gt;measured&lt;/b&gt;" in page
    links = re.findall(r'(?:src|href)="([^"]*)"', page)
    assert all(link.startswith(("#", "data:image/png")) for link in links), links
    ids = re.findall(r'\bid="([^"]*)"', page)
    assert len(ids) == len(set(ids))
    assert "python -m stress.content_swarm --seed 1" in page


@pytest.mark.slow
@pytest.mark.parametrize("peers", [2, MAX_LEGEND, MAX_LEGEND + 1, 63])
def test_figures_are_well_formed_and_repeatable(peers):
    for figure in figures(peers):
        svg = draw(figure)
        assert draw(figure) == svg
        ET.fromstring(svg)  # noqa: S314 - our own output
    crowd = draw(figures(peers)[0])
    assert ("the last to end" in crowd) == (peers > MAX_LEGEND)
    assert (">peer-1<" in crowd) == (peers <= MAX_LEGEND)


@pytest.mark.slow
@pytest.mark.parametrize(
    "figure",
    [
        steps_over_time("t", "c", {}),
        steps_over_time("t", "c", {"peer-1": []}),
        heat_map("t", "c", [], [], []),
        heat_map("t", "c", [[0.0]], ["a"], ["b"]),
        heat_map("t", "c", [[math.nan, 1.0]], ["a"], ["b", "c"]),
        cdf("t", "c", {}, x_label="ms"),
        cdf("t", "c", {"a": Histogram(), "b": []}, x_label="ms"),
        cdf("t", "c", {"a": [0.0]}, x_label="ms"),
    ],
)
def test_figures_of_little_or_nothing_are_drawn_all_the_same(figure):
    ET.fromstring(draw(figure))  # noqa: S314 - our own output


@pytest.mark.slow
def test_long_lines_are_thinned_so_that_the_page_stays_small():
    points = [(index * 0.01, index) for index in range(4097)]
    assert len(draw(steps_over_time("t", "c", {f"peer-{index}": points for index in range(63)}))) < 1_500_000


def test_data_of_the_wrong_shape_is_refused_at_once():
    with pytest.raises(LocalMisuse, match="2 by 1 names"):
        heat_map("t", "c", [[1.0]], ["a", "b"], ["c"])
    with pytest.raises(LocalMisuse, match="not in order of time"):
        steps_over_time("t", "c", {"peer-1": [(2.0, 1), (1.0, 2)]})
    with pytest.raises(LocalMisuse, match="no figure of kind 'pie'"):
        draw(Figure("t", "c", "pie", {}))
