"""The content swarm under every kind of fault: safe, convergent, the same for the same seed, and plain when misused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from stress.content_swarm import SCENARIO
from stress.harness.options import EXIT_MISUSE, EXIT_PASS
from stress.harness.run import run_scenario
from stress.harness.trial import trial

if TYPE_CHECKING:
    from pathlib import Path

TOY = ["--binding", "sim", "--peers", "5", "--pieces", "16", "--piece-kib", "16"]


def run(out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    """One run, and its report."""
    code = run_scenario(SCENARIO, [*TOY, "--quiet", "--out", str(out), *options])
    return code, json.loads((out / "report.json").read_text(encoding="utf-8"))


@pytest.mark.fleet_seeds(50)
def test_the_swarm_survives_every_kind_of_fault(fleet_seed: int) -> None:
    found = trial(SCENARIO, [*TOY, "--seed", str(fleet_seed), "--faults", "all=1,skew_ms=200"])
    assert found.verdict == "PASS", f"{found.failure}: {found.message}: {found.replay}"


@pytest.mark.fleet_seeds(10)
def test_the_swarm_survives_faults_while_its_links_are_narrow(fleet_seed: int) -> None:
    found = trial(
        SCENARIO,
        [*TOY, "--seed", str(fleet_seed), "--faults", "all=2", "--rate-mib-s", "0.5", "--latency-ms", "20"],
    )
    assert found.verdict == "PASS", f"{found.failure}: {found.message}: {found.replay}"


def test_a_fresh_process_is_struck_in_the_same_way(tmp_path: Path) -> None:
    code, report = run(tmp_path / "a", "--faults", "all=2,skew_ms=200", "--audit")
    rows = {row["check"]: row["verdict"] for row in report["rows"]}
    assert code == EXIT_PASS
    assert rows["FL-SIM-01"] == rows["FL-FLT-01"] == rows["FL-FLT-02"] == "PASS"
    assert rows["FL-SWM-01"] == rows["FL-SWM-03"] == "NOT_JUDGED"


def test_the_schedule_that_was_drawn_repeats_the_run(tmp_path: Path) -> None:
    _, drawn = run(tmp_path / "drawn", "--faults", "all=1,skew_ms=200", "--no-audit", "--seed", "7")
    schedule = drawn["details"]["faults"]["schedule"]
    assert schedule.count("@") == 15
    _, given = run(tmp_path / "given", "--faults", schedule, "--no-audit", "--seed", "7")
    assert given["details"]["simulation"]["trace_hash"] == drawn["details"]["simulation"]["trace_hash"]


def test_what_does_not_converge_fails_and_says_how_far_it_came(tmp_path: Path) -> None:
    code, report = run(
        tmp_path, "--faults", "crash@0.001+3:1:wipe", "--converge-seconds", "0.001", "--no-audit", "--latency-ms", "30"
    )
    assert code == 1
    assert report["details"]["run"]["failure"] == (
        "deadline exceeded: the work was not done 0.001 s after everything was healed"
    )
    rows = {row["check"]: row["verdict"] for row in report["rows"]}
    assert (rows["FL-FLT-01"], rows["FL-FLT-02"]) == ("PASS", "INCONCLUSIVE")
    assert any(line.startswith("peer-1 ") for line in report["details"]["run"]["state"])
    assert "Space and time" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_run_that_never_quiets_ends_at_the_virtual_deadline(tmp_path: Path) -> None:
    code, report = run(tmp_path, "--faults", "partition@0+3000:0-1.2.3.4", "--deadline-seconds", "50", "--no-audit")
    assert code == 1
    assert "had not finished after 50 s" in report["details"]["run"]["failure"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--faults", "crahs=1"], "there is no fault 'crahs': use crash"),
        (["--faults", "crash=-1"], "a whole number from 0"),
        (["--faults", "disk=torn"], "strikes nobody"),
        (["--faults", " , "], "strikes nobody"),
        (["--faults", "pause@1+1:9"], "the fleet has peers 0 to 4"),
        (["--faults", "all=1", "--binding", "tcp"], "--faults shapes the simulated network only: add --binding sim"),
        (["--rate-mib-s", "-1"], "-1.0 is not in the range"),
        (["--latency-ms", "0"], "is not in the range"),
        (["--latency-ms", "inf"], "is no such number"),
        (["--loss", "1"], "is not in the range"),
        (["--converge-seconds", "0"], "is not in the range"),
        (["--pieces", "0"], "is not in the range"),
    ],
)
def test_misuse_is_one_line_and_its_own_exit_code(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_scenario(SCENARIO, [*TOY, "--out", str(tmp_path / "out"), *options]) == EXIT_MISUSE
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
