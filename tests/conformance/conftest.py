"""Every test here that takes ``binding`` runs once for each entry of ``BINDINGS``."""

from __future__ import annotations

import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import pytest
import trio
import trio.testing

from fleet.limits import KIB, MIB
from fleet.net.tcp import TcpBinding
from fleet.net.tls import TlsBinding
from fleet.sim.history import History
from fleet.sim.network import SimNetwork
from fleet.sim.path import LogNormal, Path, Rates

if TYPE_CHECKING:
    from fleet.net.link import Binding

T = TypeVar("T")


@asynccontextmanager
async def tcp() -> AsyncIterator[Binding]:
    yield TcpBinding()


@asynccontextmanager
async def tls() -> AsyncIterator[Binding]:
    yield TlsBinding()


@asynccontextmanager
async def sim() -> AsyncIterator[Binding]:
    async with SimNetwork(History(), random.Random(1)).running() as network:
        yield network.binding


@asynccontextmanager
async def sim_far() -> AsyncIterator[Binding]:
    """Far apart, narrow, and every other segment and receive cut short."""
    path = Path(latency=LogNormal(0.008, 0.5), jitter=0.004, crumble=0.5, window=300 * KIB)
    rates = Rates(up=20 * MIB, down=15 * MIB, queue_bytes=64 * KIB)
    async with SimNetwork(History(), random.Random(2), path=path, rates=rates).running() as network:
        yield network.binding


BINDINGS: dict[str, Callable[[], AbstractAsyncContextManager[Binding]]] = {
    "tcp": tcp,
    "tls": tls,
    "sim": sim,
    "sim-far": sim_far,
}


def run_in_virtual_time(
    test: Callable[[], Awaitable[T]], clock: trio.abc.Clock | None, instruments: Sequence[trio.abc.Instrument]
) -> T:
    """``trio.run`` on a clock that jumps whenever every task waits."""
    return trio.run(test, clock=clock or trio.testing.MockClock(autojump_threshold=0), instruments=instruments)


def parameter(name: str) -> object:
    marks = [pytest.mark.trio(run=run_in_virtual_time)] if name.startswith("sim") else []
    return pytest.param(name, marks=marks)


@pytest.fixture(params=[parameter(name) for name in BINDINGS])
async def binding(request: pytest.FixtureRequest) -> AsyncIterator[Binding]:
    async with BINDINGS[request.param]() as binding:
        yield binding


@pytest.fixture(autouse=True)
def no_descriptor_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test of links opened, it has closed: nothing waits for the garbage collector."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    if "binding" in request.fixturenames:
        assert set(os.listdir("/proc/self/fd")) <= before
