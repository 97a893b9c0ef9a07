"""What a simulated run forbids: real sockets, threads, processes, sleep, wall clocks and unseeded chance.

While a run is on, the functions that reach for these are replaced by ones that look at who calls, and put back when it
ends, so nothing else pays. A call is an error, ``LocalMisuse`` naming the call site, when it comes from the code under
simulation: ``fleet``, ``stress``, or any file outside of the standard library and site-packages.

- A library between that code and the forbidden thing does not excuse it: ``uuid.uuid4()`` reaches ``os.urandom``.
- Clocks are the exception: a library may read them for itself (``logging`` stamps its records), so only who reads one
  directly is stopped. Code that reports the simulation's real speed calls ``real_seconds``.
- What runs while a module is imported, in another thread, or in trio's own loop is let through.

The first violation is kept, and the run raises it even when the code under simulation swallowed it. Not seen: calls
from C code, ``datetime.now``, and functions captured as a default argument before the run.
"""

from __future__ import annotations

import _thread
import functools
import os
import random
import site
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from fleet.errors import LocalMisuse

if TYPE_CHECKING:
    from types import CodeType, FrameType, ModuleType

real_seconds = time.perf_counter
"""Real seconds from some start: how fast a simulation runs is measured with this, and nothing inside one may depend on
it. A simulated run lets it through."""

_MISSING: Final = object()


class Patches:
    """Attributes replaced for a while. ``undo`` puts back what was there, last first."""

    def __init__(self) -> None:
        self._undo: list[tuple[Any, str, object]] = []

    def replace(self, owner: object, name: str, value: object) -> None:
        """Set an attribute of a module, class or object that has one of that name."""
        if not hasattr(owner, name):
            where = getattr(owner, "__name__", repr(owner))
            raise LocalMisuse(f"{where} has no {name} any more: install the version of trio that pyproject.toml names")
        self.add(owner, name, value)

    def add(self, owner: object, name: str, value: object) -> None:
        """Set an attribute that need not exist yet."""
        self._undo.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back."""
        while self._undo:
            owner, name, old = self._undo.pop()
            if old is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, old)


@dataclass(frozen=True, slots=True)
class Rule:
    """One forbidden thing: what the message calls it, what to use instead, and whether a library's own use is fine."""

    what: str
    instead: str
    direct: bool = False


_CLOCK = Rule("reads a real clock", "use trio.current_time(); fleet.sim.guard.real_seconds() to report speed", True)
_SLEEP = Rule("sleeps on real time", "use await trio.sleep()")
_THREAD = Rule("starts a thread", "pass fleet.sim.runtime.inline as the off-loop executor")
SOCKET: Final = Rule("uses a real socket or file descriptor", "use the network's binding")
_PROCESS = Rule("starts a process", "start a host of the simulated network")
_CHANCE = Rule("draws unseeded chance", "use the random.Random handed in, or the environment's entropy")
_UNSEEDED = Rule("makes a source of chance without a seed", "pass random.Random a seed", True)

_FUNCTIONS: Final[tuple[tuple[ModuleType, str, Rule], ...]] = (
    (time, "time", _CLOCK),
    (time, "time_ns", _CLOCK),
    (time, "monotonic", _CLOCK),
    (time, "monotonic_ns", _CLOCK),
    (time, "perf_counter", _CLOCK),
    (time, "perf_counter_ns", _CLOCK),
    (time, "process_time", _CLOCK),
    (time, "process_time_ns", _CLOCK),
    (time, "sleep", _SLEEP),
    (_thread, "start_new_thread", _THREAD),
    (os, "fork", _PROCESS),
    (os, "system", _PROCESS),
    (os, "posix_spawn", _PROCESS),
    (os, "posix_spawnp", _PROCESS),
    (os, "urandom", _CHANCE),
    (os, "getrandom", _CHANCE),
    (random, "_urandom", _CHANCE),  # what secrets and SystemRandom draw from, however they were imported
    (random, "random", _CHANCE),
    (random, "getrandbits", _CHANCE),
    (uuid, "uuid1", _CHANCE),
    (socket, "socketpair", SOCKET),  # makes both ends before it makes socket objects of them
)

_METHODS: Final[tuple[tuple[type, str, Rule], ...]] = (
    (threading.Thread, "start", _THREAD),
    (socket.socket, "__init__", SOCKET),
    (subprocess.Popen, "__init__", _PROCESS),
)

# Every other function of the random module is a method of this object, and draws from one of these.
_GLOBAL_RANDOM: Final[random.Random] = random._inst
_DRAWS: Final = ("random", "getrandbits", "_randbelow")

_LIBRARY: Final = tuple(
    sorted(
        {
            os.path.join(path, "")
            for path in (
                os.path.dirname(os.__file__),
                *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
                *site.getsitepackages(),
                site.getusersitepackages(),
            )
        }
    )
)


