"""Durable files are replaced as a whole, created once, and readable by their owner only."""

import os
import stat
from pathlib import Path

import pytest

from wharf.world.durable_file import create_file_once, open_private_file, rename_durably, replace_file


def get_mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_a_replaced_file_holds_the_new_content_and_is_private(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_bytes(b"a longer old content")
    file.chmod(0o644)
    replace_file(file, b"new")
    assert file.read_bytes() == b"new"
    assert get_mode(file) == 0o600
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_temporary_file_of_a_crash_is_replaced(tmp_path: Path) -> None:
    leftover = tmp_path / "record.json.new"
    leftover.write_bytes(b"the longer content of a write that did not finish")
    leftover.chmod(0o644)
    replace_file(tmp_path / "record.json", b"new")
    assert (tmp_path / "record.json").read_bytes() == b"new"
    assert get_mode(tmp_path / "record.json") == 0o600


def test_the_old_content_stays_if_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "record.json"
    file.write_bytes(b"old")

    def fail(_descriptor: int) -> None:
        raise OSError("disk failure")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk failure"):
        replace_file(file, b"new")
    assert file.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["record.json"]


def test_a_file_is_created_once(tmp_path: Path) -> None:
    file = tmp_path / "server-id"
    assert create_file_once(file, b"first")
    assert not create_file_once(file, b"second")
    assert file.read_bytes() == b"first"
    assert get_mode(file) == 0o600
    assert os.listdir(tmp_path) == ["server-id"]


def test_a_failed_creation_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError("disk failure")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="disk failure"):
        create_file_once(tmp_path / "server-id", b"first")
    assert os.listdir(tmp_path) == []


def test_files_and_folders_are_synced_in_the_order_that_survives_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "record.json"
    synced = []
    sync = os.fsync

    def record_sync(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), file.exists()))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    replace_file(file, b"new")
    assert synced == [(f"{tmp_path}/record.json.new", False), (str(tmp_path), True)]


def test_a_rename_replaces_the_target(tmp_path: Path) -> None:
    with open_private_file(tmp_path / "draft") as stream:
        stream.write(b"new")
    (tmp_path / "final").write_bytes(b"old")
    rename_durably(tmp_path / "draft", tmp_path / "final")
    assert os.listdir(tmp_path) == ["final"]
    assert (tmp_path / "final").read_bytes() == b"new"
