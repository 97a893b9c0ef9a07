"""Every test here that takes ``binding`` runs once for each entry of ``BINDINGS``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from fleet.net.tcp import TcpBinding
from fleet.net.tls import TlsBinding

if TYPE_CHECKING:
    from fleet.net.link import Binding

BINDINGS: dict[str, Callable[[], Binding]] = {
    "tcp": TcpBinding,
    "tls": TlsBinding,
}


@pytest.fixture(params=list(BINDINGS))
def binding(request: pytest.FixtureRequest) -> Binding:
    return BINDINGS[request.param]()


@pytest.fixture(autouse=True)
def no_descriptor_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """What a test of links opened, it has closed: nothing waits for the garbage collector."""
    before = set(os.listdir("/proc/self/fd"))
    yield
    if "binding" in request.fixturenames:
        assert set(os.listdir("/proc/self/fd")) <= before
