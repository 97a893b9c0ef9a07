"""Two peers and their links: who dials, who decides, what survives, and how it ends. Real sockets, both bindings."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trio
import trio.testing

from fleet.environment import Environment
from fleet.errors import DeadlineExceeded, LinkBroken, LinkClosed, LocalMisuse, PeerViolation, lone_error
from fleet.fleet import BINDINGS
from fleet.identity.keys import Identity
from fleet.limits import LIVENESS_SECONDS, PING_SECONDS
from fleet.net.authentication import Role
from fleet.net.hello import Hello, Purpose
from fleet.net.neighbour import Neighbour
from fleet.net.session import Proved, Session, State
from fleet.peer import Peer
from fleet.sim.disk import SimDisk
from fleet.wire.messages import Join, Message, Ping
from tests.conformance.links import guarded
from tests.helpers.events import Recorder
from tests.helpers.pair import session_of
from tests.helpers.toy import Artifact, nothing_left_open

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.net.link import Bytes, Link
    from fleet.storage import File


@pytest.fixture(params=list(BINDINGS))
def name(request: pytest.FixtureRequest) -> str:
    """Of the binding."""
    return str(request.param)


@pytest.fixture(autouse=True)
def no_descriptor_left() -> Iterator[None]:
    with nothing_left_open():
        yield


class World:
    """Peers of one environment, by index, and their trace."""

    def __init__(self, name: str, nursery: trio.Nursery, seed: int) -> None:
        self.trace = Recorder()
        self.environment = Environment(BINDINGS[name](), seed, trace=self.trace)
        self._nursery = nursery

    def make(self, index: int) -> Peer:
        return Peer(self.environment, index, self.environment.identity(index), SimDisk())

    async def start(self, index: int) -> Peer:
        peer = self.make(index)

        async def run(task_status: trio.TaskStatus[None]) -> None:
            async with peer.running():
                task_status.started()
                await trio.sleep_forever()

        await self._nursery.start(run)
        return peer


@asynccontextmanager
async def world(name: str, seed: int = 1) -> AsyncIterator[World]:
    with lone_error():
        async with trio.open_nursery() as nursery:
            yield World(name, nursery, seed)
            nursery.cancel_scope.cancel()


async def both_up(a: Peer, b: Peer) -> None:
    """Each is the other's neighbour, and both mean the same session."""

    def same() -> bool:
        ours, theirs = a.neighbours.get(b.peer_id), b.neighbours.get(a.peer_id)
        return ours is not None and theirs is not None and ours.session.session_id == theirs.session.session_id

    while not same():
        async with trio.open_nursery() as nursery:
            for peer in (a, b):

                async def change(peer: Peer = peer) -> None:
                    await peer._roster.changed()
                    nursery.cancel_scope.cancel()

                nursery.start_soon(change)
            if same():
                nursery.cancel_scope.cancel()


# connecting


@guarded
async def test_connect_makes_each_the_others_neighbour(name: str) -> None:
    async with world(name) as w:
        a, b = await w.start(0), await w.start(1)
        neighbour = await a.connect(b.address, b.peer_id)
        await both_up(a, b)
        assert a.neighbours == {b.peer_id: neighbour}
        assert neighbour.dialled
        assert not b.neighbours[a.peer_id].dialled
        assert neighbour.hello.address == b.address
        assert await a.connect(b.address, b.peer_id) is neighbour
        assert await b.connect(a.address, a.peer_id) is b.neighbours[a.peer_id]
        up = [(event.peer, event.fields["neighbour"]) for event in w.trace.of("neighbour_up")]
        assert sorted(up) == sorted([(a.name, b.peer_id.short), (b.name, a.peer_id.short)])


@guarded
async def test_connect_without_saying_whom(name: str) -> None:
    async with world(name) as w:
        a, b = await w.start(0), await w.start(1)
        neighbour = await a.connect(b.address)
        assert neighbour.peer == b.peer_id
        assert await a.connect(b.address) is neighbour
        await both_up(a, b)


