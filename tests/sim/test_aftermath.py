"""However a simulated run ends, Ctrl-C included, the process is left as it was."""

from __future__ import annotations

import gc
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import trio
from trio._core import _asyncgens, _run, _thread_cache

from fleet.errors import LinkBroken, LocalMisuse
from fleet.sim.runtime import Deadlock, LoopBlocked
from tests.sim.simulated import simulate


class TestTheProcessAfterwards:
    @staticmethod
    def switches() -> list[object]:
        return [
            _run._ALLOW_DETERMINISTIC_SCHEDULING,
            _run._r,
            vars(_run.Task).get("__hash__"),
            _run.Task.__repr__,
            _run.CancelStatus.__attrs_post_init__,
            _asyncgens._ASYNC_GEN_SET,
            vars(_asyncgens).get("set"),
            _thread_cache.ThreadCache.start_thread_soon,
            *(getattr(time, name) for name in ("time", "monotonic", "perf_counter", "sleep")),
            threading.Thread.start,
            socket.socket.__init__,
            subprocess.Popen.__init__,
            os.urandom,
            os.fork,
            random.random,
            random.Random.seed,
            dict(vars(random._inst)),  # type: ignore[attr-defined]
            gc.isenabled(),
            gc.get_freeze_count(),
            signal.getsignal(signal.SIGALRM),
            signal.getsignal(signal.SIGINT),
            signal.getitimer(signal.ITIMER_REAL),
            sys.get_asyncgen_hooks(),
            threading.active_count(),
        ]

    @staticmethod
    async def fails() -> None:
        raise LinkBroken("x")

    @staticmethod
    async def forbidden() -> None:
        os.urandom(1)

    @staticmethod
    async def shielded() -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep_forever()

    @staticmethod
    async def spins() -> None:
        while True:
            pass

    @staticmethod
    async def interrupted() -> None:
        signal.raise_signal(signal.SIGINT)
        await trio.sleep_forever()

    @pytest.mark.parametrize("how", ["fails", "forbidden", "shielded", "spins", "interrupted"])
    def test_every_switch_is_back_however_it_ended(self, how: str) -> None:
        before = self.switches()
        with pytest.raises((LinkBroken, LocalMisuse, Deadlock, LoopBlocked, KeyboardInterrupt)):
            simulate(getattr(self, how), watchdog_seconds=0.05)
        assert self.switches() == before

    def test_an_ordinary_run_works_after_a_simulated_one(self) -> None:
        async def main() -> int:
            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(trio.sleep, 0.001)
            return await trio.to_thread.run_sync(lambda: 7)

        simulate(trio.lowlevel.checkpoint)
        before = time.perf_counter()
        assert trio.run(main) == 7
        assert time.perf_counter() - before > 0.0005
        assert time.time() > 0
        assert len(os.urandom(3)) == 3

    def test_the_collector_is_as_it_was(self) -> None:
        simulate(trio.lowlevel.checkpoint)
        assert gc.isenabled()
        assert gc.get_freeze_count() == 0

    def test_a_disabled_or_frozen_collector_stays_so(self) -> None:
        gc.disable()
        gc.freeze()
        frozen = gc.get_freeze_count()
        try:
            simulate(trio.lowlevel.checkpoint)
            assert not gc.isenabled()
            assert gc.get_freeze_count() >= frozen - 100  # some frozen objects died of their own
        finally:
            gc.unfreeze()
            gc.enable()

    def test_another_trio_names_what_it_lacks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(_run, "_r")
        with pytest.raises(LocalMisuse, match=r"_run has no _r any more"):
            simulate(trio.lowlevel.checkpoint)


class TestKeyboardInterrupt:
    def test_in_a_task(self) -> None:
        async def main() -> None:
            await trio.sleep(1)
            signal.raise_signal(signal.SIGINT)
            await trio.sleep(1)

        with pytest.raises(KeyboardInterrupt):
            simulate(main)

    def test_while_every_task_is_blocked(self) -> None:
        """It comes while trio's own code runs, and is delivered to the main task as in an ordinary run."""
        cleaned: list[float] = []

        async def main() -> None:
            trio.lowlevel.current_trio_token().run_sync_soon(signal.raise_signal, signal.SIGINT)
            try:
                await trio.sleep(1000)
            finally:
                cleaned.append(trio.current_time())

        with pytest.raises(KeyboardInterrupt):
            simulate(main)
        assert cleaned == [0.0]

    def test_it_wins_over_a_failure(self) -> None:
        async def main() -> None:
            try:
                await trio.sleep_forever()
            finally:
                signal.raise_signal(signal.SIGINT)

        with pytest.raises(KeyboardInterrupt):
            simulate(main)
