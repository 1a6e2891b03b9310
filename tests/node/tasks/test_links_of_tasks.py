"""The node writes into folders in which tasks write too: links and other files of tasks lead it nowhere else."""

import asyncio
import contextlib
import io
import os
import socket
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.templates import Artifact
from wharf.node.artifacts import ArtifactError, ArtifactRequest, fetch_artifact
from wharf.node.drivers.port import View
from wharf.node.migration import pack_folders
from wharf.node.mounts import list_mounts_below, mount_secrets
from wharf.node.open_files import FairSlots
from wharf.node.tasks.artifacts import FetchPermits, fetch_artifacts
from wharf.node.tasks.context import TaskContext, TaskSetupError
from wharf.node.tasks.folders import AllocationFolders, TaskFolders
from wharf.node.tasks.identities.api_socket import ApiSocket
from wharf.node.tasks.interpolation import ReferenceValues
from wharf.world import RealWorld
from wharf.world.failover import FailoverAddresses


@contextlib.contextmanager
def replacing_before_chmod(path: Path, target: Path) -> Iterator[None]:
    """A task replaces `path` by a link to `target` when the node has created it and is about to change its mode."""
    is_active = True

    def on_call(event: str, _: object) -> None:
        nonlocal is_active
        if is_active and event == "os.chmod":
            is_active = False
            path.rename(path.with_name("moved"))
            path.symlink_to(target)

    sys.addaudithook(on_call)  # It cannot be removed.
    yield
    assert path.is_symlink()
    is_active = False


