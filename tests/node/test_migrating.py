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

from tests.node.nodes import ANode, a_node, a_raw_job, a_server
from tests.waiting import wait_until
from wharf.node.artifacts.archives import UnpackBudget
from wharf.node.migration import InvalidArchive, pack_folders, unpack_folders
from wharf.node.migration.archive import COMPLETION_ENTRY_NAME
from wharf.node.tasks.folders import AllocationFolders

TASKS = ("web",)
LARGE_MB = 100


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """What an allocation has left."""
    root = tmp_path / "left"
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


def packed(root: Path) -> bytes:
    target = BytesIO()
    pack_folders(root, TASKS, target)
    return target.getvalue()


def unpacked(archive: bytes, folder: Path, *, files_max: int = 1_000) -> Path:
    (folder / "archive").write_bytes(archive)
    root = folder / "root"
    root.mkdir()
    unpack_folders(folder / "archive", TASKS, root, UnpackBudget(1 << 20, files_max))
    return root


def test_shared_and_task_data_are_migrated_unchanged_and_nothing_else(kept: Path, tmp_path: Path) -> None:
    root = unpacked(packed(kept), tmp_path)

    found = sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())
    assert ["alloc/data/deep/file", "web/local/away", "web/local/other-name", "web/local/own"] == found
    assert (b"shared", 0o640) == (
        (root / "alloc/data/deep/file").read_bytes(),
        (root / "alloc/data/deep/file").stat().st_mode & 0o777,
    )
    assert "/etc/passwd" == os.readlink(root / "web/local/away")


def test_a_truncated_archive_is_rejected_wherever_it_ends(kept: Path, tmp_path: Path) -> None:
    archive = packed(kept)
    end = archive.index(COMPLETION_ENTRY_NAME.encode()) + 512  # Beyond it there are only zeroes.
    for number, length in enumerate(range(0, end, 256)):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(InvalidArchive):
            unpacked(archive[:length], folder)


