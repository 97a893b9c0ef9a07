"""What the conformance tests share: linked ends, cancellation at a chosen wait, a link as a trio stream."""

from __future__ import annotations

import functools
import random
import types
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from fleet.errors import FleetError, LinkBroken, LinkClosed, LocalMisuse
from fleet.identity.keys import Identity

if TYPE_CHECKING:
    from fleet.net.link import Binding, Link, Listener

T = TypeVar("T")

ALICE = Identity(bytes([1]) * 32)
BOB = Identity(bytes([2]) * 32)
CAROL = Identity(bytes([3]) * 32)


def guarded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """A test that hangs fails within 30 seconds, and leaves no task behind."""

    @functools.wraps(test)
    async def wrapper(*args: object, **kwargs: object) -> None:
        before = trio.lowlevel.current_statistics().tasks_living
        with trio.fail_after(30):
            await test(*args, **kwargs)
        assert trio.lowlevel.current_statistics().tasks_living == before

    return wrapper


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


@asynccontextmanager
async def listening(binding: Binding) -> AsyncIterator[Listener]:
    """Bob listens."""
    listener = await binding.listen(BOB)
    try:
        yield listener
    finally:
        await listener.aclose()


async def connect(binding: Binding, listener: Listener) -> tuple[Link, Link]:
    """Alice's end and Bob's, before the handshake."""
    alice = await binding.dial(listener.address, ALICE, BOB.peer_id)
    try:
        return alice, await listener.accept()
    except BaseException:
        alice.abort()
        raise


async def shake_hands(alice: Link, bob: Link) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alice.handshake)
        nursery.start_soon(bob.handshake)


@asynccontextmanager
async def linked(binding: Binding) -> AsyncIterator[tuple[Link, Link]]:
    """Two ends of one link, hands shaken; dropped at the end unless the test has closed them."""
    async with listening(binding) as listener:
        alice, bob = await connect(binding, listener)
        try:
            await shake_hands(alice, bob)
            yield alice, bob
        finally:
            alice.abort()
            bob.abort()


async def receive(link: Link, size: int) -> bytes:
    """Exactly ``size`` bytes."""
    got = bytearray(size)
    view = memoryview(got)
    while view:
        count = await link.receive_into(view)
        assert count, f"the stream ended {len(view)} bytes early"
        view = view[count:]
    return bytes(got)


async def drain(link: Link) -> tuple[bytes, FleetError | None]:
    """Everything up to the end, and the error that ended the stream if it did not end in order."""
    got = bytearray()
    block = memoryview(bytearray(1 << 18))
    try:
        while count := await link.receive_into(block):
            got += block[:count]
    except (LinkBroken, LinkClosed) as error:
        return bytes(got), error
    return bytes(got), None


@dataclass
class Attempt:
    """What became of a call that was cancelled at its ``k``-th wait."""

    reached: bool  # it waited that often
    cancelled: bool
    value: Any = None


@types.coroutine
def _watch_waits(coroutine: Coroutine[Any, Any, T], on_wait: Callable[[], None]) -> Generator[Any, Any, T]:
    step: Callable[[], Any] = functools.partial(coroutine.send, None)
    while True:
        try:
            trap = step()
        except StopIteration as stop:
            return stop.value
        on_wait()
        try:
            value = yield trap
        except BaseException as error:  # noqa: BLE001 - handed on, whatever it is
            step = functools.partial(coroutine.throw, error)
        else:
            step = functools.partial(coroutine.send, value)


async def cancel_at(k: int, call: Callable[..., Coroutine[Any, Any, T]], *args: object) -> Attempt:
    """Run ``call(*args)`` and cancel it when it waits for the ``k``-th time (from 0)."""
    waits = 0
    attempt = Attempt(reached=False, cancelled=True)
    with trio.CancelScope() as scope:

        def on_wait() -> None:
            nonlocal waits
            if waits == k:
                attempt.reached = True
                scope.cancel()
            waits += 1

        attempt.value = await _watch_waits(call(*args), on_wait)
        attempt.cancelled = False
    return attempt


class LinkStream(trio.abc.HalfCloseableStream):
    """A link in the shape that trio's own stream checks expect."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._closed = False

    @staticmethod
    async def _translate(call: Awaitable[T]) -> T:
        try:
            return await call
        except LinkClosed as error:
            raise trio.ClosedResourceError from error
        except LinkBroken as error:
            raise trio.BrokenResourceError from error
        except LocalMisuse as error:
            raise trio.BusyResourceError from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._translate(self._link.send_all([data]))

    async def wait_send_all_might_not_block(self) -> None:
        await trio.lowlevel.checkpoint()
        if self._closed:
            raise trio.ClosedResourceError

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if max_bytes is None:
            max_bytes = 1 << 16
        if not isinstance(max_bytes, int):
            raise TypeError("max_bytes is an int")
        if max_bytes < 1:
            raise ValueError("max_bytes is positive")
        block = bytearray(max_bytes)
        return bytes(block[: await self._translate(self._link.receive_into(memoryview(block)))])

    async def send_eof(self) -> None:
        await self._translate(self._link.send_eof())

    async def aclose(self) -> None:
        self._closed = True
        await self._link.aclose()
