"""Writes ``events.jsonl``, and keeps each peer's last events at hand."""

from __future__ import annotations

import collections
import contextlib
import json
from pathlib import Path
from typing import Final, Self

from fleet.errors import StorageFailed
from stress.harness.report import plain

TRACE_TAIL: Final = 64
"""Events kept in memory for each peer, for the trace of one that stalls."""


class EventLog:
    """Writes ``events.jsonl``: on each line a JSON object with ``time``, ``peer``, ``kind`` and the event's own fields.

    Each peer's last 64 events stay in memory for ``tail``. The file is buffered; ``close`` writes the rest, and raises
    ``StorageFailed`` when the disk refused any of it.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", encoding="utf-8", errors="backslashreplace", buffering=1 << 20)
        self._encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False, default=str).encode
        self._tails: dict[str | int, collections.deque[str]] = {}
        self._failure: StorageFailed | None = None

    def emit(self, time: float, peer: str | int, kind: str, **fields: object) -> None:
        """Log one event of ``peer`` at ``time``, in seconds of ``trio.current_time()`` or since the run's start.

        ``peer`` is the name that progress tracks it by, so that a stalled one's trace is found.
        """
        event = {"time": time, "peer": peer, "kind": kind, **fields}
        try:
            line = self._encode(event)
        except (ValueError, TypeError):  # a NaN, or a key that is no text: rare, so only then the slow way
            line = self._encode(plain(event))
        tail = self._tails.get(peer)
        if tail is None:
            tail = self._tails[peer] = collections.deque(maxlen=TRACE_TAIL)
        tail.append(line)
        if self._failure is None:
            try:
                self._file.write(f"{line}\n")
            except OSError as error:
                self._failure = self._refused(error)  # for ``close``: the peers who emit must not break for it

    def tail(self, peer: str | int) -> list[str]:
        """The JSON lines of the last events of ``peer``, oldest first."""
        return list(self._tails.get(peer, ()))

    def flush(self) -> None:
        """Write what is buffered; what the disk refuses is told by ``close``."""
        with contextlib.suppress(OSError):
            self._file.flush()

    def close(self) -> None:
        """Write what is buffered and close the file; safe to call twice."""
        try:
            self._file.close()
        except OSError as error:
            self._failure = self._failure or self._refused(error)
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _refused(self, error: OSError) -> StorageFailed:
        reason = error.strerror or str(error)
        return StorageFailed(f"cannot write {self._file.name} ({reason}): free some space or choose another --out")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()
