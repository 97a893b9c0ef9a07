"""The simulated disk: what a crash may leave, against a model; each fault; and that its seed alone decides."""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.errors import LocalMisuse, StorageFailed
from fleet.limits import MIB
from fleet.sim.disk import Crash, Fault, Operation, SimDisk, SimFile, Speed
from fleet.sim.history import Event, History

POWER_CUTS: tuple[Crash, ...] = ("drop", "torn", "reorder")


def disk_with(data: bytes, *, synced: bool = True, rng: random.Random | None = None) -> SimDisk:
    """A disk with the file ``a``."""
    disk = SimDisk(rng=rng)
    file = disk.open("a", create=True)
    file.write(data, 0)
    if synced:
        file.sync()
    file.close()
    return disk


def files(disk: SimDisk) -> dict[str, bytes]:
    return {name: bytes(disk.contents(name)) for name in disk.names()}


def read(file: SimFile) -> bytes:
    data = bytearray(file.size())
    file.read_into(memoryview(data), 0)
    return bytes(data)


def outcomes(disk: SimDisk, how: Crash, seeds: int = 300) -> set[bytes | None]:
    """What power cuts leave of the file ``a``."""
    found = set()
    for seed in range(seeds):
        after = disk.copy(rng=random.Random(seed))
        after.crash(how)
        found.add(files(after).get("a"))
    return found


# What a crash may leave, against a model that replays changes on what is durable, where the disk undoes them

Files = dict[int, bytes]
Names = dict[str, int]


@dataclass(frozen=True)
class Write:
    file: int
    offset: int
    data: bytes
    size: int  # afterwards
    grew: bool


@dataclass(frozen=True)
class Resize:
    file: int
    before: int
    after: int


@dataclass(frozen=True)
class Name:
    name: str
    file: int | None


Change = Write | Resize | Name


def put(content: bytes, offset: int, data: bytes) -> bytes:
    return content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :] if data else content


def resized(content: bytes, before: int, after: int) -> bytes:
    return content.ljust(after, b"\0") if after > before else content[:after]


@dataclass
class State:
    files: Files = field(default_factory=dict)
    names: Names = field(default_factory=dict)

    def after(self, change: Change) -> State:
        files, names = dict(self.files), dict(self.names)
        match change:
            case Write(file, offset, data):
                files[file] = put(files.get(file, b""), offset, data)
            case Resize(file, before, after):
                files[file] = resized(files.get(file, b""), before, after)
            case Name(name, None):
                names.pop(name, None)
            case Name(name, int(file)):
                names[name] = file
        return State(files, names)

    def shown(self) -> dict[str, bytes]:
        return {name: self.files.get(file, b"") for name, file in self.names.items()}


