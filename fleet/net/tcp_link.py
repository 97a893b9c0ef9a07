"""The link of the tcp binding: one connected socket under trio's readiness calls, nothing between it and the caller.

What is decided here:

- **Reading and writing** try the system call first and wait for readiness only when the kernel says so.
- **Files** are read in blocks of 256 KiB into one buffer that all links of the binding share, and written from there.
  On loopback this moves 3,000 to 6,000 MiB/s where ``sendfile`` moves 2,000 to 3,200: the block stays in the
  processor's cache, while sendfile handles the file page by page.
- **Closing.** A socket closed while unread bytes wait resets the connection, and a reset destroys what the kernel has
  not delivered yet. So ``aclose`` first ends the sending direction and then, only while bytes of ours are still
  unacknowledged, reads and discards what arrives, at most ``CLOSE_SECONDS`` long. A link whose last send was cut
  (cancelled, or its file ended early) is reset instead: an orderly end would be a lie.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import struct
import sys
import termios
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import trio

from fleet.errors import LinkBroken
from fleet.limits import CLOSE_SECONDS, KIB
from fleet.net.link import MAX_PREFIX
from fleet.net.usage import Usage, check_range

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId
    from fleet.net.link import Bytes
    from fleet.storage import File

FILE_BLOCK: Final = 256 * KIB
_MAX_IOV: Final = min(1_024, os.sysconf("SC_IOV_MAX"))
_FIRST_LINGER_SECONDS: Final = 0.05  # the other kernel may delay an acknowledgement by 40 ms
_RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # struct linger: on, zero seconds


def file_buffer() -> memoryview:
    """What links read files into. None uses it across a yield, so one is enough for all links of a trio run."""
    return memoryview(bytearray(FILE_BLOCK + MAX_PREFIX))


class TcpLink:
    """One TCP connection. See ``fleet.net.link.Link`` for what its methods promise."""

    __slots__ = ("_block", "_sock", "_use")

    def __init__(self, sock: socket.socket, remote_address: str, block: memoryview) -> None:
        """``sock`` is connected and does not block; ``block`` is a ``file_buffer``."""
        self._sock = sock
        self._block = block
        self._use = Usage(remote_address)

    @property
    def remote_address(self) -> str:
        return self._use.remote

    @property
    def channel_peer(self) -> PeerId | None:
        return None

    def __repr__(self) -> str:
        return f"TcpLink({self._use.remote})"

    async def handshake(self) -> None:
        await trio.lowlevel.checkpoint()
        self._use.check_open()

    # sending

    async def send_all(self, buffers: Sequence[Bytes]) -> None:
        self._use.begin_sending()
        try:
            await trio.lowlevel.checkpoint()
            self._use.check_open()
            views = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
            if len(views) == 1:
                await self._send_one(views[0])
            else:
                await self._send_many(views)
        finally:
            self._use.sending = False

    async def send_file(self, file: File, offset: int, size: int, prefix: bytes = b"") -> None:
        check_range(offset, size, prefix)
        self._use.begin_sending()
        try:
            await trio.lowlevel.checkpoint()
            self._use.check_open()
            end = offset + size
            while offset < end or prefix:
                head = len(prefix)
                length = min(FILE_BLOCK, end - offset)
                self._block[:head] = prefix
                self._use.cut = True
                file.read_into(self._block[head : head + length], offset)
                # The buffer is shared, so what the kernel does not take now is read again after the wait.
                sent = await self._send_some(self._block[: head + length])
                prefix = prefix[sent:]
                offset += max(0, sent - head)
            self._use.cut = False
        finally:
            self._use.sending = False

    async def _send_one(self, view: memoryview) -> None:
        self._use.cut = True
        while view:
            try:
                count = self._sock.send(view)
            except BlockingIOError:
                await self._wait_writable()
            except OSError as error:
                raise self._lost("send to", error) from None
            else:
                view = view[count:]
        self._use.cut = False

    async def _send_many(self, views: list[memoryview]) -> None:
        self._use.cut = True
        first = 0
        while first < len(views):
            try:
                count = self._sock.sendmsg(views[first : first + _MAX_IOV])
            except BlockingIOError:
                await self._wait_writable()
                continue
            except OSError as error:
                raise self._lost("send to", error) from None
            while count:
                view = views[first]
                if count < len(view):
                    views[first] = view[count:]
                    break
                count -= len(view)
                first += 1
        self._use.cut = False

    async def _send_some(self, view: memoryview) -> int:
        """Write what the kernel takes of ``view`` now; when that is nothing, wait until it takes more, and return 0."""
        try:
            return self._sock.send(view)
        except BlockingIOError:
            await self._wait_writable()
            return 0
        except OSError as error:
            raise self._lost("send to", error) from None

    async def send_eof(self) -> None:
        if self._use.eof_sent:
            await trio.lowlevel.checkpoint()
            self._use.check_open()
            return
        self._use.begin_sending()
        try:
            await trio.lowlevel.checkpoint()
            self._use.check_open()
            self._use.eof_sent = True
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError as error:
                raise self._lost("end the stream to", error) from None
        finally:
            self._use.sending = False

    async def _wait_writable(self) -> None:
        try:
            await trio.lowlevel.wait_writable(self._sock)
        except trio.ClosedResourceError:
            raise self._use.was_closed() from None
        self._use.check_open()

    # receiving

    async def receive_into(self, view: memoryview) -> int:
        self._use.begin_receiving(view)
        try:
            # First, so that a cancelled call has consumed nothing and nothing runs between the copy and the return.
            await trio.lowlevel.checkpoint()
            while True:
                self._use.check_open()
                try:
                    count = self._sock.recv_into(view)
                except BlockingIOError:
                    try:
                        await trio.lowlevel.wait_readable(self._sock)
                    except trio.ClosedResourceError:
                        raise self._use.was_closed() from None
                except OSError as error:
                    raise self._lost("receive from", error) from None
                else:
                    if count == 0 and self._use.broken is not None:
                        # The kernel tells of a reset once; the sender heard it, and now this looks like an end.
                        raise LinkBroken(self._use.broken)
                    return count
        finally:
            self._use.receiving = False

    # ending

    async def aclose(self) -> None:
        if self._use.closed:
            await trio.lowlevel.checkpoint()
            return
        if self._use.cut or self._use.sending or self._use.broken is not None:
            self.abort()
            await trio.lowlevel.checkpoint()
            return
        self._use.closed = True
        trio.lowlevel.notify_closing(self._sock)
        try:
            try:
                self._sock.shutdown(socket.SHUT_WR)
            except OSError:
                await trio.lowlevel.checkpoint()  # the other side is gone already: there is nobody to say goodbye to
            else:
                await self._linger()
        finally:
            self._sock.close()

    async def _linger(self) -> None:
        """Keep the socket until the other side has what was sent, ends its stream, or ``CLOSE_SECONDS`` are over."""
        with trio.move_on_after(CLOSE_SECONDS):
            pause = _FIRST_LINGER_SECONDS
            await trio.lowlevel.checkpoint()
            while self._unacknowledged():
                # No readiness call tells of an acknowledgement, so look again after pauses that double.
                with trio.move_on_after(pause):
                    while self._discard():
                        await trio.lowlevel.checkpoint()
                    if self._sock.fileno() == -1:
                        return
                    try:
                        await trio.lowlevel.wait_readable(self._sock)
                    except trio.ClosedResourceError:
                        return  # aborted meanwhile
                    if not self._discard():
                        return
                pause *= 2

    def _unacknowledged(self) -> int:
        """Bytes of ours that the other kernel has not acknowledged."""
        if self._sock.fileno() == -1:
            return 0
        answer = fcntl.ioctl(self._sock, termios.TIOCOUTQ, bytes(4))
        return int.from_bytes(answer, sys.byteorder)

    def _discard(self) -> int:
        """Read one block and drop it; 0 when there was none, or the stream is over."""
        try:
            return self._sock.recv_into(self._block)
        except OSError:
            return 0

    def abort(self) -> None:
        self._use.closed = True
        if self._sock.fileno() == -1:
            return
        trio.lowlevel.notify_closing(self._sock)
        with contextlib.suppress(OSError):  # a connection that is gone already needs no reset
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        self._sock.close()

    # errors

    def _lost(self, action: str, error: OSError) -> LinkBroken:
        self._use.broken = f"cannot {action} {self._use.remote}: {error.strerror or error}"
        return LinkBroken(self._use.broken)
