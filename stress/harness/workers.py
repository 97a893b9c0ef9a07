"""A pool of processes that outlives whatever a job does to the process it runs in.

Each worker has a pipe of its own, over which it gets one job at a time. A worker that is killed, exits or gives no
answer for too long costs the job it had, never the others: its death is the job's outcome (``Lost``) and a new worker
takes its place. Processes are forked where that exists, so that they run the modules as the parent has them; fork
before starting threads. Whatever workers leave in the folder for temporary files goes with them.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkContext, ForkProcess, SpawnContext, SpawnProcess
from pathlib import Path
from typing import Final, Generic, Self, TypeAlias, TypeVar

Job = TypeVar("Job")
Answer = TypeVar("Answer")

LIMIT_SECONDS: Final = 120.0
"""Real time that a job may take: a hundred times what a long trial does, on a machine that is busy."""
_GRACE_SECONDS: Final = 5.0

_Process: TypeAlias = ForkProcess | SpawnProcess


@dataclass(frozen=True, slots=True)
class Lost:
    """A job without an answer. ``reason`` is the same for jobs that were lost in the same way.

    ``raised``: the function itself failed, with an exception. ``late``: it took too long. Otherwise its worker died.
    """

    reason: str
    raised: bool = False
    late: bool = False


@dataclass(slots=True)
class _Worker(Generic[Job]):
    process: _Process
    connection: Connection
    folder: Path
    job: Job | None = None
    deadline: float = 0.0


def _context() -> ForkContext | SpawnContext:
    if "fork" in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("fork")
    return multiprocessing.get_context("spawn")


class Pool(Generic[Job, Answer]):
    """``workers`` processes that call ``run``, from entering the context to its end; then they are killed.

    Without fork, ``run`` and the jobs must be picklable; answers always. A job is anything but None.
    """

    def __init__(self, run: Callable[[Job], Answer], workers: int, *, limit_seconds: float = LIMIT_SECONDS) -> None:
        self._run = run
        self._size = workers
        self._limit = limit_seconds
        self._workers: list[_Worker[Job]] = []
        self._hired = 0

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="peerfleet-workers-"))
        try:
            for _ in range(self._size):
                self._hire()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        for worker in self._workers:
            worker.process.kill()  # nothing of theirs is worth a wait
        for worker in self._workers:
            self._bury(worker)
        self._workers.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def idle(self) -> int:
        """Workers without a job."""
        return sum(worker.job is None for worker in self._workers)

    @property
    def busy(self) -> int:
        """Workers with a job."""
        return len(self._workers) - self.idle

    def start(self, job: Job) -> None:
        """Give ``job`` to a worker; there must be an idle one."""
        worker = next(worker for worker in self._workers if worker.job is None)
        worker.job = job
        worker.deadline = time.monotonic() + self._limit
        with contextlib.suppress(OSError):  # it died with nothing to do; ``wait`` finds that out and tells
            worker.connection.send(job)

    def wait(self, seconds: float) -> list[tuple[Job, Answer | Lost]]:
        """The jobs that ended, with what came of them; none when ``seconds`` pass without an end."""
        busy = [worker for worker in self._workers if worker.job is not None]
        if not busy:
            return []
        until_late = min(worker.deadline for worker in busy) - time.monotonic()
        ready = wait([worker.connection for worker in busy], max(0.0, min(seconds, until_late)))
        now = time.monotonic()
        ended: list[tuple[Job, Answer | Lost]] = []
        for worker in busy:
            job = worker.job
            assert job is not None  # noqa: S101 - busy
            if worker.connection in ready:
                ended.append((job, self._receive(worker)))
            elif worker.deadline <= now:
                self._replace(worker)
                ended.append((job, Lost(f"no end after {self._limit:g} s of real time", late=True)))
        return ended

    def _receive(self, worker: _Worker[Job]) -> Answer | Lost:
        try:
            answer: Answer | Lost = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(_GRACE_SECONDS)  # its pipe ends before it does
            return Lost(self._replace(worker))
        worker.job = None
        return answer

    def _replace(self, worker: _Worker[Job]) -> str:
        """Put a new worker in the place of this one; returns how it ended, which may be by our hand."""
        worker.process.kill()
        self._workers.remove(worker)
        how = self._bury(worker)
        self._hire()
        return how

    def _hire(self) -> None:
        context = _context()
        ours, theirs = context.Pipe()
        folder = self._folder / str(self._hired)
        folder.mkdir()
        self._hired += 1
        # a forked child has the parent's ends of all pipes: while it keeps them, nobody sees the parent die
        inherited = [*(each.connection for each in self._workers), ours] if isinstance(context, ForkContext) else []
        process = context.Process(target=_serve, args=(self._run, theirs, inherited, str(folder)), daemon=True)
        process.start()
        theirs.close()
        self._workers.append(_Worker(process, ours, folder))

    def _bury(self, worker: _Worker[Job]) -> str:
        worker.process.join()
        code = worker.process.exitcode
        worker.process.close()
        worker.connection.close()
        shutil.rmtree(worker.folder, ignore_errors=True)
        assert code is not None  # noqa: S101 - joined
        if code >= 0:
            return f"the worker exited with code {code}"
        try:
            return f"the worker was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"the worker was killed by signal {-code}"


def _serve(run: Callable[[Job], Answer], connection: Connection, inherited: Sequence[Connection], folder: str) -> None:
    """The life of a worker: until its pipe ends, or the parent is gone, in the middle of a job too."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group: the parent decides
    _die_with_parent()
    for each in inherited:
        each.close()
    tempfile.tempdir = os.environ["TMPDIR"] = folder
    while True:
        try:
            job: Job = connection.recv()
        except (EOFError, OSError):
            return
        answer: Answer | Lost
        try:
            answer = run(job)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this job's
            answer = Lost(_where(error), raised=True)
        try:
            connection.send(answer)
        except OSError:
            return
        except Exception as error:  # noqa: BLE001 - pickle has many
            connection.send(Lost(_where(error), raised=True))


_PR_SET_PDEATHSIG: Final = 1  # prctl(2)


def _die_with_parent() -> None:
    """Where there is such a thing (Linux): else a worker whose parent was killed finishes its job first."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _where(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {Path(frames[-1].filename).name}:{frames[-1].lineno}"
