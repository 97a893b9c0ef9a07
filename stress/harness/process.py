"""What this process uses and may use: CPU seconds, memory and open files, as the kernel counts them."""

from __future__ import annotations

import resource
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
