"""The content swarm at toy scale, from command line to report, on each binding; and each way in which it can end badly.

Nothing here depends on how fast the machine is. Where a run must pass, it is judged by the project's bounds without the
rows that compare rates, and with all the time it wants.
"""

from __future__ import annotations

import dataclasses
import errno
import html.parser
import itertools
import json
import os
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import trio
import trio.testing

import stress
from fleet.environment import in_thread
from fleet.fleet import BINDINGS
from fleet.limits import KIB, MIB
from stress import content_swarm
from stress.content_swarm import SCENARIO
from stress.harness import run as harness
from stress.harness.bounds import OPERATORS
from stress.harness.run import run_scenario
from stress.swarm import summary
from tests.smoke import interrupted_swarm

REPOSITORY = Path(stress.__file__).parent.parent
BOUNDS = REPOSITORY / "srad_bounds.toml"
RATES = ("LB-Q-PRF-01", "FL-SWM-01")
STALL = 'metric = "longest_stall_seconds"\nop = "<="\nbound = 600\n'
TOY = ("--peers", "4", "--mebibytes", "1", "--piece-kib", "16")

KEYS = ["schema", "scenario", "args", "seed", "verdict", "exit_code", "environment", "rows", "metrics", "replay"]
ROW_KEYS = ["row", "check", "title", "metric", "value", "op", "bound", "unit", "kind", "verdict", "margin"]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def no_page(monkeypatch):
    """Spare tests that are not about the page the half second of drawing it."""
    monkeypatch.setattr(harness, "render_html", lambda report, figures: "<html></html>")


@pytest.fixture
def unrated(tmp_path):
    """The project's bounds without those on rates, and with ten minutes for a stall."""
    header, *checks = BOUNDS.read_text(encoding="utf-8").split("[[check]]")
    kept = [check for check in checks if not any(f'id = "{row}"' in check for row in RATES)]
    assert len(checks) - len(kept) == len(RATES)
    path = tmp_path / "unrated.toml"
    text = "[[check]]".join([header, *kept])
    patient = text.replace('metric = "longest_stall_seconds"\nop = "<="\nbound = 2\n', STALL)
    assert patient != text
    path.write_text(patient, encoding="utf-8")
    return str(path)


def swarm(*argv, scenario=SCENARIO):
    return run_scenario(scenario, ["--out", "out", "--quiet", *argv])


def report():
    return json.loads(Path("out/report.json").read_text(encoding="utf-8"))


def events():
    return [json.loads(line) for line in Path("out/events.jsonl").read_text(encoding="utf-8").splitlines()]


def one_line(capsys):
    """What stderr got, which must be one line, and stdout nothing."""
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("error: ")
    return captured.err


def left_in(folder):
    return sorted(path.name for path in Path(folder).iterdir())


# ---- runs that end well


