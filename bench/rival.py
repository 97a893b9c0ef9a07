"""The same shape moved by libtorrent (extra ``peers``): one session a peer in one process, a full mesh over loopback.

Set up to be fast here: no discovery, no uTP, no encryption, no rate limits, every peer unchoked, many connections from
one address, large buffers, and the seeder's file checked before the clock starts.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from fleet.errors import DeadlineExceeded, LocalMisuse

if TYPE_CHECKING:
    from pathlib import Path

DEADLINE: Final = 60.0
_SETTINGS: Final[dict[str, Any]] = {
    "alert_mask": 0,
    "enable_dht": False,
    "enable_lsd": False,
    "enable_upnp": False,
    "enable_natpmp": False,
    "enable_incoming_utp": False,
    "enable_outgoing_utp": False,
    "in_enc_policy": 2,  # disabled
    "out_enc_policy": 2,
    "allow_multiple_connections_per_ip": True,
    "unchoke_slots_limit": -1,
    "connection_speed": 500,
    "torrent_connect_boost": 255,
    "min_reconnect_time": 1,
    "rate_limit_ip_overhead": False,
    "send_buffer_watermark": 8 << 20,
    "send_buffer_watermark_factor": 200,
    "max_queued_disk_bytes": 64 << 20,
    "request_queue_time": 1,
    "max_out_request_queue": 2000,
    "max_allowed_in_request_queue": 4000,
    "aio_threads": 1,
    "hashing_threads": 1,
    "auto_manage_interval": 1,
    "tick_interval": 100,
}


def rival_seconds(source: Path, folder: Path, peers: int, piece_size: int) -> float:
    """Seconds in which ``peers`` - 1 sessions fetch ``source`` from one.

    Raises ``LocalMisuse`` when libtorrent is not installed, ``DeadlineExceeded`` after ``DEADLINE`` seconds.
    """
    try:
        lt: Any = importlib.import_module("libtorrent")  # an optional extra, typed only where it is installed
    except ImportError:
        raise LocalMisuse("libtorrent is not installed: pip install 'peerfleet[peers]', or leave out --rival") from None
    files = lt.file_storage()
    lt.add_files(files, str(source))
    torrent = lt.create_torrent(files, piece_size, lt.create_torrent.v1_only)  # one hash a byte, as here
    lt.set_piece_hashes(torrent, str(source.parent))
    info = lt.torrent_info(lt.bdecode(lt.bencode(torrent.generate())))
    sessions = [lt.session({**_SETTINGS, "listen_interfaces": "127.0.0.1:0"}) for _ in range(peers)]

    def add(number: int, save_path: Path) -> Any:
        parameters = lt.add_torrent_params()
        parameters.ti = info
        parameters.save_path = str(save_path)
        parameters.flags = lt.torrent_flags.default_flags & ~lt.torrent_flags.auto_managed & ~lt.torrent_flags.paused
        return sessions[number].add_torrent(parameters)

    seeder = add(0, source.parent)
    _wait(lambda: seeder.status().is_seeding)
    # The dials are inside the clock: some milliseconds. A mesh that is up before there is anything to fetch is slower,
    # as it then waits for the next round of unchoking.
    started = time.perf_counter()
    handles = [seeder, *(add(number, folder / f"rival-{number}") for number in range(1, peers))]
    for number, handle in enumerate(handles):
        for other in range(number):
            handle.connect_peer(("127.0.0.1", sessions[other].listen_port()))
    _wait(lambda: all(handle.status().is_seeding for handle in handles))
    return time.perf_counter() - started


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.perf_counter() + DEADLINE
    while not done():
        if time.perf_counter() > deadline:
            raise DeadlineExceeded(f"libtorrent had not finished after {DEADLINE:.0f} s")
        time.sleep(0.01)  # libtorrent works in threads of its own and has no event for this that Python can wait on
