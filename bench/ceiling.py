"""What the machine can do at best in the shape of a swarm, with none of this project's code in the way.

Several raw readers at once in one process under trio, one sender each: units of 1 MiB are read from a file, sent over
loopback, received into a buffer that stays in the cache, hashed with BLAKE3 and written to a file of the reader's. Over
TLS the records are handled by ``ssl.SSLSocket`` on readiness, the fastest way that the standard library has.
"""

from __future__ import annotations

import datetime
import os
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Final

import blake3
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

UNIT: Final = 1 << 20
BLOCK: Final = 512 << 10
"""Of read, send and receive: half of a core's level 2 cache, and the fastest of 256 KiB to 1 MiB."""

Wrap = Callable[[socket.socket, bool], socket.socket]


def _plain(sock: socket.socket, _server: bool) -> socket.socket:
    sock.setblocking(False)
    return sock


def tls_wrap(folder: Path) -> Wrap:
    """A function that puts TLS 1.3 on a connected socket, with a fresh P-256 certificate at the server's end."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ceiling")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = folder / "ceiling.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.minimum_version = ssl.TLSVersion.TLSv1_3
    server.load_cert_chain(pem)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.minimum_version = ssl.TLSVersion.TLSv1_3
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE  # the ceiling proves nothing about anyone

    def wrap(sock: socket.socket, is_server: bool) -> socket.socket:
        sock.setblocking(False)
        context = server if is_server else client
        return context.wrap_socket(sock, server_side=is_server, do_handshake_on_connect=False)

    return wrap


async def _ready(sock: socket.socket, error: OSError) -> None:
    if isinstance(error, BlockingIOError | ssl.SSLWantReadError):
        await trio.lowlevel.wait_readable(sock)
    elif isinstance(error, ssl.SSLWantWriteError):
        await trio.lowlevel.wait_writable(sock)
    else:
        raise error


async def _handshake(sock: socket.socket) -> None:
    while isinstance(sock, ssl.SSLSocket):
        try:
            sock.do_handshake()
        except OSError as error:
            await _ready(sock, error)
        else:
            return


async def _send(sock: socket.socket, source: int, size: int, block: memoryview) -> None:
    await _handshake(sock)
    offset = 0
    while offset < size:
        count = os.preadv(source, [block[: min(len(block), size - offset)]], offset)
        try:
            offset += sock.send(block[:count])
        except (BlockingIOError, ssl.SSLWantWriteError):
            await trio.lowlevel.wait_writable(sock)
        except ssl.SSLWantReadError:
            await trio.lowlevel.wait_readable(sock)


async def _receive(sock: socket.socket, target: int, size: int, block: memoryview) -> None:
    await _handshake(sock)
    offset = 0
    while offset < size:
        hasher = blake3.blake3()
        left = min(UNIT, size - offset)
        while left:
            try:
                count = sock.recv_into(block[: min(len(block), left)])
            except (BlockingIOError, ssl.SSLWantReadError) as error:
                await _ready(sock, error)
                continue
            if count == 0:
                raise ConnectionError("the sender ended early")
            hasher.update(block[:count])
            os.pwrite(target, block[:count], offset)
            offset += count
            left -= count
        hasher.digest()


async def ceiling_seconds(source: Path, folder: Path, readers: int, wrap: Wrap = _plain) -> float:
    """Seconds in which ``readers`` at once each move, hash and write the file ``source`` into ``folder``."""
    size = (await trio.Path(source).stat()).st_size
    send_block, receive_block = (memoryview(bytearray(BLOCK)) for _ in range(2))
    files: list[int] = [os.open(source, os.O_RDONLY)]
    socks: list[socket.socket] = []
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen(readers)
            pairs = []
            for _ in range(readers):
                near = socket.create_connection(listener.getsockname())
                far, _ = listener.accept()
                pairs.append((wrap(near, False), wrap(far, True)))
                socks += pairs[-1]
        targets = []
        for number in range(readers):
            target = os.open(folder / f"ceiling-{number}.data", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
            files.append(target)
            targets.append(target)
            os.posix_fallocate(target, 0, size)
        started = trio.current_time()
        async with trio.open_nursery() as nursery:
            for (near, far), target in zip(pairs, targets, strict=True):
                nursery.start_soon(_send, far, files[0], size, send_block)
                nursery.start_soon(_receive, near, target, size, receive_block)
        return trio.current_time() - started
    finally:
        for sock in socks:
            sock.close()
        for file in files:
            os.close(file)
        for number in range(readers):
            (folder / f"ceiling-{number}.data").unlink(missing_ok=True)