@pytest.mark.slow
@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize(
    ("peers", "mebibytes", "piece_kib", "passed"),
    [(4, 1, 16, 2), (8, 4, 64, 3)],  # FL-SWM-02 speaks of 8 peers and more
)
def test_a_run_and_all_that_it_leaves(binding, peers, mebibytes, piece_kib, passed, unrated, capsys):
    size, fetchers = mebibytes * MIB, [f"peer-{index}" for index in range(1, peers)]
    sizes = ["--peers", str(peers), "--mebibytes", str(mebibytes), "--piece-kib", str(piece_kib)]
    assert swarm(*sizes, "--binding", binding, "--bounds", unrated) == 0
    text = capsys.readouterr().out
    assert f"\nPASS: of {passed} gates judged, {passed} passed; " in text
    assert f"{peers - 1} fetchers took {mebibytes}.0 MiB each in " in text
    assert left_in("out") == ["events.jsonl", "report.html", "report.json"]

    found = report()
    check_schema(found)
    assert (found["scenario"], found["seed"], found["verdict"], found["exit_code"]) == ("content_swarm", 1, "PASS", 0)
    assert found["args"]["binding"] == binding
    assert 0 < found["metrics"]["seeder_share"] < 1

    # every byte that a fetcher holds came from somebody, once
    details = found["details"]["fetchers"]
    assert list(details) == fetchers
    for name, fetcher in details.items():
        assert fetcher["verified_pieces"] == size // (piece_kib * KIB)
        assert sum(fetcher["bytes_from"].values()) == size
        assert fetcher["received_bytes"] >= size + fetcher["duplicate_bytes"]
        assert fetcher["bytes_from"].get("peer-0", 0) == fetcher["bytes_from_seeder"]
        assert name not in fetcher["bytes_from"]
    served = sum(count for fetcher in details.values() for count in fetcher["bytes_from"].values())
    assert served == size * len(fetchers)

    check_events(fetchers, size // (piece_kib * KIB))
    check_page(fetchers)


def check_schema(found):
    assert list(found) == [*KEYS, "details"]
    assert found["schema"] == 1
    assert set(found["environment"]) == {"cpu", "cores", "python", "platform", "versions"}
    assert {"peerfleet", "trio", "openssl"} <= set(found["environment"]["versions"])
    assert found["replay"].startswith("python -m stress.content_swarm --")
    assert found["rows"]
    for row in found["rows"]:
        assert list(row) == [*ROW_KEYS, "reason", "source"]
        if row["verdict"] in ("PASS", "FAIL"):
            holds = OPERATORS[row["op"]](row["value"], row["bound"])
            assert row["verdict"] == ("PASS" if holds else "FAIL")
            assert (row["margin"] >= 0) == holds
            assert row["reason"] is None
        else:
            assert row["margin"] is None
            assert row["reason"]


def check_events(fetchers, pieces):
    verified = {name: [] for name in fetchers}
    last = 0.0
    for event in events():
        assert {"time", "peer", "kind"} <= set(event)
        assert event["time"] >= last
        last = event["time"]
        if event["kind"] == "piece":
            verified[event["peer"]].append(event["piece"])
    for name in fetchers:
        assert sorted(verified[name]) == list(range(pieces)), name


class _Page(html.parser.HTMLParser):
    """Collects what a browser would fetch, and the headings."""

    def __init__(self):
        super().__init__()
        self.fetched = []
        self.tags = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "data", "srcset", "poster", "action") and value[:1] != "#":
                self.fetched += [] if value.startswith("data:") else [(tag, name, value)]


def check_page(fetchers):
    text = Path("out/report.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.fetched == []
    assert not {"script", "link", "iframe", "img"} & set(page.tags)
    assert page.tags.count("svg") == 2
    assert not re.search(r"url\((?!#)|@import", text)
    for heading in ("Pieces over time", "Who served whom", *fetchers):
        assert heading in text


@pytest.mark.slow
def test_the_projects_own_bounds_are_all_judged_or_say_why_not():
    code = swarm("--peers", "8", "--mebibytes", "4", "--piece-kib", "64")
    found = report()
    check_schema(found)
    assert found["exit_code"] == code
    gates = {row["check"]: row["verdict"] for row in found["rows"] if row["kind"] == "gate"}
    timed = {gates.pop("FL-SWM-01"), gates.pop("FL-SWM-03")}
    assert gates == {
        "FL-SWM-02": "PASS",
        "FL-SWM-04": "PASS",
        "FL-SWM-05": "NOT_JUDGED",
        "FL-SIM-01": "NOT_JUDGED",
        "FL-FLT-01": "NOT_JUDGED",
        "FL-FLT-02": "NOT_JUDGED",
    }
    late_loop = [({"PASS", "INCONCLUSIVE"}, 2), ({"FAIL", "INCONCLUSIVE"}, 1)]
    assert (timed, code) in [({"PASS"}, 0), ({"FAIL"}, 1), ({"PASS", "FAIL"}, 1), *late_loop]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 16 * KIB - 1, 300 * KIB + 7])
