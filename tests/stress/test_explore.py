"""``python -m stress.explore`` from command line to exit code: what it groups, prints, refuses, survives and shrinks.

Most tests explore a toy: workers are forked, so they call the trial that the test puts in the place of the real one.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shlex
import signal
import sys
import tempfile
from pathlib import Path

import click
import pytest
from rich.console import Console

from fleet.errors import LocalMisuse
from fleet.sim.faults import parse_faults
from stress import explore
from stress.harness import exploration
from stress.harness.findings import build_report, grouped, render_text, verdict_of
from stress.harness.options import invoke, option
from stress.harness.run import Scenario, command_of
from stress.harness.trial import Trial

REPORTER = "import pathlib, sys; p = pathlib.Path(sys.argv[-2]); p.mkdir(); (p / 'report.html').touch(); sys.exit(1)"
"""What a replay of the toy runs: it gets --out DIR --quiet."""

DRAWN = "crash@5.37+1.5:1:torn,pause@1+1:0,reset@3+0:1-2,pause@4+4:2"


def check_arguments(args):
    if args["peers"] == 13:
        raise LocalMisuse("13 peers bring bad luck: ask for 12 or 14")


TOY = Scenario(
    name="content_swarm",  # so that there are bounds for it
    summary="A toy that sends nothing.",
    run=lambda _context: None,
    bindings=("tcp", "sim"),
    shrinkable={"peers": 2, "pieces": 1},
    options=[
        option("--peers", type=click.IntRange(min=2), default=8),
        option("--pieces", type=int),
        option("--plan", default="", help="What becomes of which seed, as in 3=FAIL:text,5=kill."),
    ],
    check_arguments=check_arguments,
)


def made(seed, verdict="PASS", failure="", *, schedule="", virtual=2.0, replay=None):
    return Trial(
        seed, verdict, failure, failure and f"{failure}, of {seed}", schedule, replay or f"run {seed}", virtual, 0.1
    )


def toy_trial(_scenario, argv):
    with command_of(TOY, lambda _: 0).make_context("toy", list(argv)) as context:
        args = context.params
    plan = dict(item.split("=") for item in args["plan"].split(",") if item)
    what, _, failure = plan.get(str(args["seed"]), plan.get("all", "PASS")).partition(":")
    match what:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(3)
        case "hang":
            signal.pause()
        case "raise":
            raise ValueError("the toy broke")
        case "misuse":
            raise LocalMisuse("the toy cannot do that: ask for less")
        case "INT" | "TERM" | "HUP":
            os.kill(os.getppid(), signal.Signals[f"SIG{what}"])
            signal.pause()
        case "picky" if args["pieces"] < 4:
            raise LocalMisuse("fewer than 4 pieces are no swarm")
        case "crash" | "picky":
            return crash_trial(args, argv, failure)
    return made(args["seed"], what, failure, virtual=100.0 - args["seed"])


def crash_trial(args, argv, then):
    """Fails from 3 peers up under a crash that comes late; ``then`` is the signal that a run with one strike sends."""
    strikes = parse_faults(DRAWN if args["faults"] == "all=1" else args["faults"]).given
    crashes = [strike for strike in strikes if strike.kind == "crash"]
    fails = args["peers"] >= 3 and any(strike.at >= 2 for strike in crashes)
    if then and len(strikes) == 1:
        os.kill(os.getppid(), signal.Signals[f"SIG{then}"])
        signal.pause()
    replay = shlex.join([sys.executable, "-c", REPORTER, *argv])
    verdict = "FAIL" if fails else "PASS"
    schedule = ",".join(map(str, strikes))
    return made(args["seed"], verdict, "unsafe: lost" if fails else "", schedule=schedule, replay=replay)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    """And nothing of the workers stays behind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    yield
    assert multiprocessing.active_children() == []
    assert list((tmp_path / "tmp").iterdir()) == []
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setattr(explore, "find_scenario", lambda _name: TOY)
    monkeypatch.setattr(explore, "trial", toy_trial)
    monkeypatch.setattr(exploration, "REFRESH_SECONDS", 0.02)  # signals are looked at as often

    def run(plan, *argv, seeds=8, jobs=2):
        return invoke(
            explore.COMMAND,
            ["toy", "--seeds", str(seeds), "--jobs", str(jobs), "--out", "out", "--quiet", "--plan", plan, *argv],
        )

    return run


