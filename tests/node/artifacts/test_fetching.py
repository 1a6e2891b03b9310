"""Fetching of artifacts: sources, archives and limits. No artifact is written outside of the task's folder."""

import asyncio
import gzip
import hashlib
import io
import os
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx2
import pytest

from tests.node.artifacts.site import Site, body, dripping, endless, running_site, silent, status
from wharf.node.artifacts import ArtifactError, ArtifactLimits, ArtifactRequest, fetch_artifact
from wharf.node.artifacts.download import is_same_host

SMALL = ArtifactLimits(
    max_bytes=100_000, max_unpacked_bytes=100_000, max_files=10, total_timeout_s=20, idle_timeout_s=1
)


@pytest.fixture
def site() -> Iterator[Site]:
    with running_site() as site:
        yield site


@pytest.fixture
def task(tmp_path: Path) -> Path:
    folder = tmp_path / "allocation" / "web"
    (folder / "local").mkdir(parents=True)
    return folder


def fetch(
    task: Path, source: str, *, mode: str = "any", destination: str = "", limits: ArtifactLimits = SMALL, **options: str
) -> None:
    headers = {"x-token": "secret"} if options.pop("with_token", "") else {}
    request = ArtifactRequest(source, options, headers, mode, False, destination)
    asyncio.run(fetch_artifact(request, task, limits=limits))


def fetch_error(
    task: Path, source: str, *, mode: str = "any", destination: str = "", limits: ArtifactLimits = SMALL, **options: str
) -> str:
    with pytest.raises(ArtifactError) as error:
        fetch(task, source, mode=mode, destination=destination, limits=limits, **options)
    assert [] == list(task.parent.rglob(".artifact-*")), "scratch files remain"
    return str(error.value)


def read_files(task: Path) -> dict[str, bytes]:
    return {str(path.relative_to(task)): path.read_bytes() for path in sorted(task.rglob("*")) if path.is_file()}


