"""Archives that cost far more to unpack than to send: limits of bytes, memory, entries, names and disks, and the end of unpacking."""

import asyncio
import bz2
import contextlib
import gzip
import io
import lzma
import os
import random
import signal
import struct
import subprocess
import sys
import tarfile
import threading
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.node.artifacts.archives import build_endless_archive
from tests.node.artifacts.site import Site, body, running_site
from tests.waiting import wait_on_loop_until
from wharf.node.artifacts import ArtifactError, ArtifactLimits, ArtifactRequest, fetch_artifact
from wharf.node.processes import has_arguments
from wharf.node.unpacking.archives import detect_archive_format
from wharf.node.unpacking.messages import UnpackOrder
from wharf.node.unpacking.worker import unpack

MB = 1 << 20
LIMITS = ArtifactLimits(
    max_bytes=100 * MB, max_unpacked_bytes=20 * MB, max_files=10, total_timeout_s=60, idle_timeout_s=10
)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "allocation" / "web"
    (folder / "local").mkdir(parents=True)
    return folder


def fetch(site: Site, task: Path, name: str, data: bytes, *, folder: str = "", limits: ArtifactLimits = LIMITS) -> None:
    site.answers[f"/{name}"] = body(data)
    request = ArtifactRequest(f"{site.address}/{name}{folder}", {}, {}, "any", False, "")
    asyncio.run(fetch_artifact(request, task, limits=limits))


def fetch_error(
    site: Site, task: Path, name: str, data: bytes, *, folder: str = "", limits: ArtifactLimits = LIMITS
) -> str:
    with pytest.raises(ArtifactError) as error:
        fetch(site, task, name, data, folder=folder, limits=limits)
    assert [] == list(task.parent.rglob(".artifact-*")), "scratch files remain"
    return str(error.value)


