"""Log files that several processes append to, and their rotation."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from wharf.contract.model.times import HOUR, SECOND
from wharf.sinks.rotation import RotatingFile, Rotation, list_rotated_files

NOON_NS = 1_767_268_800 * SECOND


def test_a_new_file_starts_before_the_size_is_exceeded(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "a.log", Rotation(bytes=10))
    for line in (b"12345\n", b"789\n", b"next\n"):
        file.write(line, now_ns=NOON_NS)
    file.close()

    assert (tmp_path / "a.log").read_bytes() == b"next\n"
    assert [rotated.read_bytes() for rotated in list_rotated_files(tmp_path / "a.log")] == [b"12345\n789\n"]


def test_a_line_longer_than_the_maximum_size_is_still_written(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "a.log", Rotation(bytes=3))
    file.write(b"longer\n", now_ns=NOON_NS)
    file.close()

    assert (tmp_path / "a.log").read_bytes() == b"longer\n"


def test_only_the_newest_rotated_files_are_retained(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "a.log", Rotation(bytes=4, max_files=2))
    for number in range(5):
        file.write(b"%d--\n" % number, now_ns=NOON_NS + number * SECOND)
    file.close()

    assert [rotated.read_bytes() for rotated in list_rotated_files(tmp_path / "a.log")] == [b"2--\n", b"3--\n"]


def test_rotated_files_with_a_time_ahead_of_the_clock_are_deleted_first(tmp_path: Path) -> None:
    for name in ("a-29980101T000000.log", "a-29990101T000000.1.log"):
        (tmp_path / name).touch()
    file = RotatingFile(tmp_path / "a.log", Rotation(bytes=4, max_files=2))
    for number in range(3):
        file.write(b"%d--\n" % number, now_ns=NOON_NS + number * SECOND)
    file.close()

    assert [rotated.read_bytes() for rotated in list_rotated_files(tmp_path / "a.log")] == [b"0--\n", b"1--\n"]


def test_a_rotated_file_that_cannot_be_deleted_loses_no_line(tmp_path: Path) -> None:
    (tmp_path / "a-20200101T000000.log").mkdir()
    file = RotatingFile(tmp_path / "a.log", Rotation(bytes=4, max_files=1))
    for number in range(3):
        file.write(b"%d--\n" % number, now_ns=NOON_NS + number * SECOND)
    file.close()

    assert (tmp_path / "a.log").read_bytes() == b"2--\n"


def test_files_rotated_in_the_same_second_keep_their_order(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "a.log", Rotation(bytes=4))
    for number in range(4):
        file.write(b"%d--\n" % number, now_ns=NOON_NS)
    file.close()

    assert [rotated.read_bytes() for rotated in list_rotated_files(tmp_path / "a.log")] == [
        b"0--\n",
        b"1--\n",
        b"2--\n",
    ]


def test_other_files_in_the_folder_are_not_rotated_files(tmp_path: Path) -> None:
    (tmp_path / "a-plan.log").write_text("mine")
    file = RotatingFile(tmp_path / "a.log", Rotation(bytes=1, max_files=1))
    for _ in range(3):
        file.write(b"x\n", now_ns=NOON_NS)
    file.close()

    assert (tmp_path / "a-plan.log").read_text() == "mine"


def test_each_period_has_its_own_file(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    file = RotatingFile(path, Rotation(duration_ns=24 * HOUR))
    file.write(b"yesterday\n", now_ns=NOON_NS)
    os.utime(path, ns=(NOON_NS, NOON_NS))
    file.write(b"same day\n", now_ns=NOON_NS + 2 * HOUR)
    os.utime(path, ns=(NOON_NS + 2 * HOUR, NOON_NS + 2 * HOUR))
    file.write(b"today\n", now_ns=NOON_NS + 24 * HOUR)
    file.close()

    assert path.read_bytes() == b"today\n"
    assert [rotated.read_bytes() for rotated in list_rotated_files(path)] == [b"yesterday\nsame day\n"]


def test_a_file_that_was_moved_away_is_created_again(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "a.log", Rotation())
    file.write(b"one\n", now_ns=NOON_NS)
    (tmp_path / "a.log").rename(tmp_path / "moved")
    file.write(b"two\n", now_ns=NOON_NS)
    file.close()

    assert (tmp_path / "moved").read_bytes() == b"one\n"
    assert (tmp_path / "a.log").read_bytes() == b"two\n"


@pytest.mark.parametrize("mode", [0o600, 0o640])
def test_a_file_has_the_configured_permissions(tmp_path: Path, mode: int) -> None:
    RotatingFile(tmp_path / "a.log", Rotation(), mode=mode).close()

    assert stat.S_IMODE((tmp_path / "a.log").stat().st_mode) & ~mode == 0


WRITER = """
import sys
from pathlib import Path
from wharf.sinks.rotation import RotatingFile, Rotation
file = RotatingFile(Path(sys.argv[1]), Rotation(bytes=2_000))
for number in range(1_000):
    file.write(f"{sys.argv[2]} {number}\\n".encode(), now_ns=1_767_268_800_000_000_000)
"""


def test_lines_of_several_processes_are_stored_once_and_complete(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("a", "b", "c")]

    assert [writer.wait(timeout=60) for writer in writers] == [0, 0, 0]
    lines = [line for file in [*list_rotated_files(path), path] for line in file.read_text().splitlines()]
    assert sorted(lines) == sorted(f"{name} {number}" for name in ("a", "b", "c") for number in range(1_000))
    assert len(list_rotated_files(path)) > 5