def build_tar(*entries: tuple[str, bytes | str | None], kind: str = "w:gz") -> bytes:
    """Return a tar archive. The content is bytes for a file, text for a link to it, None for a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=kind) as archive:  # type: ignore[call-overload]  # a mode out of several
        for name, content in entries:
            entry = tarfile.TarInfo(name)
            entry.mode = 0o4755
            if isinstance(content, bytes):
                entry.size = len(content)
                archive.addfile(entry, io.BytesIO(content))
            else:
                entry.type = tarfile.DIRTYPE if content is None else tarfile.SYMTYPE
                entry.linkname = content or ""
                archive.addfile(entry)
    return buffer.getvalue()


def build_zip(**entries: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name.replace("__", "/"), content)
    return buffer.getvalue()


# -- fetched files


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", lambda data: zlib.compress(data)[2:-4]),
        ("identity", bytes),
    ],
)
def test_a_content_encoding_is_removed(site: Site, task: Path, encoding: str, encode: Callable[[bytes], bytes]) -> None:
    site.answers["/x"] = body(encode(b"content" * 1_000), content_encoding=encoding)

    fetch(task, f"{site.address}/x")

    assert {"local/x": b"content" * 1_000} == read_files(task)


def test_a_small_response_that_decompresses_to_too_much_is_refused_without_its_memory(site: Site, task: Path) -> None:
    site.answers["/x"] = body(gzip.compress(bytes(50_000_000)), content_encoding="gzip")
    tracemalloc.start()
    try:
        error = fetch_error(task, f"{site.address}/x", limits=ArtifactLimits(max_bytes=40_000_000))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert "the file has more than 40,000,000 bytes" == error.rpartition(": ")[2]
    assert peak_bytes < 10_000_000


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{address}/a\0b", "the source is not a URL"),
        ("git::{address}/a\0b", "a text that no program can receive"),
        ("{address}/x?checksum=md5:\0", "invalid checksum"),
        ("http://[::1", "its source cannot be used: Invalid IPv6 URL"),
    ],
)
def test_a_source_that_no_request_can_contain_is_refused_with_a_reason(
    site: Site, task: Path, source: str, reason: str
) -> None:
    assert reason in fetch_error(task, source.format(address=site.address))


def test_headers_may_contain_letters_of_all_languages(site: Site, task: Path) -> None:
    site.answers["/x"] = body(b"content")
    request = ArtifactRequest(f"{site.address}/x", {}, {"X-Name": "Grüße"}, "any", False, "")

    asyncio.run(fetch_artifact(request, task))

    assert {"local/x": b"content"} == read_files(task)


def test_a_header_that_no_request_can_contain_is_refused_with_a_reason(site: Site, task: Path) -> None:
    request = ArtifactRequest(f"{site.address}/x", {}, {"X-Name": "a\r\nb"}, "any", False, "")

    with pytest.raises(ArtifactError, match="Illegal header value"):
        asyncio.run(fetch_artifact(request, task))


def test_a_file_is_stored_in_local_under_its_name(site: Site, task: Path) -> None:
    site.answers["/a/tool.bin"] = body(b"content")

    fetch(task, f"{site.address}/a/tool.bin")

    assert {"local/tool.bin": b"content"} == read_files(task)
    assert 0o644 == (task / "local/tool.bin").stat().st_mode & 0o7777


def test_a_destination_is_a_folder_unless_the_mode_is_file(site: Site, task: Path) -> None:
    site.answers["/tool"] = body(b"x")

    fetch(task, f"{site.address}/tool", destination="local/deep/er")
    fetch(task, f"{site.address}/tool", destination="local/name", mode="file")

    assert {"local/deep/er/tool": b"x", "local/name": b"x"} == read_files(task)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.tar.gz", build_tar(("bin/", None), ("bin/x", b"1"), ("./y", b"2"))),
        ("a.tgz", build_tar(("bin/x", b"1"), ("y", b"2"))),
        ("a.tar", build_tar(("bin/x", b"1"), ("y", b"2"), kind="w")),
        ("a.tar.xz", build_tar(("bin/x", b"1"), ("y", b"2"), kind="w:xz")),
        ("a.tar.bz2", build_tar(("bin/x", b"1"), ("y", b"2"), kind="w:bz2")),
        ("a.zip", build_zip(bin__x=b"1", y=b"2")),
    ],
)
def test_an_archive_is_unpacked(site: Site, task: Path, name: str, data: bytes) -> None:
    site.answers[f"/{name}"] = body(data)

    fetch(task, f"{site.address}/{name}")

    assert {"local/bin/x": b"1", "local/y": b"2"} == read_files(task)


def test_a_compressed_file_is_decompressed(site: Site, task: Path) -> None:
    site.answers["/notes.txt.gz"] = body(gzip.compress(b"text"))

    fetch(task, f"{site.address}/notes.txt.gz")

    assert {"local/notes.txt": b"text"} == read_files(task)


def test_only_the_requested_folder_of_an_archive_is_unpacked(site: Site, task: Path) -> None:
    site.answers["/a.tgz"] = body(build_tar(("top/in/x", b"1"), ("top/out", b"2")))

    fetch(task, f"{site.address}/a.tgz//top/in")

    assert {"local/x": b"1"} == read_files(task)


def test_an_archive_is_not_unpacked_with_archive_false(site: Site, task: Path) -> None:
    data = build_zip(x=b"1")
    site.answers["/a.zip"] = body(data)

    fetch(task, f"{site.address}/a.zip?archive=false")

    assert {"local/a.zip": data} == read_files(task)
    assert "/a.zip" in site.headers


def test_links_and_modes_of_an_archive_are_preserved_without_set_user_id_bits(site: Site, task: Path) -> None:
    site.answers["/a.tgz"] = body(build_tar(("bin/x", b"1"), ("now", "bin/x")))

    fetch(task, f"{site.address}/a.tgz")

    assert b"1" == (task / "local/now").read_bytes()
    assert 0o755 == (task / "local/bin/x").stat().st_mode & 0o7777


def test_a_file_with_a_wrong_checksum_is_rejected(site: Site, task: Path) -> None:
    site.answers["/x"] = body(b"data")
    digest, wrong_digest = hashlib.sha256(b"data").hexdigest(), hashlib.sha256(b"date").hexdigest()

    assert f"wrong checksum: the file's sha256 is {digest}, expected {wrong_digest}" in fetch_error(
        task, f"{site.address}/x?checksum=sha256:{wrong_digest}"
    )
    assert {} == read_files(task)
    fetch(task, f"{site.address}/x", checksum=f"sha256:{digest}")
    assert {"local/x": b"data"} == read_files(task)


def test_an_artifact_that_is_fetched_again_replaces_its_files(site: Site, task: Path) -> None:
    for content in (b"old", b"new"):
        site.answers["/a.tgz"] = body(build_tar(("x", content), ("l", "x")))
        fetch(task, f"{site.address}/a.tgz")

    assert {"local/x": b"new", "local/l": b"new"} == read_files(task)


def test_query_parameters_that_are_not_options_are_sent_unchanged(site: Site, task: Path) -> None:
    site.answers["/x"] = body(b"1")

    fetch(task, f"{site.address}/x?sig=a%2Fb&archive=false")

    assert ["/x?sig=a%2Fb"] == list(site.headers)


def test_an_archive_in_the_tasks_folder_can_be_unpacked(task: Path) -> None:
    (task / "local/payload.zip").write_bytes(build_zip(x=b"1"))

    fetch(task, "local/payload.zip", destination="local/out")

    assert b"1" == (task / "local/out/x").read_bytes()


# -- errors


def test_an_error_response_is_reported_with_its_status_and_without_the_query(site: Site, task: Path) -> None:
    assert f"{site.address}/none: bad response code: 404" == fetch_error(task, f"{site.address}/none?token=secret")


def test_an_unreachable_host_is_reported(task: Path) -> None:
    assert "http://127.0.0.1:1/x: " in fetch_error(task, "http://127.0.0.1:1/x")


def test_a_download_without_data_is_ended(site: Site, task: Path) -> None:
    site.answers["/x"] = silent(site)

    assert "no data for 0.2 s" in fetch_error(task, f"{site.address}/x", limits=SMALL._replace(idle_timeout_s=0.2))


def test_a_slow_download_is_ended_after_the_total_timeout(site: Site, task: Path) -> None:
    site.answers["/x"] = dripping(site)

    assert "the download took longer than 0.5 s" == fetch_error(
        task, f"{site.address}/x", limits=SMALL._replace(total_timeout_s=0.5)
    )
    assert {} == read_files(task)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (endless, "the file has more than 100,000 bytes"),
        (body(b"x", content_length="200000"), "the file has 200,000 bytes; the limit is 100,000"),
        (body(b"x", content_length="50"), "peer closed connection"),
        (body(gzip.compress(b"0" * 200_000), content_encoding="gzip"), "the file has more than 100,000 bytes"),
    ],
)
def test_a_file_with_a_wrong_or_too_large_size_is_rejected(
    site: Site, task: Path, answer: object, message: str
) -> None:
    site.answers["/x"] = answer  # type: ignore[assignment]  # the table's values are answers

    assert message in fetch_error(task, f"{site.address}/x")
    assert {} == read_files(task)


def test_redirects_are_followed_but_headers_are_not_sent_to_other_hosts(site: Site, task: Path) -> None:
    with running_site() as other_site:
        site.answers["/x"] = status(302, location="/y")
        site.answers["/y"] = status(307, location=f"{other_site.address}/z")
        other_site.answers["/z"] = body(b"there")

        fetch(task, f"{site.address}/x", with_token="yes")

        assert {"local/x": b"there"} == read_files(task)
        assert "secret" == site.headers["/y"]["x-token"]
        assert "x-token" not in other_site.headers["/z"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("https://Host.example/a", "https://host.example/b", True),
        ("https://host.example:443/a", "https://host.example/b", True),
        ("http://host.example:80/a", "http://host.example/b", True),
        ("https://user:word@host.example/a", "https://host.example/b", True),
        ("https://b\u00fccher.example/a", "https://xn--bcher-kva.example/b", True),
        ("https://host.example:8443/a", "https://host.example/b", False),
        ("https://host.example.evil.example/a", "https://host.example/b", False),
        ("https://host.example@evil.example/a", "https://host.example/b", False),
    ],
)
def test_the_spelling_of_a_host_makes_no_difference(first: str, second: str, expected: bool) -> None:
    assert is_same_host(httpx2.URL(first), httpx2.URL(second)) == expected


def test_headers_are_sent_to_a_host_in_upper_case(site: Site, task: Path) -> None:
    site.answers["/x"] = status(302, location=f"http://localhost:{site.port}/y")
    site.answers["/y"] = body(b"there")

    fetch(task, f"http://LOCALHOST:{site.port}/x", with_token="yes")

    assert [site.headers[path]["x-token"] for path in ("/x", "/y")] == ["secret", "secret"]


def test_more_than_ten_redirects_are_an_error(site: Site, task: Path) -> None:
    site.answers["/x"] = status(302, location="/x")

    assert "more than 10 redirects" in fetch_error(task, f"{site.address}/x")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([("../x", b"1")], "'local/../x' leads out of the task's folder"),
        ([("a/../../../x", b"1")], "leads out of the task's folder"),
        ([("l", "/etc/passwd")], "l is a link to /etc/passwd, which is outside of the task's folder"),
        ([("l", "../../x")], "l is a link to ../../x, which is outside of the task's folder"),
        ([("l", "."), ("l/x", b"1")], "l is not a folder: a file or link has that name"),
        ([(f"f{n}", b"") for n in range(11)], "the content has more than 10 files"),
        ([("big", b"0" * 100_001)], "the unpacked content has more than 100,000 bytes"),
    ],
)
def test_a_malicious_archive_is_rejected(
    site: Site, task: Path, entries: list[tuple[str, bytes | str]], message: str
) -> None:
    site.answers["/a.tgz"] = body(build_tar(*entries))
    existing_paths = set(task.parent.parent.rglob("*"))

    assert message in fetch_error(task, f"{site.address}/a.tgz")
    assert {path for path in task.parent.parent.rglob("*") if task not in path.parents} <= existing_paths


def test_an_absolute_path_in_an_archive_is_below_the_destination(site: Site, task: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("/etc/x", b"1")
    site.answers["/a.zip"] = body(buffer.getvalue())

    fetch(task, f"{site.address}/a.zip")

    assert {"local/etc/x": b"1"} == read_files(task)


def test_a_device_in_an_archive_is_rejected(site: Site, task: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("dev")
        entry.type = tarfile.BLKTYPE
        archive.addfile(entry)
    site.answers["/a.tar"] = body(buffer.getvalue())

    assert "dev is not a file, folder or link, and cannot be unpacked" == fetch_error(task, f"{site.address}/a.tar")


def test_a_hard_link_to_a_file_outside_is_rejected(site: Site, task: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        entry = tarfile.TarInfo("x")
        entry.type, entry.linkname = tarfile.LNKTYPE, "../../secret"
        archive.addfile(entry)
    site.answers["/a.tar"] = body(buffer.getvalue())
    (task.parent / "secret").write_text("secret")

    assert "leads out of the task's folder" in fetch_error(task, f"{site.address}/a.tar")


def test_a_link_of_a_task_is_not_followed_to_the_destination(site: Site, task: Path) -> None:
    outside = task.parent / "outside"
    outside.mkdir()
    (task / "local/linked").symlink_to(outside)
    site.answers["/x"] = body(b"1")

    assert "linked is not a folder" in fetch_error(task, f"{site.address}/x", destination="local/linked")
    assert [] == list(outside.iterdir())


def test_a_file_replaces_a_link_and_is_not_written_through_it(site: Site, task: Path) -> None:
    secret = task.parent / "secret"
    secret.write_text("kept")
    (task / "local/x").symlink_to(secret)
    site.answers["/x"] = body(b"1")

    fetch(task, f"{site.address}/x")

    assert ("kept", {"local/x": b"1"}) == (secret.read_text(), read_files(task))


def test_a_link_in_the_tasks_folder_is_not_followed_for_reading(task: Path) -> None:
    (task / "local/p.zip").symlink_to("/etc/hostname")

    assert "its files cannot be read or written" in fetch_error(task, "local/p.zip")


# Explicit test ids, because an archive contains the time at which it was built: all test processes must agree on the ids.
DAMAGED = {"no archive": b"no archive", "cut off": build_tar(("x", b"1"))[:40], "empty": b""}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_archive_is_reported_by_name(site: Site, task: Path, data: bytes) -> None:
    site.answers["/a.tgz"] = body(data)

    assert "a.tgz" in fetch_error(task, f"{site.address}/a.tgz")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("file:///etc/passwd", "files of the node cannot be fetched: use a host volume"),
        ("/etc/passwd", "/etc/passwd is outside of the task's folder"),
        ("../x", "../x is outside of the task's folder"),
        ("s3::https://bucket/x", "s3 is not supported: use http, https or git"),
        ("ftp://host/x", "ftp is not supported"),
        ("git::file:///srv/repo", "git over file is not supported: use https or ssh"),
        ("http://h/x?checksum=sha256:abc", 'invalid checksum "sha256:abc": write its kind'),
        ("http://h/x?depth=-1", "invalid depth '-1': write a number"),
        ("http://h/x?filename=../y", "invalid filename '../y': write a name without folders"),
        ("http://h/x.tgz//../up", "//../up leads out of the artifact"),
        ("git::https://h/r?ref=--upload-pack=x", "ref '--upload-pack=x' cannot be a branch, tag or commit"),
    ],
)
def test_an_invalid_source_is_a_permanent_error(task: Path, source: str, message: str) -> None:
    with pytest.raises(ArtifactError) as error:
        fetch(task, source)

    assert message in str(error.value)
    assert error.value.is_permanent


def test_mode_file_requires_an_archive_with_one_file(site: Site, task: Path) -> None:
    site.answers["/a.zip"] = body(build_zip(x=b"1", y=b"2"))

    assert "a.zip has 2 files, but mode is file" == fetch_error(task, f"{site.address}/a.zip", mode="file")


def test_fetched_files_belong_to_the_owner(site: Site, task: Path) -> None:
    site.answers["/a.tgz"] = body(build_tar(("bin/x", b"1"), ("l", "bin/x")))
    owner = (os.getuid(), os.getgid())

    asyncio.run(
        fetch_artifact(
            ArtifactRequest(f"{site.address}/a.tgz", {}, {}, "any", False, ""), task, owner=owner, limits=SMALL
        )
    )

    assert {owner} == {(path.lstat().st_uid, path.lstat().st_gid) for path in task.rglob("*")}


def test_no_scratch_file_is_in_a_folder_where_a_task_could_replace_it_by_a_link(site: Site, task: Path) -> None:
    seen: list[str] = []

    def answer(handler: BaseHTTPRequestHandler) -> None:
        seen.extend(path.name for path in task.rglob("*"))
        body(b"data")(handler)

    site.answers["/file"] = answer
    fetch(task, f"{site.address}/file")

    assert (["local"], b"data") == (seen, (task / "local" / "file").read_bytes())
    assert [task] == list(task.parent.iterdir())