def measure_refusal(task: Path, name: str, data: bytes, *, agent_pid: int | None = None) -> tuple[str, int]:
    """Return the error of an archive and the peak of the memory that unpacking it in this process takes.

    `agent_pid`: the process that needs the result; None: the parent of this one.
    """
    (task / name).write_bytes(data)
    order = UnpackOrder(
        archive=str(task / name),
        archive_format=detect_archive_format(name, ""),
        name=name,
        archive_folder="",
        root=str(task),
        destination="local",
        owner=None,
        max_bytes=LIMITS.max_unpacked_bytes,
        max_files=LIMITS.max_files,
        agent_pid=os.getppid() if agent_pid is None else agent_pid,
    )
    tracemalloc.start()
    try:
        error = unpack(order).error
        return error, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def build_tar(name: str, content: bytes, format: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as archive:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def build_zip(*entries: tuple[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return buffer.getvalue()


def build_zip_directory(*, count: int = 1, name: bytes = b"", extra: bytes = b"") -> bytes:
    """Return a zip archive that consists of the list of its entries only."""
    fields = (b"PK\1\2", 20, 3, 20, 0, 0, 0, 0, 33, 0, 0, 0, len(name), len(extra), 0, 0, 0, 0, 0)
    data = (struct.pack("<4s4B4HL2L5H2L", *fields) + name + extra) * count
    number = min(count, 65_535)
    return data + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, number, number, len(data), 0, 0)


# -- bytes


BOMBS: dict[str, Callable[[bytes], bytes]] = {
    "a.tar.gz": lambda data: gzip.compress(build_tar("x", data)),
    "a.tar.bz2": lambda data: bz2.compress(build_tar("x", data)),
    "a.tar.xz": lambda data: lzma.compress(build_tar("x", data)),
    "a.gz": gzip.compress,
    "a.bz2": bz2.compress,
    "a.xz": lzma.compress,
    "a.zip": lambda data: build_zip(("x", data)),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_archive_with_a_large_content_is_refused_without_its_memory(task: Path, name: str) -> None:
    error, peak_bytes = measure_refusal(task, name, BOMBS[name](bytes(60 * MB)))

    assert error == f"the unpacked content has more than {20 * MB:,} bytes"
    assert peak_bytes < 20 * MB  # xz needs 9 MB for its usual dictionary.


@pytest.mark.parametrize("name", ["a.tar.gz", "a.tar.bz2", "a.tar.xz"])
def test_skipped_entries_count_for_the_limit_of_bytes(site: Site, task: Path, name: str) -> None:
    archive = BOMBS[name](bytes(30 * MB))

    assert fetch_error(site, task, name, archive, folder="//other") == (
        f"the unpacked content has more than {20 * MB:,} bytes"
    )


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz"])
def test_several_compressed_parts_in_a_row_are_read_as_one(site: Site, task: Path, name: str) -> None:
    parts = [BOMBS[name](content) for content in (b"first,", b"", b"second")]

    fetch(site, task, name, parts[0] + bytes(8) + parts[1] + parts[2] + bytes(40_000))

    assert (task / "local/a").read_bytes() == b"first,second"


@pytest.mark.parametrize("name", ["a.gz", "a.bz2", "a.xz", "a.tar.gz", "a.tar.bz2", "a.tar.xz"])
def test_a_compressed_file_that_is_cut_off_is_refused(site: Site, task: Path, name: str) -> None:
    archive = BOMBS[name](random.Random(1).randbytes(100_000))

    assert "or is damaged: it is cut off" in fetch_error(site, task, name, archive[:-20_000])


def test_a_compressed_file_with_other_data_after_it_is_refused(site: Site, task: Path) -> None:
    assert "other data follow" in fetch_error(site, task, "a.gz", gzip.compress(b"content") + b"other")


def enlarge_dictionary(archive: bytes) -> bytes:
    """Return an xz archive that claims to need a dictionary of 4 GiB."""
    header = bytearray(archive[12 : 12 + (archive[12] + 1) * 4])
    header[4] = 40
    header[-4:] = zlib.crc32(header[:-4]).to_bytes(4, "little")
    return archive[:12] + bytes(header) + archive[12 + len(header) :]


@pytest.mark.parametrize(
    ("name", "content"), [("a.xz", b"content"), ("a.tar.xz", build_tar("x", b"content"))], ids=["file", "tar"]
)
def test_an_xz_file_that_needs_much_memory_is_refused(site: Site, task: Path, name: str, content: bytes) -> None:
    archive = enlarge_dictionary(lzma.compress(content))

    assert fetch_error(site, task, name, archive) == (
        f"{name} needs more than 72 MiB of memory to unpack: compress it again"
    )


def test_an_xz_file_of_the_highest_level_can_be_unpacked(site: Site, task: Path) -> None:
    fetch(site, task, "a.xz", lzma.compress(b"content", preset=9 | lzma.PRESET_EXTREME))

    assert (task / "local/a").read_bytes() == b"content"


# -- the list of entries of zip archives


@pytest.mark.parametrize(
    ("archive", "message"),
    [
        (build_zip_directory(count=100_000), "the list of entries has 4,600,000 bytes; the limit is 4,194,304"),
        (build_zip_directory(count=1_000, name=b"n" * 60_000), "the list of entries has 60,046,000 bytes"),
    ],
    ids=["entries", "names"],
)
def test_a_zip_archive_with_a_long_list_of_entries_is_refused_without_its_memory(
    task: Path, archive: bytes, message: str
) -> None:
    error, peak_bytes = measure_refusal(task, "a.zip", archive)

    assert message in error
    assert peak_bytes < 10 * MB


def test_a_zip_archive_whose_end_claims_a_huge_list_of_entries_is_refused(site: Site, task: Path) -> None:
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1 << 60, 1 << 60, 1 << 60, 0)
    locator = struct.pack("<4sLQL", b"PK\6\7", 0, 0, 1)
    archive = end + locator + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 65_535, 65_535, 2**32 - 1, 2**32 - 1, 0)

    assert "a.zip" in fetch_error(site, task, "a.zip", archive)


def share_content(archive: bytes) -> bytes:
    """Return a zip archive whose second entry has the content of the first."""
    entry = archive.rindex(b"PK\1\2")
    return archive[: entry + 42] + bytes(4) + archive[entry + 46 :]


def quote_second_entry(archive: bytes) -> bytes:
    """Return a zip archive whose first entry claims the second one as a part of its content."""
    entry, size = archive.index(b"PK\1\2"), archive.index(b"PK\1\2") - 31
    return archive[: entry + 20] + struct.pack("<2L", size, size) + archive[entry + 28 :]


@pytest.mark.parametrize("change", [share_content, quote_second_entry])
def test_a_zip_archive_with_overlapping_entries_is_refused(
    site: Site, task: Path, change: Callable[[bytes], bytes]
) -> None:
    archive = build_zip(("a", b"content a"), ("b", b"content b"), method=zipfile.ZIP_STORED)

    assert "overlaps with" in fetch_error(site, task, "a.zip", change(archive))


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_archive_with_an_unusual_compression_is_refused(site: Site, task: Path, method: int) -> None:
    archive = build_zip(("x", bytes(30 * MB)), method=method)

    assert fetch_error(site, task, "a.zip", archive) == (
        "x has an unusual compression: pack it with the method deflate"
    )


def test_a_zip_archive_with_a_long_link_is_refused(site: Site, task: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        entry = zipfile.ZipInfo("link")
        entry.external_attr = 0o120777 << 16
        archive.writestr(entry, "n" * 5_000)

    assert "link is a link with a target of more than 4,096 bytes" == fetch_error(
        site, task, "a.zip", buffer.getvalue()
    )


# -- names and entries


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("n" * 5_000, "the name of an entry has 5,000 characters; the limit is 4,096"),
        ("d/" * 200 + "x", "is in more than 128 folders"),
        ("n" * 300, "File name too long"),
    ],
    ids=["long", "deep", "long for the disk"],
)
@pytest.mark.parametrize("format", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_an_entry_with_a_long_or_deep_name_is_refused(
    site: Site, task: Path, format: int, name: str, message: str
) -> None:
    assert message in fetch_error(site, task, "a.tar", build_tar(name, b"", format))
    assert message in fetch_error(site, task, "a.zip", build_zip((name, b"")))


def test_folders_that_only_names_of_files_contain_are_limited(site: Site, task: Path) -> None:
    archive = build_zip(*((f"{number}/" + "d/" * 120 + "x", b"") for number in range(200)))

    assert fetch_error(site, task, "a.zip", archive, limits=LIMITS._replace(max_files=4_096)) == (
        "the content has more than 16,384 folders"
    )


def test_names_in_errors_have_only_printable_characters(site: Site, task: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", errors="surrogateescape") as archive:
        entry = tarfile.TarInfo("a\udcff\x1b[2Jb\u202e")
        entry.type = tarfile.FIFOTYPE
        archive.addfile(entry)

    assert fetch_error(site, task, "a.tar", buffer.getvalue()) == (
        r"a\udcff\x1b[2Jb\u202e is not a file, folder or link, and cannot be unpacked"
    )


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE, b"Z"])
def test_special_files_and_unknown_types_are_not_created(site: Site, task: Path, kind: bytes) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("x")
        entry.type, entry.devmajor = kind, 1
        archive.addfile(entry)

    assert "x is not a file, folder or link" in fetch_error(site, task, "a.tar", buffer.getvalue())
    assert list((task / "local").iterdir()) == []


