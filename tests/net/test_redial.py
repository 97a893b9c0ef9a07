"""When lost neighbours are dialled again: pauses, what resets them, and who is left alone."""

from __future__ import annotations

import random

import pytest

from fleet.identity.keys import PeerId
from fleet.net.redial import FIRST_SECONDS, LONGEST_SECONDS, STEADY_SECONDS, Redial, Redials

A, B = PeerId(b"a" * 32), PeerId(b"b" * 32)
NOBODY: frozenset[PeerId] = frozenset()


def lost(*peers: PeerId, seed: int = 1) -> Redials:
    """Kept since 0.0, without a link."""
    redials = Redials(random.Random(seed))
    for peer in peers:
        redials.keep(peer, "there:1", 0.0, up=False)
    return redials


def pauses(redials: Redials, count: int) -> list[float]:
    """The pauses before so many dials that all fail at once."""
    now, found = 0.0, []
    for number in range(1, count + 1):
        due = redials.next_due()
        assert redials.take_due(due - 0.001, NOBODY) == []
        assert redials.take_due(due, NOBODY) == [Redial(A, "there:1", number)]
        assert redials.next_due() == float("inf")  # while it is being dialled
        found.append(due - now)
        now = due
        redials.dialled(A, now)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_pauses_double_up_to_the_longest_and_each_is_from_its_upper_half(seed: int) -> None:
    bound = FIRST_SECONDS
    for pause in pauses(lost(A, seed=seed), 40):
        assert bound / 2 <= pause <= bound
        bound = min(LONGEST_SECONDS, bound * 2)


def test_pauses_are_decided_by_the_seed() -> None:
    assert pauses(lost(A, seed=1), 5) == pauses(lost(A, seed=1), 5) != pauses(lost(A, seed=2), 5)


@pytest.mark.parametrize(("lived", "attempt"), [(STEADY_SECONDS, 1), (STEADY_SECONDS - 0.1, 5)])
def test_only_a_link_that_lived_a_while_starts_anew(lived: float, attempt: int) -> None:
    redials = lost(A)
    now = sum(pauses(redials, 4))
    redials.up(A, "", now)
    assert redials.next_due() == float("inf")
    redials.down(A, now + lived)
    due = redials.next_due()
    assert due - now - lived <= FIRST_SECONDS * 2 ** (attempt - 1)
    assert redials.take_due(due, NOBODY) == [Redial(A, "there:1", attempt)]


def test_the_last_hellos_address_and_the_one_it_was_kept_at_are_dialled_in_turn() -> None:
    """What a peer says of itself may be wrong: the fleet must not lose it for that."""
    redials = lost(A)
    redials.up(A, "elsewhere:2", 1.0)
    redials.keep(A, "there:3", 2.0, up=True)
    redials.down(A, 3.0)
    dialled = []
    for _ in range(4):
        due = redials.next_due()
        (redial,) = redials.take_due(due, NOBODY)
        dialled.append(redial.address)
        redials.dialled(A, due)
    assert dialled == ["elsewhere:2", "there:3"] * 2


def test_who_is_banned_is_not_dialled_and_keeps_nobody_busy() -> None:
    redials = lost(A, B)
    assert [redial.peer for redial in redials.take_due(1.0, {A})] == [B]
    assert redials.next_due() == 1.0 + LONGEST_SECONDS
    assert [redial.peer for redial in redials.take_due(20.0, NOBODY)] == [A]


def test_nobody_is_dialled_twice_at_once() -> None:
    redials = lost(A)
    assert len(redials.take_due(1.0, NOBODY)) == 1
    redials.keep(A, "there:1", 2.0, up=False)
    redials.up(A, "there:1", 3.0)  # it has dialled meanwhile
    redials.down(A, 4.0)
    assert redials.take_due(100.0, NOBODY) == []
    redials.dialled(A, 100.0)
    assert len(redials.take_due(110.0, NOBODY)) == 1


def test_who_is_up_let_go_or_was_never_kept_is_not_dialled() -> None:
    redials = lost(A, B)
    redials.let_go(A)
    redials.let_go(A)
    redials.up(B, "there:1", 0.1)
    for event in (redials.dialled, redials.down):
        event(A, 1.0)
    redials.dialled(B, 1.0)
    redials.up(A, "there:1", 1.0)
    assert redials.take_due(100.0, NOBODY) == []
    assert A not in redials
    assert B in redials


def test_a_neighbour_that_is_up_when_it_is_kept() -> None:
    redials = Redials(random.Random(1))
    redials.keep(A, "there:1", 0.0, up=True)
    assert redials.next_due() == float("inf")
    redials.keep(A, "there:1", 1.0, up=True)
    redials.down(A, 2.0)
    redials.down(A, 3.0)  # a newer link that never came up
    assert redials.take_due(2.0 + FIRST_SECONDS, NOBODY) == [Redial(A, "there:1", 1)]
