"""Reading the end of a log."""

import os
from pathlib import Path

from wharf.node.files import ReadOnlyFolder
from wharf.node.files.streams import read_log_tail


def write_log(folder: Path, *files: str) -> ReadOnlyFolder:
    logs = folder / "alloc/logs"
    logs.mkdir(parents=True)
    for number, text in enumerate(files):
        (logs / f"web.stdout.{number}").write_text(text)
    return ReadOnlyFolder(folder)


def test_a_log_tail_spans_files_and_begins_with_a_whole_line(tmp_path: Path) -> None:
    folder = write_log(tmp_path, "one\ntwo\n", "three\nfour\n")

    assert b"two\nthree\nfour\n" == read_log_tail(folder, "web", "stdout", 16)


def test_the_tail_of_a_short_log_is_the_whole_log(tmp_path: Path) -> None:
    assert b"one\ntwo" == read_log_tail(write_log(tmp_path, "one\ntwo"), "web", "stdout", 100)


def test_a_single_long_line_is_truncated(tmp_path: Path) -> None:
    assert b"x" * 10 == read_log_tail(write_log(tmp_path, "x" * 100), "web", "stdout", 10)


def test_a_missing_log_has_an_empty_tail(tmp_path: Path) -> None:
    folder = write_log(tmp_path)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "alloc/logs/web.stdout.0").symlink_to(tmp_path / "secret")

    assert b"" == read_log_tail(folder, "web", "stdout", 100)
    assert b"" == read_log_tail(folder, "other", "stdout", 100)


def test_the_tail_leaves_out_names_that_belong_to_no_file(tmp_path: Path) -> None:
    folder = write_log(tmp_path, "one\n", "two\n")
    (tmp_path / "alloc/logs/web.stdout.2").mkdir()
    os.mkfifo(tmp_path / "alloc/logs/web.stdout.3")

    assert b"one\ntwo\n" == read_log_tail(folder, "web", "stdout", 100)


def test_a_link_in_the_place_of_the_log_folder_has_no_tail(tmp_path: Path) -> None:
    folder = write_log(tmp_path, "one\n")
    (tmp_path / "alloc/logs").rename(tmp_path / "alloc/moved")
    (tmp_path / "alloc/logs").symlink_to("moved")

    assert b"" == read_log_tail(folder, "web", "stdout", 100)
