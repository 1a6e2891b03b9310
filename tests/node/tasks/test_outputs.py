"""The file in which programs leave texts for later steps: what is read from it, and what is refused."""

import os
from pathlib import Path

import pytest

from wharf.contract.model.jobs.step_outputs import OUTPUTS_FILE, ReportedOutputs
from wharf.node.tasks.folders import AllocationFolders
from wharf.node.tasks.outputs import MAX_FILE_BYTES, create_outputs_file, read_outputs

NAMES = ("version", "notes", "count")
LIMIT = 1_000


def read(folder: Path, content: bytes | None, max_bytes: int = LIMIT) -> ReportedOutputs:
    if content is not None:
        (folder / OUTPUTS_FILE).write_bytes(content)
    return read_outputs(folder, NAMES, max_bytes)


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        (b"", {}),
        (b"version=1.2\n", {"version": "1.2"}),
        (b"version=1.2", {"version": "1.2"}),
        (b"version=a=b = c \n", {"version": "a=b = c "}),
        (b"version=\n", {"version": ""}),
        (b"version=1\r\n\r\ncount=2\r\n", {"version": "1", "count": "2"}),
        (b"version=1\nversion=2\n", {"version": "2"}),
        (b"notes<<END\nfirst\n\nEND.\nEND\ncount=3\n", {"notes": "first\n\nEND.", "count": "3"}),
        (b"notes<<\nfirst\n\ncount=3\n", {"notes": "first", "count": "3"}),
        (b"version=<<END\n", {"version": "<<END"}),
        ("version=gruen \u00fc\n".encode(), {"version": "gruen \u00fc"}),
    ],
)
def test_texts_are_read_from_lines(tmp_path: Path, content: bytes, texts: dict[str, str]) -> None:
    assert read(tmp_path, content) == ReportedOutputs(texts=texts)


def test_a_missing_file_leaves_no_texts(tmp_path: Path) -> None:
    assert read(tmp_path, None) == ReportedOutputs()


@pytest.mark.parametrize(
    ("content", "texts", "problem"),
    [
        (b"count=1\nversion\n", {"count": "1"}, "line 2 is neither name=value nor name<<END"),
        (b"count=1\nmy-name=1\n", {"count": "1"}, "line 2 is neither name=value nor name<<END"),
        (
            b"count=1\nnotes<<END\nlost\n",
            {"count": "1"},
            'no line "END" ends the output notes that begins in line 2: no line after it was read',
        ),
        (
            b"my-name=1\na b\nc d\nnotes<<END\nlost\n",
            {},
            'line 1 is neither name=value nor name<<END; no line "END" ends the output notes that begins in line 4: no line after it was read',
        ),
        (b"count=1\nother=1\nmore=2\n", {"count": "1"}, "Outputs.Text does not name other, more"),
        (b"count=\xff\x00\n", {"count": "\ufffd\ufffd"}, "bytes that are no UTF-8 text were replaced by \ufffd"),
    ],
)
def test_wrong_lines_are_named_and_the_others_are_read(
    tmp_path: Path, content: bytes, texts: dict[str, str], problem: str
) -> None:
    assert read(tmp_path, content) == ReportedOutputs(texts=texts, problem=problem)


def test_texts_that_are_too_large_together_are_all_refused(tmp_path: Path) -> None:
    assert read(tmp_path, b"count=1234\nnotes=5678\n", max_bytes=18).texts == {"count": "1234", "notes": "5678"}

    refused = read(tmp_path, b"count=1234\nnotes=56789\n", max_bytes=18)

    assert refused.texts == {}
    assert refused.problem.startswith("the outputs have 19 bytes together, and the limit is 18: none is stored")


def test_undeclared_texts_do_not_count(tmp_path: Path) -> None:
    assert read(tmp_path, b"count=1\nother=" + b"x" * 5_000).texts == {"count": "1"}


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / OUTPUTS_FILE).open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)

    assert read(tmp_path, None).problem == "the outputs cannot be read: WHARF_OUTPUTS has more than 1,048,576 bytes"


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("version=secret")
    (tmp_path / OUTPUTS_FILE).symlink_to(tmp_path / "secret")

    assert read(tmp_path, None) == ReportedOutputs(problem="the outputs cannot be read: WHARF_OUTPUTS is a link")


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / OUTPUTS_FILE)

    assert read(tmp_path, None).problem == "the outputs cannot be read: WHARF_OUTPUTS is not a regular file"


def test_tasks_of_all_users_can_write_the_file(tmp_path: Path) -> None:
    folders = AllocationFolders(tmp_path / "alloc")
    shared = folders.create_task_folders("a1", "web").shared

    create_outputs_file(folders.get_allocation_folder("a1"))

    assert (shared / OUTPUTS_FILE).stat().st_mode & 0o777 == 0o666


def test_an_existing_file_is_kept(tmp_path: Path) -> None:
    folders = AllocationFolders(tmp_path / "alloc")
    shared = folders.create_task_folders("a1", "web").shared
    (shared / OUTPUTS_FILE).write_text("version=1")

    create_outputs_file(folders.get_allocation_folder("a1"))

    assert read_outputs(shared, NAMES, LIMIT).texts == {"version": "1"}
