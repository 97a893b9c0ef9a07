"""What a peer owes each neighbour: requests in order, across all artifacts. Sans-IO.

Every request is answered once, by its piece or by a REJECT, also when it was cancelled or its artifact is choked. The
queue of a neighbour has a cap; an honest fetcher keeps to it, so going beyond is a violation.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fleet.errors import PeerViolation
from fleet.limits import MAX_REQUESTS_PER_LINK

if TYPE_CHECKING:
    from fleet.identity.keys import PeerId


@dataclass(frozen=True, slots=True)
class Owed:
    """One piece to send."""

    request_id: int
    root: bytes
    piece: int


class UploadQueue:
    """One neighbour's requests."""

    def __init__(self, peer: PeerId) -> None:
        self._peer = peer
        self._queue: deque[Owed] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def request_untrusted(self, root: bytes, first_id: int, pieces: tuple[int, ...]) -> None:
        """Queue requests; ``PeerViolation`` when more than ``MAX_REQUESTS_PER_LINK`` would wait."""
        if len(self._queue) + len(pieces) > MAX_REQUESTS_PER_LINK:
            raise PeerViolation(f"more than {MAX_REQUESTS_PER_LINK} requests waiting", self._peer)
        for number, piece in enumerate(pieces):
            self._queue.append(Owed((first_id + number) % 2**32, root, piece))

    def next(self) -> Owed | None:
        """Take the oldest request off the queue."""
        return self._queue.popleft() if self._queue else None

    def cancel(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Take these requests off the queue; returns the ids that were waiting, to be REJECTed."""
        unwanted = set(ids)
        found = tuple(owed.request_id for owed in self._queue if owed.request_id in unwanted)
        if found:
            self._queue = deque(owed for owed in self._queue if owed.request_id not in unwanted)
        return found

    def drop(self, root: bytes) -> tuple[int, ...]:
        """Take every request for an artifact off the queue; returns their ids, to be REJECTed."""
        return self.cancel(tuple(owed.request_id for owed in self._queue if owed.root == root))
