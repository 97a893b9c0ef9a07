"""``fleet.storage.Directory``: what only a real disk does, such as filling up, failing and holding descriptors."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.errors import LocalMisuse, StorageFailed
from fleet.storage import Directory, check_name


def fail_with(code: int) -> Callable[..., int]:
    def call(*args: object) -> int:
        raise OSError(code, os.strerror(code))

    return call


def is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def number(fd: int | None) -> int:
    assert fd is not None
    return fd


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../up",
        "a/../../up",
        "/etc/passwd",
        "a/b",
        "a\\b",
        "a\0",
        ".hidden",
        "a b",
        "a\n",
        "a:b",
        "x" * 201,
    ],
)
def test_a_name_that_could_lead_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    with Directory(tmp_path / "peer") as directory:
        with pytest.raises(LocalMisuse):
            directory.open(name, create=True)
        with pytest.raises(LocalMisuse):
            directory.exists(name)
        with pytest.raises(LocalMisuse):
            directory.remove(name)
        assert directory.names() == []
    assert [path.name for path in tmp_path.iterdir()] == ["peer"]


@pytest.mark.parametrize("name", ["a", "A-1_b.c", "0", "x" * 200, "a..b"])
def test_a_plain_name_is_accepted(name: str) -> None:
    assert check_name(name) == name


def test_what_is_written_is_read_and_is_in_the_folder(tmp_path: Path) -> None:
    with Directory(tmp_path / "deep" / "peer") as directory:
        file = directory.open("data", create=True)
        file.write(bytearray(b"0123456789"), 0)
        file.write(memoryview(b"_abc_")[1:-1], 4)
        view = bytearray(5)
        file.read_into(memoryview(view), 3)
        assert view == b"3abc7"
        file.sync()
    assert (tmp_path / "deep" / "peer" / "data").read_bytes() == b"0123abc789"
    with Directory(str(tmp_path / "deep" / "peer")) as again:
        assert again.names() == ["data"]
        assert again.exists("data")
        assert again.open("data").size() == 10


@pytest.mark.parametrize(
    ("code", "says"),
    [(errno.ENOSPC, "disk is full"), (errno.EDQUOT, "disk is full"), (errno.EIO, "Input/output error")],
)
def test_a_full_disk_shows_when_space_is_reserved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, says: str
) -> None:
    with Directory(tmp_path) as directory:
        file = directory.open("data", create=True)
        file.write(b"kept", 0)
        with monkeypatch.context() as patch:
            patch.setattr(os, "posix_fallocate", fail_with(code))
            with pytest.raises(StorageFailed, match=says) as caught:
                file.allocate(1 << 20)
            assert "1,048,576 bytes" in str(caught.value)
            file.allocate(4)  # it has them: no call
        view = bytearray(4)
        file.read_into(memoryview(view), 0)
        assert view == b"kept"
        file.allocate(1 << 20)
        assert file.size() == 1 << 20


def test_reserved_space_is_really_taken(tmp_path: Path) -> None:
    with Directory(tmp_path) as directory:
        file = directory.open("data", create=True)
        file.allocate(1 << 20)
        assert os.fstat(number(file.fileno())).st_blocks * 512 >= 1 << 20


@pytest.mark.parametrize(
    ("call", "action"),
    [("preadv", "read"), ("pwrite", "write"), ("ftruncate", "cut"), ("fdatasync", "sync"), ("fstat", "stat")],
)
def test_a_failing_disk_is_one_kind_of_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, action: str
) -> None:
    with Directory(tmp_path) as directory:
        file = directory.open("data", create=True)
        file.write(b"data", 0)
        use: dict[str, Callable[[], object]] = {
            "read": lambda: file.read_into(memoryview(bytearray(4)), 0),
            "write": lambda: file.write(b"x", 0),
            "cut": lambda: file.truncate(0),
            "sync": file.sync,
            "stat": file.size,
        }
        with monkeypatch.context() as patch:
            patch.setattr(os, call, fail_with(errno.EIO))
            with pytest.raises(StorageFailed, match=f"cannot {action} .*data: Input/output error"):
                use[action]()
        use[action]()


def test_a_disk_that_takes_and_gives_a_byte_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, data[:1], offset))
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: preadv(fd, [views[0][:1]], offset))
    with Directory(tmp_path) as directory:
        file = directory.open("data", create=True)
        file.write(b"in parts", 3)
        view = bytearray(11)
        file.read_into(memoryview(view), 0)
        assert view == b"\0\0\0in parts"


@pytest.mark.parametrize("offset", [1, 3, 4, 1000])
def test_a_read_past_the_end_fails(tmp_path: Path, offset: int) -> None:
    with Directory(tmp_path) as directory:
        file = directory.open("data", create=True)
        file.write(b"data", 0)
        with pytest.raises(StorageFailed, match="early"):
            file.read_into(memoryview(bytearray(4)), offset)


def test_a_read_of_what_was_cut_meanwhile_fails(tmp_path: Path) -> None:
    with Directory(tmp_path) as directory:
        file = directory.open("data", create=True)
        file.write(b"data", 0)
        os.truncate(tmp_path / "data", 2)
        with pytest.raises(StorageFailed, match="ends at 2, 2 bytes early"):
            file.read_into(memoryview(bytearray(4)), 0)


def test_a_closed_file_is_of_no_use(tmp_path: Path) -> None:
    with Directory(tmp_path) as directory:
        file = directory.open("data", create=True)
        fd = number(file.fileno())
        file.close()
        assert not is_open(fd)
        other = directory.open("other", create=True)  # takes the free descriptor, which the closed file must not touch
        assert other.fileno() == fd
        uses: list[Callable[[], object]] = [
            file.size,
            file.fileno,
            file.sync,
            lambda: file.allocate(10),
            lambda: file.truncate(0),
            lambda: file.write(b"x", 0),
            lambda: file.read_into(memoryview(bytearray(1)), 0),
        ]
        for use in uses:
            with pytest.raises(StorageFailed, match="closed"):
                use()
        file.close()
        assert is_open(fd)
        assert other.size() == 0


def test_no_descriptor_is_left_after_close(tmp_path: Path) -> None:
    with Directory(tmp_path) as directory:
        files = [directory.open(name, create=True) for name in ("a", "b", "a")]
        descriptors = [number(file.fileno()) for file in files]
        assert len(set(descriptors)) == 3
        files[1].close()
        assert [is_open(fd) for fd in descriptors] == [True, False, True]
    assert not any(map(is_open, descriptors))
    directory.close()


def test_no_descriptor_is_left_after_an_error(tmp_path: Path) -> None:
    descriptors: list[int] = []

    def use() -> None:
        with Directory(tmp_path) as directory:
            descriptors.append(number(directory.open("data", create=True).fileno()))
            directory.open("missing")

    with pytest.raises(StorageFailed, match="missing"):
        use()
    assert not is_open(descriptors[0])


def test_descriptors_do_not_pass_to_programs_started(tmp_path: Path) -> None:
    with Directory(tmp_path) as directory:
        assert not os.get_inheritable(number(directory.open("data", create=True).fileno()))


def test_removing_a_missing_file_is_no_error(tmp_path: Path) -> None:
    with Directory(tmp_path) as directory:
        directory.remove("missing")
        directory.open("data", create=True)
        directory.remove("data")
        directory.remove("data")
        assert not directory.exists("data")
        assert directory.names() == []


def test_folders_are_not_files(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with Directory(tmp_path) as directory:
        assert directory.names() == []
        with pytest.raises(StorageFailed, match="cannot open"):
            directory.open("folder")
        with pytest.raises(StorageFailed, match="cannot remove"):
            directory.remove("folder")


def test_a_place_that_cannot_be_a_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StorageFailed, match="cannot make the folder"):
            Directory(path)


def test_a_folder_that_went_away(tmp_path: Path) -> None:
    with Directory(tmp_path / "peer") as directory:
        (tmp_path / "peer").rmdir()
        with pytest.raises(StorageFailed, match="cannot list"):
            directory.names()
        with pytest.raises(StorageFailed, match="cannot open"):
            directory.open("data", create=True)
