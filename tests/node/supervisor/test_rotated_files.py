"""Rotation of log files: limits, retries after errors, and what a task puts into the folder."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from wharf.node.log_folder import MAX_LOG_FOLDER_ENTRIES, LogFolder
from wharf.node.rotated_files import MAX_SKIPPED_NUMBERS, LogFilePosition, RotatedFiles


def open_files(folder: Path) -> RotatedFiles:
    return RotatedFiles(LogFolder(folder, should_create=True), "web", "stdout", max_files=2, max_file_bytes=4)


def read_all(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_full_files_are_rotated_and_the_oldest_deleted(tmp_path: Path) -> None:
    open_files(tmp_path).write(b"0123456789")

    assert {"web.stdout.1": b"4567", "web.stdout.2": b"89"} == read_all(tmp_path)


def make_hard_link(path: Path) -> None:
    (path.parent / "other").write_text("other")
    path.hardlink_to(path.parent / "other")


def make_link(path: Path) -> None:
    path.symlink_to(path.parent / "other")


@pytest.mark.parametrize("make_obstacle", [os.mkdir, os.mkfifo, make_hard_link, make_link])
@pytest.mark.parametrize("number", [0, 1])
def test_a_name_that_belongs_to_no_log_file_is_skipped(
    tmp_path: Path, make_obstacle: Callable[[Path], None], number: int
) -> None:
    make_obstacle(tmp_path / f"web.stdout.{number}")

    open_files(tmp_path).write(b"012345")

    other = tmp_path / "other"
    assert not other.exists() or other.read_text() == "other"
    numbers = {0: [1, 2], 1: [2, 3]}[number]  # After a start, the first number above the highest one in the folder.
    assert [b"0123", b"45"] == [(tmp_path / f"web.stdout.{each}").read_bytes() for each in numbers]


def test_writing_continues_after_the_next_file_could_not_be_opened(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.write(b"0123")
    for number in range(1, MAX_SKIPPED_NUMBERS + 1):
        (tmp_path / f"web.stdout.{number}").mkdir()
    with pytest.raises(FileExistsError):
        files.write(b"4")

    files.write(b"45")

    assert b"0123" == (tmp_path / "web.stdout.0").read_bytes()
    assert b"45" == (tmp_path / f"web.stdout.{MAX_SKIPPED_NUMBERS + 1}").read_bytes()


def test_a_task_that_replaces_its_log_folder_by_a_link_redirects_nothing(tmp_path: Path) -> None:
    logs, moved, victim = tmp_path / "alloc/logs", tmp_path / "alloc/moved", tmp_path / "victim"
    logs.mkdir(parents=True)
    victim.mkdir()
    (victim / "web.stdout.0").write_text("old")
    files = open_files(logs)
    files.write(b"0")
    logs.rename(moved)
    logs.symlink_to(victim)

    files.write(b"123456789")

    assert {"web.stdout.0": b"old"} == read_all(victim)
    assert {"web.stdout.1": b"4567", "web.stdout.2": b"89"} == read_all(moved)


def test_a_link_in_the_place_of_the_log_folder_is_replaced_by_a_folder(tmp_path: Path) -> None:
    logs, victim = tmp_path / "alloc/logs", tmp_path / "victim"
    logs.parent.mkdir()
    victim.mkdir()
    logs.symlink_to(victim)

    open_files(logs).write(b"0123")

    assert {} == read_all(victim)
    assert {"web.stdout.0": b"0123"} == read_all(logs)


def test_a_deleted_log_folder_is_created_again(tmp_path: Path) -> None:
    files = open_files(tmp_path / "alloc/logs")
    files.write(b"0123")
    (tmp_path / "alloc/logs/web.stdout.0").unlink()
    (tmp_path / "alloc/logs").rmdir()

    files.write(b"4")

    assert {"web.stdout.1": b"4"} == read_all(tmp_path / "alloc/logs")


def test_a_limited_number_of_names_is_read_from_a_full_log_folder(tmp_path: Path) -> None:
    (tmp_path / "web.stdout.0").touch()
    for number in range(1, MAX_LOG_FOLDER_ENTRIES + 10):
        os.link(tmp_path / "web.stdout.0", tmp_path / f"web.stdout.{number}")

    numbers, entry_count = LogFolder(tmp_path).scan("web.stdout.")

    assert (MAX_LOG_FOLDER_ENTRIES, MAX_LOG_FOLDER_ENTRIES) == (len(numbers), entry_count)


def test_bytes_after_a_position_are_counted_over_all_files(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.write(b"012345")

    assert 4 == files.count_bytes_after(LogFilePosition(0, 2))
    assert 1 == files.count_bytes_after(LogFilePosition(1, 1))
