"""Migration of an allocation's data to another node, and its failures."""

import asyncio
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.node.nodes import NodeProcess, build_raw_job, run_node, run_server
from tests.waiting import wait_until
from wharf.node.migration import InvalidMigrationArchive, pack_folders, unpack_folders
from wharf.node.migration.archive import COMPLETION_ENTRY_NAME
from wharf.node.tasks.folders import AllocationFolders
from wharf.node.unpacking.budget import CopyBudget

TASKS = ("web",)
LARGE_MB = 100


@pytest.fixture
def allocation_folder(tmp_path: Path) -> Path:
    """Return the folder of an ended allocation."""
    root = tmp_path / "ended"
    for folder in ("alloc/data/deep", "alloc/logs", "web/local", "web/secrets"):
        (root / folder).mkdir(parents=True)
    (root / "alloc/data/deep/file").write_bytes(b"shared")
    (root / "alloc/data/deep/file").chmod(0o640)
    (root / "web/local/own").write_text("own")
    (root / "web/local/other-name").hardlink_to(root / "web/local/own")
    (root / "web/local/away").symlink_to("/etc/passwd")
    os.mkfifo(root / "web/local/pipe")
    (root / "web/secrets/token").write_text("secret")
    (root / "alloc/logs/web.stdout.0").write_text("said")
    return root


def pack(root: Path) -> bytes:
    target = BytesIO()
    pack_folders(root, TASKS, target)
    return target.getvalue()


def unpack(archive: bytes, folder: Path, *, max_files: int = 1_000) -> Path:
    (folder / "archive").write_bytes(archive)
    root = folder / "root"
    root.mkdir()
    unpack_folders(folder / "archive", TASKS, root, CopyBudget(1 << 20, max_files))
    return root


def test_shared_and_task_data_are_migrated_unchanged_and_nothing_else(allocation_folder: Path, tmp_path: Path) -> None:
    root = unpack(pack(allocation_folder), tmp_path)

    files = sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())
    assert ["alloc/data/deep/file", "web/local/away", "web/local/other-name", "web/local/own"] == files
    assert (b"shared", 0o640) == (
        (root / "alloc/data/deep/file").read_bytes(),
        (root / "alloc/data/deep/file").stat().st_mode & 0o777,
    )
    assert "/etc/passwd" == os.readlink(root / "web/local/away")


