"""Dialling: both links of a neighbour, once, or again and again while it is kept.

A dial has ``HANDSHAKE_SECONDS`` for all it does. It ends early when the neighbour comes up by a link of its own. One
that is kept is dialled again when it is lost, after the pauses of ``fleet.net.redial``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from fleet.errors import DeadlineExceeded, FleetError, LinkClosed, LocalMisuse
from fleet.limits import HANDSHAKE_SECONDS
from fleet.net.hello import Purpose
from fleet.net.neighbour import Neighbour
from fleet.net.redial import Redial, Redials

if TYPE_CHECKING:
    from random import Random

    from fleet.identity.keys import PeerId
    from fleet.net.handshakes import Handshakes
    from fleet.net.link import Link
    from fleet.net.local import LocalPeer
    from fleet.net.roster import Roster


class Dialler:
    """The dials of one peer. ``rng`` draws the pauses before it dials again."""

    def __init__(self, local: LocalPeer, roster: Roster, handshakes: Handshakes, rng: Random) -> None:
        self._local = local
        self._roster = roster
        self._handshakes = handshakes
        self._redials = Redials(rng)
        self._dialling: dict[trio.CancelScope, PeerId | None] = {}
        """Whom this side dials, until there is a link to shake hands on."""

    # --- once ---

    async def connect(self, address: str, expected_peer: PeerId | None) -> Neighbour:
        """The neighbour at ``address``, dialled unless it is up already. See ``Peer.connect``."""
        self._local.require_running()
        if expected_peer == self._local.peer_id or address == self._local.address:
            raise LocalMisuse(f"{address} is this peer itself: dial another")
        if expected_peer is not None and expected_peer in self._roster.up:
            return self._roster.up[expected_peer]
        with trio.move_on_after(HANDSHAKE_SECONDS):
            return await self._dial_neighbour(address, expected_peer)
        raise DeadlineExceeded(f"{address} did not finish its handshake within {HANDSHAKE_SECONDS:.0f} s")

    async def _dial_neighbour(self, address: str, expected_peer: PeerId | None) -> Neighbour:
        up, sessions = self._roster.up, self._roster.sessions
        link = await self._dial_link(address, expected_peer)
        if link is None:
            assert expected_peer is not None, "somebody came up"  # noqa: S101
            return up.get(expected_peer) or await self._dial_neighbour(address, expected_peer)
        neighbour = await self._handshakes.initiate(link, Purpose.CONTROL, expected_peer)
        if isinstance(neighbour, Neighbour):
            peer = neighbour.peer
            try:
                with neighbour.dialling:
                    await self._dial_bulk(address, neighbour)
            except BaseException as error:
                neighbour.end(error if isinstance(error, FleetError) else LinkClosed("the dial was given up"))
                raise
        else:
            peer = neighbour  # another link to it survives: wait until that is up
            if expected_peer is None and self._roster.generation(peer) and peer not in sessions:
                # That link is dead here, which the other side could not be told before it was known who answers.
                return await self._dial_neighbour(address, peer)
        kept = neighbour if isinstance(neighbour, Neighbour) else None
        while peer not in up:
            if kept is not None and kept.reason is not None and sessions.get(peer) in (None, kept):
                raise LinkClosed(f"the link to {address} ended at once: {kept.reason}")
            await self._roster.changed()
        return up[peer]

    async def _dial_link(self, address: str, expected_peer: PeerId | None) -> Link | None:
        """A link to there, or None when that peer has come up as a neighbour meanwhile."""
        link: Link | None = None
        with trio.CancelScope() as scope:
            self._dialling[scope] = expected_peer
            try:
                link = await self._local.environment.binding.dial(address, self._local.identity, expected_peer)
            finally:
                del self._dialling[scope]
        return link

    async def _dial_bulk(self, address: str, neighbour: Neighbour) -> None:
        link = await self._local.environment.binding.dial(address, self._local.identity, neighbour.peer)
        await self._handshakes.initiate(link, Purpose.BULK, neighbour.peer, neighbour.session.session_id)

    # --- again and again ---

    def keep(self, address: str, peer: PeerId) -> None:
        """Dial ``peer`` whenever it has no link. See ``Peer.keep``."""
        if self._local.nursery is None:
            raise self._local.not_running()
        if peer == self._local.peer_id:
            raise LocalMisuse(f"{address} is this peer itself: keep another")
        self._redials.keep(peer, address, trio.current_time(), up=peer in self._roster.up)
        self._roster.note_change()

    def let_go(self, peer: PeerId) -> None:
        """Do not dial ``peer`` again when it is lost."""
        self._redials.let_go(peer)

    def neighbour_up(self, neighbour: Neighbour) -> None:
        """It need not be dialled, and those who dial it need not wait for an answer."""
        self._redials.up(neighbour.peer, neighbour.hello.address, trio.current_time())
        for scope, dialled in self._dialling.items():
            if dialled == neighbour.peer:
                scope.cancel()

    def neighbour_down(self, neighbour: Neighbour) -> None:
        """One that was up is not any more."""
        self._redials.down(neighbour.peer, trio.current_time())

    async def redial_lost(self) -> None:
        """The one timer for all kept neighbours; a dial is a task while it lasts."""
        while True:
            for redial in self._redials.take_due(trio.current_time(), self._roster.banned):
                self._local.trace.emit("redial", neighbour=redial.peer.short, attempt=redial.attempt)
                self._local.spawn(self._redial, redial)
            with trio.move_on_at(self._redials.next_due()):
                await self._roster.changed()

    async def _redial(self, redial: Redial) -> None:
        try:
            await self.connect(redial.address, redial.peer)
        except FleetError as error:
            self._local.trace.emit("redial_failed", neighbour=redial.peer.short, reason=str(error))
        finally:
            self._redials.dialled(redial.peer, trio.current_time())
            self._roster.note_change()
