"""The folders of allocations: what tasks do to them while they are created and deleted."""

import asyncio
import os
from pathlib import Path

from wharf.node.tasks.folders import AllocationFolders


def test_folders_are_created_with_their_modes(tmp_path: Path) -> None:
    folders = AllocationFolders(tmp_path / "alloc").create_task_folders("a1", "web")

    modes = {
        str(path.relative_to(tmp_path / "alloc/a1")): path.stat().st_mode & 0o7777
        for path in (folders.task.parent, *folders.task.parent.rglob("*"))
    }
    assert modes == {
        ".": 0o755, "alloc": 0o777, "alloc/data": 0o777, "alloc/logs": 0o777, "alloc/tmp": 0o777, "web": 0o777,
        "web/local": 0o777, "web/secrets": 0o777, "web/private": 0o700, "web/tmp": 0o1777,
    }  # fmt: skip


def test_a_link_that_a_task_has_put_in_the_place_of_a_folder_is_not_followed(tmp_path: Path) -> None:
    all_folders = AllocationFolders(tmp_path / "alloc")
    folders = all_folders.create_task_folders("a1", "web")
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o700)
    folders.logs.rmdir()
    folders.logs.symlink_to(outside)

    all_folders.create_task_folders("a1", "db")

    assert outside.stat().st_mode & 0o7777 == 0o700


def test_folders_in_each_other_of_any_depth_are_deleted(tmp_path: Path) -> None:
    all_folders = AllocationFolders(tmp_path / "alloc")
    folders = all_folders.create_task_folders("a1", "web")
    folder = os.open(folders.local, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=folder)
        inner_folder = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner_folder))
        os.close(folder)
        folder = inner_folder
    os.close(folder)

    all_folders.remove_folder("a1")
    asyncio.run(all_folders.wait_until_removed())

    assert list((tmp_path / "alloc/.removed").iterdir()) == []
