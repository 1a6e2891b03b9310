"""The snapshots on the page of the servers."""

from pathlib import Path

from tests.cluster.api.test_server_files import add_snapshot
from tests.kit.cluster import ACluster
from tests.kit.file_agent import give_files
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import a_browser
from tests.web.test_cluster_pages import read_text
from wharf.contract.model.times import HOUR, MINUTE
from wharf.contract.wire.operator import AutopilotServer, ScheduledSnapshots, SnapshotFile
from wharf.web.views.snapshots import SnapshotsView, build_snapshots_view

NOW_NS = 1_000 * HOUR


def build_server(name: str) -> AutopilotServer:
    return AutopilotServer(
        id=name, name=name, address="", serf_status="alive", version="", leader=False, last_contact="", last_term=1,
        last_index=1, healthy=True, voter=True, stable_since="",
    )  # fmt: skip


def build_snapshots(*ages_ns: int, interval: int = HOUR, problem: str = "") -> ScheduledSnapshots:
    files = [SnapshotFile(name=f"s{age}", saved_at=NOW_NS - age, size_bytes=3 << 20, index=90) for age in ages_ns]
    return ScheduledSnapshots(server_id="m1", interval=interval, keep=24, folder="/f", snapshots=files, problem=problem)


def build_view(**found: ScheduledSnapshots | None) -> SnapshotsView:
    return build_snapshots_view([build_server(name) for name in found], found, 100, NOW_NS)


def test_the_newest_snapshot_of_all_servers_is_named_first() -> None:
    view = build_view(m1=build_snapshots(3 * HOUR), m2=build_snapshots(5 * MINUTE, HOUR))

    assert (view.sentence, view.is_bad) == ("The last snapshot was saved 5m ago by m2", False)
    assert [(row.state.text, row.age, row.size, row.newer_entries, row.schedule) for row in view.rows] == [
        ("late", "3h", "3.0 MB", 10, "every 1h, keeps 24 snapshots"),
        ("saved", "5m", "3.0 MB", 10, "every 1h, keeps 24 snapshots"),
    ]


def test_snapshots_that_are_all_late_need_a_person() -> None:
    assert build_view(m1=build_snapshots(3 * HOUR)).is_bad
    assert not build_view(m1=build_snapshots(2 * HOUR)).is_bad


def test_a_cluster_without_a_schedule_says_so() -> None:
    view = build_view(m1=build_snapshots(interval=0))

    assert (view.sentence, view.is_bad) == ("No server saves snapshots by itself", True)
    assert view.rows[0].state.text == "saves none by itself"


def test_a_snapshot_of_a_former_schedule_is_shown() -> None:
    view = build_view(m1=build_snapshots(HOUR, interval=0))

    assert (view.sentence, view.rows[0].state.text) == (
        "The last snapshot was saved 1h ago by m1", "saved, none is scheduled",
    )  # fmt: skip


def test_a_server_that_has_saved_none_yet_or_cannot_read_its_folder_says_so() -> None:
    view = build_view(m1=build_snapshots(), m2=build_snapshots(problem="Permission denied"))

    assert view.sentence == "The last snapshot is not known"
    assert [(row.state.text, row.problem) for row in view.rows] == [
        ("none yet", ""), ("not known", "/f cannot be read: Permission denied"),
    ]  # fmt: skip


def test_a_server_that_does_not_answer_is_shown_as_not_known() -> None:
    view = build_view(m1=None, m2=build_snapshots(MINUTE))

    assert (view.rows[0].state.text, view.rows[0].problem) == ("not known", "the server did not say it")
    assert view.sentence == "The last snapshot was saved 1m ago by m2"


def test_the_page_of_servers_shows_the_last_snapshot(tmp_path: Path) -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server("m1")
            give_files(server, tmp_path)
            name = add_snapshot(server, tmp_path, 5 * MINUTE)

            page = await a_browser(server).get("/ui/servers")

            assert "The last snapshot was saved 5m" in read_text(page)
            assert name in page.text

    look()


def test_the_page_of_servers_is_shown_without_an_agent() -> None:
    @in_virtual_time
    async def look() -> None:
        async with ACluster() as cluster:
            page = await a_browser(await cluster.a_server("m1")).get("/ui/servers")

            assert page.status == 200
            assert "The last snapshot is not known" in read_text(page)

    look()
