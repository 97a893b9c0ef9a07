"""What ``fleet.storage`` promises, over every disk: the real one, and the simulated one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleet.errors import LocalMisuse, StorageFailed
from fleet.sim.disk import SimDisk
from fleet.storage import Directory, File, Storage


@pytest.fixture(params=["directory", "simulated", "mounted"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    disks: dict[str, Callable[[], Storage]] = {
        "directory": lambda: Directory(tmp_path / "peer"),
        "simulated": SimDisk,
        "mounted": lambda: SimDisk().mount(),
    }
    disk = disks[request.param]()
    yield disk
    disk.close()


def content(file: File) -> bytes:
    data = bytearray(file.size())
    file.read_into(memoryview(data), 0)
    return bytes(data)


def test_a_missing_file_opens_only_with_create(storage: Storage) -> None:
    with pytest.raises(StorageFailed):
        storage.open("a")
    assert not storage.exists("a")
    file = storage.open("a", create=True)
    assert storage.exists("a")
    assert file.size() == 0
    assert file.name.endswith("a")


def test_create_keeps_what_is_there(storage: Storage) -> None:
    storage.open("a", create=True).write(b"kept", 0)
    assert content(storage.open("a", create=True)) == b"kept"


def test_names_are_sorted_and_follow_removal(storage: Storage) -> None:
    assert storage.names() == []
    for name in ("b", "a.data", "c-1"):
        storage.open(name, create=True)
    assert storage.names() == ["a.data", "b", "c-1"]
    storage.remove("b")
    storage.remove("b")
    assert storage.names() == ["a.data", "c-1"]


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "/etc/passwd", "a/b", "a\0b", ".hidden", "a b", "x" * 201])
def test_a_name_is_one_plain_component(storage: Storage, name: str) -> None:
    for use in (storage.open, storage.exists, storage.remove):
        with pytest.raises(LocalMisuse):
            use(name)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_writes_land_at_their_offset(storage: Storage, kind: type[bytes | bytearray | memoryview]) -> None:
    file = storage.open("a", create=True)
    file.write(kind(b"abcdef"), 0)
    file.write(kind(b"XY"), 2)
    file.write(kind(b""), 1)
    assert content(file) == b"abXYef"
    file.write(kind(b"end"), 8)
    assert content(file) == b"abXYef\0\0end"


def test_a_read_fills_the_view_or_fails(storage: Storage) -> None:
    file = storage.open("a", create=True)
    file.write(b"abcdef", 0)
    view = bytearray(3)
    file.read_into(memoryview(view), 2)
    assert view == b"cde"
    file.read_into(memoryview(bytearray()), 6)
    for offset in (4, 6, 100):
        with pytest.raises(StorageFailed):
            file.read_into(memoryview(view), offset)


def test_allocate_extends_with_zeros_and_never_cuts(storage: Storage) -> None:
    file = storage.open("a", create=True)
    file.allocate(0)
    assert file.size() == 0
    file.write(b"abc", 0)
    file.allocate(6)
    file.allocate(2)
    assert content(file) == b"abc\0\0\0"


def test_truncate_cuts(storage: Storage) -> None:
    file = storage.open("a", create=True)
    file.write(b"abcdef", 0)
    file.truncate(2)
    assert content(file) == b"ab"
    file.sync()
    file.truncate(0)
    assert file.size() == 0


def test_two_handles_share_the_bytes(storage: Storage) -> None:
    one, two = storage.open("a", create=True), storage.open("a")
    one.write(b"seen", 0)
    assert content(two) == b"seen"
    one.close()
    assert content(two) == b"seen"


def test_an_open_file_outlives_its_name(storage: Storage) -> None:
    file = storage.open("a", create=True)
    file.write(b"still here", 0)
    storage.remove("a")
    assert content(file) == b"still here"
    assert storage.open("a", create=True).size() == 0


def test_a_closed_file_refuses_and_closes_again(storage: Storage) -> None:
    file = storage.open("a", create=True)
    assert file.fileno() is None or isinstance(file.fileno(), int)
    file.close()
    file.close()
    view = memoryview(bytearray(1))
    for use in (
        file.size,
        file.fileno,
        file.sync,
        lambda: file.write(b"x", 0),
        lambda: file.read_into(view, 0),
        lambda: file.allocate(1),
        lambda: file.truncate(0),
    ):
        with pytest.raises(StorageFailed):
            use()


def test_closing_the_storage_closes_its_files(storage: Storage) -> None:
    file = storage.open("a", create=True)
    file.write(b"x", 0)
    storage.close()
    with pytest.raises(StorageFailed):
        file.size()
    assert content(storage.open("a")) == b"x"