def entry(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> bytes:
    made = BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, target
        archive.addfile(info)
        last = tarfile.TarInfo(COMPLETION_ENTRY_NAME)
        last.size = 1
        archive.addfile(last, BytesIO(b"1"))
    return made.getvalue()


@pytest.mark.parametrize(
    "archive",
    [
        entry("web/secrets/token"),
        entry("other/local/x"),
        entry("web/local/../../x"),
        entry("/etc/x"),
        entry("web/local/disk", tarfile.BLKTYPE),
        entry("web/local/pipe", tarfile.FIFOTYPE),
        entry("web/local/name", tarfile.LNKTYPE, "../../etc/passwd"),
    ],
)
def test_an_archive_with_forbidden_entries_is_rejected(archive: bytes, tmp_path: Path) -> None:
    with suppress(InvalidArchive):
        unpacked(archive, tmp_path)

    assert ["archive"] == [path.name for path in tmp_path.rglob("*") if not path.is_dir()]


def test_data_of_a_removed_task_are_not_migrated_and_the_rest_is(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(packed(kept))
    (tmp_path / "root").mkdir()

    unpack_folders(tmp_path / "archive", ("other",), tmp_path / "root", UnpackBudget(1 << 20, 1_000))

    found = [str(path.relative_to(tmp_path / "root")) for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert ["alloc/data/deep/file"] == found


def test_an_archive_with_too_many_files_is_rejected(kept: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidArchive):
        unpacked(packed(kept), tmp_path, files_max=3)


# -- two nodes


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ANode, ANode]]:
    folder = tmp_path_factory.mktemp("migrating")
    with (
        a_server(folder / "server") as server,
        a_node(server, folder / "one") as one,
        a_node(server, folder / "two") as two,
    ):
        wait_until(lambda: len(ready(one)) == 2, what="both are ready")
        yield one, two


def ready(node: ANode) -> list[dict[str, Any]]:
    found: Any = node.server.get("/v1/nodes")
    return [each for each in found if each["Status"] == "ready"]


SCRIPT = """
trap 'sleep 1; echo "end of $VERSION" >>$WHARF_ALLOC_DIR/data/kept; exit 0' INT
cat $WHARF_ALLOC_DIR/data/kept
echo begun >$WHARF_TASK_DIR/own
while :; do sleep 0.1; done
"""


def moving(nodes: tuple[ANode, ANode], id: str, script: str = SCRIPT, **disk: Any) -> dict[str, Any]:
    """The allocation, as soon as its task has prepared for its end: before, a signal just ends it."""
    job = a_raw_job(id, script, kind="service", Env={"VERSION": "one"})
    job["TaskGroups"][0]["EphemeralDisk"] = {"SizeMB": 30, **disk}
    job["TaskGroups"][0]["Migrate"] = {"MaxParallel": 1, "HealthCheck": "task_states", "MinHealthyTime": 1}
    nodes[0].run(job)
    (allocation,) = wait_until(lambda: running(nodes[0], id), what="it runs")
    wait_until(lambda: (files_of(nodes, allocation) / "t/local/own").exists(), what="it is prepared for its end")
    return allocation


def running(node: ANode, id: str) -> list[dict[str, Any]]:
    return [each for each in node.allocations(id) if each["ClientStatus"] == "running"]


def move_away(
    node: ANode, id: str, *, meanwhile: Callable[[], None] = lambda: None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """From the node where it runs: the former allocation and the new one, which runs."""
    (former,) = running(node, id)
    node.server.put(f"/v1/node/{former['NodeID']}/eligibility", {"Eligibility": "ineligible"})
    try:
        node.server.put(f"/v1/allocation/{former['ID']}/stop", {})
        meanwhile()
        wait_until(
            lambda: [each["ID"] for each in running(node, id)] not in ([], [former["ID"]]),
            what="the other runs",
            within_s=150,  # Data that cannot be had just now are asked for over a minute.
        )
    finally:
        node.server.put(f"/v1/node/{former['NodeID']}/eligibility", {"Eligibility": "eligible"})
    (new,) = [each for each in running(node, id) if each["ID"] != former["ID"]]
    return former, new


def files_of(nodes: tuple[ANode, ANode], allocation: dict[str, Any]) -> Path:
    (found,) = [folder for node in nodes for folder in (node.folder / "alloc").glob(allocation["ID"])]
    return found


def said(allocation: dict[str, Any]) -> list[str]:
    return [event["Message"] for event in allocation["TaskStates"]["t"]["Events"] if "hook" in event["Type"]]


def test_a_replacement_on_another_node_has_everything_that_its_predecessor_wrote(
    nodes: tuple[ANode, ANode],
) -> None:
    moving(nodes, "moves", Migrate=True)

    former, new = move_away(nodes[0], "moves")

    assert former["NodeID"] != new["NodeID"]
    folder = files_of(nodes, new)
    assert "end of one\n" == (folder / "alloc/data/kept").read_text()
    assert "begun\n" == (folder / "t/local/own").read_text()
    (message,) = said(new)
    assert message.startswith(f"Downloaded the data of allocation {former['ID']} from node {former['NodeID']}")


def test_missing_data_are_reported_and_the_allocation_starts_without_them(nodes: tuple[ANode, ANode]) -> None:
    former = moving(nodes, "loses", Migrate=True)
    place = files_of(nodes, former)
    place.rename(place.with_name("elsewhere"))

    _, new = move_away(nodes[0], "loses")

    why = "download from node {NodeID} failed: the allocation's files are gone from its node".format(**former)
    assert [f"Failed to download the data of allocation {former['ID']}: {why}. Starting without them"] == said(new)
    wait_until(lambda: (files_of(nodes, new) / "t/local/own").exists(), what="it begins")
    assert [] == arriving(nodes[0]) + arriving(nodes[1])


def test_a_partial_download_is_discarded_while_an_earlier_one_is_still_being_deleted(tmp_path: Path) -> None:
    for place in (".arriving/a1/new", ".removed/a1/old", ".removed/a1.arriving/old"):
        (tmp_path / place).mkdir(parents=True)

    asyncio.run(AllocationFolders(tmp_path).wait_until_removed())

    assert ([], []) == (os.listdir(tmp_path / ".arriving"), os.listdir(tmp_path / ".removed"))


def test_a_link_in_place_of_a_migrated_folder_is_not_followed(kept: Path, tmp_path: Path) -> None:
    (kept / "web/local").rename(kept / "web/elsewhere")
    (kept / "web/local").symlink_to("/etc")

    root = unpacked(packed(kept), tmp_path)

    assert not (root / "web").exists()


@pytest.mark.parametrize("killed", ["who takes them", "who gives them"])
def test_data_arrive_complete_although_one_of_both_nodes_is_killed_meanwhile(
    nodes: tuple[ANode, ANode], killed: str
) -> None:
    node, other = nodes
    job = "large-" + killed.split()[1]
    size = LARGE_MB << 20
    script = f"[ -e $WHARF_ALLOC_DIR/data/large ] || head -c {size} /dev/zero >$WHARF_ALLOC_DIR/data/large; {SCRIPT}"
    moving(nodes, job, script, Migrate=True, SizeMB=2 * LARGE_MB)

    def kill_one() -> None:
        (taking,) = wait_until(lambda: [each for each in nodes if arriving(each)], what="data arrive", within_s=60)
        giving = other if taking is node else node
        (taking if killed == "who takes them" else giving).kill_agent()

    _, new = move_away(node, job, meanwhile=kill_one)

    assert "Downloaded the data of allocation" in " ".join(said(new)), said(new)
    assert size == size_of(files_of(nodes, new))
    assert "end of one\n" == (files_of(nodes, new) / "alloc/data/kept").read_text()
    assert [] == arriving(nodes[0]) + arriving(nodes[1])


def size_of(folder: Path) -> int:
    file = folder / "alloc/data/large"
    return file.stat().st_size if file.exists() else 0


def arriving(node: ANode) -> list[Path]:
    return list((node.folder / "alloc" / ".arriving").iterdir())