def test_a_file_of_the_users_arrives_and_stays_as_it_was(size, unrated, no_page, monkeypatch):
    content = np.random.default_rng(size).bytes(size)
    mine = Path("mine.bin")
    mine.write_bytes(content)
    os.utime(mine, ns=(1_000_000_000, 2_000_000_000))
    mine.chmod(0o444)
    arrived = {}

    async def look_before_the_fleet_goes(self, fleet, path, manifest):
        await original(self, fleet, path, manifest)
        for index in range(1, len(fleet)):
            (data,) = (self.context.scratch / f"peer-{index}").glob("*.data")
            arrived[index] = data.read_bytes()

    original = content_swarm._Run._swarm
    monkeypatch.setattr(content_swarm._Run, "_swarm", look_before_the_fleet_goes)
    assert swarm(*TOY, "--file", "mine.bin", "--bounds", unrated) == 0
    assert arrived == dict.fromkeys([1, 2, 3], content)
    assert mine.read_bytes() == content
    assert (mine.stat().st_mtime_ns, mine.stat().st_mode & 0o777) == (2_000_000_000, 0o444)
    for fetcher in report()["details"]["fetchers"].values():
        assert fetcher["verified_pieces"] == -(-size // (16 * KIB))
        assert sum(fetcher["bytes_from"].values()) == size
    bounds = Path(unrated)
    assert report()["replay"] == (
        f"python -m stress.content_swarm --peers 4 --mebibytes 1 --file {mine.absolute()} --piece-kib 16 --seed 1 "
        f"--bounds {bounds}"
    )


@pytest.mark.slow
@pytest.mark.parametrize("given", [("--mebibytes", "0"), ("--file", "empty")])
def test_an_empty_file_has_no_pieces_and_proves_nothing(given, no_page, capsys):
    Path("empty").touch()
    assert swarm("--peers", "8", *given) == 2
    text = capsys.readouterr().out
    assert "the file is empty: 7 fetchers hold all of its 0 pieces" in text
    assert "\nINCONCLUSIVE: of 3 gates judged, 3 inconclusive" in text
    assert report()["verdict"] == "INCONCLUSIVE"
    assert {fetcher["verified_pieces"] for fetcher in report()["details"]["fetchers"].values()} == {0}


@pytest.mark.slow
def test_of_a_crowd_the_summary_lists_those_that_stand_out(unrated, no_page, capsys):
    assert swarm("--peers", "20", "--mebibytes", "1", "--piece-kib", "64", "--bounds", unrated) == 0
    text = capsys.readouterr().out
    assert text.count(" MiB from the seeder") == 6
    assert "\nfirst to finish: peer-" in text
    assert "\nlast to finish: peer-" in text
    assert "\nall 19 fetchers are in report.json, under details.fetchers\n" in text
    assert list(report()["details"]["fetchers"]) == [f"peer-{index}" for index in range(1, 20)]


@pytest.mark.slow
def test_the_seed_decides_who_the_peers_are(unrated, no_page):
    identities = []
    for seed in ("7", "7", "8"):
        assert swarm(*TOY, "--seed", seed, "--bounds", unrated) == 0
        identities.append({event["neighbour"] for event in events() if event["kind"] == "neighbour_up"})
    assert identities[0] == identities[1]
    assert not identities[0] & identities[2]


# ---- refusals: one line, exit code 3, and nothing was started


def _sparse(path, size):
    with path.open("wb") as file:
        file.truncate(size)


def _typo(path):
    text = BOUNDS.read_text(encoding="utf-8")
    line = next(n for n, each in enumerate(text.splitlines(), 1) if each == 'metric = "seeder_share"')
    path.write_text(text.replace('metric = "seeder_share"', 'metric = "seeder_shore"'), encoding="utf-8")
    return line


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--peers", "1"], "'--peers': 1 is not in the range 2<=x<=1000"),
        (["--peers", "100000"], "'--peers': 100000 is not in the range 2<=x<=1000"),
        (["--piece-kib", "0"], "'--piece-kib': 0 is not in the range 1<=x<=16384"),
        (["--piece-kib", "16385"], "'--piece-kib': 16385 is not in the range 1<=x<=16384"),
        (["--mebibytes", "-1"], "'--mebibytes': -1 is not in the range 0<=x<=65536"),
        (["--mebibytes", "257", "--piece-kib", "1"], "are more than 262,144 pieces: use --piece-kib 2 or more"),
        (
            ["--file", "large", "--piece-kib", "1"],
            "2,147,483,648 bytes are more than 262,144 pieces: use --piece-kib 8",
        ),
        (["--binding", "quic"], "'quic' is not one of 'tcp', 'tls'"),
        (["--file", "nowhere"], "cannot open nowhere: No such file or directory"),
        (["--file", "folder"], "folder is a folder: name a file with --file"),
        (["--file", "pipe"], "pipe is no regular file: copy its content to one"),
        (["--file", "large/below"], "cannot open large/below: Not a directory"),
        (["--out", "large"], "cannot write to the folder large (a file of that name exists): choose another"),
        (["--file", "folder/events.jsonl", "--out", "folder"], "the run would replace folder/events.jsonl"),
        (["--bounds", "nowhere.toml"], "cannot read the bounds file nowhere.toml (No such file or directory)"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(argv, says, monkeypatch, capsys):
    monkeypatch.setattr(content_swarm, "run", None)
    _sparse(Path("large"), 2048 * MIB)
    Path("folder").mkdir()
    Path("folder/events.jsonl").write_text("mine", encoding="utf-8")
    os.mkfifo("pipe")
    assert swarm(*argv) == 3
    assert says in one_line(capsys)
    assert left_in(".") == ["folder", "large", "pipe"]
    assert Path("folder/events.jsonl").read_text(encoding="utf-8") == "mine"


def test_a_file_beyond_the_largest_artifact_is_refused(capsys):
    try:
        _sparse(Path("huge"), 262_144 * 16 * MIB + 1)
    except OSError:
        pytest.skip("this file system has no files of 4 TiB")
    assert swarm("--file", "huge") == 3
    assert "too many: the largest file has 4,398,046,511,104" in one_line(capsys)


def test_a_file_that_may_not_be_read_is_refused(monkeypatch, capsys):
    def refuse(path, flags, mode=0o777):
        if str(path) == "mine.bin":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return original(path, flags, mode)

    original = os.open
    Path("mine.bin").write_bytes(b"x")
    monkeypatch.setattr(os, "open", refuse)  # root may read anything
    assert swarm("--file", "mine.bin") == 3
    assert one_line(capsys) == "error: cannot open mine.bin: Permission denied\n"


def test_a_typing_error_in_the_bounds_is_refused_with_its_line(capsys):
    line = _typo(Path("mine.toml"))
    assert swarm("--bounds", "mine.toml") == 3
    said = one_line(capsys)
    assert said == f"error: mine.toml:{line}: unknown metric 'seeder_shore': did you mean 'seeder_share'?\n"
    assert left_in(".") == ["mine.toml"]


def test_more_peers_than_there_may_be_open_files_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    asked = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert swarm("--peers", "64") == 3
    assert asked == [(1024, 1024)]  # a process may raise its own limit that far
    assert one_line(capsys) == (
        "error: 64 peers need 1,216 open files and this process may have 1,024: "
        "run it after `ulimit -n 1216`, or with fewer peers\n"
    )


# ---- a disk that fills up


def _refusing_from(number, monkeypatch):
    """Let space be reserved ``number`` times, and then no more."""
    calls = itertools.count()

    def reserve(fd, offset, size):
        if next(calls) >= number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        original(fd, offset, size)

    original = os.posix_fallocate
    monkeypatch.setattr(os, "posix_fallocate", reserve)
    return calls


@pytest.mark.slow
def test_a_full_disk_is_one_line_wherever_it_shows(monkeypatch, capsys):
    calls = _refusing_from(10**9, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(harness, "render_html", lambda report, figures: "")
        swarm(*TOY)
    reservations = next(calls)
    assert reservations >= 3 + 2  # three stores, the artifact, the baseline's copy
    capsys.readouterr()
    for number in (0, 1, reservations - 3, reservations - 1):  # the artifact, the baseline, the first and last store
        with monkeypatch.context() as patch:
            _refusing_from(number, patch)
            assert swarm(*TOY) == 3
        said = one_line(capsys)
        assert said.endswith("the disk is full; free some space or choose another folder\n"), number
        assert left_in("out") == ["events.jsonl"]


def _process(*argv, **settings):
    command = [sys.executable, "-W", "error", "-m", "stress.content_swarm", "--out", "out", *argv]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, **pipes, **settings)  # noqa: S603


@pytest.mark.slow
def test_a_file_size_limit_of_the_system_is_one_line():
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))

    with _process("--peers", "2", "--mebibytes", "2", "--quiet", preexec_fn=limit) as process:
        out, err = process.communicate()
    assert (process.returncode, out) == (3, "")
    assert re.fullmatch(r"error: cannot reserve 2,097,152 bytes for out/\S+/artifact: File too large\n", err)
    assert left_in("out") == ["events.jsonl"]


