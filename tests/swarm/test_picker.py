"""The picker against a model that does everything the slow way, after any sequence of events."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fleet.swarm.picker import Picker

PIECES = 4
SOURCES = range(4)
Pieces = st.sets(st.integers(0, PIECES - 1))


def mask(pieces: set[int], count: int = PIECES) -> np.ndarray:
    have = np.zeros(count, np.bool_)
    have[sorted(pieces)] = True
    return have


class AgainstTheModel(RuleBasedStateMachine):
    """The model keeps each source's offers as a set and computes rarity, fullness and choice from scratch."""

    @initialize(have=Pieces, seed=st.integers(0, 5))
    def start(self, have: set[int], seed: int) -> None:
        self.picker = Picker(mask(have), random.Random(seed))
        ties = list(range(PIECES))
        random.Random(seed).shuffle(ties)
        self.ties = dict(enumerate(ties))
        self.missing = set(range(PIECES)) - have
        self.wanted = set(self.missing)
        self.offers: dict[int, set[int]] = {}
        self.full: set[int] = set()
        self.usable: dict[int, bool] = {}

    @rule(source=st.sampled_from(SOURCES), pieces=Pieces | st.just(set(range(PIECES))), usable=st.booleans())
    def set_source(self, source: int, pieces: set[int], usable: bool) -> None:
        self.picker.set_source(source, mask(pieces), usable=usable)
        self.offers[source] = set(pieces)
        self.usable[source] = usable
        self.full.discard(source)
        if len(pieces) == PIECES:
            self.full.add(source)

    @rule(source=st.sampled_from(SOURCES))
    def remove_source(self, source: int) -> None:
        self.picker.remove_source(source)
        self.offers.pop(source, None)
        self.usable.pop(source, None)
        self.full.discard(source)

    @rule(source=st.sampled_from(SOURCES), usable=st.booleans())
    def set_usable(self, source: int, usable: bool) -> None:
        if source in self.offers:
            self.picker.set_usable(source, usable)
            self.usable[source] = usable

    @rule(source=st.sampled_from(SOURCES), pieces=st.lists(st.integers(0, PIECES - 1), min_size=1))
    def add_offers(self, source: int, pieces: list[int]) -> None:
        if source in self.offers:
            self.picker.add_offers(source, tuple(pieces))
            self.offers[source] |= set(pieces)
            if len(self.offers[source]) == PIECES:
                self.full.add(source)

    @rule(source=st.sampled_from(SOURCES), piece=st.integers(0, PIECES - 1))
    def withdraw_offer(self, source: int, piece: int) -> None:
        if source in self.offers:
            self.picker.withdraw_offer(source, piece)
            self.offers[source].discard(piece)

    @rule(piece=st.integers(0, PIECES - 1))
    def asked(self, piece: int) -> None:
        self.picker.asked(piece)
        self.wanted.discard(piece)

    @rule(piece=st.integers(0, PIECES - 1))
    def is_wanted(self, piece: int) -> None:
        self.picker.wanted(piece)
        if piece in self.missing:
            self.wanted.add(piece)

    @rule(piece=st.integers(0, PIECES - 1))
    def verified(self, piece: int) -> None:
        self.picker.verified(piece)
        self.missing.discard(piece)
        self.wanted.discard(piece)

    def availability(self, piece: int) -> int:
        return sum(piece in offers for offers in self.offers.values())

    def choice(self, source: int, count: int, also_common: bool) -> list[int]:
        spared = {
            piece
            for other, offers in self.offers.items()
            if self.usable[other] and other not in self.full
            for piece in offers
        }
        candidates = self.wanted & self.offers[source]
        if source in self.full and not also_common:
            candidates -= spared
        return sorted(candidates, key=lambda piece: (self.availability(piece), self.ties[piece]))[:count]

    @invariant()
    def the_choice_is_the_models(self) -> None:
        for source in self.offers:
            for also_common in (False, True):
                for count in (1, 3, PIECES):
                    expected = self.choice(source, count, also_common)
                    assert self.picker.choose(source, count, also_common=also_common) == expected

    @invariant()
    def the_rest_is_the_models(self) -> None:
        assert self.picker.nowhere() == sorted(p for p in self.missing if not self.availability(p))
        assert self.picker.complete == (not self.missing)
        assert self.picker.all_asked() == (not self.wanted)
        for source, offers in self.offers.items():
            assert self.picker.is_full(source) == (source in self.full)
            assert [self.picker.offers(source, p) for p in range(PIECES)] == [p in offers for p in range(PIECES)]
        assert [self.picker.is_missing(p) for p in range(PIECES)] == [p in self.missing for p in range(PIECES)]


TestAgainstTheModel = AgainstTheModel.TestCase
TestAgainstTheModel.settings = settings(max_examples=150, stateful_step_count=30)


def picker_of(seed: int, pieces: int = 100) -> Picker:
    return Picker(np.zeros(pieces, np.bool_), random.Random(seed))


def test_the_rarest_first() -> None:
    picker = picker_of(1, 4)
    picker.set_source(1, mask({0, 1, 2}, 4), usable=True)
    picker.set_source(2, mask({0, 1}, 4), usable=True)
    picker.set_source(3, mask({0}, 4), usable=True)
    assert picker.choose(1, 3, also_common=False) == [2, 1, 0]


def test_one_seed_decides_the_order_and_another_gives_another() -> None:
    orders = []
    for seed in (1, 1, 2):
        picker = picker_of(seed)
        picker.set_source(1, np.ones(100, np.bool_), usable=True)
        orders.append(picker.choose(1, 100, also_common=False))
        assert sorted(orders[-1]) == list(range(100))
        assert picker.choose(1, 5, also_common=False) == orders[-1][:5]
    assert orders[0] == orders[1] != orders[2]


def test_a_full_source_is_spared_what_a_usable_partial_one_offers() -> None:
    picker = picker_of(1, 4)
    picker.set_source(1, np.ones(4, np.bool_), usable=True)
    picker.set_source(2, mask({0, 1, 2}, 4), usable=True)
    assert picker.choose(1, 4, also_common=False) == [3]
    assert len(picker.choose(1, 4, also_common=True)) == 4
    picker.set_usable(2, False)
    assert len(picker.choose(1, 4, also_common=False)) == 4


def test_a_full_source_that_refuses_one_piece_stays_full() -> None:
    """Counted as partial, it would keep every other full source idle."""
    picker = picker_of(1, 4)
    picker.set_source(1, np.ones(4, np.bool_), usable=True)
    picker.set_source(2, np.ones(4, np.bool_), usable=True)
    picker.withdraw_offer(1, 0)
    assert picker.is_full(1)
    assert len(picker.choose(2, 4, also_common=False)) == 4
    assert 0 not in picker.choose(1, 4, also_common=False)
    picker.add_offers(1, (0,))
    assert len(picker.choose(1, 4, also_common=False)) == 4


def test_what_was_handed_in_is_copied() -> None:
    have, offers = np.zeros(3, np.bool_), np.ones(3, np.bool_)
    picker = Picker(have, random.Random(0))
    picker.set_source(1, offers, usable=True)
    have[:] = True
    offers[:] = False
    assert len(picker.choose(1, 3, also_common=False)) == 3


@pytest.mark.parametrize("pieces", [0, 1])
def test_the_smallest_artifacts(pieces: int) -> None:
    picker = picker_of(1, pieces)
    picker.set_source(1, np.ones(pieces, np.bool_), usable=True)
    assert picker.choose(1, 9, also_common=False) == list(range(pieces))
    assert picker.complete == (pieces == 0)
    assert picker.nowhere() == []
