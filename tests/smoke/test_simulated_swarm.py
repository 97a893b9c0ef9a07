"""``python -m stress.content_swarm --binding sim`` at toy scale: verdicts, the audit, and replays by seed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stress import content_swarm
from stress.harness import simulated
from stress.harness.run import run_scenario
from stress.swarm import summary

TOY = ["--binding", "sim", "--peers", "4", "--mebibytes", "1", "--piece-kib", "64", "--quiet"]


def report_of(out: Path, *argv: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    assert run_scenario(content_swarm.SCENARIO, [*TOY, "--out", str(out), *argv]) in codes
    report: dict[str, Any] = json.loads((out / "report.json").read_text(encoding="utf-8"))
    return report


def row(report: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [each for each in report["rows"] if each["row"] == name and each["check"] == name]
    return dict(found)


def test_the_audit_runs_a_second_process_and_finds_the_same_trace(tmp_path: Path) -> None:
    report = report_of(tmp_path)
    assert report["metrics"]["trace_hashes_equal"] == 1
    assert row(report, "FL-SIM-01")["verdict"] == "PASS"


def test_a_seed_decides_the_run_and_its_virtual_time(tmp_path: Path) -> None:
    first, again, other = (
        report_of(tmp_path / name, "--no-audit", "--seed", seed) for name, seed in (("a", "1"), ("b", "1"), ("c", "2"))
    )
    assert first["details"]["simulation"] == again["details"]["simulation"]
    assert first["metrics"]["virtual_seconds"] == again["metrics"]["virtual_seconds"]
    assert first["details"]["simulation"]["trace_hash"] != other["details"]["simulation"]["trace_hash"]
    assert (tmp_path / "a" / "events.jsonl").read_bytes() == (tmp_path / "b" / "events.jsonl").read_bytes()


def test_bounded_links_are_judged_against_the_fluid_bound(tmp_path: Path) -> None:
    report = report_of(tmp_path, "--no-audit", "--rate-mib-s", "2", "--latency-ms", "5", codes=(0, 1))
    judged = row(report, "FL-SWM-05")
    assert judged["verdict"] in ("PASS", "FAIL")
    assert judged["value"] == pytest.approx(report["metrics"]["wall_seconds"] / 0.5)
    assert judged["value"] >= 1


def test_the_fluid_bound() -> None:
    assert summary.fluid_bound(100, [10, 50, 50]) == 10  # the seeder's link
    assert summary.fluid_bound(100, [50, 10, 50]) == 10  # the slowest fetcher's
    assert summary.fluid_bound(100, [50] * 4) == 2
    assert summary.fluid_bound(100, [100, 10_000]) == 1


def test_the_audit_names_the_first_event_that_differs(tmp_path: Path) -> None:
    report = report_of(tmp_path / "first", "--no-audit")
    events = tmp_path / "first" / "events.jsonl"
    lines = events.read_text(encoding="utf-8").splitlines(keepends=True)
    lines[7] = lines[7].replace('"time"', '"when"')
    events.write_text("".join(lines), encoding="utf-8")
    replay = report["replay"]
    said = simulated.audit(replay, "0" * 64, events, tmp_path / "second")
    assert said is not None
    assert said.startswith("event 7 was")


@pytest.mark.parametrize("argv", [["--loss", "0.1"], ["--latency-ms", "3"], ["--no-audit"]])
def test_options_of_the_simulated_network_elsewhere(
    tmp_path: Path, argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_scenario(content_swarm.SCENARIO, ["--peers", "2", "--out", str(tmp_path), *argv]) == 3
    assert "--binding sim" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--loss", "1"], ["--loss", "nan"], ["--latency-ms", "0"], ["--rate-mib-s", "-1"]])
def test_impossible_networks(tmp_path: Path, argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_scenario(content_swarm.SCENARIO, [*TOY, "--out", str(tmp_path), *argv]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_a_virtual_deadline_fails_the_run_with_every_fetchers_state(tmp_path: Path) -> None:
    report = report_of(tmp_path, "--rate-mib-s", "0.1", "--deadline-seconds", "5", codes=(1,))
    assert report["verdict"] == "FAIL"
    assert len(report["details"]["run"]["state"]) == 1 or any(
        "holds" in line for line in report["details"]["run"]["state"]
    )
