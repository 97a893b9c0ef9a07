"""The pool of processes: answers, deaths of every kind, jobs without end, and what stays behind (nothing)."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from stress.harness import workers
from stress.harness.workers import Lost, Pool

LONG = 60.0
"""More seconds than any job here takes, unless it has no end."""


def perform(job):
    """A job is a number, whose square is the answer, or what it does to its process."""
    match job:
        case signal.Signals():
            faulthandler.disable()  # pytest's: it would print where the worker is
            os.kill(os.getpid(), job)
            signal.pause()
        case int():
            return job * job
        case "raise":
            raise ValueError("no such thing")
        case "leave a file":
            descriptor, name = tempfile.mkstemp()
            os.close(descriptor)
            return name
        case "leave a file and die":
            tempfile.mkstemp()
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "hang":
            signal.pause()
        case "unpicklable":
            return lambda: None
        case "ignores":
            os.kill(os.getpid(), signal.SIGINT)
            return "lives"
        case "pid":
            return os.getpid()
    return None


def all_answers(pool, jobs):
    left = list(jobs)
    found = []
    while left or pool.busy:
        while left and pool.idle:
            pool.start(left.pop(0))
        found += pool.wait(LONG)
    return found


@pytest.fixture(autouse=True)
def nothing_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert multiprocessing.active_children() == []
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ChildProcessError):  # not even a zombie
        os.waitpid(-1, os.WNOHANG)


def test_every_job_has_its_answer():
    with Pool(perform, 3) as pool:
        assert sorted(all_answers(pool, range(20))) == [(n, n * n) for n in range(20)]
        assert (pool.idle, pool.busy) == (3, 0)
        assert pool.wait(LONG) == []


@pytest.mark.parametrize(
    ("job", "lost"),
    [
        (signal.SIGSEGV, Lost("the worker was killed by SIGSEGV")),
        (signal.SIGKILL, Lost("the worker was killed by SIGKILL")),
        ("leave a file and die", Lost("the worker was killed by SIGKILL")),
        ("exit", Lost("the worker exited with code 7")),
    ],
)
def test_a_worker_that_dies_costs_its_job_alone(job, lost):
    with Pool(perform, 2) as pool:
        found = all_answers(pool, [1, job, 2, job, 3])
        assert [(each, answer) for each, answer in found if each == job] == [(job, lost)] * 2
        assert sorted((each, answer) for each, answer in found if each != job) == [(1, 1), (2, 4), (3, 9)]
        assert pool.idle == 2


def test_an_exception_is_the_jobs_and_the_worker_lives_on():
    with Pool(perform, 1) as pool:
        assert pool.idle
        (before,) = all_answers(pool, ["pid"])
        ((_, lost),) = all_answers(pool, ["raise"])
        assert lost.raised
        assert lost.reason.startswith("ValueError at test_workers.py:")
        assert all_answers(pool, ["pid"]) == [before]


def test_an_answer_that_cannot_travel():
    with Pool(perform, 1) as pool:
        ((_, lost),) = all_answers(pool, ["unpicklable"])
        assert lost.raised
        assert "reduction.py" in lost.reason or "Pickl" in lost.reason
        assert all_answers(pool, [5]) == [(5, 25)]


@pytest.mark.slow
def test_a_job_without_end_is_stopped_and_the_others_go_on():
    with Pool(perform, 2, limit_seconds=1) as pool:
        found = dict(all_answers(pool, ["hang", 1, 2, 3]))
    assert found == {1: 1, 2: 4, 3: 9, "hang": Lost("no end after 1 s of real time", late=True)}


def test_waiting_ends_without_an_answer_too():
    with Pool(perform, 1) as pool:
        pool.start("hang")
        assert pool.wait(0.01) == []
        assert pool.busy == 1


def test_a_worker_that_dies_before_it_gets_a_job():
    with Pool(perform, 1) as pool:
        ((_, pid),) = all_answers(pool, ["pid"])
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert all_answers(pool, [2, 3]) == [(2, Lost("the worker was killed by SIGKILL")), (3, 9)]


def test_workers_leave_ctrl_c_to_the_parent():
    with Pool(perform, 1) as pool:
        assert all_answers(pool, ["ignores"]) == [("ignores", "lives")]


def test_files_of_workers_lie_in_the_folder_of_the_pool(tmp_path):
    with Pool(perform, 1) as pool:
        ((_, name),) = all_answers(pool, ["leave a file"])
        assert Path(name).exists()
        assert Path(name).is_relative_to(tmp_path)


def test_running_jobs_end_with_the_pool():
    with Pool(perform, 2) as pool:
        pool.start("hang")
        pool.start("hang")


@pytest.mark.slow
def test_without_fork(monkeypatch):
    monkeypatch.setattr(workers, "_context", lambda: multiprocessing.get_context("spawn"))
    with Pool(abs, 1) as pool:
        assert all_answers(pool, [-3]) == [(-3, 3)]
    from multiprocessing import resource_tracker

    resource_tracker._resource_tracker._stop()


PARENT = """
import os, signal, sys
from stress.harness.workers import Pool
with Pool(str, 3) as pool:
    for each in pool._workers:
        print(each.process.pid)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tmp_path):
    with subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as parent:
        assert parent.stdout is not None
        # workers hold the pipe as well: its end is theirs
        assert len(parent.stdout.read().split()) == 3
    for left in tmp_path.iterdir():  # nobody was there to remove it
        for folder in left.iterdir():
            folder.rmdir()
        left.rmdir()
