"""Snapshot archives: packing, reading and damaged archives."""

import io
import tarfile
from pathlib import Path

import msgspec
import pytest

from tests.cluster.server.snapshot_files import pack, pack_files, read_files, write_slices, write_snapshot, write_zeros
from wharf.cluster.engines.port import StoredRecord
from wharf.cluster.engines.snapshot_file import SnapshotLimits, SnapshotUnusable
from wharf.cluster.server.snapshot_archive import MAX_META_BYTES, SnapshotArchiveReader

LIMITS = SnapshotLimits(30_000_000)
RECORDS = [StoredRecord("jobs", "a", 1, b"1"), StoredRecord("nodes", "n", 2, b"2" * 100)]


def read_records(path: Path) -> list[StoredRecord]:
    return [row for rows in SnapshotArchiveReader(path, LIMITS, name=str(path)).iter_slices() for row in rows]


def get_refusal(path: Path, limits: SnapshotLimits = LIMITS) -> str:
    """Return why the snapshot is refused."""
    with pytest.raises(SnapshotUnusable) as caught:
        SnapshotArchiveReader(path, limits, name="that was sent").read_info()
    return str(caught.value)


def an_archive(folder: Path) -> Path:
    return pack(write_snapshot(folder / "in.bin", *RECORDS), folder / "archive.tgz")


def test_the_records_of_an_archive_are_those_of_the_packed_snapshot(tmp_path: Path) -> None:
    assert read_records(an_archive(tmp_path)) == RECORDS


def test_a_snapshot_file_without_an_archive_is_accepted(tmp_path: Path) -> None:
    assert read_records(write_snapshot(tmp_path / "bare.snap", *RECORDS)) == RECORDS


def test_the_files_of_an_archive_may_have_any_order(tmp_path: Path) -> None:
    files = read_files(an_archive(tmp_path))

    assert read_records(pack_files(tmp_path / "other.tgz", *reversed(files.items()), ("readme", b"?"))) == RECORDS


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "failed to decompress snapshot: it is empty"),
        (b"no archive", "failed to decompress snapshot: it is neither a gzip file nor a snapshot file"),
        (b"\x1f\x8b cut off", "failed to decompress snapshot: "),
        (b"WH", "the file that was sent is not a snapshot"),
    ],
)
def test_a_file_that_is_not_an_archive_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / "file").write_bytes(content)

    assert get_refusal(tmp_path / "file").startswith(text)


def test_every_truncated_archive_is_refused(tmp_path: Path) -> None:
    data = an_archive(tmp_path).read_bytes()
    cut = tmp_path / "cut"
    for length in range(1, len(data), 7):
        cut.write_bytes(data[:length])
        get_refusal(cut)


def test_a_file_with_a_wrong_checksum_is_refused_by_name(tmp_path: Path) -> None:
    files = read_files(an_archive(tmp_path))
    files["meta.json"] += b" "

    text = get_refusal(pack_files(tmp_path / "other.tgz", *files.items()))

    assert "meta.json in it is damaged: its checksum differs from that in SHA256SUMS" in text


def test_an_archive_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    assert "it contains no state.bin" in get_refusal(pack_files(tmp_path / "other.tgz", ("readme", b"")))


def test_an_archive_with_two_snapshots_is_refused(tmp_path: Path) -> None:
    state = ("state.bin", read_files(an_archive(tmp_path))["state.bin"])

    assert "it contains state.bin twice" in get_refusal(pack_files(tmp_path / "other.tgz", state, state))


def test_an_archive_with_many_files_is_refused(tmp_path: Path) -> None:
    files = [(f"file{number}", b"") for number in range(20)]

    assert "it contains more files than a snapshot" in get_refusal(pack_files(tmp_path / "other.tgz", *files))


def test_an_archive_with_large_metadata_is_refused(tmp_path: Path) -> None:
    large = ("meta.json", bytes(MAX_META_BYTES + 1))

    assert "meta.json in it is larger than allowed" in get_refusal(pack_files(tmp_path / "other.tgz", large))


def test_a_link_in_the_place_of_the_snapshot_is_not_followed(tmp_path: Path) -> None:
    file = tmp_path / "other.tgz"
    with tarfile.open(file, "w:gz") as tar:
        link = tarfile.TarInfo("state.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link, io.BytesIO())

    assert "it contains no state.bin" in get_refusal(file)


def test_a_small_archive_that_unpacks_to_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    bomb = write_zeros(tmp_path / "bomb.tgz", 100_000_000)

    assert bomb.stat().st_size < 200_000
    assert get_refusal(bomb).startswith(
        "the snapshot that was sent has more than 30,000,000 bytes when it is unpacked, the limit of snapshots.max_size: "
        "raise it if the snapshot is yours; nothing was changed"
    )


def test_small_slices_that_unpack_to_more_than_the_limit_are_refused(tmp_path: Path) -> None:
    slices = [
        msgspec.msgpack.encode([StoredRecord("jobs", f"job{number}", 1, bytes(8_000_000))]) for number in range(4)
    ]
    bomb = write_slices(tmp_path / "bomb.snap", slices, {"jobs": 4})

    assert bomb.stat().st_size < 200_000
    assert "has more than 30,000,000 bytes of records, the limit of snapshots.max_size" in get_refusal(bomb)


def test_more_records_than_the_limit_are_refused(tmp_path: Path) -> None:
    records = [StoredRecord("jobs", f"job{number}", 1, b"") for number in range(101)]
    path = write_snapshot(tmp_path / "a.snap", *records)

    assert "has more than 100 records, the limit of a snapshot" in get_refusal(path, SnapshotLimits(100_000))


def test_a_slice_that_announces_more_records_than_any_can_have_is_refused(tmp_path: Path) -> None:
    count = 1_000_000
    bomb = write_slices(tmp_path / "bomb.snap", [b"\xdd" + count.to_bytes(4, "big") + b"\x90" * count], {})

    assert "a slice has more rows than any can have" in get_refusal(bomb)
