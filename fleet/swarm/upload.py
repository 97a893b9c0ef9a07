"""What a peer owes each neighbour: requests in order, across all artifacts. Sans-IO.

Every request is answered once, by its piece or by a REJECT, also when it was cancelled or its artifact is choked. What
waits of one artifact has a cap; an honest fetcher keeps to it, so going beyond is a violation. The cap is not on the
neighbour as a whole, because its downloads pace themselves one by one and know nothing of each other.
"""

from __future__ import annotations

from collections import OrderedDict
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
    """One neighbour's requests. Each step costs time by the requests it names, not by those that wait."""

    def __init__(self, peer: PeerId) -> None:
        self._peer = peer
        self._queue: OrderedDict[int, Owed] = OrderedDict()
        self._ids: dict[bytes, dict[int, None]] = {}

    def __len__(self) -> int:
        return len(self._queue)

    def request_untrusted(self, root: bytes, first_id: int, pieces: tuple[int, ...]) -> None:
        """Queue requests; none of them is queued when it raises.

        ``PeerViolation`` when more than ``MAX_REQUESTS_PER_LINK`` of this artifact would wait, or when a request with
        one of these ids still waits.
        """
        if len(self._ids.get(root, ())) + len(pieces) > MAX_REQUESTS_PER_LINK:
            raise PeerViolation(f"more than {MAX_REQUESTS_PER_LINK} requests waiting", self._peer)
        owed = [Owed((first_id + number) % 2**32, root, piece) for number, piece in enumerate(pieces)]
        for request in owed:
            if request.request_id in self._queue:
                raise PeerViolation(f"a second request {request.request_id} while the first waits", self._peer)
        for request in owed:
            self._queue[request.request_id] = request
            self._ids.setdefault(root, {})[request.request_id] = None

    def next(self) -> Owed | None:
        """Take the oldest request off the queue."""
        return self._take(next(iter(self._queue))) if self._queue else None

    def _take(self, request_id: int) -> Owed:
        owed = self._queue.pop(request_id)
        ids = self._ids[owed.root]
        del ids[request_id]
        if not ids:
            del self._ids[owed.root]
        return owed

    def cancel(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Take these requests off the queue; returns the ids that were waiting, to be REJECTed."""
        return tuple(self._take(request_id).request_id for request_id in ids if request_id in self._queue)

    def drop(self, root: bytes) -> tuple[int, ...]:
        """Take every request for an artifact off the queue; returns their ids, to be REJECTed."""
        return self.cancel(tuple(self._ids.get(root, ())))
