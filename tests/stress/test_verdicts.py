"""``python -m stress.verdicts``: which rows it calls different, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stress import verdicts
from stress.harness.options import invoke


def report(**rows: str) -> dict[str, Any]:
    return {
        "rows": [
            {"check": check, "op": "<=", "bound": 1, "unit": "s", "kind": "gate", "value": 0.5, "verdict": verdict}
            for check, verdict in rows.items()
        ]
    }


def test_rows_that_differ_and_rows_that_were_not_judged() -> None:
    table, differing = verdicts.compare(
        {
            "sim": report(same="PASS", other="PASS", only_here="FAIL", unmeasured="PASS"),
            "tcp": report(same="PASS", other="FAIL", only_here="NOT_JUDGED", unmeasured="INCONCLUSIVE"),
        }
    )
    assert differing == ["other", "unmeasured"]
    assert table.row_count == 4


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["nothing"], "no scenario"),
        (["harness.run"], "no scenario"),
        (["content_swarm", "--bindings", "sim,udp"], "udp"),
        ([], "SCENARIO"),
    ],
)
def test_misuse_is_one_line_and_code_3(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(verdicts.COMMAND, argv) == 3
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_the_exit_code_is_the_worst_of_the_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen = []

    def run_on(scenario: str, binding: str, rest: tuple[str, ...], _folder: Path) -> tuple[int, dict[str, Any]]:
        seen.append((scenario, binding, tuple(rest)))
        return (1, report(row="FAIL")) if binding == "tls" else (0, report(row="PASS"))

    monkeypatch.setattr(verdicts, "run_on", run_on)
    assert invoke(verdicts.COMMAND, ["content_swarm", "--bindings", "sim,tls", "--peers", "4"]) == 1
    assert seen == [("content_swarm", binding, ("--peers", "4")) for binding in ("sim", "tls")]
    assert "1 verdicts differ: row" in capsys.readouterr().out


def test_a_run_on_the_simulated_network(tmp_path: Path) -> None:
    options = ["--peers", "3", "--mebibytes", "1", "--piece-kib", "64", "--no-audit"]
    code, found = verdicts.run_on("content_swarm", "sim", options, tmp_path / "sim")
    assert code == 0
    assert found == json.loads((tmp_path / "sim" / "report.json").read_text(encoding="utf-8"))