# ---- deadlines and interruptions


def _jumping_at_piece(number):
    """The scenario on a clock that stands still, and jumps past the deadline when so many pieces are verified."""
    clock = trio.testing.MockClock()

    async def run(context):
        emit, pieces = context.events.emit, itertools.count(1)

        def watch(time, peer, kind, **fields):
            emit(time, peer, kind, **fields)
            if kind == "piece" and next(pieces) == number:
                clock.jump(1800)

        context.events.emit = watch
        await SCENARIO.run(context)

    return dataclasses.replace(SCENARIO, run=run, runner=lambda _context, main: trio.run(main, clock=clock))


@pytest.mark.slow
def test_a_deadline_fails_the_run_and_says_how_far_each_fetcher_came(no_page, capsys):
    assert swarm("--peers", "4", "--mebibytes", "4", "--piece-kib", "16", scenario=_jumping_at_piece(5)) == 1
    text = capsys.readouterr().out
    assert "\ndeadline exceeded: the run had not finished after 1800 s (--deadline-seconds)\n" in text
    assert "\nFAIL: deadline exceeded; of " in text
    state = report()["details"]["run"]["state"]
    assert [line.split()[0] for line in state] == ["peer-1", "peer-2", "peer-3"]
    for line in state:
        assert re.match(r"peer-\d (holds \d+ of 256 pieces; |has no manifest|has not begun)", line)
        assert f"  {line}\n" in text
    assert (report()["verdict"], report()["exit_code"]) == ("FAIL", 1)
    assert sum(fetcher["verified_pieces"] for fetcher in report()["details"]["fetchers"].values()) >= 5
    assert "aggregate_mib_per_second" not in report()["metrics"]


