"""A fleet at its work while faults strike it, in two phases: first no harm may be done, then the work must be done.

Each peer's work is one coroutine function, started anew whenever its process has come back or its disk failed it, as
whoever runs a peer would. It belongs to the peer's host, so a pause stops it too. While strikes begin and end, only
safety is looked at; after they are healed the work of every peer must end within ``converge_seconds``.

Safety is the checker's rules and two of every fleet: nobody is banned, as all are honest, and no nonce serves two
sessions. The result is two figures: how many rules of safety were broken, and how long the work took after healing
(rows FL-FLT).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import trio

from fleet.errors import DeadlineExceeded, LinkBroken, LinkClosed, StorageFailed
from fleet.sim.chaos import Chaos
from fleet.sim.faults import format_schedule, parse_faults

if TYPE_CHECKING:
    from fleet.fleet import Fleet
    from fleet.sim.world import Survival, World
    from stress.harness.run import Context

AGAIN_SECONDS: Final = 1.0
"""Virtual seconds before work that failed for its peer's own disk or end is taken up again."""
MAX_LISTED: Final = 12
"""Violations that the summary lists."""


class Checker(Protocol):
    """What a scenario does and minds under faults."""

    async def work(self, index: int, done: Callable[[], None]) -> None:
        """All that the peer has to come to, in its process; ``done`` is called then, and the work may go on.

        Errors of disk and links mean: not done after all, start again.
        """
        ...

    def inspect(self, index: int) -> list[str]:
        """What is wrong with the peer now, each in words that are the same whenever the same is wrong.

        Called before the peer goes down, when all is healed and at the end, for peers that run.
        """
        ...

    def going_down(self, index: int, survival: Survival) -> None:
        """The peer dies now, and its disk keeps so much."""
        ...

    async def healed(self) -> None:
        """Called once between the phases, when all peers run again."""
        ...


class Ordeal:
    """One fleet's work under the faults that ``context`` asks for."""

    def __init__(self, context: Context, world: World, fleet: Fleet, checker: Checker) -> None:
        self._context = context
        self._world = world
        self._fleet = fleet
        self._checker = checker
        self._strikes = parse_faults(context.args["faults"]).schedule(world.rng("faults"), len(fleet))
        self._scopes: dict[int, trio.CancelScope] = {}
        self._done = {index: trio.Event() for index in range(len(fleet))}
        self._begun = 0
        """Strikes that did strike."""
        self._nonces: dict[bytes, bytes] = {}
        """The session that each nonce was seen in."""
        self._violations: dict[str, str] = {}
        """What was wrong, and of whom it was first seen and when."""

    async def run(self) -> None:
        """Returns when all work is done; raises ``DeadlineExceeded`` when it is not in time."""
        context = self._context
        found: dict[str, object] = {"schedule": format_schedule(self._strikes)}
        context.details["faults"] = found
        try:
            async with trio.open_nursery() as nursery:
                for index in self._done:
                    self._start(nursery, index)
                chaos = Chaos(
                    self._world,
                    self._fleet,
                    self._strikes,
                    going_down=self._going_down,
                    came_back=lambda index: self._start(nursery, index),
                )
                context.progress.phase("faults")
                self._begun = await chaos.run()
                await self._checker.healed()
                self._inspect_all()
                context.progress.phase("converging")
                await self._converge(context.args["converge_seconds"])
                nursery.cancel_scope.cancel()
        finally:
            self._inspect_all()
            if self._begun or self._violations:  # where nothing struck, nothing is proved
                context.metrics["safety_violations"] = len(self._violations)
            found["violations"] = dict(self._violations)
            listed = [f"unsafe: {what}: {where}" for what, where in self._violations.items()]
            context.summary.extend(listed[:MAX_LISTED])

    async def _converge(self, seconds: float) -> None:
        healed_at = trio.current_time()
        with trio.move_on_after(seconds) as scope:
            while undone := [event for event in self._done.values() if not event.is_set()]:
                await undone[0].wait()
        if scope.cancelled_caught:
            self._world.history.record("phase", "", name="late")
            self._note_failure("", "the work was not done in time")
            self._context.state.extend(self._context.describe_state())  # while the peers still live
            raise DeadlineExceeded(f"the work was not done {seconds:g} s after everything was healed")
        self._world.history.record("phase", "", name="converged")
        if self._begun:
            self._context.metrics["convergence_seconds"] = trio.current_time() - healed_at

    def _start(self, nursery: trio.Nursery, index: int) -> None:
        scope = self._scopes[index] = trio.CancelScope()
        self._world.spawn(nursery, f"peer-{index}", self._live, index, scope)

    async def _live(self, index: int, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await trio.lowlevel.checkpoint()  # it may have gone down before this task ran
                try:
                    await self._checker.work(index, self._done[index].set)
                    return
                except (StorageFailed, LinkBroken, LinkClosed) as error:
                    self._world.history.record("work_failed", f"peer-{index}", reason=str(error))
                    self._done[index] = trio.Event()
                    await trio.sleep(AGAIN_SECONDS)

    def _going_down(self, index: int, survival: Survival) -> None:
        self._inspect(index)
        self._checker.going_down(index, survival)
        self._done[index] = trio.Event()
        self._scopes[index].cancel()

    def _inspect_all(self) -> None:
        for index in self._done:
            self._inspect(index)

    def _inspect(self, index: int) -> None:
        wrong = self._inspect_peer(index)  # of one that has left, too: whom it banned is still known
        if self._fleet.running(index):
            wrong += self._checker.inspect(index)
        for what in wrong:
            if what not in self._violations:
                self._violations[what] = f"peer-{index} at {trio.current_time():.6f} s"
                self._world.history.record("unsafe", f"peer-{index}", what=what)
                self._note_failure(f"peer-{index}", what)

    def _note_failure(self, peer: str, what: str) -> None:
        if self._context.failed_at is None:
            self._context.failed_at = trio.current_time(), peer, what

    def _inspect_peer(self, index: int) -> list[str]:
        """What is wrong with a peer of any fleet: an honest one was banned, or a session is not a fresh one."""
        peer = self._fleet[index]
        wrong = [f"an honest peer was banned for this: {reason}" for reason in peer.banned.values()]
        for neighbour in peer.neighbours.values():
            session_id = neighbour.session.session_id
            if self._nonces.setdefault(neighbour.hello.nonce, session_id) != session_id:
                wrong.append("a session was made with the nonce of an earlier one")
        return wrong
