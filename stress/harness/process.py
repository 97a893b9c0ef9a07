"""What this process uses and may use: CPU seconds, memory and open files, as the kernel counts them."""

from __future__ import annotations

import contextlib
import gc
import resource
from collections.abc import Iterator
from typing import Final

MIB: Final = 1024 * 1024


def cpu_seconds() -> float:
    """User and system time of the process so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def peak_rss_mib() -> float:
    """The largest resident set so far, mapped files included, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def anonymous_mib() -> float | None:
    """Resident anonymous memory now (RssAnon: heap and buffers, not files), in MiB; None without /proc."""
    try:
        with open("/proc/self/status", encoding="ascii") as status:
            for line in status:
                if line.startswith("RssAnon:"):
                    return int(line.split()[1]) / 1024
    except OSError:
        return None
    return None


def allow_open_files(count: int) -> int:
    """Let this process have ``count`` files open, as far as it may decide that; return how many it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= count:
        return count
    allowed = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if allowed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return allowed


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Keep the garbage collector from walking a fleet that is up and stays up, over and over, while it is measured.

    What lives now is left out of its passes, and they come less often; both end with the block. With 64 peers the
    passes took a tenth of the processor's time. A simulated run has put the collector off already.
    """
    if not gc.isenabled():
        yield
        return
    gc.collect()
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(20_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
