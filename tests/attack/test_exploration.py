"""Explorations that are interrupted, robbed of their output, or pointed at their own input."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stress import explore
from stress.harness.options import EXIT_MISUSE, invoke

TOY = ["content_swarm", "--peers", "4", "--pieces", "16", "--piece-kib", "16", "--faults", "all=1"]


def start(out: Path, *options: str, **settings: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "stress.explore", *TOY, "--quiet", "--out", str(out), *options]
    return subprocess.Popen(command, text=True, start_new_session=True, **settings)  # type: ignore  # noqa: PGH003, S603


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_invents_no_failure(number: signal.Signals, tmp_path: Path) -> None:
    """As a terminal sends it: to the workers in the middle of their runs, too."""
    out = tmp_path / "out"
    process = start(out, "--seeds", "100000", "--jobs", "2", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    log = out / "trials.jsonl"
    while not (log.exists() and log.stat().st_size > 0):
        assert process.poll() is None
        os.sched_yield()
    os.killpg(process.pid, number)
    said, complained = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert "BROKEN" not in said
    assert "FAIL" not in said
    assert complained == ""


def test_no_output_is_no_failure(tmp_path: Path) -> None:
    command = f"{sys.executable} -m stress.explore {' '.join(TOY)} --quiet --seeds 2 --out {tmp_path / 'out'} >&-"
    assert subprocess.run(["/bin/sh", "-c", command], check=False).returncode == 0  # noqa: S603


@pytest.mark.parametrize("name", ["report.json", "trials.jsonl"])
def test_it_does_not_replace_what_it_is_to_read(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("precious", encoding="utf-8")
    for flag in ("--bounds", "--file"):
        code = invoke(explore.COMMAND, [*TOY, "--out", str(tmp_path), flag, str(tmp_path / name)])
        assert code == EXIT_MISUSE
    assert (tmp_path / name).read_text(encoding="utf-8") == "precious"


def test_a_log_that_cannot_be_written_costs_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(_log: object, _ended: object) -> None:
        raise explore._refused(tmp_path, OSError(28, "No space left on device"))

    monkeypatch.setattr(explore._Log, "note", refused)
    code = invoke(explore.COMMAND, [*TOY, "--seeds", "4", "--jobs", "1", "--out", str(tmp_path), "--quiet"])
    said = capsys.readouterr()
    assert code == EXIT_MISUSE
    assert "of 1 seeds (of 4 asked for), 1 passed" in said.out
    assert said.err == f"error: cannot write to {tmp_path} (No space left on device): choose another with --out\n"