@pytest.mark.slow
def test_a_deadline_before_the_swarm_says_what_was_going_on(no_page, capsys):
    clock = trio.testing.MockClock()

    async def late(*_args):
        clock.jump(1800)
        await trio.sleep_forever()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(content_swarm, "single_stream_seconds", late)
        scenario = dataclasses.replace(SCENARIO, runner=lambda _context, main: trio.run(main, clock=clock))
        assert swarm(*TOY, scenario=scenario) == 1
    assert "\n  no fetcher had begun; the run was at: single-stream baselines\nFAIL: " in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("moment", interrupted_swarm.MOMENTS)
@pytest.mark.parametrize("binding", BINDINGS)
def test_ctrl_c_leaves_nothing_but_the_events(binding, moment):
    Path("temporary").mkdir()
    argv = ["--out", "out", *TOY, "--binding", binding]
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-W", "error", interrupted_swarm.__file__, moment, *argv],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(Path("temporary").absolute())},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        out, err = process.communicate()
    assert (process.returncode, out) == (130, "")
    (line,) = err.splitlines()
    assert line.startswith("interrupted; stopping the peers, the events so far go to out/events.jsonl")
    assert left_in("out") == ["events.jsonl"]
    assert left_in("temporary") == []
    events()
    with pytest.raises(ProcessLookupError):  # nobody of its session is left
        os.killpg(process.pid, signal.SIGTERM)


