"""Data of each earlier cluster format: it opens, the API says the same about it as before, and the cluster continues.

The fixtures were written by `write`, with the programs of that time.
"""

import asyncio
import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cluster.stored_formats.scenario import count_running, start_nodes, wait_for_end
from tests.cluster.stored_formats.write import (
    DATA_FOLDER,
    FOLDER,
    SERVER_TABLES,
    name_data_folder,
    name_replies,
    name_snapshot,
)
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time, until
from wharf.cluster.engines.port import LogPosition, StoredRecord
from wharf.cluster.engines.snapshot_file import UNLIMITED, SnapshotFileReader
from wharf.cluster.engines.sqlite.engine import SqliteEngine
from wharf.cluster.state.codec import WriteIndexResolver
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import ALL_TABLES, JOB_SUMMARIES
from wharf.world import RealWorld

FORMATS = sorted(int(path.stem.split("_")[1]) for path in FOLDER.glob("format_*.snapshot"))
SOURCES = ("snapshot", "data folder")
HOUR_S = 3_600.0


def read_snapshot(path: Path) -> list[StoredRecord]:
    with path.open("rb") as file:
        return [row for rows in SnapshotFileReader(file, str(path), UNLIMITED).iter_slices() for row in rows]


def read_data_folder(path: Path, folder: Path) -> list[StoredRecord]:
    """Unpack a data folder, open it, and return its records."""
    with tarfile.open(path) as tar:
        tar.extractall(folder, filter="data")

    async def read() -> list[StoredRecord]:
        engine = SqliteEngine(RealWorld(), folder / DATA_FOLDER)
        await engine.open()
        rows = [row async for part in engine.load().iter_slices() for row in part]
        await engine.close()
        return rows

    return [row for row in asyncio.run(read()) if row.table not in SERVER_TABLES]


@pytest.fixture(
    params=[(each, source) for each in FORMATS for source in SOURCES], ids=lambda each: f"{each[0]}, {each[1]}"
)
def stored(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[int, list[StoredRecord]]:
    """A format, and the records of one of its fixtures, as a restore writes them."""
    cluster_format, source = request.param
    rows = (
        read_snapshot(name_snapshot(cluster_format))
        if source == SOURCES[0]
        else read_data_folder(name_data_folder(cluster_format), tmp_path)
    )
    return cluster_format, [WriteIndexResolver(ALL_TABLES).resolve_record(row) for row in rows]


async def a_restored_server(cluster: ACluster, rows: list[StoredRecord]) -> OneServer:
    """Start a server on stored records, an hour after they were written."""
    cluster.log.replace_records(rows, LogPosition(max(row.version for row in rows), {}))
    server = await cluster.a_server(leads=False)
    cluster.advance_clocks(HOUR_S)
    await server.lead()
    return server


def list_differences(expected: Any, found: Any, path: str = "") -> Iterable[str]:
    """Yield where a reply differs from an earlier one. It may have fields that did not exist then.

    A restore raises the index of the last change of each record.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        for name, value in expected.items():
            if name != "ModifyIndex":
                yield from list_differences(value, found.get(name), f"{path}.{name}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for position, (old, new) in enumerate(zip(expected, found, strict=True)):
            yield from list_differences(old, new, f"{path}[{position}]")
    elif expected != found:
        yield f"{path}: {expected!r} became {found!r}"


SKIPPED_ELEMENTS = re.compile(
    r"\./v1/job/release/.*\.Counts\.(Canceled: (?P<size>\d+) became 0|Skipped: 0 became \d+)"
    r"|\./v1/job/release/arrays\.Arrays\[\d\]\.States: '(?P<states>\d+)c' became '(?P=states)x'"
)
"""The differences of replies about steps that were skipped. The servers that wrote the fixtures called their elements canceled."""


def test_the_newest_format_has_a_fixture() -> None:
    assert NEWEST_FORMAT in FORMATS, "write it: python -m tests.cluster.stored_formats.write"


@pytest.mark.parametrize("cluster_format", FORMATS)
def test_a_data_folder_and_a_snapshot_have_the_same_records(cluster_format: int, tmp_path: Path) -> None:
    in_snapshot = {(row.table, row.key): row for row in read_snapshot(name_snapshot(cluster_format))}

    in_folder = read_data_folder(name_data_folder(cluster_format), tmp_path)

    assert {(row.table, row.key): row for row in in_folder} == in_snapshot


@in_virtual_time
async def test_the_api_says_the_same_about_data_of_an_earlier_format(stored: tuple[int, list[StoredRecord]]) -> None:
    cluster_format, rows = stored
    expected = msgspec.json.decode(name_replies(cluster_format).read_bytes())
    async with ACluster() as cluster:
        server = await a_restored_server(cluster, rows)

        replies = {path: msgspec.json.decode((await send_raw(server.api, "GET", path)).body) for path in expected}

        assert [each for each in list_differences(expected, replies) if not SKIPPED_ELEMENTS.fullmatch(each)] == []


@in_virtual_time
async def test_a_cluster_continues_from_data_of_an_earlier_format(stored: tuple[int, list[StoredRecord]]) -> None:
    async with ACluster() as cluster:
        server = await a_restored_server(cluster, stored[1])
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
        assert outcomes == {
            "release": "succeeded-with-failures", "after-release": "succeeded", "deploy-2": "succeeded",
        }  # fmt: skip