class Model:
    def __init__(self) -> None:
        self.live = State()
        self.durable = State()
        self.unsynced: list[Change] = []
        self.made = 0

    @classmethod
    def holding(cls, content: dict[str, bytes]) -> Model:
        model = cls()
        numbers = {name: number for number, name in enumerate(content, 1)}
        model.live = model.durable = State({numbers[name]: data for name, data in content.items()}, numbers)
        model.made = len(numbers)
        return model

    def change(self, change: Change) -> None:
        self.live = self.live.after(change)
        self.unsynced.append(change)

    def opened(self, name: str) -> int:
        if name not in self.live.names:
            self.made += 1
            self.change(Name(name, self.made))
        return self.live.names[name]

    def size(self, file: int) -> int:
        return len(self.live.files.get(file, b""))

    def write(self, name: str, offset: int, data: bytes) -> None:
        file = self.opened(name)
        if data:
            end = offset + len(data)
            size = self.size(file)
            self.change(Write(file, offset, data, max(size, end), end > size))

    def resize(self, name: str, size: int, *, only_up: bool) -> None:
        file = self.opened(name)
        before = self.size(file)
        if size > before or (size < before and not only_up):
            self.change(Resize(file, before, size))

    def remove(self, name: str) -> None:
        if name in self.live.names:
            self.change(Name(name, None))

    def sync(self, name: str) -> None:
        file = self.opened(name)
        left: list[Change] = []
        for change in self.unsynced:
            mine = change.name == name if isinstance(change, Name) else change.file == file
            if mine:
                self.durable = self.durable.after(change)
            else:
                left.append(change)
        self.unsynced = left

    def fail_to_sync(self, name: str) -> None:
        """The bytes are gone for good, though they show; the length is still to come."""
        file = self.opened(name)
        left: list[Change] = []
        for change in self.unsynced:
            if not isinstance(change, Write) or change.file != file:
                left.append(change)
            elif change.grew:
                left.append(Resize(file, 0, change.size))
        self.unsynced = left

    # What the promise allows

    def torn_states(self) -> Iterator[dict[str, bytes]]:
        state = self.durable
        yield state.shown()
        for change in self.unsynced:
            if isinstance(change, Write):
                for length in range(len(change.data)):
                    cut = Write(change.file, change.offset, change.data[:length], 0, False)
                    yield state.after(cut).shown()
            elif isinstance(change, Resize):
                held = len(state.files.get(change.file, b""))
                low, high = sorted((held, change.after))
                for size in range(low, high + 1):
                    yield state.after(Resize(change.file, held, size)).shown()
            state = state.after(change)
            yield state.shown()

    def check_reordered(self, found: dict[str, bytes]) -> None:
        for name in ("a", "b"):
            may_be = {self.durable.names.get(name)}
            may_be |= {change.file for change in self.unsynced if isinstance(change, Name) and change.name == name}
            if name not in found:
                assert None in may_be
            else:
                assert any(file is not None and self.may_hold(file, found[name]) for file in may_be)

    def may_hold(self, file: int, content: bytes) -> bool:
        durable = self.durable.files.get(file, b"")
        changes = [change for change in self.unsynced if not isinstance(change, Name) and change.file == file]
        sizes = {len(durable)}
        for change in changes:
            if isinstance(change, Write):
                end = change.offset + len(change.data)
                # Sectors of one write arrive apart, each with what it takes of the length.
                sizes |= {change.size, end} | {at for at in range(512, end, 512) if at > change.offset}
            else:
                sizes.add(change.after)
        if len(content) not in sizes:
            return False
        for at, byte in enumerate(content):
            allowed = {durable[at] if at < len(durable) else 0}
            for change in changes:
                if isinstance(change, Write):
                    if change.offset <= at < change.offset + len(change.data):
                        allowed.add(change.data[at - change.offset])
                elif change.after <= at:
                    allowed.add(0)  # cut off, and grown again
            if byte not in allowed:
                return False
        return True


NAMES = st.sampled_from(["a", "b"])
PLACES = st.one_of(st.integers(0, 20), st.integers(500, 515))
STEPS = st.one_of(
    st.tuples(st.just("write"), NAMES, PLACES, st.binary(max_size=20)),
    st.tuples(st.just("truncate"), NAMES, PLACES),
    st.tuples(st.just("allocate"), NAMES, PLACES),
    st.tuples(st.sampled_from(["sync", "sync", "fail_to_sync", "remove"]), NAMES),
)


def perform(disk: SimDisk, model: Model, step: tuple[Any, ...]) -> None:
    kind, name, *rest = step
    if kind == "remove":
        disk.remove(name)
        model.remove(name)
        return
    file = disk.open(name, create=True)
    if kind == "write":
        file.write(rest[1], rest[0])
        model.write(name, *rest)
    elif kind == "truncate":
        file.truncate(rest[0])
        model.resize(name, rest[0], only_up=False)
    elif kind == "allocate":
        file.allocate(rest[0])
        model.resize(name, rest[0], only_up=True)
    elif kind == "sync":
        file.sync()
        model.sync(name)
    else:
        disk.faults.append(Fault("sync"))
        with pytest.raises(StorageFailed):
            file.sync()
        model.fail_to_sync(name)
    file.close()


@settings(max_examples=500)
@given(st.lists(STEPS, max_size=14), st.sampled_from(get_args(Crash)), st.integers(0, 99), st.lists(STEPS, max_size=5))
def test_a_crash_leaves_what_was_promised_and_nothing_that_was_never_there(
    steps: list[tuple[Any, ...]], how: Crash, seed: int, more: list[tuple[Any, ...]]
) -> None:
    disk, model = SimDisk(rng=random.Random(seed)), Model()
    for step in steps:
        perform(disk, model, step)
        assert files(disk) == model.live.shown()
    disk.crash(how)
    found = files(disk)
    if how == "keep":
        assert found == model.live.shown()
        disk.crash("drop")  # a killed process makes nothing durable
        assert files(disk) == model.durable.shown()
    elif how == "drop":
        assert found == model.durable.shown()
    elif how == "torn":
        assert any(found == state for state in model.torn_states())
    else:
        model.check_reordered(found)
    # What a power cut left is durable, and all that the next life starts from.
    found = files(disk)
    for again in POWER_CUTS:
        disk.crash(again)
        assert files(disk) == found
    model = Model.holding(found)
    for step in more:
        perform(disk, model, step)
    disk.crash("drop")
    assert files(disk) == model.durable.shown()


