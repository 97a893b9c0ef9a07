"""The tcp binding: dialling and listening. What moves the bytes, and the rules for it, is ``fleet.net.tcp_link``.

It proves no identity: the session layer above does.
"""

from __future__ import annotations

import errno
import os
import socket
from typing import TYPE_CHECKING, Final

import trio

from fleet.errors import LinkBroken, LinkClosed, LocalMisuse
from fleet.net.address import format_address, parse_address
from fleet.net.tcp_link import TcpLink, file_buffer

if TYPE_CHECKING:
    from fleet.identity.keys import Identity, PeerId

ACCEPT_BACKOFF_SECONDS: Final = 0.05
"""How long a listener waits for somebody to close a file when the descriptor table is full."""

_BACKLOG: Final = 1_024
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_GONE_BEFORE_ACCEPT: Final = frozenset(
    {errno.ECONNABORTED, errno.ECONNRESET, errno.EPROTO, errno.EPERM, errno.ENETDOWN, errno.EHOSTUNREACH}
)


async def _resolve(address: str, *, port_zero: bool) -> list[tuple[socket.AddressFamily, tuple[object, ...]]]:
    """Socket families and names to try, in order. Looks names up off the loop; numbers take no thread."""
    host, port = parse_address(address, port_zero=port_zero)
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise LinkBroken(f"cannot find the host of {address}: {error}") from None
    return [(family, name) for family, _, _, _, name in found]


def _prepare(sock: socket.socket) -> None:
    sock.setblocking(False)
    # Frames are written whole; holding back their tail for an acknowledgement would only add latency.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class TcpListener:
    """A listening TCP socket. See ``fleet.net.link.Listener``."""

    def __init__(self, sock: socket.socket, block: memoryview) -> None:
        self._sock = sock
        self._block = block
        self._address = format_address(sock.getsockname())
        self._accepting = False
        self.shortages = 0
        """How often ``accept`` found the table of file descriptors (or the kernel's memory) full, and waited."""

    @property
    def address(self) -> str:
        return self._address

    async def accept(self) -> TcpLink:
        if self._accepting:
            raise LocalMisuse(f"two tasks accept at {self._address} at once: let one task do all the accepting")
        self._accepting = True
        try:
            # First, so that nothing runs between taking a connection and returning it.
            await trio.lowlevel.checkpoint()
            while True:
                if self._sock.fileno() == -1:
                    raise LinkClosed(f"the listener at {self._address} is closed")
                try:
                    sock, name = self._sock.accept()
                except BlockingIOError:
                    try:
                        await trio.lowlevel.wait_readable(self._sock)
                    except trio.ClosedResourceError:
                        raise LinkClosed(f"the listener at {self._address} is closed") from None
                except OSError as error:
                    if error.errno in _SHORTAGES:
                        self.shortages += 1
                        await trio.sleep(ACCEPT_BACKOFF_SECONDS)
                    elif error.errno in _GONE_BEFORE_ACCEPT:
                        await trio.lowlevel.checkpoint()
                    else:
                        raise LinkBroken(f"cannot accept at {self._address}: {error.strerror or error}") from None
                else:
                    _prepare(sock)
                    return TcpLink(sock, format_address(name), self._block)
        finally:
            self._accepting = False

    async def aclose(self) -> None:
        if self._sock.fileno() != -1:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
        await trio.lowlevel.checkpoint()


class TcpBinding:
    """Links over TCP. One object serves any number of peers, all in the same trio run."""

    def __init__(self) -> None:
        self._block = file_buffer()

    @property
    def name(self) -> str:
        return "tcp"

    @property
    def authenticates(self) -> bool:
        return False

    async def listen(self, identity: Identity, address: str = "127.0.0.1:0") -> TcpListener:
        family, name = (await _resolve(address, port_zero=True))[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(name)
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            raise LocalMisuse(
                f"cannot listen at {address} ({error.strerror or error}): choose a free port, or 0, of this machine"
            ) from None
        return TcpListener(sock, self._block)

    async def dial(self, address: str, identity: Identity, expected_peer: PeerId | None) -> TcpLink:
        reason = "no address"
        for family, name in await _resolve(address, port_zero=False):
            try:
                sock = await _connect(family, name)
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                return TcpLink(sock, address, self._block)
        raise LinkBroken(f"cannot connect to {address}: {reason}")


async def _connect(family: socket.AddressFamily, name: tuple[object, ...]) -> socket.socket:
    """A connected socket; raises ``OSError``."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        _prepare(sock)
        try:
            sock.connect(name)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(sock)
            code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code)) from None
        if sock.getsockname() == sock.getpeername():
            # Dialling a free port of the range that the kernel draws from can connect a socket to itself (RFC 9293's
            # simultaneous open).
            raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    except BaseException:
        sock.close()
        raise
    return sock
