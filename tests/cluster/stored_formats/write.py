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
from wharf.cluster.engines.port import LogPosition, StoredRecord
from wharf.cluster.engines.snapshot_file import restore_snapshot
from wharf.cluster.engines.sqlite.engine import SqliteEngine
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.world import RealWorld

FOLDER = Path(__file__).parent
SEED = 5
DATA_FOLDER = "data"
"""The name of the folder in the archive of a data folder."""


def name_snapshot(cluster_format: int) -> Path:
    return FOLDER / f"format_{cluster_format}.snapshot"


def name_data_folder(cluster_format: int) -> Path:
    return FOLDER / f"format_{cluster_format}_data.tar.gz"


def name_replies(cluster_format: int) -> Path:
    return FOLDER / f"format_{cluster_format}_replies.json"


def build_log() -> tuple[list[StoredRecord], LogPosition, dict[str, Any]]:
    """Return the records of the scenario, the position of their log, and what the API says about them."""
    loop = SimulatedLoop(SEED)

    async def build() -> tuple[list[StoredRecord], LogPosition, dict[str, Any]]:
        async with ACluster(seed=SEED) as cluster:
            server = await build_state(cluster)
            replies = {path: msgspec.json.decode((await send_raw(server.api, "GET", path)).body) for path in PATHS}
            # Servers and their leader are no part of a snapshot.
            rows = [row for row in cluster.log.list_records() if row.table not in (LEADER.name, MEMBERS.name)]
            return rows, cluster.log.get_position(), replies

    built = loop.run_until_complete(build())
    loop.close()
    return built


async def write_data_folder(snapshot: Path, archive: Path) -> None:
    """Write the archive of a data folder with the records of a snapshot."""
    with tempfile.TemporaryDirectory() as folder:
        engine = SqliteEngine(RealWorld(), Path(folder) / DATA_FOLDER)
        await engine.open()
        await restore_snapshot(engine, snapshot)
        await engine.close()
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(Path(folder) / DATA_FOLDER, DATA_FOLDER)


def main() -> int:
    """Write the files of the newest format. Return the exit status."""
    snapshot = name_snapshot(NEWEST_FORMAT)
    if snapshot.exists():
        print(f"{snapshot} exists; a fixture is never written again", file=sys.stderr)
        return 1
    rows, position, replies = build_log()
    write_snapshot(snapshot, *rows, position=position)
    asyncio.run(write_data_folder(snapshot, name_data_folder(NEWEST_FORMAT)))
    encoded = msgspec.json.format(msgspec.json.encode(replies, order="sorted"), indent=1)
    name_replies(NEWEST_FORMAT).write_bytes(encoded + b"\n")
    print(f"wrote {len(rows)} records and {len(replies)} replies of format {NEWEST_FORMAT}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