def test_a_sync_speaks_for_its_own_file() -> None:
    disk = disk_with(b"old")
    one, two = disk.open("a"), disk.open("b", create=True)
    one.write(b"new", 0)
    two.write(b"new", 0)
    two.sync()
    disk.crash("drop")
    assert files(disk) == {"a": b"old", "b": b"new"}


def test_a_removal_is_durable_with_the_file_that_takes_the_name() -> None:
    disk = disk_with(b"old")
    disk.remove("a")
    after = disk.copy()
    after.crash("drop")
    assert files(after) == {"a": b"old"}
    disk.open("a", create=True).sync()
    disk.crash("drop")
    assert files(disk) == {"a": b""}


def test_syncing_a_removed_file_does_not_bring_its_name_back() -> None:
    disk = SimDisk()
    file = disk.open("a", create=True)
    disk.remove("a")
    file.sync()
    disk.crash("drop")
    assert disk.names() == []


def test_a_torn_write_stops_at_any_byte_and_nothing_comes_after_it() -> None:
    disk = disk_with(b"....")
    disk.open("a").write(b"abc", 0)
    disk.open("a").write(b"d", 3)
    assert outcomes(disk, "torn") == {b"....", b"a...", b"ab..", b"abc.", b"abcd"}


def test_a_torn_length_stops_at_any_byte() -> None:
    disk = disk_with(b"abcd")
    disk.open("a").truncate(2)
    disk.open("a").allocate(4)
    assert outcomes(disk, "torn") == {b"abcd", b"abc", b"ab", b"ab\0", b"ab\0\0"}


def test_reordering_keeps_any_part_in_any_order() -> None:
    disk = disk_with(b"....")
    disk.open("a").write(b"ab", 0)
    disk.open("a").write(b"xy", 1)
    assert outcomes(disk, "reorder") == {b"....", b"ab..", b".xy.", b"axy.", b"aby."}


def test_reordering_parts_sectors_and_lengths() -> None:
    disk = disk_with(b"")
    disk.open("a").write(b"x" * 700, 0)
    x, gap = b"x" * 512, bytes(512)
    end, nothing = b"x" * 188, bytes(188)
    assert outcomes(disk, "reorder") == {b"", gap + nothing, x, x + nothing, gap + end, x + end}
    # Sectors are the disk's, not the write's.
    disk = disk_with(b"." * 20)
    disk.open("a").write(b"x" * 4, 510)
    assert b"." * 20 + bytes(492) + b"xx" in outcomes(disk, "reorder")


def test_reordering_parts_a_name_from_its_file() -> None:
    disk = disk_with(b"new", synced=False)
    assert outcomes(disk, "reorder") == {None, b"", b"\0\0\0", b"new"}
    disk = disk_with(b"old")
    disk.remove("a")
    disk.open("a", create=True).write(b"new", 0)
    assert outcomes(disk, "reorder") == {b"old", None, b"", b"\0\0\0", b"new"}


@pytest.mark.parametrize("how", get_args(Crash))
def test_open_files_die_and_touch_nothing(how: Crash) -> None:
    disk = disk_with(b"abc")
    file = disk.open("a")
    disk.crash(how)
    again = disk.open("a")
    operations = disk.operations
    view = memoryview(bytearray(1))
    for use in (
        file.size,
        file.version,
        file.fileno,
        file.sync,
        lambda: file.write(b"x", 0),
        lambda: file.read_into(view, 0),
        lambda: file.allocate(9),
        lambda: file.truncate(0),
    ):
        with pytest.raises(StorageFailed, match="crashed"):
            use()
    file.close()
    assert file.closed
    assert disk.operations == operations
    assert disk.open_files == ["a"]
    assert read(again) == b"abc"


def test_a_process_sees_the_disk_until_it_crashes() -> None:
    disk = disk_with(b"abc")
    before = disk.mount()
    before.open("b", create=True)
    disk.crash("keep")
    after = disk.mount()
    file = after.open("a")
    uses: list[Callable[[], object]] = [
        before.names,
        lambda: before.open("c", create=True),
        lambda: before.exists("a"),
        lambda: before.remove("a"),
    ]
    for use in uses:
        with pytest.raises(StorageFailed, match="crashed"):
            use()
    before.close()
    assert after.names() == ["a", "b"]
    assert read(file) == b"abc"
    after.close()
    assert disk.open_files == []