def report():
    return json.loads(Path("out/report.json").read_text(encoding="utf-8"))


# ---- what is found


@pytest.mark.parametrize(
    ("plan", "code", "verdict"),
    [
        ("", 0, "PASS"),
        ("3=FAIL:a", 1, "FAIL"),
        ("3=INCONCLUSIVE:a", 2, "INCONCLUSIVE"),
        ("3=FAIL:a,4=INCONCLUSIVE:b", 1, "FAIL"),
        ("3=BROKEN:a,4=FAIL:b", 4, "BROKEN"),
        ("3=raise", 4, "BROKEN"),
        ("3=kill", 1, "FAIL"),
    ],
)
def test_the_exit_code_is_that_of_the_gravest(toy, plan, code, verdict, capsys):
    assert toy(plan) == code
    assert (report()["verdict"], report()["exit_code"]) == (verdict, code)
    captured = capsys.readouterr()
    assert f"\n{verdict}: of 8 seeds, " in f"\n{captured.out}"
    assert captured.out.endswith("\nreport: out/report.json\n")
    assert captured.err == ""


def test_failures_are_grouped_by_what_failed(toy, capsys):
    assert toy("0=INCONCLUSIVE:c,1=FAIL:a,2=INCONCLUSIVE:c,3=FAIL:b,4=FAIL:b,5=INCONCLUSIVE:c") == 1
    groups = report()["groups"]
    assert [(each["failure"], each["seeds"]) for each in groups] == [("b", [3, 4]), ("a", [1]), ("c", [0, 2, 5])]
    assert groups[0]["message"] == "b, of 3"
    assert (groups[0]["replay"], groups[0]["replay_virtual_seconds"]) == ("run 4", 96.0)  # the shorter one
    out = capsys.readouterr().out
    assert "FAIL  2 seeds (3, 4): b\n  b, of 3\n  replay: run 4\nFAIL  seed 1: a\n" in out
    assert "FAIL: of 8 seeds, 2 passed, 3 failed, 3 inconclusive; " in out
    assert "seeds/s, " in out


