"""Artifacts: what comes from where, what is refused, and that nothing lands outside of the task's folder."""

import asyncio
import gzip
import hashlib
import io
import os
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.node.artifacts.site import Site, body, dripping, endless, running_site, silent, status
from wharf.node.artifacts import ArtifactError, ArtifactLimits, ArtifactRequest, fetch_artifact

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


def get(
    task: Path, source: str, *, mode: str = "any", to: str = "", bounds: ArtifactLimits = SMALL, **more: str
) -> None:
    headers = {"x-token": "secret"} if more.pop("with_token", "") else {}
    wanted = ArtifactRequest(source, more, headers, mode, False, to)
    asyncio.run(fetch_artifact(wanted, task, limits=bounds))


def refused(
    task: Path, source: str, *, mode: str = "any", to: str = "", bounds: ArtifactLimits = SMALL, **more: str
) -> str:
    with pytest.raises(ArtifactError) as told:
        get(task, source, mode=mode, to=to, bounds=bounds, **more)
    assert [] == [path for path in task.iterdir() if path.name.startswith(".artifact")], "scratch is left"
    return str(told.value)


def files(task: Path) -> dict[str, bytes]:
    return {str(path.relative_to(task)): path.read_bytes() for path in sorted(task.rglob("*")) if path.is_file()}


