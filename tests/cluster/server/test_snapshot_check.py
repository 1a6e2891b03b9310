"""The check of a snapshot before it is restored: what is refused, and what the checked file contains."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.builders import a_job
from tests.cluster.server.snapshot_files import pack, write_slices, write_snapshot
from wharf.cluster.engines.port import LogPosition, StoredRecord
from wharf.cluster.engines.snapshot_file import SnapshotFileReader, SnapshotInfo, SnapshotLimits
from wharf.cluster.server.snapshot_check import (
    CHECKED_SLICE_BYTES,
    CHECKED_SLICE_RECORDS,
    MAX_INDEX,
    MAX_RECORD_BYTES,
    DiskTooFull,
    check_snapshot,
    require_disk_space,
)
from wharf.cluster.server.snapshots import SnapshotFailed
from wharf.cluster.state import Table
from wharf.cluster.state.codec import encode_record
from wharf.cluster.state.tables import CLUSTER_FORMAT, JOBS, KEYRING, KNOWN_SERVERS, MEMBERS, NAMESPACES
from wharf.contract.model.cluster import KeyringKey, KnownServer, Member, RecordFormat
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace

LIMITS = SnapshotLimits(100_000_000)


def store(table: Table[Any], record: Any, *, version: int = 5, key: str = "") -> StoredRecord:
    return StoredRecord(table.name, key or table.get_key(record), version, encode_record(table, record))


A_JOB = store(JOBS, a_job(id="shop"))
A_FORMAT = store(CLUSTER_FORMAT, RecordFormat(version=1))
A_NAMESPACE = store(NAMESPACES, Namespace(name="default"))


def check(source: Path) -> SnapshotInfo:
    return check_snapshot(source, source.with_name("checked.bin"), LIMITS, name="that was sent", wrapping_keys=["own"])


def read_checked(folder: Path) -> list[list[StoredRecord]]:
    with (folder / "checked.bin").open("rb") as file:
        return list(SnapshotFileReader(file, "checked", LIMITS).iter_slices())


def get_refusal(folder: Path, *records: StoredRecord, position: LogPosition | None = None) -> str:
    """Return why a snapshot with these records is refused."""
    with pytest.raises(SnapshotFailed) as caught:
        check(write_snapshot(folder / "a.snap", *records, position=position))
    assert str(caught.value).endswith("nothing was changed")
    return str(caught.value)


def test_the_checked_file_contains_the_records_of_an_archive(tmp_path: Path) -> None:
    archive = pack(write_snapshot(tmp_path / "a.bin", A_FORMAT, A_NAMESPACE, A_JOB), tmp_path / "a.tgz")

    info = check(archive)

    assert read_checked(tmp_path) == [[A_FORMAT, A_NAMESPACE, A_JOB]]
    assert (info.trailer.rows, info.trailer.standing.index) == ({"format": 1, "namespaces": 1, "jobs": 1}, 5)


def test_the_checked_file_omits_servers_and_resolves_write_indexes(tmp_path: Path) -> None:
    job = a_job(id="shop", create_index=WRITE_INDEX)
    source = write_snapshot(
        tmp_path / "a.snap",
        A_FORMAT,
        store(MEMBERS, Member(id="m")),
        store(KNOWN_SERVERS, KnownServer(id="m")),
        store(JOBS, job, version=9),
    )

    check(source)

    [[_, row]] = read_checked(tmp_path)
    assert (row.table, row.key, row.version) == ("jobs", "default\0shop", 9)
    assert msgspec.msgpack.decode(row.data, type=Job).create_index == 9


def test_slices_of_the_checked_file_are_small_whatever_those_of_the_snapshot_are(tmp_path: Path) -> None:
    small = [store(NAMESPACES, Namespace(name=f"n{number}")) for number in range(1_000)]
    large = [store(NAMESPACES, Namespace(name=f"l{number}", description="x" * 100_000)) for number in range(20)]
    rows = [*small, *large]
    counts = {"namespaces": len(rows), "format": 1}
    rows.append(A_FORMAT)

    check(write_slices(tmp_path / "a.snap", [msgspec.msgpack.encode([msgspec.structs.replace(row, version=1) for row in rows])], counts))  # fmt: skip

    slices = read_checked(tmp_path)
    assert sum(map(len, slices)) == len(rows)
    assert max(map(len, slices)) <= CHECKED_SLICE_RECORDS
    assert max(sum(len(row.data) for row in each) for each in slices) < CHECKED_SLICE_BYTES + 110_000


HOSTILE: dict[str, tuple[Sequence[StoredRecord], LogPosition | None, str]] = {
    "a key twice": ([A_JOB, A_JOB], None, r"the record jobs/'default\\x00shop' is there twice"),
    "another key": ([store(JOBS, a_job(id="shop"), key="default\0other")], None, "belongs under another key"),
    "a key without its parts": ([store(JOBS, a_job(id="shop"), key="shop")], None, "belongs under another key"),
    "no table of this version": ([StoredRecord("ships", "s", 1, b"\x80")], None, "it has a table 'ships' that this version does not know"),
    "a newer schema": ([StoredRecord("namespaces", "x", 1, b"\x09\x80")], None, "has schema version 9"),
    "a newer format": ([store(CLUSTER_FORMAT, RecordFormat(version=99))], None, "its format is 99"),
    "a wrong type": ([StoredRecord("namespaces", "x", 1, msgspec.msgpack.encode({"Name": 5}))], None, "namespaces/'x' cannot be decoded: Expected `str`, got `int`"),
    "no data": ([StoredRecord("namespaces", "x", 1, b"")], None, "namespaces/'x' cannot be decoded"),
    "deep nesting": ([StoredRecord("namespaces", "x", 1, b"\x81\xa4Meta" + b"\x91" * 100_000)], None, "namespaces/'x' cannot be decoded"),
    "a record that no log accepts": ([StoredRecord("jobs", "x", 1, bytes(MAX_RECORD_BYTES + 1))], None, "more than any log accepts"),
    "an index above all": ([A_FORMAT], LogPosition(MAX_INDEX + 1, {}), "its log index 1125899906842625 is below that of a record, or above"),
    "a negative index": ([A_FORMAT], LogPosition(-1, {}), "its log index -1 is below"),
    "an index below a record": ([A_FORMAT], LogPosition(4, {}), "its log index 4 is below that of a record"),
    "a record of no index": ([StoredRecord("jobs", "x", 0, b"")], LogPosition(4, {}), "has the impossible index 0"),
    "an original index above all": ([StoredRecord("jobs", "x", 1, b"", 1 << 62)], None, "has the impossible index 1 "),
    "a negative epoch": ([store(CLUSTER_FORMAT, RecordFormat(version=1), version=1)], LogPosition(4, {}, epoch=-1), "its epoch -1"),
    "an epoch above all": ([store(CLUSTER_FORMAT, RecordFormat(version=1), version=1)], LogPosition(4, {}, epoch=1 << 62), "is impossible"),
    "an epoch that begins after the end": ([store(CLUSTER_FORMAT, RecordFormat(version=1), version=1)], LogPosition(4, {}, epoch=1, epoch_since=5), "since index 5, is impossible"),
    "no cluster": ([A_JOB], None, "it contains no cluster: the record of its format is missing"),
    "no records": ([], LogPosition(1, {}), "it contains no cluster"),
    "a keyring of another cluster": ([A_FORMAT, store(KEYRING, KeyringKey(key_id="k", wrapped_with="other"))], None, "is encrypted with the wrapping key 'other', and this server has own: add the keyring file"),
    "a long key": ([StoredRecord("jobs", "x" * 5_000, 1, b"")], None, "a name in it has more than 4,096 characters"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_snapshot_that_no_server_could_load_is_refused(tmp_path: Path, case: str) -> None:
    records, position, reason = HOSTILE[case]

    assert reason.replace("\\\\", "\\") in get_refusal(tmp_path, *records, position=position)


def test_last_changes_of_unknown_tables_and_impossible_indexes_are_omitted(tmp_path: Path) -> None:
    position = LogPosition(9, {"jobs": 8, "ships": 3, "nodes": 10, "namespaces": -5})

    info = check(write_snapshot(tmp_path / "a.snap", A_FORMAT, A_JOB, position=position))

    assert info.trailer.standing.last_changes == {"jobs": 8}


def test_records_whose_parent_does_not_exist_are_restored(tmp_path: Path) -> None:
    """Every program lives with such records, and a snapshot may be all that is left of a cluster."""
    assert check(write_snapshot(tmp_path / "a.snap", A_FORMAT, A_JOB)).trailer.rows == {"format": 1, "jobs": 1}


def test_a_keyring_of_this_cluster_is_restored(tmp_path: Path) -> None:
    key = store(KEYRING, KeyringKey(key_id="k", wrapped_with="own"))

    assert check(write_snapshot(tmp_path / "a.snap", A_FORMAT, key)).trailer.rows == {"format": 1, "keyring": 1}


def test_a_disk_without_space_for_a_restore_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DiskTooFull, match=f"the disk of {tmp_path} has too little space: 1073741824 MB needed"):
        require_disk_space(tmp_path, 1 << 50)
