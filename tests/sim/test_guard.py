"""What a simulated run forbids, who may do it nevertheless, and where the blame goes."""
# ruff: noqa: PLW0108 - each lambda is the call site that is to be named

from __future__ import annotations

import contextlib
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from os import urandom as urandom_by_name
from random import choice as choice_by_name
from random import random as random_by_name
from time import monotonic as monotonic_by_name

import numpy as np
import pytest
import trio

from fleet.environment import in_thread
from fleet.errors import LocalMisuse
from fleet.sim.guard import real_seconds
from fleet.sim.history import History
from fleet.sim.runtime import run

FORBIDDEN: dict[str, tuple[Callable[[], object], str]] = {
    "time.time": (lambda: time.time(), r"trio\.current_time"),
    "time.time_ns": (lambda: time.time_ns(), r"trio\.current_time"),
    "time.monotonic": (lambda: time.monotonic(), r"trio\.current_time"),
    "monotonic imported by name": (lambda: monotonic_by_name(), r"trio\.current_time"),
    "time.perf_counter": (lambda: time.perf_counter(), "real_seconds"),
    "time.process_time": (lambda: time.process_time(), "real_seconds"),
    "time.sleep": (lambda: time.sleep(0), r"trio\.sleep"),
    "a thread": (lambda: threading.Thread(target=print).start(), "inline"),
    "a timer thread": (lambda: threading.Timer(1, print).start(), "inline"),
    "a socket": (lambda: socket.socket(), "network's binding"),
    "a socket pair": (lambda: socket.socketpair(), "network's binding"),
    "a trio socket": (lambda: trio.socket.socket(), "network's binding"),
    "a process": (lambda: subprocess.run([sys.executable, "-V"], check=True), "host of the simulated network"),
    "a fork": (lambda: os.fork(), "host of the simulated network"),
    "a shell": (lambda: os.system("true"), "host of the simulated network"),  # noqa: S605, S607
    "os.urandom": (lambda: os.urandom(8), "Random handed in"),
    "urandom imported by name": (lambda: urandom_by_name(8), "Random handed in"),
    "secrets.token_bytes": (lambda: secrets.token_bytes(8), "Random handed in"),
    "secrets.randbelow": (lambda: secrets.randbelow(8), "Random handed in"),
    "SystemRandom": (lambda: random.SystemRandom().random(), "Random handed in"),
    "random.random": (lambda: random.random(), "Random handed in"),
    "random imported by name": (lambda: random_by_name(), "Random handed in"),
    "random.randrange": (lambda: random.randrange(8), "Random handed in"),
    "random.shuffle": (lambda: random.shuffle([1, 2, 3]), "Random handed in"),
    "random.uniform": (lambda: random.uniform(0, 1), "Random handed in"),
    "choice imported by name": (lambda: choice_by_name([1, 2]), "Random handed in"),
    "a Random without seed": (lambda: random.Random(), "a seed"),
    "numpy's chance without seed": (lambda: np.random.default_rng(), "Random handed in"),
    "uuid.uuid4": (lambda: uuid.uuid4(), "Random handed in"),
    "uuid.uuid1": (lambda: uuid.uuid1(), "Random handed in"),
}


def simulate_call(call: Callable[[], object]) -> object:
    async def main() -> object:
        await trio.sleep(1)
        return call()

    return run(main, seed=0, history=History())


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_forbidden_call_names_its_site_and_what_to_use(name: str) -> None:
    call, instead = FORBIDDEN[name]
    line = call.__code__.co_firstlineno
    with pytest.raises(LocalMisuse, match=rf"test_guard\.py:{line} in <lambda> .*{instead}"):
        simulate_call(call)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_swallowed_violation_still_fails_the_run(name: str) -> None:
    call, instead = FORBIDDEN[name]

    def careless() -> None:
        with contextlib.suppress(Exception):
            call()

    with pytest.raises(LocalMisuse, match=instead):
        simulate_call(careless)


def test_a_thread_of_trios_is_refused_even_when_an_idle_one_waits() -> None:
    trio.run(in_thread, lambda: None)  # leaves an idle thread behind

    async def main() -> None:
        await in_thread(lambda: None)

    with pytest.raises(LocalMisuse, match=r"environment\.py:\d+ in in_thread starts a thread.*inline"):
        run(main, seed=0, history=History())


@pytest.mark.parametrize("wait", [trio.lowlevel.wait_readable, trio.lowlevel.wait_writable])
def test_waiting_for_a_real_descriptor(wait: Callable[[object], object]) -> None:
    one, other = socket.socketpair()

    async def main() -> None:
        await wait(one)  # type: ignore[misc]

    with one, other, pytest.raises(LocalMisuse, match=r"test_guard\.py:\d+ in .*main uses a real socket"):
        run(main, seed=0, history=History())


def test_a_child_tasks_violation_is_raised_bare() -> None:
    async def child() -> None:
        os.urandom(1)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)
            await trio.sleep_forever()

    with pytest.raises(LocalMisuse, match=r"in .*child draws unseeded chance"):
        run(main, seed=0, history=History())


def test_seeded_chance_is_fine() -> None:
    assert simulate_call(lambda: random.Random(1).random()) == random.Random(1).random()
    assert simulate_call(lambda: random.Random("text").choice([1, 2, 3])) == random.Random("text").choice([1, 2, 3])


def test_a_library_may_read_the_clock_for_itself(caplog: pytest.LogCaptureFixture) -> None:
    simulate_call(lambda: logging.getLogger("x").warning("stamped with the wall clock"))
    assert caplog.records[0].created > 1e9


def test_temporary_folders_may_have_any_name() -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert os.path.isdir(folder)
    simulate_call(lambda: tempfile.TemporaryDirectory().cleanup())


def test_real_seconds_are_for_reports() -> None:
    assert isinstance(simulate_call(real_seconds), float)


def test_a_module_may_do_as_it_likes_while_it_is_imported(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reads_the_clock.py").write_text("import time\nLOADED = time.time()\n")  # type: ignore[operator]
    monkeypatch.syspath_prepend(str(tmp_path))

    def load() -> float:
        import reads_the_clock  # type: ignore[import-not-found]

        return float(reads_the_clock.LOADED)

    with pytest.raises(LocalMisuse, match=r"reads_the_clock\.py:2 in <module>"):
        simulate_call(load)


def test_other_threads_are_left_alone() -> None:
    results: list[object] = []
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        ready.wait()
        results.append(time.time())
        results.append(os.urandom(4))
        time.sleep(0)
        random.random()
        done.set()

    thread = threading.Thread(target=work)
    thread.start()

    def during() -> None:
        ready.set()
        done.wait()

    simulate_call(during)
    thread.join()
    assert len(results) == 2


def test_what_somebody_kept_from_a_run_works_after_it() -> None:
    kept: list[Callable[[], float]] = []
    simulate_call(lambda: kept.append(time.time))
    assert abs(kept[0]() - time.time()) < 60


def test_the_caller_of_the_run_is_not_in_it() -> None:
    """Trio opens its wake-up sockets while the run starts."""
    assert simulate_call(lambda: 1) == 1
    time.sleep(0)
    assert random.random() < 1
