"""Spools: order, batches, limits, and what survives a restart."""

import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wharf.sinks import spool as spool_module
from wharf.sinks.spool import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    RECORD_OVERHEAD_BYTES,
    FileSpool,
    MemorySpool,
    Spool,
    SpoolError,
    open_spool,
)

Maker = Callable[[int], Spool]


@pytest.fixture(params=["file", "memory"])
def make_spool(request: pytest.FixtureRequest, tmp_path: Path) -> Maker:
    if request.param == "memory":
        return lambda max_bytes: MemorySpool("s", max_bytes)
    return lambda max_bytes: FileSpool(tmp_path / "spools" / "x.spool", max_bytes, "s")


def drain(spool: Spool) -> list[bytes]:
    lines: list[bytes] = []
    while (batch := spool.read()) is not None:
        lines += batch.lines
        spool.delete_through(batch.last)
    return lines


def test_records_are_read_in_order_until_they_are_deleted(make_spool: Maker) -> None:
    spool = make_spool(10_000)
    spool.append([b"a", b"b"])
    spool.append([b"c"])
    first = spool.read()
    assert first is not None

    assert (first, spool.waiting_records) == (("s-1", [b"a", b"b", b"c"], 3), 3)
    assert (drain(spool), spool.read(), spool.waiting_records, spool.waiting_bytes) == ([b"a", b"b", b"c"], None, 0, 0)


def test_names_of_batches_are_not_used_again(make_spool: Maker) -> None:
    spool = make_spool(10_000)
    spool.append([b"a", b"b"])
    drain(spool)
    spool.append([b"c"])

    batch = spool.read()

    assert batch is not None
    assert (batch.name, list(batch.lines)) == ("s-3", [b"c"])


def test_records_that_do_not_fit_are_not_added(make_spool: Maker) -> None:
    spool = make_spool(2 * (10 + RECORD_OVERHEAD_BYTES))

    assert spool.append([b"x" * 10] * 3) == 2
    assert spool.append([b"y"]) == 0
    assert drain(spool) == [b"x" * 10] * 2
    assert spool.append([b"y"]) == 1


def test_a_batch_is_limited_by_records_and_bytes(make_spool: Maker) -> None:
    spool = make_spool(100 << 20)
    spool.append([b"x"] * (MAX_BATCH_RECORDS + 1))
    first = spool.read()
    assert first is not None
    spool.delete_through(first.last + 1)
    spool.append([b"y" * (MAX_BATCH_BYTES + 5), b"z" * MAX_BATCH_BYTES, b"w"])
    second = spool.read()
    assert second is not None

    assert (len(first.lines), [line[:1] for line in second.lines]) == (MAX_BATCH_RECORDS, [b"y"])


def test_a_file_keeps_records_over_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "x.spool"
    first = FileSpool(path, 10_000, "one")
    first.append([b"a", b"b", b"c"])
    first.delete_through(1)
    first.close()

    second = FileSpool(path, 10_000, "two")

    assert (second.waiting_records, second.waiting_bytes) == (2, 2 + 2 * RECORD_OVERHEAD_BYTES)
    assert second.read() == ("one-2", [b"b", b"c"], 3)


def test_records_survive_a_process_that_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "x.spool"
    program = (
        "import os, pathlib, sys; from wharf.sinks.spool import FileSpool; "
        "FileSpool(pathlib.Path(sys.argv[1]), 10_000, 'one').append([b'a']); os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", program, str(path)], check=True)

    assert drain(FileSpool(path, 10_000, "two")) == [b"a"]


def test_each_process_has_a_spool_of_its_own(tmp_path: Path) -> None:
    first = open_spool(tmp_path, "out", 10_000, lambda: "one")
    second = open_spool(tmp_path, "out", 10_000, lambda: "two")
    first.append([b"a"])
    second.append([b"b"])

    assert (drain(first), drain(second)) == ([b"a"], [b"b"])
    assert sorted(path.name for path in tmp_path.glob("*.spool")) == ["out-2.spool", "out.spool"]


def test_a_spool_takes_over_the_records_of_processes_that_no_longer_run(tmp_path: Path) -> None:
    first = open_spool(tmp_path, "out", 10_000, lambda: "one")
    second = open_spool(tmp_path, "out", 10_000, lambda: "two")
    second.append([b"b", b"c"])
    second.close()
    first.append([b"a"])
    first.close()

    third = open_spool(tmp_path, "out", 10_000, lambda: "three")

    assert (drain(third), drain(open_spool(tmp_path, "out", 10_000, lambda: "four"))) == ([b"a", b"b", b"c"], [])


def test_too_many_processes_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spool_module, "MAX_SPOOLS", 2)
    spools = [open_spool(tmp_path, "out", 10_000, lambda: "s") for _ in range(2)]

    with pytest.raises(SpoolError, match="in use by 2 processes"):
        open_spool(tmp_path, "out", 10_000, lambda: "s")
    assert [spool.waiting_records for spool in spools] == [0, 0]


def test_only_its_owner_can_read_the_file(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path / "spools" / "x.spool", 10_000, "s")
    spool.append([b"a"])

    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "spools").iterdir()}

    assert (modes, stat.S_IMODE((tmp_path / "spools").stat().st_mode)) == ({0o600}, 0o700)


def test_a_damaged_file_is_moved_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "x.spool"
    path.write_bytes(b"not a database, and longer than a header of one" * 100)

    spool = FileSpool(path, 10_000, "s")
    spool.append([b"a"])

    assert drain(spool) == [b"a"]
    assert (tmp_path / "x.spool.damaged").read_bytes().startswith(b"not a database")
    assert "spool is damaged" in caplog.text


def test_a_file_that_cannot_be_opened_is_an_error_with_its_path(tmp_path: Path) -> None:
    (tmp_path / "x.spool").mkdir()

    with pytest.raises(SpoolError, match=r"x\.spool cannot be opened: "):
        FileSpool(tmp_path / "x.spool", 10_000, "s")


def test_a_closed_file_raises_errors_of_the_spool(tmp_path: Path) -> None:
    spool = FileSpool(tmp_path / "x.spool", 10_000, "s")
    spool.close()

    for call in (spool.read, lambda: spool.append([b"a"]), lambda: spool.delete_through(1)):
        with pytest.raises(SpoolError, match="cannot be"):
            call()
