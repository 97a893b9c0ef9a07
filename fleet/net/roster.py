"""The neighbours of one peer: whose links are let in, who is up, and who is banned.

A proved control link makes a neighbour; it is up when its bulk link is there too. A newer link to a peer replaces the
older one where that is known to be dead there, and is a duplicate otherwise. Who breaks the protocol is cut off and
refused then on.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol

import trio

from fleet.errors import LinkBroken, LinkClosed, PeerViolation
from fleet.limits import HANDSHAKE_SECONDS, MAX_LINKS, MAX_REMEMBERED_PEERS
from fleet.net.neighbour import Neighbour, Service

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.net.link import Link
    from fleet.net.local import LocalPeer
    from fleet.net.session import Session

DUPLICATE: Final = "duplicate: another link to this peer survives"


class Owner(Service, Protocol):
    """Whom the roster tells of its neighbours, and whom these serve."""

    def neighbour_up(self, neighbour: Neighbour) -> None:
        """A neighbour is up, as of now."""
        ...

    def neighbour_down(self, neighbour: Neighbour) -> None:
        """A neighbour, which may never have been up, is about to be forgotten."""
        ...


class Roster:
    """Every neighbour of one peer, from its control link's handshake to its end."""

    def __init__(self, local: LocalPeer, owner: Owner) -> None:
        self.up: dict[PeerId, Neighbour] = {}
        self.sessions: dict[PeerId, Neighbour] = {}
        """Those that are up, those that wait for their bulk link, and those that are ending."""
        self.banned: OrderedDict[PeerId, str] = OrderedDict()
        """Who broke the protocol, and how; the oldest are forgotten beyond ``MAX_REMEMBERED_PEERS``."""
        self._local = local
        self._owner = owner
        self._generations: OrderedDict[PeerId, int] = OrderedDict()
        self._changed = trio.Event()

    # --- changes ---

    async def changed(self) -> None:
        """Wait until a neighbour comes up or goes down, or something else is worth a look."""
        await self._changed.wait()

    def note_change(self) -> None:
        """Let everyone look who waits for a change."""
        self._changed.set()
        self._changed = trio.Event()

    # --- who is let in ---

    def generation(self, peer: PeerId) -> int:
        """How many links to ``peer`` have ended here."""
        return self._generations.get(peer, 0)

    def objection(self, session: Session) -> str | None:
        """Why a proved link is not to be kept, or None. Duplicates are for the deciding side to refuse."""
        hello = session.their_hello
        assert hello is not None, "the session is proved"  # noqa: S101
        if self._local.stopping:
            return "this side is stopping"
        if hello.key in self.banned:
            return f"banned: {self.banned[hello.key]}"
        current = self.sessions.get(hello.key)
        if current is not None and current.reason is not None:
            current = None  # it is ending
        if session.is_control:
            if current is None:
                others = len(self.sessions) - (hello.key in self.sessions)
                return "too many neighbours" if others >= MAX_LINKS // 2 else None
            stale = hello.incarnation != current.hello.incarnation or hello.generation > current.hello.generation
            return DUPLICATE if session.decides and not stale else None
        if current is None or current.bulk_promised or current.session.session_id != hello.session:
            return "this bulk link belongs to no session"
        return None

    def keep(self, link: Link, session: Session, *, dialled: bool) -> Neighbour:
        """The link is established: a control link makes a neighbour, a bulk link completes one."""
        peer = session.peer
        assert peer is not None, "the session is established"  # noqa: S101
        if not session.is_control:
            neighbour = self.sessions[peer]
            neighbour.bulk_promised = True
            return neighbour
        previous = self.sessions.get(peer)
        if previous is not None:
            previous.end(LinkBroken("a newer link replaces this one"))
        neighbour = self.sessions[peer] = Neighbour(session, link, dialled=dialled)
        self._local.spawn(self._serve, neighbour, previous)
        return neighbour

    def ban(self, peer: PeerId, reason: str) -> None:
        """Cut ``peer`` off, and refuse its links from now on."""
        if peer in self.banned or peer == self._local.peer_id:
            return
        self.banned[peer] = reason
        if len(self.banned) > MAX_REMEMBERED_PEERS:
            self.banned.popitem(last=False)
        self._local.trace.emit("banned", neighbour=peer.short, reason=reason)
        current = self.sessions.get(peer)
        if current is not None:
            current.end(PeerViolation(reason, peer))  # what it did on another link

    # --- lives ---

    async def _serve(self, neighbour: Neighbour, previous: Neighbour | None) -> None:
        """A neighbour's whole life, from its control link's handshake to its end."""
        peer = neighbour.peer
        scratch = self._local.environment.scratch
        try:
            with trio.move_on_after(HANDSHAKE_SECONDS):
                if previous is not None:
                    await previous.ended.wait()
                await neighbour.until_attached(scratch)
            if neighbour.bulk is None:
                neighbour.end(LinkBroken(f"{peer.short} opened no bulk link"))
            if neighbour.reason is None:
                self.up[peer] = neighbour
                self._owner.neighbour_up(neighbour)
                self.note_change()
                self._local.trace.emit("neighbour_up", neighbour=peer.short, dialled=neighbour.dialled)
                await neighbour.run(self._owner, scratch)
        finally:
            neighbour.end(LinkClosed("this side is stopping"))  # unless it has a reason already
            try:
                try:
                    self._take_down(neighbour)
                finally:
                    await neighbour.close()
            finally:
                # Whatever failed above: those who wait for its end, as a stopping peer does, must not wait for ever.
                if self.sessions.get(peer) is neighbour:
                    del self.sessions[peer]
                neighbour.ended.set()
                self.note_change()

    def _take_down(self, neighbour: Neighbour) -> None:
        """Nobody is to wait for it while its links close."""
        peer = neighbour.peer
        self._owner.neighbour_down(neighbour)
        if self.up.get(peer) is neighbour:
            del self.up[peer]
        self._generations[peer] = self._generations.pop(peer, 0) + 1
        if len(self._generations) > MAX_REMEMBERED_PEERS:
            self._generations.popitem(last=False)
        if isinstance(neighbour.reason, PeerViolation):
            self.ban(peer, str(neighbour.reason))
        self._local.trace.emit("neighbour_down", neighbour=peer.short, reason=str(neighbour.reason))
        self.note_change()

    def abort(self) -> None:
        """Drop every link at once, without a goodbye."""
        for neighbour in list(self.sessions.values()):
            neighbour.abort()

    async def all_ended(self) -> None:
        """Wait for the ends of all neighbours that there are now."""
        for neighbour in list(self.sessions.values()):
            await neighbour.ended.wait()