def test_a_process_closes_its_own_files_only() -> None:
    disk = disk_with(b"abc")
    one, two = disk.mount(), disk.mount()
    one.open("a")
    file = two.open("a")
    one.close()
    assert not file.closed
    assert disk.open_files == ["a"]


def test_a_copy_has_what_is_unsynced_too_and_lives_alone() -> None:
    disk = disk_with(b"old")
    disk.open("a").write(b"new", 0)
    one, two = disk.copy(), disk.copy()
    one.crash("drop")
    two.contents("a")[:] = b"two"
    assert (files(one), files(two), files(disk)) == ({"a": b"old"}, {"a": b"two"}, {"a": b"new"})
    assert disk.open_files != []


def test_a_copy_keeps_the_order_of_changes() -> None:
    disk = disk_with(b"....")
    disk.open("a").write(b"a", 0)
    disk.open("a").write(b"b", 1)
    copy = disk.copy()
    copy.remove("a")
    assert outcomes(copy, "torn") == {b"....", b"a...", b"ab..", None}


def test_a_crash_of_a_copy_names_nothing_elsewhere() -> None:
    disk = disk_with(b"new", synced=False)
    assert b"new" in outcomes(disk, "torn")
    disk.crash("drop")
    assert disk.names() == []


# A sync that fails


@pytest.mark.parametrize("how", POWER_CUTS)
def test_what_a_failed_sync_lost_no_later_sync_makes_durable(how: Crash) -> None:
    disk = disk_with(b"old.")
    file = disk.open("a")
    file.write(b"lost", 0)
    disk.faults = [Fault("sync")]
    with pytest.raises(StorageFailed, match="input/output"):
        file.sync()
    assert read(file) == b"lost"
    file.sync()
    file.write(b"k", 1)
    file.sync()
    assert read(file) == b"lkst"
    file.write(b"gone", 0)
    disk.faults = [Fault("sync")]
    with pytest.raises(StorageFailed):
        file.sync()
    kept = disk.copy()
    kept.crash("keep")
    assert files(kept) == {"a": b"gone"}
    disk.crash(how)
    assert files(disk) == {"a": b"okd."}


def test_the_length_survives_the_bytes_that_a_failed_sync_lost() -> None:
    disk = disk_with(b"ab")
    file = disk.open("a")
    file.write(b"lost", 2)
    disk.faults = [Fault("sync")]
    with pytest.raises(StorageFailed):
        file.sync()
    unsynced = disk.copy()
    unsynced.crash("drop")
    assert files(unsynced) == {"a": b"ab"}
    file.sync()
    disk.crash("drop")
    assert files(disk) == {"a": b"ab\0\0\0\0"}


def test_a_failed_sync_that_loses_nothing_may_be_repeated() -> None:
    disk = disk_with(b"old")
    file = disk.open("a")
    file.write(b"new", 0)
    disk.faults = [Fault("sync", loses=False)]
    with pytest.raises(StorageFailed):
        file.sync()
    unsynced = disk.copy()
    unsynced.crash("drop")
    assert files(unsynced) == {"a": b"old"}
    file.sync()
    disk.crash("drop")
    assert files(disk) == {"a": b"new"}


# Other faults


def test_a_file_that_was_written_to_has_another_version() -> None:
    disk = disk_with(b"old")
    file = disk.open("a")
    before = file.version()
    read(file)
    file.sync()
    assert file.version() == before
    disk.open("a").write(b"new", 0)
    assert file.version() != before


def uses_of(disk: SimDisk) -> dict[Operation, Callable[[], object]]:
    file = disk.open("a.data", create=True)
    file.write(b"abc", 0)
    return {
        "open": lambda: disk.open("a.data"),
        "size": file.size,
        "allocate": lambda: file.allocate(9),
        "read": lambda: file.read_into(memoryview(bytearray(1)), 0),
        "write": lambda: file.write(b"xyz", 0),
        "truncate": lambda: file.truncate(1),
        "sync": file.sync,
        "remove": lambda: disk.remove("a.data"),
        "exists": lambda: disk.exists("a.data"),
        "names": disk.names,
    }


@pytest.mark.parametrize("operation", get_args(Operation))
def test_every_operation_can_fail(operation: Operation) -> None:
    disk = SimDisk()
    uses = uses_of(disk)
    disk.faults = [Fault(operation, "" if operation == "names" else ".data")]
    for other, use in uses.items():
        if other not in (operation, "remove", "truncate", "allocate", "write"):
            use()
    with pytest.raises(StorageFailed, match="input/output"):
        uses[operation]()
    assert disk.faults == []
    assert files(disk) == {"a.data": b"abc"}
    uses[operation]()


