"""From command line to exit code: every way in which a run can end, shown on a scenario that sends nothing."""

from __future__ import annotations

import dataclasses
import functools
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.testing
from rich.console import Console

import stress
from fleet.errors import StorageFailed
from fleet.sim import guard
from stress.harness import options, run
from stress.harness.events import EventLog
from stress.harness.lag import PERIOD_SECONDS, LoopLag
from stress.harness.progress import Progress
from stress.harness.run import run_scenario
from tests.stress import toy_scenario

BOUNDS = Path(stress.__file__).parent.parent / "srad_bounds.toml"
TOY = Path(toy_scenario.__file__)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_page(monkeypatch):
    """Spare tests that are not about the page the half second of drawing it."""
    monkeypatch.setattr(run, "render_html", lambda report, figures: "<html></html>")


def toy(*argv, scenario=toy_scenario.SCENARIO):
    return run_scenario(scenario, ["--out", "out", "--quiet", *argv])


def report():
    return json.loads(Path("out/report.json").read_text(encoding="utf-8"))


def one_line(capsys):
    """What stderr got, which must be one line, and stdout nothing."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.endswith("\n")
    return captured.err


# ---- the ends of a run


@pytest.mark.slow
def test_all_gates_pass(capsys):
    assert toy() == 0
    text = capsys.readouterr().out
    assert "PASS: of 4 gates judged, 4 passed; 4 not judged\n" in text
    assert "FAIL (record)  LB-Q-PRF-01" in text
    assert text.endswith("report: out/report.html\nreplay: python -m stress.content_swarm --seed 1\n")
    assert sorted(path.name for path in Path("out").iterdir()) == ["events.jsonl", "report.html", "report.json"]
    assert (report()["verdict"], report()["exit_code"]) == ("PASS", 0)
    assert report()["details"]["peers"] == {"count": 8}
    expected = {"peers": 8, "pieces": 64, "disturbed": 0, "undisturbed": 1}
    assert report()["details"]["run"]["parameters"] == expected
    assert "8 peers moved nothing" in Path("out/report.html").read_text(encoding="utf-8")


def test_a_gate_fails(no_page, capsys):
    assert toy("--ending", "zero") == 1
    assert "\nFAIL: of 4 gates judged, 3 passed, 1 failed" in capsys.readouterr().out
    assert (report()["verdict"], report()["exit_code"]) == ("FAIL", 1)


def test_a_gate_that_measured_nothing_is_inconclusive(no_page, capsys):
    async def measure_nothing(context):
        context.parameters.update(peers=8, pieces=64)
        context.metrics["seeder_share"] = 0.1
        context.metrics["longest_stall_seconds"] = float("nan")

    assert toy(scenario=dataclasses.replace(toy_scenario.SCENARIO, run=measure_nothing)) == 2
    assert "\nINCONCLUSIVE: of 4 gates judged, 1 passed, 3 inconclusive" in capsys.readouterr().out
    assert report()["exit_code"] == 2


def test_a_scenario_without_rows_is_inconclusive(no_page, capsys):
    assert toy(scenario=dataclasses.replace(toy_scenario.SCENARIO, name="unheard_of")) == 2
    assert "no gate was judged, so nothing is proved" in capsys.readouterr().out


@pytest.mark.parametrize("ending", ["misuse", "misuse-in-group"])
def test_misuse_that_the_run_finds_is_one_line(ending, capsys):
    assert toy("--ending", ending) == 3
    assert one_line(capsys) == "error: the toy cannot do that: ask for less\n"


def test_a_full_disk_is_one_line(capsys):
    assert toy("--ending", "disk") == 3
    assert one_line(capsys) == "error: the toy's disk is full; free some space\n"


@pytest.mark.parametrize(
    ("ending", "cause"),
    [
        ("crash", "ValueError: the toy broke"),
        ("crash-in-group", "ValueError: the toy broke"),
        ("misuse-and-crash", "ValueError: the toy broke"),
        ("link", "LinkBroken: peer-3 went away"),
        ("text-metric", "TypeError: a metric is a number, a Histogram or None, not 'a lot'"),
    ],
)
def test_a_broken_run_leaves_its_traceback_in_the_folder(ending, cause, capsys):
    assert toy("--ending", ending) == 4
    assert one_line(capsys) == f"error: {cause}: the run broke; its traceback is in out/traceback.txt\n"
    assert "Traceback (most recent call last)" in Path("out/traceback.txt").read_text(encoding="utf-8")
    assert sorted(path.name for path in Path("out").iterdir()) == ["events.jsonl", "traceback.txt"]


def test_a_page_that_cannot_be_drawn_is_the_harness_broken(monkeypatch, capsys):
    def broken(report, figures):
        raise ZeroDivisionError("no width")

    monkeypatch.setattr(run, "render_html", broken)
    assert toy() == 4
    assert "ZeroDivisionError: no width: the run broke" in one_line(capsys)


def test_a_deadline_of_the_scenario_is_a_failed_gate_with_its_state(no_page, capsys):
    assert toy("--ending", "late") == 1
    text = capsys.readouterr().out
    assert "deadline exceeded: peer-1 was given 3 s\n  peer-1 holds 3 of 64 pieces\nFAIL: " in text
    assert set(report()["metrics"]) == {"seeder_share", "loop_lag_p99_ms", "loop_lag_max_ms"}
    assert report()["metrics"]["seeder_share"] == 0.15
    assert report()["details"]["run"]["failure"] == "deadline exceeded: peer-1 was given 3 s"


def test_the_deadline_of_the_command_line_on_a_virtual_clock(no_page, capsys):
    clock = trio.testing.MockClock(autojump_threshold=0)
    virtual = dataclasses.replace(toy_scenario.SCENARIO, runner=lambda _context, main: trio.run(main, clock=clock))
    assert run_scenario(virtual, ["--out", "out", "--ending", "hang", "--deadline-seconds", "35"]) == 1
    captured = capsys.readouterr()
    assert "deadline exceeded: the run had not finished after 35 s (--deadline-seconds)\n" in captured.out
    assert "  peer-1 holds 3 of 64 pieces\n" in captured.out
    lines = captured.err.splitlines()
    assert lines[0] == "toy: hanging"
    assert lines[1].startswith("content_swarm: 10 s, swarm, 0% done: peer-1 0/64, peer-2 0/64, ")
    assert "peer-1 made no progress for 30 s at 0/64; the end of its trace:" in lines
    assert lines[-1] == "toy: cleaned up"


@pytest.mark.parametrize(("ending", "code"), [("hang-dialling", 1), ("hang-badly", 4)])
def test_links_that_end_because_the_deadline_passed_are_no_failure_of_their_own(ending, code, no_page, capsys):
    clock = trio.testing.MockClock(autojump_threshold=0)
    virtual = dataclasses.replace(toy_scenario.SCENARIO, runner=lambda _context, main: trio.run(main, clock=clock))
    assert toy("--ending", ending, scenario=virtual) == code
    said = capsys.readouterr()
    assert ("deadline exceeded: the run had not finished after 1800 s" in said.out) == (code == 1)
    assert ("ValueError: the clean-up tripped" in said.err) == (code == 4)


# ---- how late the loop was


def on_a_loop_late_by(ms):
    async def late(context):
        await toy_scenario.run(context)
        context.lag = LoopLag()
        context.lag._late_ms.record(ms)

    return dataclasses.replace(toy_scenario.SCENARIO, run=late)


def test_a_loop_that_was_late_is_told_and_makes_latencies_inconclusive(capsys):
    assert toy(scenario=on_a_loop_late_by(231.4)) == 2
    text = capsys.readouterr().out
    assert "late by up to 231 ms, more than a tenth of the bound: use fewer peers or" in " ".join(text.split())
    assert "\nevent loop: late by 231.4 ms at the 99th percentile, by 231.4 ms at the most\n" in text
    found = report()
    assert (found["metrics"]["loop_lag_p99_ms"], found["metrics"]["loop_lag_max_ms"]) == (231.4, 231.4)
    (row,) = (row for row in found["rows"] if row["verdict"] == "INCONCLUSIVE")
    assert (row["check"], row["value"], row["margin"]) == ("FL-SWM-03", 0.0, None)
    assert row["reason"] in Path("out/report.html").read_text(encoding="utf-8")


def test_a_stall_on_a_late_loop_is_no_failure(no_page):
    assert toy("--ending", "zero", scenario=on_a_loop_late_by(231.4)) == 2
    assert toy("--ending", "zero", scenario=on_a_loop_late_by(199)) == 1


def test_a_run_on_sockets_has_its_loop_watched(no_page):
    async def slow(context):
        with context.lag.measured():
            await toy_scenario.run(context)
            await trio.sleep(3 * PERIOD_SECONDS)  # the clock under test is the machine's

    watched = dataclasses.replace(toy_scenario.SCENARIO, run=slow)
    assert toy(scenario=watched) in (0, 2)
    metrics = report()["metrics"]
    assert 0 <= metrics["loop_lag_p99_ms"] <= metrics["loop_lag_max_ms"]


# ---- simulated runs


def many_events():
    """A scenario of 3,000 events, each a virtual millisecond after the one before."""

    async def busy(context):
        context.parameters.update(peers=2, pieces=1, disturbed=0, undisturbed=1)
        context.progress.phase("busy")
        context.progress.track("peer-1", 3000)
        for number in range(3000):
            await trio.sleep(0.001)
            context.progress.update("peer-1", number)
            context.world.history.record("tick", "peer-1", number=number)

    return dataclasses.replace(toy_scenario.SCENARIO, run=busy, bindings=("tcp", "sim"))


@pytest.fixture
def ten_seconds_a_look(monkeypatch):
    """A real clock that is ten seconds further each time that progress looks at it."""
    looks = itertools.count(0, 10)
    monkeypatch.setattr(guard, "real_seconds", lambda: next(looks))


def simulated(*argv):
    return run_scenario(many_events(), ["--out", "out", "--binding", "sim", "--no-audit", *argv])


def test_a_long_simulated_run_tells_its_virtual_time_by_the_real_clock(no_page, ten_seconds_a_look, capsys):
    simulated()
    said = capsys.readouterr()
    lines = said.err.splitlines()
    assert lines
    assert re.fullmatch(r"content_swarm: 0\.\d{3} virtual s in 20 s, busy, \d+% done: peer-1 \d+/3,000", lines[0])
    assert re.search(r"\nsimulated: 3\.000 virtual seconds in \d+\.\d\d real ones \(\S+ a second\), ", said.out)
    assert report()["metrics"]["virtual_over_real_seconds"] > 0
    assert not {"loop_lag_p99_ms", "loop_lag_max_ms"} & set(report()["metrics"])
    assert "event loop" not in said.out


def test_on_a_terminal_a_simulated_run_has_bars(no_page, ten_seconds_a_look, monkeypatch, capsys):
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100, color_system=None, legacy_windows=False)
    monkeypatch.setattr(run, "Progress", functools.partial(Progress, console=terminal))
    simulated()
    assert re.search(r"content_swarm: 0\.\d{3} virtual s in \d+ s, busy, \d+% done", terminal.file.getvalue())
    assert "peer-1 " in terminal.file.getvalue()


def test_a_quiet_simulated_run_says_nothing_and_progress_leaves_no_trace(no_page, ten_seconds_a_look, capsys):
    hashes = set()
    for quiet in (["--quiet"], []):
        simulated(*quiet)
        assert bool(capsys.readouterr().err) == (not quiet)
        hashes.add(report()["details"]["simulation"]["trace_hash"])
    assert len(hashes) == 1


@pytest.mark.slow
def test_links_that_end_because_of_ctrl_c_are_no_failure_of_their_own():
    with started("--ending", "hang-dialling") as process:
        wait_for(process, "toy: hanging")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert len(err.splitlines()) == 1
    assert sorted(path.name for path in Path("out").iterdir()) == ["events.jsonl"]


def test_a_keyboard_interrupt_that_no_watch_saw(capsys):
    assert toy("--ending", "interrupt") == 130
    assert one_line(capsys) == "interrupted; no report was written to out\n"


def test_scratch_is_empty_at_the_start_and_gone_at_the_end(no_page):
    seen = []

    async def look(context):
        seen.append((context.scratch, list(context.scratch.iterdir())))
        (context.scratch / "folder").mkdir()
        raise ValueError("x")

    assert toy(scenario=dataclasses.replace(toy_scenario.SCENARIO, run=look)) == 4
    ((scratch, content),) = seen
    assert content == []
    assert scratch.parent == Path("out")
    assert not scratch.exists()


# ---- signals


def started(*argv):
    command = [sys.executable, "-W", "error", str(TOY), "--out", "out", *argv]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: S603


def wait_for(process, start):
    for line in process.stderr:
        if line.startswith(start):
            return line
    pytest.fail(f"the toy ended without saying {start!r}")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_run_after_its_clean_up(number, code):
    with started("--ending", "hang") as process:
        wait_for(process, "toy: hanging")
        process.send_signal(number)
        out, err = process.communicate()
    assert (process.returncode, out) == (code, "")
    first, second = err.splitlines()
    assert first.startswith("interrupted; stopping the peers, the events so far go to out/events.jsonl")
    assert second == "toy: cleaned up"
    assert sorted(path.name for path in Path("out").iterdir()) == ["events.jsonl"]


@pytest.mark.slow
def test_a_clean_up_that_fails_after_a_signal_is_told_and_kept():
    with started("--ending", "hang-badly") as process:
        wait_for(process, "toy: hanging")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    assert process.returncode == 130
    assert err.splitlines()[1:] == ["interrupted; the clean-up failed, see out/traceback.txt"]
    assert "ValueError: the clean-up tripped" in Path("out/traceback.txt").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_second_signal_does_not_wait_for_the_clean_up():
    with started("--ending", "hang-shielded") as process:
        wait_for(process, "toy: hanging")
        process.send_signal(signal.SIGINT)
        wait_for(process, "interrupted; ")
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert process.returncode == 130
    assert sorted(path.name for path in Path("out").iterdir()) == ["events.jsonl"]


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_change_the_verdict():
    with started("--quiet") as process:
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


# ---- the command line


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--peerz", "8"], "No such option: '--peerz'"),
        (["--peers", "many"], "'many' is not a valid integer"),
        (["--seed", "-1"], "-1 is not in the range x>=0"),
        (["--deadline-seconds", "0"], "0 is not in the range x>0"),
        (["--binding", "quic"], "'quic' is not one of 'tcp', 'tls'"),
        (["--format", "xml"], "'xml' is not one of 'text', 'json'"),
        (["stray"], "unexpected extra argument"),
        (["--seed"], "requires an argument"),
    ],
)
def test_bad_arguments_are_one_line_and_exit_code_3(argv, says, capsys):
    assert toy(*argv) == 3
    line = one_line(capsys)
    assert line.startswith("error: ")
    assert says in line.replace("No such option '", "No such option: '")
    assert line.endswith(": python -m stress.content_swarm --help lists what it takes\n")
    assert not Path("out").exists()


def test_arguments_that_do_not_fit_together_start_nothing(capsys):
    assert toy("--peers", "13") == 3
    assert one_line(capsys) == "error: 13 peers bring bad luck: ask for 12 or 14\n"
    assert not Path("out").exists()


def test_a_bad_bounds_file_starts_nothing(capsys):
    Path("bad.toml").write_text("[[check]]\nid = 3\n", encoding="utf-8")
    assert toy("--bounds", "bad.toml") == 3
    assert one_line(capsys).startswith("error: bad.toml:1: this check has no 'title'")
    assert toy("--bounds", "nowhere.toml") == 3
    assert "nowhere.toml (No such file or directory): name one with --bounds" in one_line(capsys)
    assert not Path("out").exists()


def test_a_bounds_file_in_the_working_directory_comes_first(no_page):
    text = BOUNDS.read_text(encoding="utf-8").replace("bound = 0.8\n", "bound = 0.9\n")
    Path("srad_bounds.toml").write_text(text, encoding="utf-8")
    assert toy() == 1
    assert report()["details"]["run"]["bounds"] == "srad_bounds.toml"
    assert report()["replay"].endswith(f"--seed 1 --bounds {Path('srad_bounds.toml').absolute()}")


def test_no_bounds_file_anywhere(monkeypatch, capsys):
    monkeypatch.setattr(options, "BOUNDS_FILE", "elsewhere.toml")
    assert toy() == 3
    assert one_line(capsys) == (
        "error: no elsewhere.toml here or beside the package: name a bounds file with --bounds\n"
    )


@pytest.mark.parametrize("where", ["file", "file/below", "dangling"])
def test_an_out_that_cannot_be_a_folder(where, capsys):
    Path("file").touch()
    Path("dangling").symlink_to("nowhere/at/all")
    assert run_scenario(toy_scenario.SCENARIO, ["--out", where]) == 3
    line = one_line(capsys)
    assert line.startswith(f"error: cannot write to the folder {where} (")
    assert line.endswith("): choose another with --out\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_an_out_without_permission(capsys):
    Path("closed").mkdir(mode=0o500)
    assert run_scenario(toy_scenario.SCENARIO, ["--out", "closed"]) == 3
    assert "Permission denied" in one_line(capsys)


def test_an_existing_out_loses_the_files_of_the_earlier_run_and_no_others(capsys):
    Path("out").mkdir()
    for name in ("report.json", "traceback.txt", "notes.txt"):
        (Path("out") / name).write_text("old", encoding="utf-8")
    assert toy("--ending", "misuse") == 3
    assert sorted(path.name for path in Path("out").iterdir()) == ["events.jsonl", "notes.txt"]


def test_the_default_folder_names_scenario_time_and_seed_and_is_always_fresh(no_page):
    for _ in range(3):
        assert run_scenario(toy_scenario.SCENARIO, ["--seed", "7", "--quiet"]) == 0
    names = sorted(path.name for path in Path("runs").iterdir())
    assert len(names) == 3
    assert all(re.fullmatch(r"content_swarm-\d{8}T\d{6}Z-7(-[23])?", name) for name in names)


def test_help_teaches_the_options_and_the_exit_codes(capsys):
    assert toy("--help") == 0
    text = capsys.readouterr().out
    for word in ("--seed", "--out", "--bounds", "--format", "--quiet", "--deadline-seconds", "--binding", "--peers"):
        assert word in text
    assert "3    bad arguments or bounds file" in text


def test_modes_are_required_and_reach_the_scenario(no_page, capsys):
    seen = []

    async def look(context):
        seen.append((context.mode, context.binding))

    scenario = dataclasses.replace(
        toy_scenario.SCENARIO, name="pdt", run=look, modes=("map", "text"), bindings=("dtls", "tcp")
    )
    assert toy("--mode", "text", scenario=scenario) == 2
    assert seen == [("text", "dtls")]
    assert {row["row"] for row in report()["rows"]} == {
        "P2-Q-PRF-09",
        "FL-TXT-01",
        "FL-SIM-01",
        "FL-FLT-01",
        "FL-FLT-02",
    }
    capsys.readouterr()
    assert toy(scenario=scenario) == 3
    assert "Missing option '--mode'" in one_line(capsys)


# ---- output and replay


def test_json_on_stdout_is_exactly_the_file(no_page, capsys):
    assert run_scenario(toy_scenario.SCENARIO, ["--out", "out", "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert captured.out == Path("out/report.json").read_text(encoding="utf-8")
    assert captured.err == ""


def test_the_replay_line_has_the_seed_and_what_is_not_default(no_page, capsys):
    scenario = dataclasses.replace(
        toy_scenario.SCENARIO,
        options=[
            *toy_scenario.SCENARIO.options,
            options.option("--name", default="x"),
            options.option("--tag", multiple=True),
            options.option("--fsync/--no-fsync", default=True),
            options.option("--keep", is_flag=True),
        ],
    )
    argv = ["--seed", "5", "--name", "it's; a", "--tag", "a", "--tag=-b", "--no-fsync", "--keep", "--format", "json"]
    Path("b.toml").write_bytes(BOUNDS.read_bytes())
    assert toy(*argv, "--bounds", "b.toml", "--binding", "tls", "--peers", "8", scenario=scenario) == 0
    assert report()["replay"] == (
        "python -m stress.content_swarm --name 'it'\"'\"'s; a' --tag a --tag=-b --no-fsync --keep --seed 5 "
        f"--binding tls --bounds {Path('b.toml').absolute()}"
    )


def test_args_are_reported_in_their_declared_order(no_page):
    assert toy("--seed", "3", "--peers", "9") == 0
    assert list(report()["args"]) == [
        "peers",
        "ending",
        "seed",
        "binding",
        "deadline_seconds",
        "out",
        "bounds",
        "format",
        "quiet",
    ]


# ---- events


def test_events_are_lines_of_json_and_the_tail_is_bounded():
    with EventLog(Path("events.jsonl")) as events:
        for index in range(100):
            events.emit(index * 0.5, "peer-1", "verified", piece=index)
        events.emit(50.0, 7, "odd", ratio=float("nan"), where=Path("x"), nested={"a": [float("inf")]})
        assert [json.loads(line)["piece"] for line in events.tail("peer-1")] == list(range(36, 100))
        assert events.tail("never seen") == []
    lines = [json.loads(line) for line in Path("events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 101
    assert lines[0] == {"time": 0.0, "peer": "peer-1", "kind": "verified", "piece": 0}
    assert lines[-1] == {"time": 50.0, "peer": 7, "kind": "odd", "ratio": None, "where": "x", "nested": {"a": [None]}}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_disk_that_fills_up_under_the_events_is_storage_failed():
    events = EventLog(Path("/dev/full"))
    events.emit(0.0, "peer-1", "verified")
    with pytest.raises(StorageFailed, match=r"/dev/full .*choose another --out"):
        events.close()