def test_a_truncated_archive_is_rejected_wherever_it_ends(allocation_folder: Path, tmp_path: Path) -> None:
    archive = pack(allocation_folder)
    end = archive.index(COMPLETION_ENTRY_NAME.encode()) + 512  # Only zeros follow.
    for number, length in enumerate(range(0, end, 256)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(InvalidMigrationArchive):
            unpack(archive[:length], folder)


def build_archive(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    data = BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        archive.addfile(info)
        last = tarfile.TarInfo(COMPLETION_ENTRY_NAME)
        last.size = 1
        archive.addfile(last, BytesIO(b"1"))
    return data.getvalue()


@pytest.mark.parametrize(
    "archive",
    [
        build_archive("web/secrets/token"),
        build_archive("other/local/x"),
        build_archive("web/local/../../x"),
        build_archive("/etc/x"),
        build_archive("web/local/disk", tarfile.BLKTYPE),
        build_archive("web/local/pipe", tarfile.FIFOTYPE),
        build_archive("web/local/name", tarfile.LNKTYPE, "../../etc/passwd"),
    ],
)
def test_an_archive_with_forbidden_entries_is_rejected(archive: bytes, tmp_path: Path) -> None:
    with suppress(InvalidMigrationArchive):
        unpack(archive, tmp_path)

    assert ["archive"] == [path.name for path in tmp_path.rglob("*") if not path.is_dir()]


def test_data_of_a_removed_task_are_not_migrated_and_the_rest_is(allocation_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(pack(allocation_folder))
    (tmp_path / "root").mkdir()

    unpack_folders(tmp_path / "archive", ("other",), tmp_path / "root", CopyBudget(1 << 20, 1_000))

    files = [str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert ["alloc/data/deep/file"] == files


def test_an_archive_with_too_many_files_is_rejected(allocation_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidMigrationArchive):
        unpack(pack(allocation_folder), tmp_path, max_files=3)


def test_unpacking_ends_when_the_data_are_no_longer_needed(allocation_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(pack(allocation_folder))
    budget = CopyBudget(1 << 20, 1_000)
    budget.cancel()

    with pytest.raises(InvalidMigrationArchive, match="canceled"):
        unpack_folders(tmp_path / "archive", TASKS, tmp_path, budget)


def test_data_that_are_skipped_count_for_the_limit_of_bytes(allocation_folder: Path, tmp_path: Path) -> None:
    (allocation_folder / "web/local/own").write_bytes(bytes(2 << 20))
    (tmp_path / "archive").write_bytes(pack(allocation_folder))

    with pytest.raises(InvalidMigrationArchive, match="more than 1,048,576 bytes"):
        unpack_folders(tmp_path / "archive", ("other",), tmp_path, CopyBudget(1 << 20, 1_000))


# -- two nodes


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    folder = tmp_path_factory.mktemp("migration")
    with (
        run_server(folder / "server") as server,
        run_node(server, folder / "one") as source,
        run_node(server, folder / "two") as two,
    ):
        wait_until(lambda: len(list_ready_nodes(source)) == 2, what="both nodes are ready")
        yield source, two


def list_ready_nodes(node: NodeProcess) -> list[dict[str, Any]]:
    nodes: Any = node.server.get("/v1/nodes")
    return [description for description in nodes if description["Status"] == "ready"]


SCRIPT = """
trap 'sleep 1; echo "end of $VERSION" >>$WHARF_ALLOC_DIR/data/shared; exit 0' INT
cat $WHARF_ALLOC_DIR/data/shared
[ -e $WHARF_TASK_DIR/own ] || echo begun >$WHARF_TASK_DIR/own
while :; do sleep 0.1; done
"""


def run_job(nodes: tuple[NodeProcess, NodeProcess], id: str, script: str = SCRIPT, **disk: Any) -> dict[str, Any]:
    """Run a job and return its allocation once its task handles signals."""
    job = build_raw_job(id, script, kind="service", Env={"VERSION": "one"})
    job["TaskGroups"][0]["EphemeralDisk"] = {"SizeMB": 30, **disk}
    job["TaskGroups"][0]["Migrate"] = {"MaxParallel": 1, "HealthCheck": "task_states", "MinHealthyTime": 1}
    nodes[0].run(job)
    (allocation,) = wait_until(lambda: list_running(nodes[0], id), what="the allocation runs")
    wait_until(lambda: (find_folder(nodes, allocation) / "t/local/own").exists(), what="the task handles signals")
    return allocation


def list_running(node: NodeProcess, id: str) -> list[dict[str, Any]]:
    return [allocation for allocation in node.allocations(id) if allocation["ClientStatus"] == "running"]


def move_away(
    node: NodeProcess, id: str, *, meanwhile: Callable[[], None] = lambda: None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Move the allocation of the job to the other node, and return the old and the new allocation."""
    (predecessor,) = list_running(node, id)
    node.server.put(f"/v1/node/{predecessor['NodeID']}/eligibility", {"Eligibility": "ineligible"})
    try:
        node.server.put(f"/v1/allocation/{predecessor['ID']}/stop", {})
        meanwhile()
        wait_until(
            lambda: [a["ID"] for a in list_running(node, id)] not in ([], [predecessor["ID"]]),
            what="the replacement runs",
            within_s=150,  # A download that fails is repeated for about a minute.
        )
    finally:
        node.server.put(f"/v1/node/{predecessor['NodeID']}/eligibility", {"Eligibility": "eligible"})
    (new,) = [a for a in list_running(node, id) if a["ID"] != predecessor["ID"]]
    return predecessor, new


def find_folder(nodes: tuple[NodeProcess, NodeProcess], allocation: dict[str, Any]) -> Path:
    (path,) = [folder for node in nodes for folder in (node.folder / "alloc").glob(allocation["ID"])]
    return path


def list_hook_messages(allocation: dict[str, Any]) -> list[str]:
    return [event["Message"] for event in allocation["TaskStates"]["t"]["Events"] if "hook" in event["Type"]]


def test_a_replacement_on_another_node_has_everything_that_its_predecessor_wrote(
    nodes: tuple[NodeProcess, NodeProcess],
) -> None:
    run_job(nodes, "moves", Migrate=True)

    predecessor, new = move_away(nodes[0], "moves")

    assert predecessor["NodeID"] != new["NodeID"]
    folder = find_folder(nodes, new)
    assert "end of one\n" == (folder / "alloc/data/shared").read_text()
    assert "begun\n" == (folder / "t/local/own").read_text()
    (message,) = list_hook_messages(new)
    assert message.startswith(
        f"Downloaded the data of allocation {predecessor['ID']} from node {predecessor['NodeID']}"
    )


def test_missing_data_are_reported_and_the_allocation_starts_without_them(
    nodes: tuple[NodeProcess, NodeProcess],
) -> None:
    predecessor = run_job(nodes, "lost", Migrate=True)
    folder = find_folder(nodes, predecessor)
    folder.rename(folder.with_name("elsewhere"))

    _, new = move_away(nodes[0], "lost")

    reason = "download from node {NodeID} failed: the allocation's files are gone from its node".format(**predecessor)
    assert [
        f"Failed to download the data of allocation {predecessor['ID']}: {reason}. Starting without them"
    ] == list_hook_messages(new)
    wait_until(lambda: (find_folder(nodes, new) / "t/local/own").exists(), what="the replacement has started")
    assert [] == [path for node in nodes for path in list_downloads(node, new)]


def test_a_partial_download_is_discarded_while_an_earlier_one_is_still_being_deleted(tmp_path: Path) -> None:
    for path in (".arriving/a1/new", ".removed/a1/old", ".removed/a1.arriving/old"):
        (tmp_path / path).mkdir(parents=True)

    asyncio.run(AllocationFolders(tmp_path).wait_until_removed())

    assert ([], []) == (os.listdir(tmp_path / ".arriving"), os.listdir(tmp_path / ".removed"))


def test_a_link_in_place_of_a_migrated_folder_is_not_followed(allocation_folder: Path, tmp_path: Path) -> None:
    (allocation_folder / "web/local").rename(allocation_folder / "web/elsewhere")
    (allocation_folder / "web/local").symlink_to("/etc")

    root = unpack(pack(allocation_folder), tmp_path)

    assert not (root / "web").exists()


@pytest.mark.parametrize("killed", ["receiver", "sender"])
def test_data_arrive_complete_although_one_of_both_nodes_is_killed_meanwhile(
    nodes: tuple[NodeProcess, NodeProcess], killed: str
) -> None:
    node, destination = nodes
    job = f"large-{killed}"
    size = LARGE_MB << 20
    script = f"[ -e $WHARF_ALLOC_DIR/data/large ] || head -c {size} /dev/zero >$WHARF_ALLOC_DIR/data/large; {SCRIPT}"
    run_job(nodes, job, script, Migrate=True, SizeMB=2 * LARGE_MB)

    def kill_one() -> None:
        (receiver,) = wait_until(lambda: [n for n in nodes if is_downloading(n, job)], what="data arrive", within_s=60)
        sender = destination if receiver is node else node
        (receiver if killed == "receiver" else sender).kill_agent()

    _, new = move_away(node, job, meanwhile=kill_one)

    assert "Downloaded the data of allocation" in " ".join(list_hook_messages(new)), list_hook_messages(new)
    assert size == read_size(find_folder(nodes, new))
    assert "end of one\n" == (find_folder(nodes, new) / "alloc/data/shared").read_text()
    assert [] == [path for node in nodes for path in list_downloads(node, new)]


def is_downloading(node: NodeProcess, job: str) -> bool:
    return any(list_downloads(node, allocation) for allocation in node.allocations(job))


def read_size(folder: Path) -> int:
    file = folder / "alloc/data/large"
    return file.stat().st_size if file.exists() else 0


def list_downloads(node: NodeProcess, allocation: dict[str, Any]) -> list[Path]:
    """Return what the node stores while it downloads the data for this allocation."""
    return list((node.folder / "alloc" / ".arriving").glob(f"{allocation['ID']}*"))