def remove_entry(path: Path) -> None:
    """Remove an empty folder, a file or a link, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        try:
            path.unlink()
        except (IsADirectoryError, PermissionError):
            path.rmdir()


def build_context(folder: Path, task: Task) -> TaskContext:
    """Return the input for the preparation of a task in `folder`, with its folders."""
    for name in ("local", "private"):
        (folder / "t" / name).mkdir(parents=True, exist_ok=True)
    folders = TaskFolders(folder / "t", folder / "alloc")
    return TaskContext("a1", "default", "global", task, folders, View.WALLED, {}, ReferenceValues({}))


@contextlib.asynccontextmanager
async def opened_api_socket(secrets: Path) -> AsyncIterator[Path]:
    """Open the API socket of a task, of a node that knows no server. Yield the path of the socket."""
    world = RealWorld()
    api_socket = ApiSocket(world, [], FailoverAddresses(world, 1), slots=FairSlots(8))
    await api_socket.open(secrets)
    yield secrets / "api.sock"
    await api_socket.close()


def test_the_mode_of_no_other_file_changes_when_an_api_socket_is_opened(tmp_path: Path) -> None:
    secrets, secret = tmp_path / "secrets", tmp_path / "secret"
    secrets.mkdir()
    secret.write_text("secret")
    secret.chmod(0o600)

    async def open_socket() -> None:
        async with opened_api_socket(secrets):
            pass

    with replacing_before_chmod(secrets / "api.sock", secret):
        asyncio.run(open_socket())
    assert 0o100600 == secret.stat().st_mode


def test_every_user_may_connect_to_an_api_socket(tmp_path: Path) -> None:
    async def open_socket() -> None:
        async with opened_api_socket(tmp_path) as path:
            assert 0o666 == path.stat().st_mode & 0o777
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))

    asyncio.run(open_socket())


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (b"", b"401"),
        (b"Authorization: Basic b\r\n", b"401"),
        (b"X-Cluster-Token: a\r\nAuthorization: Bearer b\r\n", b"400"),
        (b"Authorization: Bearer\xa0b\r\n", b"400"),
        (b"X-Test: a\r\n X-Cluster-Token: b\r\n", b"400"),
        (b"X-Cluster-Token : b\r\n", b"400"),
        (b"X-Cluster-Token: b\r\n", b"502"),
    ],
)
def test_a_request_of_a_task_is_forwarded_only_with_one_certain_token(
    tmp_path: Path, header: bytes, status: bytes
) -> None:
    async def send_request() -> bytes:
        async with opened_api_socket(tmp_path) as path:
            reader, writer = await asyncio.open_unix_connection(str(path))
            writer.write(b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\n" + header + b"\r\n")
            reply = await reader.read()
            writer.close()
        return reply

    assert asyncio.run(send_request()).startswith(b"HTTP/1.1 " + status)


def test_connections_to_the_api_beyond_the_share_of_the_namespace_are_refused(tmp_path: Path) -> None:
    async def open_socket() -> bytes:
        world = RealWorld()
        slots = FairSlots(4)
        sockets = [ApiSocket(world, [], FailoverAddresses(world, 1), slots=slots, namespace="one") for _ in range(2)]
        for number, api_socket in enumerate(sockets):
            (tmp_path / str(number)).mkdir()
            await api_socket.open(tmp_path / str(number))
        connections = [await asyncio.open_unix_connection(str(tmp_path / f"{number}/api.sock")) for number in (0, 1, 0)]
        reply = await connections[2][0].read()
        for _, writer in connections:
            writer.close()
        for api_socket in sockets:
            await api_socket.close()
        assert slots.count_used("one") == 0
        return reply

    assert asyncio.run(open_socket()).startswith(b"HTTP/1.1 429 Too Many Requests")


def test_the_mode_of_no_other_folder_changes_when_the_folders_of_a_task_are_created(tmp_path: Path) -> None:
    folders, outside = AllocationFolders(tmp_path / "alloc"), tmp_path / "outside"
    outside.mkdir(mode=0o700)
    shared = folders.create_task_folders("a", "t").shared

    (shared / "tmp").rmdir()

    with replacing_before_chmod(shared / "tmp", outside):
        folders.create_task_folders("a", "t")
    assert 0o40700 == outside.stat().st_mode


def test_the_folders_of_a_task_have_their_modes(tmp_path: Path) -> None:
    own = AllocationFolders(tmp_path / "alloc").create_task_folders("a", "t")
    modes = {
        str(path.relative_to(tmp_path / "alloc/a")): oct(path.stat().st_mode & 0o7777)
        for path in (own.shared, own.task, *own.shared.iterdir(), *own.task.iterdir())
    }
    assert modes == {
        **dict.fromkeys(("alloc", "t", "alloc/data", "alloc/logs", "alloc/tmp", "t/local", "t/secrets"), "0o777"),
        "t/private": "0o700",
        "t/tmp": "0o1777",
    }


def test_the_data_of_a_predecessor_move_unless_they_are_a_link(tmp_path: Path) -> None:
    folders, outside = AllocationFolders(tmp_path / "alloc"), tmp_path / "outside"
    outside.mkdir()
    old, new = folders.create_task_folders("old", "t"), folders.create_task_folders("new", "t")
    (old.local / "kept").write_text("kept")
    (old.shared / "data").rmdir()
    (old.shared / "data").symlink_to(outside)

    folders.move_predecessor_data("old", "new", "t")

    assert "kept" == (new.local / "kept").read_text()
    assert not (new.shared / "data").is_symlink()


@pytest.mark.needs("mounts")
def test_secrets_in_memory_are_not_mounted_over_the_target_of_a_link(tmp_path: Path) -> None:
    outside, secrets = tmp_path / "outside", tmp_path / "secrets"
    outside.mkdir()
    secrets.symlink_to(outside)

    with pytest.raises(OSError, match="Not a directory"):
        mount_secrets(secrets)
    assert [] == list_mounts_below(tmp_path)


@pytest.mark.parametrize("replaced", ["private", "private/.fetched"])
def test_no_file_is_created_where_a_link_of_a_task_leads(tmp_path: Path, replaced: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    source = tmp_path / "a/t/local/source"
    task = Task(name="t", driver="exec", artifacts=(Artifact(getter_source="local/source"),))
    context = build_context(tmp_path / "a", task)
    source.write_text("data")
    remove_entry(context.folders.task / replaced)
    (context.folders.task / replaced).symlink_to(outside if replaced == "private" else outside / "new")

    with contextlib.suppress(TaskSetupError):
        asyncio.run(fetch_artifacts(context, lambda *_, **__: None, FetchPermits()))

    assert [] == list(outside.iterdir())


def test_a_file_replaced_by_a_link_in_an_archive_gives_no_file_of_the_node(tmp_path: Path) -> None:
    task = tmp_path / "a" / "t"
    (task / "local").mkdir(parents=True)
    (tmp_path / "a" / "secret").write_text("secret")
    with tarfile.open(task / "local" / "evil.tar", "w") as archive:
        file, deep, link = tarfile.TarInfo("x/y/z/f"), tarfile.TarInfo("x/y/z/up"), tarfile.TarInfo("x/y/z/f")
        deep.type, deep.linkname = tarfile.SYMTYPE, "../../.."
        link.type, link.linkname = tarfile.SYMTYPE, "up/../../secret"
        archive.addfile(file, io.BytesIO(b""))
        archive.addfile(deep)
        archive.addfile(link)

    with pytest.raises(ArtifactError):
        asyncio.run(fetch_artifact(ArtifactRequest("local/evil.tar", {}, {}, "file", False, "local/copy"), task))
    assert not (task / "local" / "copy").exists()


def test_a_migration_packs_no_folder_that_a_link_leads_to(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "a"
    for folder in (outside / "data", root / "alloc", root / "t" / "local" / "in"):
        folder.mkdir(parents=True)
    (outside / "data" / "secret").write_text("secret")
    (root / "alloc" / "data").symlink_to(outside / "data")
    (root / "t" / "local" / "in" / "file").write_text("mine")
    os.link(root / "t" / "local" / "in" / "file", root / "t" / "local" / "in" / "twin")
    (root / "t" / "local" / "in" / "link").symlink_to(outside)

    packed = io.BytesIO()
    pack_folders(root, ("t",), packed)
    packed.seek(0)

    with tarfile.open(fileobj=packed) as archive:
        types = {entry.name: entry.type for entry in archive}
    link_types = {"t/local/in/link": tarfile.SYMTYPE, "t/local/in/twin": tarfile.LNKTYPE}
    folder_types = {"t/local": tarfile.DIRTYPE, "t/local/in": tarfile.DIRTYPE}
    assert types == {**folder_types, **link_types, "t/local/in/file": tarfile.REGTYPE, "complete": tarfile.REGTYPE}
