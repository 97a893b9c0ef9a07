"""How one end of a link has been used so far, and the misuse that every binding refuses in the same words.

The promises are ``fleet.net.link.Link``'s: one task sends and one receives at a time, nothing is sent after
``send_eof``, nothing follows a send that was cut short, and a closed link is of no more use.
"""

from __future__ import annotations

from fleet.errors import LinkBroken, LinkClosed, LocalMisuse
from fleet.net.link import MAX_PREFIX


def check_range(offset: int, size: int, prefix: bytes) -> None:
    """Raise ``LocalMisuse`` unless ``send_file`` can be called with these."""
    if offset < 0 or size < 0:
        raise LocalMisuse(f"a file has no range of {size:,} bytes at {offset:,}")
    if len(prefix) > MAX_PREFIX:
        raise LocalMisuse(f"a prefix has at most {MAX_PREFIX} bytes, not {len(prefix):,}: send more with send_all")


class Usage:
    """What the owner of one end has done with it. Plain attributes, as they are touched for every block."""

    __slots__ = ("broken", "closed", "cut", "eof_sent", "receiving", "remote", "sending")

    def __init__(self, remote: str) -> None:
        self.remote = remote
        self.sending = False
        self.receiving = False
        self.closed = False
        self.eof_sent = False
        self.cut = False
        """A send has begun and not ended: while no task is ``sending``, it never will."""
        self.broken: str | None = None
        """Why nothing can be sent any more, though this side has not closed."""

    def begin_sending(self) -> None:
        """A task wants to send; it sets ``sending`` back when it is done. Raises what stands in its way."""
        self.check_open()
        if self.sending:
            raise LocalMisuse(f"two tasks send to {self.remote} at once: let one task do all the sending")
        if self.eof_sent:
            raise LinkClosed(f"this side has said that it sends nothing more to {self.remote}")
        if self.broken is not None:
            raise LinkBroken(self.broken)
        if self.cut:
            raise LocalMisuse(f"the last send to {self.remote} was cut short: abort or close this link")
        self.sending = True

    def begin_receiving(self, view: memoryview) -> None:
        """A task wants to receive; it sets ``receiving`` back when it is done. Raises what stands in its way."""
        self.check_open()
        if self.receiving:
            raise LocalMisuse(f"two tasks receive from {self.remote} at once: let one task do all the receiving")
        if not view:
            raise LocalMisuse("receive_into needs room for at least one byte")
        self.receiving = True

    def check_open(self) -> None:
        """Raise ``LinkClosed`` once this side has closed."""
        if self.closed:
            raise self.was_closed()

    def was_closed(self) -> LinkClosed:
        """The error of whoever uses a closed link."""
        return LinkClosed(f"the link to {self.remote} was closed on this side")