def test_a_fault_waits_for_its_file_and_its_turn() -> None:
    disk = SimDisk()
    one, two = disk.open("a.data", create=True), disk.open("b", create=True)
    disk.faults = [Fault("write", ".data", skip=1, times=2, partial=1, reason="bad sector")]
    two.write(b"b", 0)
    one.write(b"1", 0)
    for place in (1, 2):
        with pytest.raises(StorageFailed, match="bad sector"):
            one.write(b"xy", place)
    one.write(b"4", 3)
    assert files(disk) == {"a.data": b"1xx4", "b": b"b"}


def test_a_lasting_fault_ends_when_the_disk_heals() -> None:
    disk = SimDisk()
    file = disk.open("a", create=True)
    disk.faults = [Fault("size", times=None)]
    for _ in range(5):
        with pytest.raises(StorageFailed):
            file.version()
    disk.heal()
    assert file.size() == 0


@pytest.mark.parametrize("and_after", [False, True])
def test_the_nth_operation_fails(and_after: bool) -> None:
    disk = SimDisk()
    file = disk.open("a", create=True)
    disk.fail_at(2, partial=2, and_after=and_after)
    file.size()
    file.size()
    with pytest.raises(StorageFailed, match="the disk fails"):
        file.write(b"abc", 0)
    assert disk.contents("a") == b"ab"
    if and_after:
        with pytest.raises(StorageFailed):
            file.size()
        disk.heal()
    assert file.size() == 2
    assert disk.operations == (6 if and_after else 5)


def test_a_full_disk_takes_what_fits() -> None:
    disk = SimDisk(capacity=10)
    file, other = disk.open("a", create=True), disk.open("b", create=True)
    other.allocate(4)
    with pytest.raises(StorageFailed, match="full"):
        file.allocate(7)
    assert file.size() == 0
    with pytest.raises(StorageFailed, match="full"):
        file.write(b"12345678", 0)
    assert read(file) == b"123456"
    file.write(b"abcdef", 0)  # no more room needed
    with pytest.raises(StorageFailed, match="full"):
        file.write(b"x", 20)
    with pytest.raises(StorageFailed, match="full"):
        file.write(b"56789", 4)
    assert read(file) == b"abcd56"
    disk.remove("b")
    file.write(b"789", 6)
    assert read(file) == b"abcd56789"