@pytest.mark.parametrize("seed", range(12))
@guarded
async def test_a_simultaneous_dial_leaves_one_session(name: str, seed: int) -> None:
    """Both dial at once, several times over, with delays of a few scheduler turns drawn from the seed."""
    rng = random.Random(seed)
    async with world(name, seed) as w:
        a, b = await w.start(0), await w.start(1)
        found: dict[PeerId, Neighbour] = {}

        async def dial(this: Peer, other: Peer, turns: int) -> None:
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            found[this.peer_id] = await this.connect(other.address, other.peer_id if seed % 3 else None)

        async with trio.open_nursery() as nursery:
            for _ in range(1 + seed % 3):
                nursery.start_soon(dial, a, b, rng.randrange(12))
                nursery.start_soon(dial, b, a, rng.randrange(12))
        await both_up(a, b)
        assert len(a._roster.sessions) == len(b._roster.sessions) == 1
        assert found == {a.peer_id: a.neighbours[b.peer_id], b.peer_id: b.neighbours[a.peer_id]}
        assert a.neighbours[b.peer_id].dialled != b.neighbours[a.peer_id].dialled
        assert w.trace.of("banned") == []


@guarded
async def test_somebody_else_answers(name: str) -> None:
    async with world(name) as w:
        a, b, c = await w.start(0), await w.start(1), await w.start(2)
        with pytest.raises(PeerViolation, match="expected"):
            await a.connect(b.address, c.peer_id)
        assert not a.neighbours
        assert not a.banned  # it did nothing wrong
        await a.connect(b.address, b.peer_id)


@guarded
async def test_nobody_answers(name: str) -> None:
    async with world(name) as w:
        a = await w.start(0)
        async with w.make(1).running() as gone:
            address = gone.address
        with pytest.raises(LinkBroken):
            await a.connect(address, gone.peer_id)
        assert not a._roster.sessions


@guarded
async def test_somebody_accepts_and_says_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.net.dialler.HANDSHAKE_SECONDS", 0.05)
    async with world(name) as w:
        a = await w.start(0)
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listeners[0]:
            port = listeners[0].socket.getsockname()[1]
            with pytest.raises(DeadlineExceeded):
                await a.connect(f"127.0.0.1:{port}")


@guarded
async def test_a_peer_does_not_connect_to_itself(name: str) -> None:
    async with world(name) as w:
        a = await w.start(0)
        with pytest.raises(LocalMisuse, match="itself"):
            await a.connect(a.address)
        with pytest.raises(LocalMisuse, match="itself"):
            await a.connect("127.0.0.1:9", a.peer_id)
        port = a.address.rpartition(":")[2]
        with pytest.raises((PeerViolation, LinkBroken)):  # under another name
            await a.connect(f"localhost:{port}")
        assert not a.banned
        assert not a.neighbours


@pytest.mark.parametrize("banner", [0, 1])
@guarded
async def test_a_banned_peer_is_neither_dialled_nor_let_in(name: str, banner: int) -> None:
    """Whichever of the two has banned the other, and whichever dials."""
    async with world(name) as w:
        peers = [await w.start(0), await w.start(1)]
        here, there = peers[banner], peers[1 - banner]
        here._roster.ban(there.peer_id, "lied")
        with pytest.raises(LinkClosed, match="banned: lied"):
            await here.connect(there.address, there.peer_id)
        with pytest.raises((LinkClosed, LinkBroken)):
            await there.connect(here.address, here.peer_id)
        assert not here.neighbours
        assert len(w.trace.of("banned")) == 1


