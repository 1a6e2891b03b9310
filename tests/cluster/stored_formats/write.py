"""Writes the fixture of the newest cluster format: `python -m tests.cluster.stored_formats.write`.

Run it once, with the program that has introduced the format. A fixture is never written again: later programs must read it.
"""

import asyncio
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from simulation.loop import SimulatedLoop
from tests.cluster.server.snapshot_files import write_snapshot
from tests.cluster.stored_formats.scenario import PATHS, build_state
from tests.kit.cluster import ACluster
from tests.kit.exchange import send_raw
from wharf.cluster.engines.memory.log import MemoryLog
from wharf.cluster.engines.port import EncodedWrite
from wharf.cluster.engines.sqlite.engine import SqliteEngine
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.world import RealWorld

FOLDER = Path(__file__).parent
SEED = 5
SERVER_TABLES = (LEADER.name, MEMBERS.name)
DATA_FOLDER = "data"
"""The name of the folder in the archive of a data folder."""


def name_snapshot(cluster_format: int) -> Path:
    return FOLDER / f"format_{cluster_format}.snapshot"


def name_data_folder(cluster_format: int) -> Path:
    return FOLDER / f"format_{cluster_format}_data.tar.gz"


def name_replies(cluster_format: int) -> Path:
    return FOLDER / f"format_{cluster_format}_replies.json"


def build_log() -> tuple[MemoryLog, dict[str, Any]]:
    """Return the log of the scenario, and what the API says about it."""
    loop = SimulatedLoop(SEED)

    async def build() -> tuple[MemoryLog, dict[str, Any]]:
        async with ACluster(seed=SEED) as cluster:
            server = await build_state(cluster)
            replies = {path: msgspec.json.decode((await send_raw(server.api, "GET", path)).body) for path in PATHS}
            return cluster.log, replies

    built: tuple[MemoryLog, dict[str, Any]] = loop.run_until_complete(build())
    loop.close()
    return built


async def write_data_folder(log: MemoryLog, archive: Path) -> None:
    """Write the archive of a data folder with all writes of a log."""
    with tempfile.TemporaryDirectory() as folder:
        engine = SqliteEngine(RealWorld(), Path(folder) / DATA_FOLDER)
        await engine.open()
        index = 0
        while (batch := log.find_next_batch(index, log.epoch)) is not None:
            await engine.commit(EncodedWrite(batch.id, batch.kind, batch.cause, (), batch.changes))
            index = batch.index
        await engine.close()
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(Path(folder) / DATA_FOLDER, DATA_FOLDER)


def main() -> int:
    """Write the files of the newest format. Return the exit status."""
    snapshot = name_snapshot(NEWEST_FORMAT)
    if snapshot.exists():
        print(f"{snapshot} exists; a fixture is never written again", file=sys.stderr)
        return 1
    log, replies = build_log()
    # Servers and their leader are no part of a snapshot.
    rows = [row for row in log.list_records() if row.table not in SERVER_TABLES]
    write_snapshot(snapshot, *rows, position=log.get_position())
    asyncio.run(write_data_folder(log, name_data_folder(NEWEST_FORMAT)))
    encoded = msgspec.json.format(msgspec.json.encode(replies, order="sorted"), indent=1)
    name_replies(NEWEST_FORMAT).write_bytes(encoded + b"\n")
    print(f"wrote {len(rows)} records and {len(replies)} replies of format {NEWEST_FORMAT}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
