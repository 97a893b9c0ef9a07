"""What counts as a stall, and what a neighbour is told of this side's own trouble."""

from __future__ import annotations

import pytest
import trio

from fleet.environment import Environment
from fleet.fleet import Fleet
from fleet.identity.keys import PeerId
from fleet.limits import MAX_REMEMBERED_PEERS
from fleet.net.tcp import TcpBinding
from fleet.storage import DirectoryFile
from fleet.swarm.holding import Holding
from fleet.swarm.piece_store import PieceStore
from tests.helpers.events import Recorder


def test_a_stall_is_the_longest_wait_while_unfinished() -> None:
    holding = Holding(bytes(32))
    holding.started_at = holding.progress_at = 10.0
    holding.progressed(13.0)  # the wait for the manifest counts
    assert holding.longest_stall == 3.0
    holding.progressed(14.0)
    assert holding.longest_stall == 3.0
    holding.finished_at = 14.0
    holding.progressed(99.0)  # what comes after the end is nobody's wait
    assert holding.longest_stall == 3.0


async def test_a_goodbye_says_nothing_of_local_paths(tmp_path, monkeypatch) -> None:
    trace = Recorder()
    monkeypatch.setattr(PieceStore, "check_unchanged", lambda _store: None)  # so that the cut is met in mid-piece
    with trio.fail_after(30):
        async with Fleet(2, trace=trace, folder=tmp_path) as fleet:
            secret = tmp_path / "secret-\udcff-name.bin"
            secret.write_bytes(bytes(4096))
            artifact = await fleet[0].share(secret, 1024)
            secret.write_bytes(b"")  # cut while it is shared
            await fleet[1].fetch(artifact.root)
            down = await trace.wait_for("neighbour_down", fleet[1].name)
            assert "said goodbye: this side cannot go on" in str(down.fields["reason"])
            own = await trace.wait_for("neighbour_down", fleet[0].name)
            assert "secret" in str(own.fields["reason"])  # at home the whole story is told


class BrokenTrace:
    def emit(self, time: float, peer: str, kind: str, **fields: object) -> None:
        if kind == "neighbour_down":
            raise RuntimeError("a trace must not raise")


async def test_a_trace_that_raises_breaks_the_fleet_and_does_not_hang_it() -> None:
    with trio.fail_after(30), pytest.raises(BaseExceptionGroup) as caught:
        async with Fleet(3, environment=Environment(TcpBinding(), trace=BrokenTrace())):
            pass
    assert caught.group_contains(RuntimeError, match="must not raise")


def test_a_directory_forgets_the_files_that_were_closed(tmp_path) -> None:
    from fleet.storage import Directory

    with Directory(tmp_path) as folder:
        for _ in range(10):
            folder.open("a", create=True).close()
        kept = folder.open("a")
        assert folder._open == [kept]
    assert isinstance(kept, DirectoryFile)
    assert kept.closed


def test_served_remembers_only_so_many() -> None:
    holding = Holding(bytes(32))
    for number in range(MAX_REMEMBERED_PEERS + 1):
        holding.count_served(PeerId(number.to_bytes(32, "big")), 5)
        holding.count_served(PeerId(number.to_bytes(32, "big")), 5)
    assert len(holding.served) == MAX_REMEMBERED_PEERS
    assert PeerId(bytes(32)) not in holding.served
    assert set(holding.served.values()) == {10}
