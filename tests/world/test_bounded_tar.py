"""Headers of tar archives that are not trusted: what takes too much memory or time is refused before it is read."""

import io
import tarfile
from collections.abc import Callable

import pytest

from tests.attempts import limited_cpu
from wharf.world.bounded_tar import MAX_EXTENDED_HEADER_BYTES, MAX_EXTENDED_HEADERS, BoundedTarInfo


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


def build_extended_header(content: bytes, type: bytes = tarfile.XHDTYPE) -> bytes:
    return build_header(type, len(content)) + content.ljust(-(-len(content) // 512) * 512, b"\0")


@pytest.mark.parametrize(
    "one",
    [
        build_extended_header(b"6 a=b\n"),
        build_extended_header(b"6 a=b\n", tarfile.XGLTYPE),
        build_extended_header(b"name\0", tarfile.GNUTYPE_LONGNAME),
    ],
)
def test_an_entry_with_many_extended_headers_is_refused(one: bytes) -> None:
    entry = write_archive("a", format=tarfile.GNU_FORMAT)

    assert len(read_names(one * MAX_EXTENDED_HEADERS + entry)) == 1
    with pytest.raises(tarfile.ReadError, match="an entry has more than 16 extended headers"):
        read_names(one * 1_000 + entry)


@pytest.mark.parametrize(
    "content",
    [
        b"1" * (MAX_EXTENDED_HEADER_BYTES - 512),
        b"0 path=x\n",
        b"3 \n",
        b"99 path=x\n",
        b"9 path=x ",
        b"-9 path=x\n",
        b"10 size=-1\n",
        b"10 size=x1\n",
        b"65000 mtime=".ljust(64_999, b"1") + b"\n",
    ],
    ids=["digits", "length 0", "no name", "beyond the end", "no line feed", "sign", "negative size", "text", "long"],
)
def test_a_damaged_extended_header_is_refused_in_little_time(content: bytes) -> None:
    data = build_extended_header(content) + write_archive("a", format=tarfile.GNU_FORMAT)

    refused = pytest.raises(tarfile.ReadError, match="it contains a damaged extended header")
    with limited_cpu(0.1, "the refusal"), refused:
        read_names(data)


def test_a_size_in_an_extended_header_is_used() -> None:
    file = tarfile.TarInfo("first").tobuf(tarfile.GNU_FORMAT) + b"content".ljust(512, b"\0")
    data = build_extended_header(b"9 size=7\n") + file + write_archive("second", format=tarfile.GNU_FORMAT)

    with tarfile.open(fileobj=io.BytesIO(data), mode="r|", tarinfo=BoundedTarInfo) as opened:
        sizes = {entry.name: entry.size for entry in opened}

    assert sizes == {"first": 7, "second": 0}


def test_an_entry_of_negative_size_is_refused() -> None:
    header = bytearray(build_header(tarfile.REGTYPE, 0))
    header[124:136] = (-1_024).to_bytes(12, "big", signed=True)
    header[148:156] = b"%06o\0 " % (256 + sum(header[:148]) + sum(header[156:]))

    with pytest.raises(tarfile.ReadError, match="it contains an entry of negative size"):
        read_names(bytes(header) * 3)


def test_a_damaged_header_is_not_taken_for_the_end_of_the_archive() -> None:
    entry = write_archive("a", format=tarfile.GNU_FORMAT)[:512]

    for rest in (b"x" * 512, entry[:100]):
        with pytest.raises(tarfile.ReadError):
            read_names(entry + rest)


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
