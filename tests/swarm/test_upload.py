"""Upload queues: each request is answered exactly once, and no more than the cap can wait."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fleet.errors import PeerViolation
from fleet.limits import MAX_ARTIFACTS, MAX_REQUESTS_PER_LINK
from fleet.swarm.upload import Owed, UploadQueue
from tests.helpers.pair import LOW

ROOTS = [bytes([n]) * 32 for n in range(3)]
ROOT = ROOTS[0]
PEER = LOW.peer_id


def drained(queue: UploadQueue) -> list[Owed]:
    owed = []
    while (following := queue.next()) is not None:
        owed.append(following)
    return owed


def test_requests_are_served_in_order_across_artifacts() -> None:
    queue = UploadQueue(PEER)
    queue.request_untrusted(ROOTS[0], 10, (5, 3))
    queue.request_untrusted(ROOTS[1], 12, (5,))
    queue.request_untrusted(ROOTS[0], 2, (7,))
    assert len(queue) == 4
    expected = [Owed(10, ROOTS[0], 5), Owed(11, ROOTS[0], 3), Owed(12, ROOTS[1], 5), Owed(2, ROOTS[0], 7)]
    assert drained(queue) == expected
    assert len(queue) == 0


def test_ids_wrap_at_2_to_the_32() -> None:
    queue = UploadQueue(PEER)
    queue.request_untrusted(ROOT, 2**32 - 2, (0, 1, 2, 3))
    assert queue.cancel((1,)) == (1,)
    assert [owed.request_id for owed in drained(queue)] == [2**32 - 2, 2**32 - 1, 0]


@pytest.mark.parametrize("step", [1, MAX_REQUESTS_PER_LINK])
def test_the_cap(step: int) -> None:
    queue = UploadQueue(PEER)
    for first in range(0, MAX_REQUESTS_PER_LINK, step):
        queue.request_untrusted(ROOT, first, tuple(range(step)))
    with pytest.raises(PeerViolation, match="more than 256") as caught:
        queue.request_untrusted(ROOT, 1_000, (0,))
    assert caught.value.peer == PEER
    assert len(queue) == MAX_REQUESTS_PER_LINK
    queue.next()
    queue.request_untrusted(ROOT, 1_000, (0,))
    assert drained(queue)[-1].request_id == 1_000


def test_a_batch_that_goes_beyond_the_cap_leaves_nothing_behind() -> None:
    queue = UploadQueue(PEER)
    queue.request_untrusted(ROOT, 0, (0,))
    with pytest.raises(PeerViolation):
        queue.request_untrusted(ROOT, 1, tuple(range(MAX_REQUESTS_PER_LINK)))
    assert len(queue) == 1


def test_a_neighbour_may_fetch_many_artifacts_at_once() -> None:
    """Each of its downloads keeps to its own cap and knows nothing of the others: no violation, and still bounded."""
    queue = UploadQueue(PEER)
    for number in range(MAX_ARTIFACTS):
        queue.request_untrusted(bytes([number]) * 32, number * 256, tuple(range(96)))
    assert len(queue) == MAX_ARTIFACTS * 96
    assert len(queue.drop(bytes([7]) * 32)) == 96
    assert {owed.root[0] for owed in drained(queue)} == set(range(MAX_ARTIFACTS)) - {7}


def test_one_id_for_two_waiting_requests() -> None:
    """Their answers could not be told apart."""
    queue = UploadQueue(PEER)
    queue.request_untrusted(ROOTS[0], 5, (1, 2))
    with pytest.raises(PeerViolation, match="second request 6") as caught:
        queue.request_untrusted(ROOTS[1], 6, (1,))
    assert caught.value.peer == PEER
    with pytest.raises(PeerViolation, match="second request 5"):
        queue.request_untrusted(ROOTS[0], 4, (1, 2))
    assert len(queue) == 2
    drained(queue)
    queue.request_untrusted(ROOTS[1], 6, (1,))


class AnsweredOnce(RuleBasedStateMachine):
    """Every request ends in exactly one of: taken to be sent, cancelled, dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = UploadQueue(PEER)
        self.first = 2**32 - 10
        self.waiting: list[Owed] = []

    @rule(root=st.sampled_from(ROOTS), pieces=st.lists(st.integers(0, 9), min_size=1, max_size=4))
    def request(self, root: bytes, pieces: list[int]) -> None:
        self.queue.request_untrusted(root, self.first, tuple(pieces))
        for piece in pieces:
            self.waiting.append(Owed(self.first, root, piece))
            self.first = (self.first + 1) % 2**32

    @rule()
    def next(self) -> None:
        expected = self.waiting.pop(0) if self.waiting else None
        assert self.queue.next() == expected

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.integers(0, 20) | st.integers(2**32 - 12, 2**32 - 1), max_size=5))
        answered = self.queue.cancel(tuple(ids))
        assert sorted(answered) == sorted({owed.request_id for owed in self.waiting} & set(ids))
        self.waiting = [owed for owed in self.waiting if owed.request_id not in ids]

    @rule(root=st.sampled_from(ROOTS))
    def drop(self, root: bytes) -> None:
        assert list(self.queue.drop(root)) == [owed.request_id for owed in self.waiting if owed.root == root]
        self.waiting = [owed for owed in self.waiting if owed.root != root]

    @invariant()
    def the_rest_waits(self) -> None:
        assert len(self.queue) == len(self.waiting)

    def teardown(self) -> None:
        assert drained(self.queue) == self.waiting


TestAnsweredOnce = AnsweredOnce.TestCase
TestAnsweredOnce.settings = settings(max_examples=40, stateful_step_count=30)