def tar_of(*entries: tuple[str, bytes | str | None], kind: str = "w:gz") -> bytes:
    """Bytes are a file, text is a link to it, None a folder."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=kind) as archive:  # type: ignore[call-overload]  # a mode out of several
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
    return made.getvalue()


def zip_of(**entries: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name.replace("__", "/"), content)
    return made.getvalue()


# -- what comes


def test_a_file_comes_into_local_under_its_name(site: Site, task: Path) -> None:
    site.answers["/a/tool.bin"] = body(b"content")

    get(task, f"{site.address}/a/tool.bin")

    assert {"local/tool.bin": b"content"} == files(task)
    assert 0o644 == (task / "local/tool.bin").stat().st_mode & 0o7777


def test_a_destination_is_a_folder_unless_the_mode_is_file(site: Site, task: Path) -> None:
    site.answers["/tool"] = body(b"x")

    get(task, f"{site.address}/tool", to="local/deep/er")
    get(task, f"{site.address}/tool", to="local/name", mode="file")

    assert {"local/deep/er/tool": b"x", "local/name": b"x"} == files(task)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.tar.gz", tar_of(("bin/", None), ("bin/x", b"1"), ("./y", b"2"))),
        ("a.tgz", tar_of(("bin/x", b"1"), ("y", b"2"))),
        ("a.tar", tar_of(("bin/x", b"1"), ("y", b"2"), kind="w")),
        ("a.tar.xz", tar_of(("bin/x", b"1"), ("y", b"2"), kind="w:xz")),
        ("a.tar.bz2", tar_of(("bin/x", b"1"), ("y", b"2"), kind="w:bz2")),
        ("a.zip", zip_of(bin__x=b"1", y=b"2")),
    ],
)
def test_an_archive_is_unpacked(site: Site, task: Path, name: str, data: bytes) -> None:
    site.answers[f"/{name}"] = body(data)

    get(task, f"{site.address}/{name}")

    assert {"local/bin/x": b"1", "local/y": b"2"} == files(task)


def test_a_single_file_that_is_compressed_is_unpacked(site: Site, task: Path) -> None:
    site.answers["/notes.txt.gz"] = body(gzip.compress(b"text"))

    get(task, f"{site.address}/notes.txt.gz")

    assert {"local/notes.txt": b"text"} == files(task)


def test_a_folder_of_an_archive_comes_alone(site: Site, task: Path) -> None:
    site.answers["/a.tgz"] = body(tar_of(("top/in/x", b"1"), ("top/out", b"2")))

    get(task, f"{site.address}/a.tgz//top/in")

    assert {"local/x": b"1"} == files(task)


def test_an_archive_stays_one_where_the_job_says_so(site: Site, task: Path) -> None:
    data = zip_of(x=b"1")
    site.answers["/a.zip"] = body(data)

    get(task, f"{site.address}/a.zip?archive=false")

    assert {"local/a.zip": data} == files(task)
    assert "/a.zip" in site.headers


def test_links_and_modes_of_an_archive_are_kept_but_for_those_that_give_power(site: Site, task: Path) -> None:
    site.answers["/a.tgz"] = body(tar_of(("bin/x", b"1"), ("now", "bin/x")))

    get(task, f"{site.address}/a.tgz")

    assert b"1" == (task / "local/now").read_bytes()
    assert 0o755 == (task / "local/bin/x").stat().st_mode & 0o7777


def test_a_checksum_that_fits_lets_it_in_and_another_does_not(site: Site, task: Path) -> None:
    site.answers["/x"] = body(b"data")
    right, wrong = hashlib.sha256(b"data").hexdigest(), hashlib.sha256(b"date").hexdigest()

    assert f"its sha256 is {right}, and should be {wrong}" in refused(task, f"{site.address}/x?checksum=sha256:{wrong}")
    assert {} == files(task)
    get(task, f"{site.address}/x", checksum=f"sha256:{right}")
    assert {"local/x": b"data"} == files(task)


def test_it_can_be_fetched_again_over_what_is_there(site: Site, task: Path) -> None:
    for content in (b"old", b"new"):
        site.answers["/a.tgz"] = body(tar_of(("x", content), ("l", "x")))
        get(task, f"{site.address}/a.tgz")

    assert {"local/x": b"new", "local/l": b"new"} == files(task)


def test_a_part_of_the_query_that_is_not_ours_is_sent(site: Site, task: Path) -> None:
    site.answers["/x"] = body(b"1")

    get(task, f"{site.address}/x?sig=a%2Fb&archive=false")

    assert ["/x?sig=a%2Fb"] == list(site.headers)


def test_a_file_of_the_tasks_own_folder_can_be_unpacked(task: Path) -> None:
    (task / "local/payload.zip").write_bytes(zip_of(x=b"1"))

    get(task, "local/payload.zip", to="local/out")

    assert b"1" == (task / "local/out/x").read_bytes()


# -- what is refused


def test_what_the_host_refuses_is_told_with_its_code(site: Site, task: Path) -> None:
    assert f"{site.address}/none: bad response code: 404" == refused(task, f"{site.address}/none?token=secret")


def test_a_host_that_is_not_there_is_told(task: Path) -> None:
    assert "http://127.0.0.1:1/x: " in refused(task, "http://127.0.0.1:1/x")


def test_a_host_that_goes_silent_is_left(site: Site, task: Path) -> None:
    site.answers["/x"] = silent(site)

    assert "nothing came for 0.2 s" in refused(task, f"{site.address}/x", bounds=SMALL._replace(idle_timeout_s=0.2))


def test_a_host_that_never_comes_to_its_end_is_left_when_the_time_is_over(site: Site, task: Path) -> None:
    site.answers["/x"] = dripping(site)

    assert "it is not there after 0.5 s" == refused(
        task, f"{site.address}/x", bounds=SMALL._replace(total_timeout_s=0.5)
    )
    assert {} == files(task)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (endless, "it has more than 100,000 bytes"),
        (body(b"x", content_length="200000"), "it has 200,000 bytes, and at most 100,000 are fetched"),
        (body(b"x", content_length="50"), "peer closed connection"),
        (body(gzip.compress(b"0" * 200_000), content_encoding="gzip"), "it has more than 100,000 bytes"),
    ],
)
def test_a_host_that_lies_about_the_size_gains_nothing(site: Site, task: Path, answer: object, told: str) -> None:
    site.answers["/x"] = answer  # type: ignore[assignment]  # the table's values are answers

    assert told in refused(task, f"{site.address}/x")
    assert {} == files(task)


def test_redirects_are_followed_and_the_jobs_headers_stay_with_its_host(site: Site, task: Path) -> None:
    with running_site() as other:
        site.answers["/x"] = status(302, location="/y")
        site.answers["/y"] = status(307, location=f"{other.address}/z")
        other.answers["/z"] = body(b"there")

        get(task, f"{site.address}/x", with_token="yes")

        assert {"local/x": b"there"} == files(task)
        assert "secret" == site.headers["/y"]["x-token"]
        assert "x-token" not in other.headers["/z"]


def test_redirects_without_end_are_given_up(site: Site, task: Path) -> None:
    site.answers["/x"] = status(302, location="/x")

    assert "more than 10 redirects" in refused(task, f"{site.address}/x")


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ([("../x", b"1")], "'local/../x' leads out of the task's folder"),
        ([("a/../../../x", b"1")], "leads out of the task's folder"),
        ([("l", "/etc/passwd")], "l is a link to /etc/passwd, outside of the task's folder"),
        ([("l", "../../x")], "l is a link to ../../x, outside of the task's folder"),
        ([("l", "."), ("l/x", b"1")], "l is no folder: something else has that name"),
        ([(f"f{n}", b"") for n in range(11)], "it holds more than 10 files"),
        ([("big", b"0" * 100_001)], "it grows over 100,000 bytes when unpacked"),
    ],
)
def test_an_archive_that_means_harm_is_refused(
    site: Site, task: Path, entries: list[tuple[str, bytes | str]], told: str
) -> None:
    site.answers["/a.tgz"] = body(tar_of(*entries))
    around = set(task.parent.parent.rglob("*"))

    assert told in refused(task, f"{site.address}/a.tgz")
    assert {path for path in task.parent.parent.rglob("*") if task not in path.parents} <= around


def test_a_path_from_the_root_is_one_below_the_destination(site: Site, task: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("/etc/x", b"1")
    site.answers["/a.zip"] = body(made.getvalue())

    get(task, f"{site.address}/a.zip")

    assert {"local/etc/x": b"1"} == files(task)


def test_a_device_in_an_archive_is_refused(site: Site, task: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo("dev")
        entry.type = tarfile.BLKTYPE
        archive.addfile(entry)
    site.answers["/a.tar"] = body(made.getvalue())

    assert "dev is a device or the like, and not unpacked" == refused(task, f"{site.address}/a.tar")


def test_another_name_for_what_lies_outside_is_refused(site: Site, task: Path) -> None:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        entry = tarfile.TarInfo("x")
        entry.type, entry.linkname = tarfile.LNKTYPE, "../../secret"
        archive.addfile(entry)
    site.answers["/a.tar"] = body(made.getvalue())
    (task.parent / "secret").write_text("secret")

    assert "leads out of the task's folder" in refused(task, f"{site.address}/a.tar")


def test_a_link_that_a_task_left_there_leads_nobody_outside(site: Site, task: Path) -> None:
    outside = task.parent / "outside"
    outside.mkdir()
    (task / "local/way").symlink_to(outside)
    site.answers["/x"] = body(b"1")

    assert "way is no folder" in refused(task, f"{site.address}/x", to="local/way")
    assert [] == list(outside.iterdir())


def test_a_file_is_written_in_the_place_of_a_link_and_not_through_it(site: Site, task: Path) -> None:
    secret = task.parent / "secret"
    secret.write_text("kept")
    (task / "local/x").symlink_to(secret)
    site.answers["/x"] = body(b"1")

    get(task, f"{site.address}/x")

    assert ("kept", {"local/x": b"1"}) == (secret.read_text(), files(task))


def test_a_file_of_the_tasks_folder_is_not_read_through_a_link(task: Path) -> None:
    (task / "local/p.zip").symlink_to("/etc/hostname")

    assert "it cannot be written" in refused(task, "local/p.zip")


# An archive has the time of day in it, so the names of the tests are told: processes that collect at different moments agree.
DAMAGED = {"no archive": b"no archive", "cut off": tar_of(("x", b"1"))[:40], "empty": b""}


@pytest.mark.parametrize("data", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_archive_is_told(site: Site, task: Path, data: bytes) -> None:
    site.answers["/a.tgz"] = body(data)

    assert "a.tgz" in refused(task, f"{site.address}/a.tgz")


@pytest.mark.parametrize(
    ("source", "told"),
    [
        ("file:///etc/passwd", "files of the node are not given to tasks: use a host volume"),
        ("/etc/passwd", "/etc/passwd lies outside the task's folder"),
        ("../x", "../x lies outside the task's folder"),
        ("s3::https://bucket/x", "s3 is not known here; there are http, https and git"),
        ("ftp://host/x", "ftp is not known here"),
        ("git::file:///srv/repo", "git over file is not fetched: use https or ssh"),
        ("http://h/x?checksum=sha256:abc", 'checksum is "sha256:abc": write its kind'),
        ("http://h/x?depth=-1", "depth is -1: write a number"),
        ("http://h/x?filename=../y", "filename is ../y: write a name without folders"),
        ("http://h/x.tgz//../up", "//../up leads out of what is fetched"),
        ("git::https://h/r?ref=--upload-pack=x", "ref is --upload-pack=x: no branch, tag or commit is named so"),
    ],
)
def test_a_source_that_cannot_be_is_refused_for_good(task: Path, source: str, told: str) -> None:
    with pytest.raises(ArtifactError) as error:
        get(task, source)

    assert told in str(error.value)
    assert error.value.is_permanent


def test_a_file_of_several_is_no_file(site: Site, task: Path) -> None:
    site.answers["/a.zip"] = body(zip_of(x=b"1", y=b"2"))

    assert "a.zip holds 2 files, and the mode is file" == refused(task, f"{site.address}/a.zip", mode="file")


def test_what_is_fetched_belongs_to_the_tasks_user(site: Site, task: Path) -> None:
    site.answers["/a.tgz"] = body(tar_of(("bin/x", b"1"), ("l", "bin/x")))
    owner = (os.getuid(), os.getgid())

    asyncio.run(
        fetch_artifact(
            ArtifactRequest(f"{site.address}/a.tgz", {}, {}, "any", False, ""), task, owner=owner, limits=SMALL
        )
    )

    assert {owner} == {(path.lstat().st_uid, path.lstat().st_gid) for path in task.rglob("*")}
