"""Headers of tar archives that are not trusted: what takes too much memory or time is refused before it is read."""

import io
import tarfile
from collections.abc import Callable

import pytest

from wharf.world.bounded_tar import MAX_EXTENDED_HEADER_BYTES, BoundedTarInfo


def read_names(data: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r|", tarinfo=BoundedTarInfo) as opened:
        return [entry.name for entry in opened]


def write_archive(*names: str, format: int, pax_headers: dict[str, str] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format, pax_headers=pax_headers or {}) as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return buffer.getvalue()


def build_header(type: bytes, size: int) -> bytes:
    """Return the header of an entry that claims to have this size."""
    info = tarfile.TarInfo("x")
    info.type, info.size = type, size
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("format", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT])
def test_long_names_can_be_read(format: int) -> None:
    names = ["short", "n" * 4_000, "é" * 1_000]

    assert read_names(write_archive(*names, format=format)) == names


def test_small_global_headers_can_be_read() -> None:
    data = write_archive("a", "b", format=tarfile.PAX_FORMAT, pax_headers={"comment": "x" * 10_000})

    assert read_names(data) == ["a", "b"]


@pytest.mark.parametrize(
    "type",
    [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK],
)
def test_a_large_extended_header_is_refused_by_its_claimed_size(type: bytes) -> None:
    with pytest.raises(tarfile.ReadError, match="an extended header of 3,221,225,472 bytes, more than 65,536"):
        read_names(build_header(type, 3 << 30))


def test_many_global_headers_are_refused() -> None:
    content = b"11 a=" + b"b" * (MAX_EXTENDED_HEADER_BYTES - 512)
    one = build_header(tarfile.XGLTYPE, len(content)) + content.ljust(-(-len(content) // 512) * 512, b"\0")

    with pytest.raises(tarfile.ReadError, match="global headers have more than 1,048,576 bytes"):
        read_names(one * 20 + write_archive("a", format=tarfile.GNU_FORMAT))


def old_sparse_file() -> bytes:
    return build_header(tarfile.GNUTYPE_SPARSE, 0)


def make_pax_sparse_file(**headers: str) -> Callable[[], bytes]:
    def build() -> bytes:
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            info = tarfile.TarInfo("x")
            info.pax_headers = {f"GNU.sparse.{name}": value for name, value in headers.items()}
            archive.addfile(info)
        return buffer.getvalue()

    return build


@pytest.mark.parametrize(
    "build",
    [
        old_sparse_file,
        make_pax_sparse_file(size="5", numblocks="0"),
        make_pax_sparse_file(map="0,1", size="5"),
        make_pax_sparse_file(major="1", minor="0"),
    ],
)
def test_sparse_files_are_refused(build: Callable[[], bytes]) -> None:
    with pytest.raises(tarfile.ReadError, match="it contains a sparse file"):
        read_names(build())
