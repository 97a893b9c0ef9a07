"""The history's hash: equal for equal histories, different for any other."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from fleet.sim.history import Event, History
from fleet.sim.runtime import run

if TYPE_CHECKING:
    from fleet.trace import Field

fields = st.dictionaries(
    st.from_regex(r"[a-z]{1,8}", fullmatch=True).filter(lambda name: name not in ("kind", "peer", "time", "self")),
    st.one_of(st.text(max_size=8), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none()),
    max_size=4,
)
events = st.tuples(st.floats(0, 1e6), st.text(max_size=4), st.text(max_size=4), fields)


def digest_of(happened: Sequence[tuple[float, str, str, dict[str, Field]]]) -> str:
    history = History()
    for time, peer, kind, values in happened:
        history.emit(time, peer, kind, **values)
    assert history.count == len(happened)
    return history.digest


@given(st.lists(events, max_size=6), st.lists(events, max_size=6))
def test_digests_are_equal_exactly_when_the_histories_are(
    one: list[tuple[float, str, str, dict[str, Field]]], other: list[tuple[float, str, str, dict[str, Field]]]
) -> None:
    assert digest_of(one) == digest_of(one)
    assert (digest_of(one) == digest_of(other)) == (repr(one) == repr(other))


def test_equal_texts_hash_equally_whether_or_not_they_are_one_object() -> None:
    name = "peer-1"
    copy = "".join(["peer", "-1"])
    assert copy is not name
    assert digest_of([(0.0, name, name, {"to": name})]) == digest_of([(0.0, copy, name, {"to": copy})])


def test_the_digest_can_be_read_at_any_time_and_covers_long_histories() -> None:
    read, unread = History(), History()
    for number in range(5_000):
        for history in (read, unread):
            history.emit(number / 7, "peer-1", "deliver", bytes=number)
        if number % 100 == 0:
            assert len(read.digest) == 64
    assert read.digest == unread.digest
    read.emit(0.0, "peer-1", "deliver", bytes=0)
    assert read.digest != unread.digest


def test_values_of_other_types_are_hashed_and_never_raise() -> None:
    class Colour(enum.StrEnum):
        RED = "red"

    def digest(value: object) -> str:
        history = History()
        history.emit(0.0, "a", "b", value=value)  # type: ignore[arg-type]
        return history.digest

    assert digest(Colour.RED) == digest(Colour.RED)
    assert digest(np.int64(3)) == digest(np.int64(3)) != digest(np.int64(4))


def test_the_sink_gets_every_event_numbered() -> None:
    seen: list[Event] = []
    history = History(seen.append)
    history.record("start", "peer-1")
    history.emit(2.5, "peer-2", "send", bytes=3, to="peer-1")
    assert seen == [
        Event(0, 0.0, "peer-1", "start", ()),
        Event(1, 2.5, "peer-2", "send", (("bytes", 3), ("to", "peer-1"))),
    ]
    silent = History()
    silent.record("start", "peer-1")
    silent.emit(2.5, "peer-2", "send", bytes=3, to="peer-1")
    assert silent.digest == history.digest


def test_record_takes_virtual_time() -> None:
    seen: list[Event] = []
    history = History(seen.append)

    async def main() -> None:
        await trio.sleep(1.5)
        history.record("awake", "")

    run(main, seed=0, history=history)
    assert [(event.kind, event.time) for event in seen] == [("timer", 1.5), ("awake", 1.5)]


def test_an_event_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Event(0, 0.0, "", "", ()).time = 1.0  # type: ignore[misc]