def test_flipped_bits_are_drawn_and_there_to_stay() -> None:
    disk = disk_with(bytes(64), rng=random.Random(4))
    bits = disk.flip_bits("a", 5)
    assert len(set(bits)) == 5
    expected = bytearray(64)
    for bit in bits:
        expected[bit // 8] |= 1 << bit % 8
    assert disk.contents("a") == expected
    disk.crash("drop")
    assert disk.contents("a") == expected
    assert len(disk.flip_bits("a", 10_000)) == 512
    disk.open("empty", create=True)
    assert disk.flip_bits("empty") == []


def test_a_slow_disk_tells_what_each_operation_takes() -> None:
    told: list[float] = []
    disk = SimDisk(on_delay=told.append)
    file = disk.open("a", create=True)
    assert told == []
    disk.speed = Speed(operation_seconds=1.0, sync_seconds=10.0, bytes_per_second=2.0)
    file.write(b"abcd", 0)
    assert told == [3.0]
    read(file)
    file.sync()
    assert sum(told) == 3 + (1 + 3) + 11
    disk.heal()
    file.sync()
    assert sum(told) == 3 + (1 + 3) + 11


def test_a_full_disk_takes_no_more_until_it_has_room() -> None:
    disk = disk_with(bytes(64))
    disk.fill()
    file = disk.open("a")
    file.write(b"x", 3)
    with pytest.raises(StorageFailed, match="full"):
        file.write(b"x", 64)
    disk.capacity = None
    file.write(b"x", 64)


def test_a_wiped_disk_keeps_nothing_and_ends_its_process() -> None:
    disk = disk_with(bytes(64))
    mount = disk.mount()
    disk.wipe()
    assert disk.names() == []
    with pytest.raises(StorageFailed):
        mount.names()
    disk.crash("drop")
    assert disk.names() == []


@pytest.mark.parametrize(
    "misuse",
    [
        lambda: Fault("fly"),  # type: ignore[arg-type]
        lambda: Fault("read", skip=-1),
        lambda: Fault("read", times=0),
        lambda: Fault("write", partial=-1),
        lambda: Speed(operation_seconds=-1),
        lambda: Speed(sync_seconds=float("nan")),
        lambda: Speed(bytes_per_second=0),
        lambda: SimDisk().crash("burn"),  # type: ignore[arg-type]
        lambda: SimDisk().flip_bits("missing"),
    ],
)
def test_misuse_is_refused(misuse: Callable[[], object]) -> None:
    with pytest.raises(LocalMisuse):
        misuse()


# Chance, history and cost


def eventful(seed: int, history: History | None = None) -> tuple[dict[str, bytes], list[int], int]:
    disk = SimDisk("peer-1", history=history, rng=random.Random(seed))
    for name in ("b", "a", "c"):
        disk.open(name, create=True).write(name.encode() * 2_000, 0)
    disk.crash("reorder")
    for name in disk.names():
        disk.open(name).write(b"more", 100)
    disk.crash("torn")
    bits = disk.flip_bits(disk.names()[0], 3) if disk.names() else []
    return files(disk), bits, disk.operations


def test_the_seed_alone_decides() -> None:
    random.seed(1)
    histories = [History(), History()]
    first = eventful(3, histories[0])
    random.seed(2)
    assert eventful(3, histories[1]) == first
    assert eventful(3) == first
    assert histories[0].digest == histories[1].digest
    assert len({str(eventful(seed)) for seed in range(20)}) > 10
    assert eventful(0)[:2] == eventful(0)[:2]
    assert files_of_default() == files_of_default()


def files_of_default() -> dict[str, bytes]:
    disk = disk_with(bytes(range(200)), synced=False)
    disk.crash("reorder")
    return files(disk)


def test_every_operation_goes_to_the_history() -> None:
    events: list[Event] = []
    disk = SimDisk("peer-7", history=History(events.append))
    for operation, use in uses_of(disk).items():
        del events[:]
        use()
        assert [(event.kind, event.peer, dict(event.fields)["operation"]) for event in events] == [
            ("disk", "peer-7", operation)
        ]
    file = disk.open("b", create=True)
    disk.faults = [Fault("write", reason="bad sector")]
    del events[:]
    with pytest.raises(StorageFailed):
        file.write(b"abc", 5)
    disk.crash("drop")
    assert [dict(event.fields) for event in events] == [
        {
            "operation": "write",
            "file": "b",
            "size": 3,
            "offset": 5,
            "crc": 0x352441C2,
            "fault": "bad sector",
        },
        {"operation": "crash", "how": "drop", "used": 1},
    ]


def test_the_history_tells_what_was_written_apart() -> None:
    digests = set()
    for data in (b"abc", b"abd"):
        history = History()
        SimDisk(history=history).open("a", create=True).write(data, 0)
        digests.add(history.digest)
    assert len(digests) == 2


def fill(disk: SimDisk, size: int, block: int) -> None:
    file = disk.open("a", create=True)
    file.allocate(size)
    data = random.Random(1).randbytes(block)
    for offset in range(0, size, block):
        file.write(data, offset)


def test_an_artifact_written_once_costs_its_own_size() -> None:
    tracemalloc.start()
    try:
        fill(disk := SimDisk(), 8 * MIB, 16_384)
        held, _ = tracemalloc.get_traced_memory()
        disk.open("a").sync()
    finally:
        tracemalloc.stop()
    assert held < 8.5 * MIB


def test_a_sync_forgets_what_was_unsynced() -> None:
    disk = SimDisk()
    file = disk.open("a", create=True)
    file.sync()
    file.write(b"lost", 0)
    disk.faults = [Fault("sync")]
    with pytest.raises(StorageFailed):
        file.sync()
    disk.crash("drop")
    file = disk.open("a")
    tracemalloc.start()
    try:
        for round_number in range(200):
            file.write(bytes([round_number + 1]) * 10_000, 0)
            file.sync()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000


@pytest.mark.slow
@pytest.mark.parametrize("how", get_args(Crash))
def test_a_large_artifact_costs_linear_time(how: Crash) -> None:
    def seconds(size: int) -> float:
        disk = SimDisk()
        start = time.process_time()
        fill(disk, size, 16_384)
        disk.crash(how)
        return time.process_time() - start

    small = min(seconds(4 * MIB) for _ in range(3))
    assert seconds(64 * MIB) < 16 * small * 6 + 0.5