def test_files_and_folders_of_a_zip_archive_have_no_set_user_id_bits(site: Site, task: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, mode in (("folder/", 0o047777), ("folder/file", 0o107777)):
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, b"")

    fetch(site, task, "a.zip", buffer.getvalue())

    modes = [(task / "local" / name).stat().st_mode & 0o7777 for name in ("folder", "folder/file")]
    assert modes == [0o755, 0o777]


def test_a_link_and_a_file_below_it_in_one_archive_write_nothing_outside(site: Site, task: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, target in (("x/y/deep", "../.."), ("out", "x/y/deep/../..")):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            archive.addfile(entry)
        archive.addfile(tarfile.TarInfo("out/file"))

    assert "out is not a folder: a file or link has that name" in fetch_error(site, task, "a.tar", buffer.getvalue())
    assert list(task.parent.iterdir()) == [task]


def test_a_file_in_place_of_a_hard_link_does_not_change_the_other_name(site: Site, task: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, type, content in (
            ("first", tarfile.REGTYPE, b"one"),
            ("second", tarfile.LNKTYPE, b""),
            ("second", tarfile.REGTYPE, b"two"),
        ):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname, entry.size = type, "first", len(content)
            archive.addfile(entry, io.BytesIO(content))

    fetch(site, task, "a.tar", buffer.getvalue())

    assert [(task / "local" / name).read_bytes() for name in ("first", "second")] == [b"one", b"two"]


@pytest.mark.parametrize("target", ["first", "../../outside", "/etc/passwd"])
def test_a_hard_link_to_no_file_of_the_archive_is_refused(site: Site, task: Path, target: str) -> None:
    (task / "local/first").symlink_to("/etc/passwd")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("x")
        entry.type, entry.linkname = tarfile.LNKTYPE, target
        archive.addfile(entry)

    fetch_error(site, task, "a.tar", buffer.getvalue())

    assert not (task / "local/x").exists()


def test_a_folder_that_a_task_replaces_by_a_link_meanwhile_leads_nothing_outside(site: Site, task: Path) -> None:
    outside, folder, aside = task.parent / "outside", task / "local/folder", task / "local/aside"
    outside.mkdir()
    archive = build_zip(*((f"folder/inner/{number}", b"content") for number in range(1_000)))
    has_ended = threading.Event()

    def replace_folder() -> None:
        while not has_ended.is_set():
            with contextlib.suppress(OSError):
                folder.rename(aside)
            with contextlib.suppress(OSError):
                folder.symlink_to(outside)
            with contextlib.suppress(OSError):
                folder.unlink()
            with contextlib.suppress(OSError):
                aside.rename(folder)

    replacing = threading.Thread(target=replace_folder)
    replacing.start()
    try:
        for _ in range(3):
            with contextlib.suppress(ArtifactError):
                fetch(site, task, "a.zip", archive, limits=LIMITS._replace(max_files=4_096))
    finally:
        has_ended.set()
        replacing.join()

    assert list(outside.iterdir()) == []


# -- damaged archives


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tar.bz2", "a.tar.xz", "a.zip", "a.gz", "a.bz2", "a.xz"])
def test_a_damaged_archive_is_unpacked_or_refused_with_a_reason(task: Path, name: str) -> None:
    builders = BOMBS | {"a.tar": lambda data: build_tar("x", data, tarfile.PAX_FORMAT)}
    archive = builders[name](b"content")
    generator = random.Random(1)
    for _ in range(100):
        damaged = bytearray(archive)
        for _ in range(generator.randint(1, 4)):
            damaged[generator.randrange(len(damaged))] = generator.choice((0, 1, 127, 128, 255))
        measure_refusal(task, name, bytes(damaged))  # It raises nothing.


# -- the end of an allocation


def list_unpacking_processes() -> list[int]:
    """Return the processes that unpack archives for this one."""
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [
        int(pid) for pid in children if has_arguments(int(pid), sys.executable, "-m", "wharf.node.unpacking.worker")
    ]


@pytest.mark.parametrize("folder", ["", "//in"], ids=["unpacked", "skipped"])
def test_unpacking_ends_with_its_allocation(site: Site, task: Path, folder: str) -> None:
    site.answers["/a.tgz"] = body(build_endless_archive())
    request = ArtifactRequest(f"{site.address}/a.tgz{folder}", {}, {}, "any", False, "")
    name = "x" if folder else "in/x"

    async def scenario() -> float:
        fetching = asyncio.ensure_future(fetch_artifact(request, task))
        await wait_on_loop_until((task / "local" / name).exists, what="the first file of the archive")
        assert len(list_unpacking_processes()) == 1
        started_s = time.monotonic()
        fetching.cancel()
        await asyncio.wait([fetching])
        assert fetching.cancelled()
        return time.monotonic() - started_s

    took_s = asyncio.run(scenario())

    assert took_s < 3
    assert list_unpacking_processes() == []
    assert list(task.parent.iterdir()) == [task]


def test_unpacking_ends_with_its_agent(task: Path) -> None:
    error, _ = measure_refusal(task, "a.tgz", gzip.compress(build_tar("x", b"content")), agent_pid=1 << 30)

    assert error == "canceled"
    assert list((task / "local").iterdir()) == []


def test_a_killed_process_is_an_error_with_a_reason(site: Site, task: Path) -> None:
    site.answers["/a.tgz"] = body(build_endless_archive())
    request = ArtifactRequest(f"{site.address}/a.tgz//in", {}, {}, "any", False, "")

    async def scenario() -> None:
        fetching = asyncio.ensure_future(fetch_artifact(request, task))
        await wait_on_loop_until((task / "local/x").exists, what="the first file of the archive")
        os.kill(list_unpacking_processes()[0], signal.SIGKILL)
        await fetching

    with pytest.raises(ArtifactError, match="the process that unpacks the archive was killed"):
        asyncio.run(scenario())


# -- disks


@pytest.mark.needs("namespaces")
def test_unpacking_stops_before_the_disk_is_full(site: Site, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "wharf-test", str(disk)], check=True)
    try:
        (disk / "web/local").mkdir(parents=True)
        limits = LIMITS._replace(max_unpacked_bytes=1 << 30)

        error = fetch_error(site, disk / "web", "a.gz", gzip.compress(bytes(200 * MB), 1), limits=limits)

        assert error.startswith("the disk of the node is nearly full (")
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
