"""Addresses as people write them: ``host:port``, with IPv6 in brackets."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

from fleet.errors import LocalMisuse
from fleet.limits import MAX_ADDRESS

_ADDRESS: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})", re.ASCII)


def _refuse(text: str, reason: str) -> LocalMisuse:
    return LocalMisuse(
        f"{text[:MAX_ADDRESS]!r} is no address ({reason}): write host:port, such as 127.0.0.1:4001 or [::1]:4001"
    )


def parse_address(text: str, *, port_zero: bool = False) -> tuple[str, int]:
    """``host:port`` or ``[IPv6]:port`` as (host, port); ``LocalMisuse`` says what is wrong with any other text.

    Port 0 means "any free one" and makes sense only for a listener (``port_zero``).
    """
    if len(text) > MAX_ADDRESS:
        raise _refuse(text, f"more than {MAX_ADDRESS} characters")
    match = _ADDRESS.fullmatch(text)
    if match is None:
        raise _refuse(text, "not host:port" if text.count(":") < 2 else "IPv6 goes in brackets")
    port = int(match["port"])
    if port > 65_535 or (port == 0 and not port_zero):
        raise _refuse(text, f"port {port} does not exist")
    host: str = match["v6"] or match["name"]
    try:
        if match["v6"]:
            ipaddress.IPv6Address(host)
        elif host.rstrip(".").rpartition(".")[2][:1].isdigit():
            # No name ends in a label that starts with a digit; resolvers would read 1.2 or 0x7f.1 in their own ways.
            ipaddress.IPv4Address(host)
    except ValueError as error:
        raise _refuse(text, str(error)) from None
    return host, port


def format_address(name: tuple[object, ...]) -> str:
    """The text form of a socket name as ``getsockname`` gives it."""
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"
