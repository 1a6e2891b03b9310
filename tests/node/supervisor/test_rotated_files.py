"""Rotation of log files: limits, and retries after errors."""

from pathlib import Path

import pytest

from wharf.node.rotated_files import LogFilePosition, RotatedFiles


def open_files(folder: Path) -> RotatedFiles:
    return RotatedFiles(folder, "web", "stdout", max_files=2, max_file_bytes=4)


def read_all(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_full_files_are_rotated_and_the_oldest_deleted(tmp_path: Path) -> None:
    open_files(tmp_path).write(b"0123456789")

    assert {"web.stdout.1": b"4567", "web.stdout.2": b"89"} == read_all(tmp_path)


def test_writing_continues_after_the_next_file_could_not_be_opened(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.write(b"0123")
    obstacle = tmp_path / "web.stdout.1"
    obstacle.mkdir()
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            files.write(b"4")
    obstacle.rmdir()

    files.write(b"45")

    assert {"web.stdout.0": b"0123", "web.stdout.1": b"45"} == read_all(tmp_path)


def test_bytes_after_a_position_are_counted_over_all_files(tmp_path: Path) -> None:
    files = open_files(tmp_path)
    files.write(b"012345")

    assert 4 == files.count_bytes_after(LogFilePosition(0, 2))
    assert 1 == files.count_bytes_after(LogFilePosition(1, 1))