@pytest.mark.parametrize("full", [0, 1])
@guarded
async def test_neighbours_up_to_the_cap(name: str, full: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fleet.net.roster.MAX_LINKS", 4)
    async with world(name) as w:
        hub, *others = [await w.start(index) for index in range(4)]
        for other in others[:2]:
            await other.connect(hub.address, hub.peer_id)
        dialler, target = (hub, others[2]) if full == 0 else (others[2], hub)
        with pytest.raises((LinkClosed, LinkBroken)):
            await dialler.connect(target.address, target.peer_id)
        assert set(hub.neighbours) == {other.peer_id for other in others[:2]}
        hub.neighbours[others[0].peer_id].end(LinkClosed("makes room"))
        await hub.until(lambda: len(hub._roster.sessions) == 1)
        await others[2].connect(hub.address, hub.peer_id)
        await both_up(hub, others[2])


# ending


@guarded
async def test_a_goodbye_carries_its_reason(name: str) -> None:
    async with world(name) as w:
        a, b = await w.start(0), await w.start(1)
        await a.connect(b.address, b.peer_id)
        await both_up(a, b)
        a.neighbours[b.peer_id].end(LinkClosed("enough for today"))
        down = await w.trace.wait_for("neighbour_down", b.name)
        assert down.fields == {
            "neighbour": a.peer_id.short,
            "reason": f"{a.peer_id.short} said goodbye: enough for today",
        }
        (own,) = w.trace.of("neighbour_down", a.name)
        assert own.fields["reason"] == "enough for today"


@guarded
async def test_ending_while_messages_are_on_their_way_is_still_a_goodbye(name: str) -> None:
    """A frame that was numbered and not sent would make the goodbye's signature wrong, and its sender a liar."""
    async with world(name) as w:
        a, b = await w.start(0), await w.start(1)
        for turns in range(10):
            neighbour = await a.connect(b.address, b.peer_id)
            await both_up(a, b)
            for _ in range(3):
                neighbour.send(Join(bytes(32)))
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            neighbour.end(LinkClosed("bye"))
            down = await w.trace.wait_for("neighbour_down", b.name, count=turns + 1)
            assert down.fields["reason"] == f"{a.peer_id.short} said goodbye: bye"
            await b.until(lambda: not b._roster.sessions)
            await a.until(lambda: not a._roster.sessions)
        assert w.trace.of("banned") == []


@guarded
async def test_a_neighbour_that_does_not_read_is_not_waited_for_long(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its links are full: the goodbye is given up after a moment, and stopping does not hang."""
    monkeypatch.setattr("fleet.net.neighbour.CLOSE_SECONDS", 0.05)
    async with world(name) as w:
        a = await w.start(0)
        b = w.make(1)
        async with b.running():
            neighbour = await b.connect(a.address, a.peer_id)
            stuck = StuckLink()
            real, neighbour.control = neighbour.control, stuck  # type: ignore[assignment]
            neighbour.send(Join(bytes(32)))
            await stuck.sending.wait()
        assert neighbour.ended.is_set()
        real.abort()


@guarded
async def test_a_stopped_peer_says_so_and_a_killed_one_says_nothing(name: str) -> None:
    async with world(name) as w:
        a = await w.start(0)
        async with w.make(1).running() as stopped:
            await stopped.connect(a.address, a.peer_id)
        down = await w.trace.wait_for("neighbour_down", a.name)
        assert down.fields["reason"] == f"{stopped.peer_id.short} said goodbye: this side is stopping"
        async with w.make(1).running() as killed:
            neighbour = await a.connect(killed.address, killed.peer_id)
            killed.kill()
        await w.trace.wait_for("neighbour_down", a.name, count=2)
        assert isinstance(neighbour.reason, LinkBroken)
        assert "goodbye:" not in str(neighbour.reason)


@pytest.mark.parametrize("dialler", [0, 1])
@guarded
async def test_a_restarted_peer_replaces_its_stale_session(name: str, dialler: int) -> None:
    """The old incarnation's links were lost without a word, and the other side still believes in them."""
    async with world(name) as w:
        survivor = await w.start(0)
        async with w.make(1).running() as before:
            await before.connect(survivor.address, survivor.peer_id)
            await both_up(survivor, before)
            stale = survivor.neighbours[before.peer_id]
            after = await w.start(1)
            assert after.peer_id == before.peer_id
            assert after._local.incarnation != before._local.incarnation
            if dialler == 1:
                await after.connect(survivor.address, survivor.peer_id)
            else:
                stale.end(LinkBroken("lost"))
                await survivor.until(lambda: not survivor._roster.sessions)
                await survivor.connect(after.address, after.peer_id)
            await both_up(survivor, after)
            assert stale.reason is not None
            assert survivor.neighbours[after.peer_id] is not stale


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("dropper", [0, 1])
@guarded
async def test_a_link_that_only_one_side_saw_end_is_dialled_again(name: str, dropper: int, named: bool) -> None:
    """Whoever lost it dials; its generation tells the other side that its link is dead."""
    async with world(name) as w:
        peers = [await w.start(0), await w.start(1)]
        here, there = peers[dropper], peers[1 - dropper]
        for _ in range(3):
            lost = await here.connect(there.address, there.peer_id if named else None)
            await both_up(here, there)
            believed = there.neighbours[here.peer_id]
            # As if every packet of the end were lost: this side forgets, and its sockets stay open.
            kept = lost.control, lost.bulk
            lost.control, lost.bulk = DeadLink(), DeadLink()  # type: ignore[assignment]
            lost.end(LinkBroken("lost without a word"))
            await here.until(lambda: there.peer_id not in here._roster.sessions)
            assert there.neighbours[here.peer_id] is believed
            again = await here.connect(there.address, there.peer_id if named else None)
            await both_up(here, there)
            assert again is not lost
            assert str(believed.reason) == "a newer link replaces this one"
            for link in kept:
                assert link is not None
                link.abort()
            again.end(LinkClosed("next"))
            await there.until(lambda: not there._roster.sessions)
            await here.until(lambda: not here._roster.sessions)
        assert not here.banned
        assert not there.banned


class DeadLink:
    """Swallows everything."""

    remote_address = "nowhere"
    channel_peer = None

    async def handshake(self) -> None:
        await trio.lowlevel.checkpoint()

    async def send_all(self, buffers: Sequence[Bytes]) -> None:
        await trio.lowlevel.checkpoint()

    async def send_file(self, file: File, offset: int, size: int, header: Bytes = b"") -> None:
        await trio.lowlevel.checkpoint()

    async def receive_into(self, view: memoryview) -> int:
        await trio.sleep_forever()
        raise AssertionError

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()

    def abort(self) -> None:
        pass


@guarded
async def test_peers_that_stop_in_the_middle_of_a_handshake_leave_nothing_behind(name: str) -> None:
    """Stopped after each number of scheduler turns in turn, on both sides."""
    for turns in range(0, 60, 3):
        async with world(name) as w:
            a = await w.start(0)
            b = w.make(1)
            with trio.CancelScope() as scope:
                async with b.running(), trio.open_nursery() as nursery:
                    nursery.start_soon(a.connect if turns % 2 else b.connect, *_target(a, b, turns))
                    for _ in range(turns):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            while a.neighbours:
                await a._roster.changed()


def _target(a: Peer, b: Peer, turns: int) -> tuple[str, PeerId]:
    other = b if turns % 2 else a
    return other.address, other.peer_id


@guarded
async def test_stopping_just_as_somebody_knocks(name: str) -> None:
    """A connection that arrives in the very moment of stopping neither crashes the peer nor leaks."""
    for turns in range(8):
        async with world(name) as w:
            peer = w.make(1)
            with trio.CancelScope() as scope:
                async with peer.running():
                    host, port = peer.address.split(":")
                    stream = await trio.open_tcp_stream(host, int(port))
                    for _ in range(turns):
                        await trio.lowlevel.checkpoint()
                    scope.cancel()
            await stream.aclose()


async def test_a_listener_that_is_closed_under_an_accept_ends_the_accepting() -> None:
    class Closed:
        address = "127.0.0.1:9"

        async def accept(self) -> Link:
            await trio.lowlevel.checkpoint()
            raise LinkClosed("the listener is closed")

        async def aclose(self) -> None:
            await trio.lowlevel.checkpoint()

    async with world("tcp") as w:
        peer = await w.start(0)
        await peer._handshakes.accept_links(Closed())


@guarded
async def test_a_peer_stops_while_a_neighbour_is_half_up(name: str) -> None:
    async with world(name) as w:
        a = await w.start(0)
        half = trio.Event()
        b = w.make(1)
        initiate = b._handshakes.initiate

        async def only_control(*args: object, **kwargs: object) -> object:
            if args[1] is Purpose.BULK:
                half.set()
                args[0].abort()  # type: ignore[attr-defined]
                await trio.sleep_forever()
            return await initiate(*args, **kwargs)  # type: ignore[arg-type]

        b._handshakes.initiate = only_control  # type: ignore[method-assign, assignment]
        with trio.CancelScope() as scope:
            async with b.running(), trio.open_nursery() as nursery:
                nursery.start_soon(b.connect, a.address, a.peer_id)
                await half.wait()
                scope.cancel()
        await a.until(lambda: not a._roster.sessions or b.peer_id in a._roster.sessions)
        assert not a.neighbours


# keeping


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """First pauses of 20 ms."""
    monkeypatch.setattr("fleet.net.redial.FIRST_SECONDS", 0.02)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("keeper", ["dialler", "dialled", "both"])
@guarded
async def test_a_kept_neighbour_that_is_lost_is_dialled_again(name: str, keeper: str) -> None:
    """By whichever side keeps it; where both do, one link is left."""
    async with world(name) as w:
        a, b = await w.start(0), await w.start(1)
        await a.connect(b.address, b.peer_id)
        await both_up(a, b)
        if keeper != "dialled":
            a.keep(b.address, b.peer_id)
        if keeper != "dialler":
            b.keep(a.address, a.peer_id)
        for turn in range(3):
            lost = a.neighbours[b.peer_id]
            if turn == 1:
                lost.end(LinkClosed("in order"))
            else:
                lost.abort()
            await lost.ended.wait()
            await both_up(a, b)
            assert a.neighbours[b.peer_id] is not lost
            assert len(a._roster.sessions) == len(b._roster.sessions) == 1
        diallers = {event.peer for event in w.trace.of("redial")}
        assert diallers <= {"dialler": {a.name}, "dialled": {b.name}, "both": {a.name, b.name}}[keeper]
        assert w.trace.of("banned") == []


@pytest.mark.usefixtures("soon")
@guarded
async def test_a_kept_neighbour_that_was_not_there_is_found_once_it_is(name: str) -> None:
    async with world(name) as w:
        a = await w.start(0)
        async with w.make(1).running() as b:
            address = b.address
        a.keep(address, b.peer_id)
        await w.trace.wait_for("redial_failed", a.name, count=2)
        async with w.make(1).running(address) as b:
            await both_up(a, b)
            assert b.neighbours[a.peer_id].dialled is False


@pytest.mark.usefixtures("soon")
@guarded
async def test_a_kept_neighbour_is_dialled_where_its_last_hello_says(name: str) -> None:
    async with world(name) as w:
        a = await w.start(0)
        async with w.make(1).running() as b:
            a.keep(b.address, b.peer_id)
            await both_up(a, b)
        async with w.make(1).running() as b:  # on another port: it tells by dialling
            await b.connect(a.address, a.peer_id)
            await both_up(a, b)
            b.neighbours[a.peer_id].abort()
            await a.until(lambda: not a.neighbours)
            await both_up(a, b)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("address", ["", "nonsense", "127.0.0.1:99999", "::"])
@guarded
async def test_a_hello_with_an_address_of_nonsense_harms_nobody(name: str, address: str) -> None:
    async with world(name) as w:
        a = await w.start(0)
        async with w.make(1).running() as b:
            a.keep(b.address, b.peer_id)
            await both_up(a, b)
            a._dialler._redials.up(b.peer_id, address, trio.current_time())
        await w.trace.wait_for("redial_failed", a.name, count=2)


@pytest.mark.usefixtures("soon")
@guarded
async def test_a_peer_that_stops_while_it_dials_again(name: str) -> None:
    """Stopped after each number of scheduler turns since the dial began; the other side forgets it."""
    for turns in range(0, 40, 4):
        async with world(name) as w:
            a = await w.start(0)
            async with w.make(1).running() as b:
                b.keep(a.address, a.peer_id)
                await w.trace.wait_for("redial", b.name)
                for _ in range(turns):
                    await trio.lowlevel.checkpoint()
            b.keep(a.address, a.peer_id)  # too late, and no harm
            while a._roster.sessions:
                await a._roster.changed()


@guarded
async def test_whom_a_peer_cannot_keep(name: str) -> None:
    async with world(name) as w:
        a = await w.start(0)
        with pytest.raises(LocalMisuse, match="itself"):
            a.keep(a.address, a.peer_id)
        with pytest.raises(LocalMisuse, match="not running"):
            w.make(1).keep(a.address, a.peer_id)
        a.let_go(a.peer_id)


# misuse


@guarded
async def test_a_peer_that_does_not_run_says_so(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    async with world(name) as w:
        a = await w.start(0)
        b = w.make(1)
        for _ in range(2):
            with pytest.raises(LocalMisuse, match="not running"):
                await b.connect(a.address, a.peer_id)
            with pytest.raises(LocalMisuse, match="not running"):
                await b.share(path)
            with pytest.raises(LocalMisuse, match="not running"):
                await b.fetch(bytes(32))
            if b._local.nursery is None:
                with pytest.raises(LocalMisuse, match="not running"):
                    _ = b.address
                async with b.running():
                    pass
        with pytest.raises(LocalMisuse, match="ran already"):
            await b.running().__aenter__()


@pytest.mark.parametrize("address", ["", "nowhere", "127.0.0.1:0", "127.0.0.1:99999", "::1:1"])
@guarded
async def test_addresses_that_make_no_sense(name: str, address: str) -> None:
    async with world(name) as w:
        a = await w.start(0)
        with pytest.raises(LocalMisuse):
            await a.connect(address)


@guarded
async def test_an_address_that_is_taken(name: str) -> None:
    async with world(name) as w:
        a = await w.start(0)
        with pytest.raises(LocalMisuse, match="cannot listen"):
            await w.make(1).running(a.address).__aenter__()
        async with w.make(2).running(a.address, or_any_port=True) as c:
            assert c.address != a.address
            await c.connect(a.address)


@guarded
async def test_an_error_of_the_caller_comes_out_as_itself(name: str) -> None:
    async with world(name) as w:
        with pytest.raises(ZeroDivisionError):
            async with w.make(0).running():
                raise ZeroDivisionError
        with pytest.raises(ExceptionGroup) as caught:
            async with w.make(0).running():
                raise ExceptionGroup("mine", [ZeroDivisionError()])
        assert caught.value.message == "mine"


# liveness, in virtual time


def session_pair(now: float) -> tuple[Session, Session]:
    """Two established sessions."""
    identities = sorted((Identity(bytes([n]) * 32) for n in (1, 2)), key=lambda identity: identity.peer_id)
    ends = [
        session_of(
            identity,
            role,
            Hello(Purpose.CONTROL, identity.peer_id, bytes(32), 1),
            now=now,
            channel_peer=identities[1 - role].peer_id,
        )
        for role, identity in zip(Role, identities, strict=True)
    ]
    for _ in range(4):
        for this, other in (ends, ends[::-1]):
            if this.has_output:
                for event in other.receive_untrusted(this.take_output(), now):
                    if isinstance(event, Proved) and event.decide:
                        other.accept()
    assert [end.state for end in ends] == [State.ESTABLISHED] * 2
    return ends[0], ends[1]


class StuckLink(DeadLink):
    """Takes nothing and never ends."""

    def __init__(self) -> None:
        self.sending = trio.Event()

    async def send_all(self, buffers: Sequence[Bytes]) -> None:
        self.sending.set()
        await trio.sleep_forever()


class PipeLink(DeadLink):
    """One end of an in-memory stream."""

    def __init__(self, stream: trio.testing.MemoryReceiveStream, other: trio.testing.MemorySendStream) -> None:
        self._in, self._out = stream, other
        self.sent: list[bytes] = []

    async def send_all(self, buffers: Sequence[Bytes]) -> None:
        await trio.lowlevel.checkpoint()
        for buffer in buffers:
            self.sent.append(bytes(buffer))
            self._out.put_data(bytes(buffer))

    async def receive_into(self, view: memoryview) -> int:
        data = await self._in.receive_some(len(view))
        view[: len(data)] = data
        return len(data)


class IdleService:
    """A neighbour's owner with nothing to say."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    def handle_untrusted(self, neighbour: Neighbour, messages: list[Message]) -> None:
        self.messages += messages

    def before_frame(self, neighbour: Neighbour) -> None:
        pass

    async def bulk_receive(self, neighbour: Neighbour) -> None:
        await trio.sleep_forever()

    async def bulk_send(self, neighbour: Neighbour) -> None:
        await trio.sleep_forever()


def pipes() -> tuple[PipeLink, PipeLink]:
    there = trio.testing.MemorySendStream(), trio.testing.MemoryReceiveStream()
    back = trio.testing.MemorySendStream(), trio.testing.MemoryReceiveStream()
    for send, receive in (there, back):
        send.send_all_hook = None
        pump_into(send, receive)
    return PipeLink(back[1], there[0]), PipeLink(there[1], back[0])


def pump_into(send: trio.testing.MemorySendStream, receive: trio.testing.MemoryReceiveStream) -> None:
    send.put_data = receive.put_data  # type: ignore[attr-defined]


async def test_a_silent_neighbour_is_pinged_and_then_broken_with(autojump_clock: trio.testing.MockClock) -> None:
    ours, _ = session_pair(trio.current_time())
    here, there = pipes()
    neighbour = Neighbour(ours, here, dialled=True)
    neighbour.attach(DeadLink(), b"")
    started = trio.current_time()
    await neighbour.run(IdleService(), memoryview(bytearray(1 << 16)))
    assert trio.current_time() - started == LIVENESS_SECONDS
    assert isinstance(neighbour.reason, LinkBroken)
    assert "silent" in str(neighbour.reason)
    assert len(here.sent) == int(LIVENESS_SECONDS / PING_SECONDS) - 1
    del there


async def test_two_quiet_neighbours_keep_each_other_alive(autojump_clock: trio.testing.MockClock) -> None:
    sessions = session_pair(trio.current_time())
    neighbours = [Neighbour(session, link, dialled=True) for session, link in zip(sessions, pipes(), strict=True)]
    services = [IdleService(), IdleService()]
    async with trio.open_nursery() as nursery:
        for neighbour, service in zip(neighbours, services, strict=True):
            neighbour.attach(DeadLink(), b"")
            nursery.start_soon(neighbour.run, service, memoryview(bytearray(1 << 16)))
        await trio.sleep(LIVENESS_SECONDS * 20)
        assert [neighbour.reason for neighbour in neighbours] == [None, None]
        nursery.cancel_scope.cancel()
    assert services[0].messages == services[1].messages == []  # pings are the session's own


async def test_what_is_sent_to_an_ended_neighbour_goes_nowhere() -> None:
    ours, _ = session_pair(0.0)
    neighbour = Neighbour(ours, DeadLink(), dialled=True)
    neighbour.send(Ping(1))
    assert ours.has_output
    ours.take_output()
    neighbour.end(LinkBroken("first"))
    neighbour.end(LinkClosed("second"))
    neighbour.send(Ping(2))
    assert not ours.has_output
    assert str(neighbour.reason) == "first"


@guarded
async def test_neighbours_with_artifacts_between_them_that_come_and_go(name: str) -> None:
    """Links that end in the middle of transfers, many times: every fetch finishes once a link stays."""
    artifact = Artifact.of(48)
    async with world(name) as w:
        a, b = await w.start(0), await w.start(1)
        await a.share(artifact.file(), artifact.manifest.piece_size, super_seed=False)
        holding = await b.fetch(artifact.root)
        for turns in range(12):
            neighbour = await b.connect(a.address, a.peer_id)
            for _ in range(turns):
                await trio.lowlevel.checkpoint()
            if turns % 2:
                neighbour.abort()
            else:
                neighbour.end(LinkClosed("again"))
            await b.until(lambda: a.peer_id not in b._roster.sessions)
            await a.until(lambda: b.peer_id not in a._roster.sessions)
        await b.connect(a.address, a.peer_id)
        await holding.wait()
        assert w.trace.of("banned") == []