def test_json_on_stdout_is_exactly_the_file(toy, capsys):
    toy("1=FAIL:a", "--format", "json")
    assert capsys.readouterr().out == Path("out/report.json").read_text(encoding="utf-8")
    totals = report()["totals"]
    assert (totals["seeds"], totals["passed"], totals["failed"], totals["virtual_seconds"]) == (8, 7, 1, 800 - 28)
    assert totals["seeds_per_second"] == pytest.approx(8 / totals["real_seconds"])
    assert report()["command"] == "python -m stress.explore toy --seeds 8 --first-seed 0 --plan 1=FAIL:a"
    lines = Path("out/trials.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(json.loads(line)["seed"] for line in lines) == list(range(8))


def test_the_seeds_are_those_asked_for(toy):
    assert toy("", "--first-seed", "40", seeds=5) == 0
    lines = Path("out/trials.jsonl").read_text(encoding="utf-8").splitlines()
    assert sorted(json.loads(line)["seed"] for line in lines) == list(range(40, 45))


def test_no_more_seeds_are_started_after_so_many_failures(toy, capsys):
    assert toy("all=FAIL:a", "--max-failures", "2", seeds=50, jobs=1) == 1
    assert report()["groups"][0]["seeds"] == [0, 1]
    assert "FAIL: of 2 seeds (of 50 asked for), 2 failed; " in capsys.readouterr().out


@pytest.mark.slow
def test_a_seed_that_ends_its_worker_is_a_failure_and_the_others_go_on(toy, monkeypatch):
    monkeypatch.setattr(explore, "LIMIT_SECONDS", 1)
    assert toy("1=kill,2=exit,4=hang,6=kill") == 1
    assert {each["failure"]: each["seeds"] for each in report()["groups"]} == {
        "the worker was killed by SIGKILL": [1, 6],
        "the worker exited with code 3": [2],
        "no end after 1 s of real time": [4],
    }
    assert report()["totals"]["passed"] == 4
    replay = report()["groups"][0]["replay"]
    assert replay == "python -m stress.content_swarm --plan 1=kill,2=exit,4=hang,6=kill --binding sim --seed 1"


def test_the_default_folder_names_the_scenario(toy):
    assert invoke(explore.COMMAND, ["toy", "--seeds", "1", "--jobs", "1", "--quiet"]) == 0
    (folder,) = Path("runs").iterdir()
    assert folder.name.startswith("explore-toy-2")
    assert sorted(path.name for path in folder.iterdir()) == ["report.json", "trials.jsonl"]


# ---- what is refused


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "SCENARIO"),
        (["nothing"], "no scenario 'nothing'"),
        (["verdicts"], "no scenario 'verdicts'"),
        (["harness.run"], "no scenario"),
        (["content_swarm", "--seeds", "0"], "--seeds"),
        (["content_swarm", "--jobs", "0"], "--jobs"),
        (["content_swarm", "--binding", "tcp"], "--binding tcp cannot be explored"),
        (["content_swarm", "--seed", "3"], "--first-seed"),
        (["content_swarm", "--no-such-thing"], "--no-such-thing"),
        (["content_swarm", "--peers", "1"], "--peers"),
        (["content_swarm", "--faults", "crush=1"], "no fault 'crush'"),
        (["content_swarm", "--faults", "pause@1+1:9"], "peer 9"),
        (["content_swarm", "--pieces", "4", "--piece-kib", "0"], "--piece-kib"),
        (["content_swarm", "--file", "nothing"], "nothing"),
        (["content_swarm", "--bounds", "nothing"], "nothing"),
        (["content_swarm", "--out", "/dev/null/x"], "--out"),
        (["content_swarm", "stray"], "stray"),
    ],
)
def test_misuse_is_one_line_and_code_3_before_any_worker(argv, said, capsys, monkeypatch):
    monkeypatch.setattr(explore, "Pool", None)
    assert invoke(explore.COMMAND, argv) == 3
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""
    assert not Path("runs").exists()


def test_what_only_a_run_refuses_ends_the_exploration(toy, capsys):
    assert toy("3=misuse") == 3
    assert capsys.readouterr().err == "error: the toy cannot do that: ask for less\n"


def test_the_scenarios_own_check_comes_first_too(toy, capsys):
    assert toy("", "--peers", "13") == 3
    assert "bad luck" in capsys.readouterr().err


def test_what_breaks_the_harness_is_code_4(toy, monkeypatch, capsys):
    monkeypatch.setattr(explore, "build_report", None)
    assert toy("") == 4
    assert "TypeError" in capsys.readouterr().err


