"""Snapshot archives: packing, unpacking and damaged archives."""

import io
import tarfile
from pathlib import Path

import pytest

from wharf.cluster.engines.port import LogPosition
from wharf.cluster.engines.snapshot_file import SNAPSHOT_MAGIC, SnapshotHeader, SnapshotInfo, SnapshotTrailer
from wharf.cluster.server.snapshots import InvalidArchive, is_archive, pack_archive, unpack_archive

CONTENT = SNAPSHOT_MAGIC + b"state" * 100


def pack_snapshot(folder: Path) -> tuple[Path, bytes]:
    state, archive = folder / "in.bin", folder / "archive.tgz"
    state.write_bytes(CONTENT)
    trailer = SnapshotTrailer(LogPosition(index=7, epoch=2, last_changes={}), {})
    facts = SnapshotInfo(SnapshotHeader(1_000_000_000, "wharf"), trailer, len(CONTENT), "")
    return archive, pack_archive(state, archive, facts)


def repack_archive(folder: Path, **changed: bytes) -> Path:
    """Return the archive with changed contents of some files."""
    archive, _ = pack_snapshot(folder)
    repacked = folder / "other.tgz"
    with tarfile.open(archive) as old, tarfile.open(repacked, "w:gz") as new:
        for member in old:
            inner = old.extractfile(member)
            assert inner is not None
            data = changed.get(member.name.partition(".")[0], inner.read())
            info = tarfile.TarInfo(member.name)
            info.size = len(data)
            new.addfile(info, io.BytesIO(data))
    return repacked


def test_an_unpacked_archive_equals_the_packed_snapshot(tmp_path: Path) -> None:
    archive, digest = pack_snapshot(tmp_path)

    unpack_archive(archive, tmp_path / "out.bin")

    assert (tmp_path / "out.bin").read_bytes() == CONTENT
    assert (is_archive(archive), len(digest)) == (True, 32)


def test_a_snapshot_file_without_an_archive_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "bare.snap"
    file.write_bytes(CONTENT)

    unpack_archive(file, tmp_path / "out.bin")

    assert (tmp_path / "out.bin").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "failed to decompress snapshot: it is empty"),
        (b"no archive", "failed to decompress snapshot: not a gzip file"),
        (b"\x1f\x8b cut off", "failed to decompress snapshot: "),
    ],
)
def test_a_file_that_is_not_an_archive_is_refused(tmp_path: Path, content: bytes, text: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)

    with pytest.raises(InvalidArchive) as caught:
        unpack_archive(file, tmp_path / "out.bin")

    assert str(caught.value).startswith(text)


def test_every_truncated_archive_is_refused(tmp_path: Path) -> None:
    archive, _ = pack_snapshot(tmp_path)
    data = archive.read_bytes()
    for length in range(1, len(data), 7):
        cut = tmp_path / "cut"
        cut.write_bytes(data[:length])
        with pytest.raises(InvalidArchive):
            unpack_archive(cut, tmp_path / "out.bin")


def test_a_file_with_a_wrong_checksum_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(InvalidArchive) as caught:
        unpack_archive(repack_archive(tmp_path, state=CONTENT + b"!"), tmp_path / "out.bin")

    assert str(caught.value) == "state.bin in the archive is damaged: its checksum differs from that in SHA256SUMS"


def test_an_archive_without_a_snapshot_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.tgz"
    with tarfile.open(file, "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("readme"))

    with pytest.raises(InvalidArchive) as caught:
        unpack_archive(file, tmp_path / "out.bin")

    assert str(caught.value) == "the archive is not a snapshot: it contains no state.bin"