_MACHINERY: Final = ("fleet.sim.guard", "fleet.sim.loop", "fleet.sim.runtime", "fleet.sim.watchdog")
"""What carries the simulation is nobody's code under it."""


@functools.cache
def _is_library_file(filename: str) -> bool:
    return filename.startswith(("<", *_LIBRARY))


def is_library(frame: FrameType) -> bool:
    """Whether the frame belongs to the standard library or an installed package, and not to what is simulated."""
    module = frame.f_globals.get("__name__", "")
    if module in _MACHINERY:
        return True
    if module == "__main__" or module.partition(".")[0] in ("fleet", "stress"):
        return False
    return _is_library_file(frame.f_code.co_filename)


def place(frame: FrameType) -> str:
    """Where a frame is, for people: ``file:line in function``."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


class Guard:
    """The watch over one run. ``violation`` is the first one."""

    def __init__(self, runner: CodeType) -> None:
        self._runner = runner
        self._thread = threading.get_ident()
        self.violation: LocalMisuse | None = None

    def check(self, rule: Rule) -> None:
        """Raise ``LocalMisuse`` when the code under simulation is what called the caller's caller."""
        if threading.get_ident() != self._thread:
            return
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            code = frame.f_code
            if code is self._runner or code.co_filename.startswith("<frozen importlib"):
                return
            if not is_library(frame):
                self.refuse(rule, frame)
            if rule.direct and code.co_filename != random.__file__:
                return
            frame = frame.f_back

    def refuse(self, rule: Rule, frame: FrameType) -> None:
        """Raise the ``LocalMisuse`` that blames ``frame``."""
        error = LocalMisuse(f"{place(frame)} {rule.what} in a simulated run: {rule.instead}")
        if self.violation is None:
            self.violation = error
        raise error


class _Watch:
    """Which guard is on. A replaced function that somebody kept does what it always did once none is."""

    guard: Guard | None = None


def _checked(rule: Rule, real: Any, /, *args: Any, **kwargs: Any) -> Any:
    if _Watch.guard is not None:
        _Watch.guard.check(rule)
    return real(*args, **kwargs)


def checked_method(rule: Rule, real: Any) -> Any:
    """A method that does what ``real`` does, for whom the rule allows it."""

    @functools.wraps(real)
    def method(*args: Any, **kwargs: Any) -> Any:
        if _Watch.guard is not None:
            _Watch.guard.check(rule)
        return real(*args, **kwargs)

    return method


# Partial objects do not become methods when somebody keeps one in a class, just as the functions they stand for.
_CHECKED: Final = [
    (owner, name, functools.partial(_checked, rule, getattr(owner, name)))
    for owner, name, rule in _FUNCTIONS
    if hasattr(owner, name)
]
_CHECKED_METHODS: Final = [(owner, name, checked_method(rule, getattr(owner, name))) for owner, name, rule in _METHODS]
_CHECKED_DRAWS: Final = [(name, functools.partial(_checked, _CHANCE, getattr(_GLOBAL_RANDOM, name))) for name in _DRAWS]
_BY_ID: Final = {id(partial.args[1]): partial for _, _, partial in _CHECKED}
THREAD: Final = _THREAD


def refuse(rule: Rule) -> None:
    """Raise ``LocalMisuse`` for the caller's caller, who did what no run allows."""
    if _Watch.guard is not None:
        _Watch.guard.check(rule)
    raise LocalMisuse(f"{rule.what} in a simulated run: {rule.instead}")


def _seed(self: random.Random, a: Any = None, version: int = 2, *, _real: Any = random.Random.seed) -> None:
    if a is None and _Watch.guard is not None:
        _Watch.guard.check(_UNSEEDED)
    _real(self, a, version)


def _own_modules() -> list[ModuleType]:
    """The modules under simulation, which may have imported a forbidden function by its name."""
    return [
        module
        for name, module in list(sys.modules.items())
        if (name.partition(".")[0] in ("fleet", "stress", "__main__") or not _is_library_module(module))
        and module is not sys.modules[__name__]
    ]


def _is_library_module(module: ModuleType) -> bool:
    filename = getattr(module, "__file__", None)
    return not isinstance(filename, str) or _is_library_file(filename)


@contextmanager
def guarding(runner: CodeType) -> Iterator[Guard]:
    """Forbid while the context is open. ``runner`` is the code of the function that runs the loop: whoever called it
    is outside of the run."""
    patches = Patches()
    try:
        for owner, name, checked in (*_CHECKED, *_CHECKED_METHODS):
            patches.add(owner, name, checked)
        for name, checked in _CHECKED_DRAWS:
            patches.add(_GLOBAL_RANDOM, name, checked)
        patches.add(random.Random, "seed", _seed)
        for module in _own_modules():
            for name, value in list(vars(module).items()):
                if id(value) in _BY_ID:
                    patches.add(module, name, _BY_ID[id(value)])
        _Watch.guard = Guard(runner)
        yield _Watch.guard
    finally:
        _Watch.guard = None
        patches.undo()
