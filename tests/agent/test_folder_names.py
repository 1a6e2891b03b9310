"""The id of a data folder: the same at every start, and different for a copy."""

import shutil
from pathlib import Path

from wharf.agent.identity import compute_folder_id


def test_a_folder_keeps_its_id_when_its_content_changes_and_a_copy_has_another_id(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    name = compute_folder_id(folder)
    (folder / "server-id").write_text("one", "ascii")
    shutil.copytree(folder, tmp_path / "copy")

    assert name == compute_folder_id(folder)
    assert name != compute_folder_id(tmp_path / "copy")


def test_a_folder_that_is_moved_on_its_disk_keeps_its_id(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    name = compute_folder_id(folder)

    assert compute_folder_id(folder.rename(tmp_path / "elsewhere")) == name