# ---- output


@pytest.mark.slow
def test_json_goes_to_a_reader_that_stops_early():
    with _process(*TOY, "--format", "json") as process:
        assert process.stdout.readline() == "{\n"
        process.stdout.close()
        err = process.stderr.read()
        code = process.wait()
    assert err == ""
    assert code == report()["exit_code"]


@pytest.mark.slow
def test_json_is_the_report_with_every_fetcher(unrated, no_page, capsys):
    assert swarm("--peers", "20", "--mebibytes", "1", "--format", "json", "--bounds", unrated) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == report()
    assert printed.err == ""
    assert len(report()["details"]["fetchers"]) == 19


@pytest.mark.slow
def test_quiet_prints_the_result_alone(unrated):
    with _process(*TOY, "--quiet", "--bounds", unrated) as process:
        out, err = process.communicate()
    assert (process.returncode, err) == (0, "")
    assert out.startswith("verdict ")


def test_help_names_every_option_and_shows_examples(capsys):
    assert run_scenario(SCENARIO, ["--help"]) == 0
    text = capsys.readouterr().out
    for name in ("peers", "mebibytes", "file", "piece-kib", "seed", "binding", "deadline-seconds", "out", "bounds"):
        assert re.search(rf"^  --{name} ", text, re.MULTILINE), name
    for flag in ("--format [text|json]", "--quiet", "--help"):
        assert flag in text
    assert "python -m stress.content_swarm --peers 8\n" in text
    assert max(map(len, text.splitlines())) <= 100


# ---- its parts


def test_a_crowd_is_told_by_its_extremes():
    fetchers = {
        f"peer-{n}": {
            "seconds": float(n),
            "bytes_from_seeder": MIB * (n == 5),
            "bytes_from": {"peer-0": MIB * (n == 5), "peer-99": MIB},
            "longest_stall_seconds": 0.5 if n == 7 else 0.125,
        }
        for n in range(1, 14)
    }
    assert summary.lines_on(fetchers) == [
        "first to finish: peer-1, 1.00 s, 0.0 MiB from the seeder, 1.0 from 1 other, longest stall 0.125 s",
        "third last: peer-11, 11.00 s, 0.0 MiB from the seeder, 1.0 from 1 other, longest stall 0.125 s",
        "second last: peer-12, 12.00 s, 0.0 MiB from the seeder, 1.0 from 1 other, longest stall 0.125 s",
        "last to finish: peer-13, 13.00 s, 0.0 MiB from the seeder, 1.0 from 1 other, longest stall 0.125 s",
        "longest stall: peer-7, 7.00 s, 0.0 MiB from the seeder, 1.0 from 1 other, longest stall 0.500 s",
        "most from the seeder: peer-5, 5.00 s, 1.0 MiB from the seeder, 1.0 from 1 other, longest stall 0.125 s",
        "all 13 fetchers are in report.json, under details.fetchers",
    ]
    del fetchers["peer-13"]
    assert len(summary.lines_on(fetchers)) == 12


def test_the_open_files_of_a_fleet_are_enough_for_its_links():
    for peers in (2, 8, 9, 10, 64, 300):
        edges = len(content_swarm.Fleet(peers).edges())
        assert content_swarm._open_files(peers) >= 4 * edges + 4 * peers


async def test_the_file_depends_on_the_seed_alone(tmp_path):
    made = [await content_swarm.make_file(tmp_path / f"{n}", MIB, seed, in_thread) for n, seed in enumerate([3, 3, 4])]
    first, again, other = (path.read_bytes() for path in made)
    assert first == again
    assert first != other
    assert len(first) == MIB
