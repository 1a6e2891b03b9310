"""Data of each earlier cluster format: it opens, the API says the same about it as before, and the cluster continues.

The fixtures were written by `write`, with the programs of that time.
"""

import asyncio
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cluster.engines.contract import records
from tests.cluster.stored_formats.scenario import count_running, start_nodes, wait_for_end
from tests.cluster.stored_formats.write import DATA_FOLDER, FOLDER, name_data_folder, name_replies, name_snapshot
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.engines.port import LogPosition, StoredRecord
from wharf.cluster.engines.snapshot_file import UNLIMITED, SnapshotFileReader
from wharf.cluster.engines.sqlite.engine import SqliteEngine
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import JOB_SUMMARIES
from wharf.world import RealWorld

FORMATS = sorted(int(path.stem.split("_")[1]) for path in FOLDER.glob("format_*.snapshot"))
HOUR_S = 3_600.0
INDEX_FIELDS = frozenset({
    "CreateIndex", "ModifyIndex", "JobModifyIndex", "JobCreateIndex", "AllocModifyIndex", "LastIndex",
})  # fmt: skip
"""Fields whose values are indexes of the log. A restore raises some of them."""


def read_snapshot(path: Path) -> tuple[list[StoredRecord], LogPosition]:
    with path.open("rb") as file:
        reader = SnapshotFileReader(file, str(path), UNLIMITED)
        rows = [row for part in reader.iter_slices() for row in part]
        return rows, reader.get_info().trailer.standing


async def a_restored_server(cluster: ACluster, cluster_format: int, *, leads: bool) -> OneServer:
    """Start a server on the records of a fixture, an hour after they were written."""
    cluster.log.replace_records(*read_snapshot(name_snapshot(cluster_format)))
    server = await cluster.a_server(leads=False)
    cluster.advance_clocks(HOUR_S)
    if leads:
        await server.lead()
    return server


def list_differences(expected: Any, found: Any, path: str = "") -> Iterable[str]:
    """Yield where a reply differs from an earlier one. It may have fields that did not exist then."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for name, value in expected.items():
            if name not in INDEX_FIELDS:
                yield from list_differences(value, found.get(name), f"{path}.{name}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for position, (old, new) in enumerate(zip(expected, found, strict=True)):
            yield from list_differences(old, new, f"{path}[{position}]")
    elif expected != found:
        yield f"{path}: {expected!r} became {found!r}"


def test_the_newest_format_has_a_fixture() -> None:
    assert NEWEST_FORMAT in FORMATS, "write it: python -m tests.cluster.stored_formats.write"


@pytest.mark.parametrize("cluster_format", FORMATS)
@in_virtual_time
async def test_the_api_says_the_same_about_data_of_an_earlier_format(cluster_format: int) -> None:
    expected = msgspec.json.decode(name_replies(cluster_format).read_bytes())
    async with ACluster() as cluster:
        server = await a_restored_server(cluster, cluster_format, leads=False)

        replies = {path: msgspec.json.decode((await send_raw(server.api, "GET", path)).body) for path in expected}

        assert [*list_differences(expected, replies)] == []


@pytest.mark.parametrize("cluster_format", FORMATS)
def test_a_data_folder_of_an_earlier_format_opens_with_all_records(cluster_format: int, tmp_path: Path) -> None:
    with tarfile.open(name_data_folder(cluster_format)) as tar:
        tar.extractall(tmp_path, filter="data")
    rows, _ = read_snapshot(name_snapshot(cluster_format))

    async def read() -> dict[tuple[str, str], bytes]:
        engine = SqliteEngine(RealWorld(), tmp_path / DATA_FOLDER)
        await engine.open()
        found = await records(engine)
        await engine.close()
        return found

    assert asyncio.run(read()) == {(row.table, row.key): row.data for row in rows}


@pytest.mark.parametrize("cluster_format", FORMATS)
@in_virtual_time
async def test_a_cluster_continues_from_data_of_an_earlier_format(cluster_format: int) -> None:
    async with ACluster() as cluster:
        server = await a_restored_server(cluster, cluster_format, leads=True)
        start_nodes(cluster, server)

        await server.client.flows.answer("release", "ship", "approve")
        await wait_for_end(server, "after-release")
        await server.client.jobs.deregister("deploy-1")
        await wait_for_end(server, "deploy-2")
        runs = sorted(each.job_id for each in (await server.client.flows.list_runs(flow="nightly")).value)
        await server.client.flows.cancel(runs[0])
        await until(lambda: count_running(server, runs[1]), what="the next run of the queue", within_s=HOUR_S)

        outcomes = {}
        for job_id in ("release", "after-release", "deploy-2"):
            summary = server.replica.get(JOB_SUMMARIES, "default", job_id)
            outcomes[job_id] = summary.outcome if summary is not None else ""
        assert outcomes == {"release": "succeeded-with-failures", "after-release": "succeeded", "deploy-2": "succeeded"}
