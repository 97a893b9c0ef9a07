"""News of pieces waits for company, but never for longer than it may."""

from __future__ import annotations

from math import inf

import pytest

from fleet.identity.keys import PeerId
from fleet.swarm.news import HAVE_FRACTION, HAVE_IDLE, HAVE_LAGS, HAVE_LATEST, HAVE_SOONEST, News

ALICE, BOB = PeerId(bytes(32)), PeerId(b"\1" * 32)
ROOT, OTHER = bytes(32), b"\1" * 32


@pytest.mark.parametrize(
    ("age", "busy", "patience"),
    [
        (0.0, False, HAVE_SOONEST),
        (HAVE_SOONEST / HAVE_FRACTION, False, HAVE_SOONEST),
        (0.4, False, 0.4 * HAVE_FRACTION),
        (1e6, False, HAVE_LATEST),
        (0.0, True, HAVE_LATEST),
    ],
)
def test_how_long_news_waits(age: float, busy: bool, patience: float) -> None:
    news = News()
    assert news.add(ALICE, ROOT, 1, 10.0, age=age, busy=busy, lag=inf) == pytest.approx(10.0 + patience)
    assert news.next_deadline() == pytest.approx(10.0 + patience)


@pytest.mark.parametrize(
    ("lag", "patience"),
    [
        (0.0, HAVE_IDLE),
        (HAVE_IDLE / HAVE_LAGS / 2, HAVE_IDLE),
        (HAVE_SOONEST / HAVE_LAGS, HAVE_SOONEST),
        (1.0, HAVE_LATEST),
    ],
)
def test_news_waits_little_where_the_processor_is_idle(lag: float, patience: float) -> None:
    news = News()
    assert news.add(ALICE, ROOT, 1, 10.0, age=1e6, busy=True, lag=lag) == pytest.approx(10.0 + patience)


def test_that_the_manifest_is_here_is_news_without_pieces() -> None:
    news = News()
    due = news.add(ALICE, ROOT, None, 10.0, age=0.0, busy=False, lag=inf)
    assert news.overdue(due) == [ALICE]
    assert news.take(ALICE) == {ROOT: []}
    news.add(ALICE, ROOT, None, 10.0, age=0.0, busy=False, lag=inf)
    news.add(ALICE, ROOT, 3, 10.0, age=0.0, busy=False, lag=inf)
    assert news.take(ALICE) == {ROOT: [3]}


def test_the_first_piece_decides_when_and_all_travel_together() -> None:
    news = News()
    due = news.add(ALICE, ROOT, 1, 10.0, age=0.0, busy=False, lag=inf)
    assert news.add(ALICE, ROOT, 2, 10.005, age=0.0, busy=True, lag=inf) == due
    assert news.add(ALICE, OTHER, 3, 10.005, age=0.0, busy=True, lag=inf) == due
    assert news.overdue(due - 1e-6) == []
    assert news.overdue(due) == [ALICE]
    assert news.overdue(due) == []  # named once
    assert news.take(ALICE) == {ROOT: [1, 2], OTHER: [3]}
    assert news.take(ALICE) == {}
    assert news.next_deadline() == float("inf")


def test_neighbours_and_artifacts_are_forgotten_alone() -> None:
    news = News()
    for peer in (ALICE, BOB):
        for root in (ROOT, OTHER):
            news.add(peer, root, 1, 10.0, age=0.0, busy=False, lag=inf)
    news.forget_artifact(ROOT)
    news.forget_neighbour(ALICE)
    assert news.overdue(1e9) == [BOB]
    assert news.take(BOB) == {OTHER: [1]}
