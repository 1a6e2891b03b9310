"""Folders that tasks have filled are deleted completely, whatever is in them."""

import os
from pathlib import Path

import pytest

from wharf.node import deletion
from wharf.node.deletion import delete_tree

DEPTH = 3_000
"""More folders than Python may recurse and than a process may open, by a path that is longer than the kernel allows."""


def test_folders_of_any_depth_are_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / ".moved.1").write_text("in the way")
    descriptor = os.open(folder, os.O_DIRECTORY)
    for _ in range(DEPTH):
        os.mkdir("in", dir_fd=descriptor)
        inner = os.open("in", os.O_DIRECTORY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.mkfifo("pipe", dir_fd=descriptor)
    os.close(descriptor)

    delete_tree(folder)

    assert [] == list(tmp_path.iterdir())


def test_the_target_of_a_link_stays(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    (folder / "in").mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (folder / "link").symlink_to(outside)
    (folder / "in" / "link").symlink_to(outside / "kept")
    (tmp_path / "link").symlink_to(outside)

    delete_tree(folder)
    delete_tree(tmp_path / "link")
    delete_tree(tmp_path / "missing")

    assert ["link", "outside"] == sorted(path.name for path in tmp_path.iterdir())
    assert "kept" == (outside / "kept").read_text()


def test_a_folder_with_more_entries_than_one_pass_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "MAX_ENTRIES_PER_PASS", 3)
    inner = tmp_path / "root" / "inner" / "deep"
    inner.mkdir(parents=True)
    for folder in (tmp_path / "root", tmp_path / "root" / "inner", inner):
        for number in range(10):
            (folder / f"f{number}").touch()
            (folder / f"d{number}").mkdir()

    deletion.delete_tree(tmp_path / "root")

    assert list(tmp_path.iterdir()) == []