def test_a_full_disk_is_one_line(toy, monkeypatch, capsys):
    def full(_path, _text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(explore, "write_atomically", full)
    assert toy("") == 3
    assert capsys.readouterr().err == (
        "error: cannot write to out (No space left on device): choose another with --out\n"
    )


def test_help_teaches(capsys):
    assert invoke(explore.COMMAND, ["--help"]) == 0
    out = capsys.readouterr().out
    assert "python -m stress.explore content_swarm" in out
    assert "--faults" in out


# ---- signals and progress


@pytest.mark.parametrize(("name", "code"), [("INT", 130), ("TERM", 143), ("HUP", 129)])
def test_a_signal_stops_the_workers_and_what_was_found_is_printed(toy, name, code, capsys):
    assert toy(f"1=FAIL:a,4={name}", jobs=1) == code
    assert report()["exit_code"] == code
    out = capsys.readouterr().out
    assert "FAIL  seed 1: a\n" in out
    assert f"FAIL: of 4 seeds (of 8 asked for, stopped by SIG{name}), 3 passed, 1 failed; " in out


def test_a_signal_before_the_first_end(toy, capsys):
    assert toy("0=INT", jobs=1) == 130
    assert "INCONCLUSIVE: no seed was run to its end, so nothing is proved\n" in capsys.readouterr().out


def test_a_plain_line_now_and_then(toy, monkeypatch, capsys):
    monkeypatch.setattr(explore, "LINE_SECONDS", 0.0)
    assert invoke(explore.COMMAND, ["toy", "--seeds", "3", "--jobs", "1", "--plan", "0=FAIL:a"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("explore toy: 0 s, 0 of 3 seeds, 0 failed, ")
    assert any(", 1 of 3 seeds, 1 failed, " in line for line in lines)


def test_a_live_line_on_a_terminal_and_none_when_quiet():
    for quiet, there in ((False, True), (True, False)):
        screen = io.StringIO()
        console = Console(file=screen, force_terminal=True, width=60, _environ={"TERM": "xterm"})
        with explore.Lookout("explore toy", console, quiet=quiet) as lookout:
            lookout.state = lambda _: "3 of 8 seeds"
            lookout.look()
        assert ("explore toy: 3 of 8 seeds" in screen.getvalue()) is there


# ---- shrinking


@pytest.mark.parametrize("jobs", [1, 3])
def test_a_failure_is_made_small_whatever_the_number_of_workers(toy, jobs, capsys):
    argv = ["--peers", "6", "--pieces", "9", "--faults", "all=1"]
    assert toy("all=crash", *argv, "--shrink", seeds=2, jobs=jobs) == 1
    (smallest,) = report()["smallest"]
    assert smallest["failure"] == "unsafe: lost"
    assert smallest["schedule"] == "crash@2+0:1:torn"
    assert smallest["replay"].endswith("--seed 0 --peers 3 --pieces 1 --faults crash@2+0:1:torn")
    assert smallest["notes"] == ["from peers 6, pieces 9, strikes 4 to peers 3, pieces 1, strikes 1 in 30 trials"]
    assert smallest["report"] == "out/smallest-1/report.html"
    out = capsys.readouterr().out
    assert "shrunk: unsafe: lost\n  from peers 6" in out
    assert "  report: out/smallest-1/report.html\n" in out


def test_what_a_smaller_run_refuses_is_no_failure(toy):
    assert toy("0=picky", "--pieces", "9", "--faults", "all=1", "--shrink", seeds=1) == 1
    assert "--peers 3 --pieces 4 --faults crash@2+0:1:torn" in report()["smallest"][0]["replay"]


def test_an_option_without_a_value_is_left_alone(toy):
    assert toy("0=crash", "--faults", "all=1", "--shrink", seeds=1) == 1
    assert "--pieces" not in report()["smallest"][0]["replay"]
    assert report()["smallest"][0]["notes"][0].startswith("from peers 8, strikes 4 to peers 3, strikes 1 in ")


def test_the_trials_for_shrinking_are_bounded(toy):
    assert toy("0=crash", "--faults", "all=1", "--shrink", "--shrink-trials", "5", seeds=1) == 1
    (smallest,) = report()["smallest"]
    assert smallest["notes"][0].endswith("in 5 trials (no more were allowed: --shrink-trials)")


def test_what_was_made_small_until_a_signal_is_printed(toy, capsys):
    assert toy("all=crash:INT", "--faults", "all=1", "--shrink", seeds=1, jobs=1) == 130
    out = capsys.readouterr().out
    assert "shrunk: unsafe: lost\n" in out
    assert "replay: " in out.partition("shrunk: ")[2]


@pytest.mark.slow
def test_a_death_under_drawn_faults_keeps_them(toy):
    assert toy("all=kill", "--faults", "crash=1", "--shrink", "--shrink-trials", "9", seeds=1) == 1
    (smallest,) = report()["smallest"]
    assert smallest["replay"].endswith("--faults crash=1 --binding sim --seed 0 --peers 2")
    assert "drawn again for each run" in smallest["notes"][0]


@pytest.mark.slow
def test_a_death_under_given_faults_is_shrunk_with_them(toy):
    assert toy("all=kill", "--faults", "crash@5+1:1:torn,pause@1+1:0", "--shrink", "--shrink-trials", "9", seeds=1) == 1
    (smallest,) = report()["smallest"]
    assert smallest["replay"].endswith("--seed 0 --peers 2 --faults ''")


@pytest.mark.slow
def test_a_death_without_faults_is_shrunk(toy):
    assert toy("all=kill", "--shrink", "--shrink-trials", "9", seeds=1) == 1
    (smallest,) = report()["smallest"]
    assert smallest["replay"].endswith("--seed 0 --peers 2 --faults ''")


def test_only_the_largest_groups_are_made_small(toy, monkeypatch):
    monkeypatch.setattr(exploration.Exploration, "_write_report", lambda *_: None)
    assert toy("0=FAIL:a,1=FAIL:b,2=FAIL:c,3=FAIL:c,4=FAIL:d,5=INCONCLUSIVE:e,6=INCONCLUSIVE:e", "--shrink") == 1
    assert [each["failure"] for each in report()["smallest"]] == ["c", "a", "b"]


def test_a_failure_of_this_process_alone_is_told(toy, monkeypatch):
    monkeypatch.setitem(globals(), "REPORTER", "")  # it passes
    assert toy("0=crash", "--faults", "all=1", "--shrink", seeds=1) == 1
    (smallest,) = report()["smallest"]
    assert smallest["notes"][1] == "in a process of its own it ends with code 0: it needs what this process has changed"
    assert smallest["report"] is None


def test_a_failure_that_does_not_repeat_is_told(toy, monkeypatch):
    ran = Path("ran").absolute()

    def once(_scenario, argv):
        first = not ran.exists()
        ran.touch()
        return made(0, "FAIL", "a") if first else made(0)

    monkeypatch.setattr(explore, "trial", once)
    assert toy("", "--shrink", seeds=1) == 1
    assert "does not fail in this way" in report()["smallest"][0]["notes"][0]


def test_a_run_without_end_is_not_shrunk(toy, monkeypatch):
    monkeypatch.setattr(explore, "LIMIT_SECONDS", 0.1)
    assert toy("0=hang", "--shrink", seeds=1) == 1
    (smallest,) = report()["smallest"]
    assert smallest["notes"] == ["not shrunk: it has no end, so each try would take as long"]


@pytest.mark.slow
def test_a_real_scenario(capsys):
    argv = ["content_swarm", "--peers", "4", "--pieces", "4", "--piece-kib", "16", "--faults", "crash=1,pause=2"]
    late = ["--deadline-seconds", "0.1"]
    assert invoke(explore.COMMAND, [*argv, "--seeds", "4", "--jobs", "2", "--out", "out", "--quiet"]) == 0
    shrink = ["--seeds", "2", "--shrink", "--shrink-trials", "20"]
    assert invoke(explore.COMMAND, [*argv, *late, *shrink, "--jobs", "2", "--out", "out", "--quiet"]) == 1
    (smallest,) = report()["smallest"]
    assert smallest["failure"].startswith("deadline exceeded: ")
    assert "peerfleet" in Path(smallest["report"]).read_text(encoding="utf-8")
    assert smallest["replay"] in json.loads(Path("out/smallest-1/report.json").read_text(encoding="utf-8"))["replay"]


# ---- figures


def test_a_group_names_a_few_seeds_only():
    trials = [made(seed, "FAIL", "a") for seed in range(30)]
    found = build_report(scenario="toy", command="", asked=30, trials=trials, seconds=2.0, stopped_by=None, smallest=[])
    assert "FAIL  30 seeds (0, 1, 2, 3, 4, 5, 6, 7, ...): a\n" in render_text(found, colour=False, path="there")
    assert found["groups"][0]["seeds"] == list(range(30))


def test_nothing_run_proves_nothing():
    assert verdict_of([]) == "INCONCLUSIVE"
    assert grouped([]) == []
