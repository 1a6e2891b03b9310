"""An agent in a test server that has files: an audit log, and a folder with snapshots. It reads them as the real agent does."""

from pathlib import Path

from tests.kit.cluster import OneServer
from wharf.agent.identity import SERVER_ID_FILE
from wharf.agent.logs.audit import AUDIT_FILE, AuditLog
from wharf.agent.logs.audit_reader import read_audit_log
from wharf.agent.snapshots.schedule import read_schedule
from wharf.cluster.server.agent_interface import AuditLogPage, AuditQuery, NoAgentInterface, SnapshotSchedule
from wharf.config.settings import AgentSettings, SnapshotSettings
from wharf.contract.model.settings import Duration
from wharf.contract.model.times import HOUR
from wharf.sinks.rotation import Rotation
from wharf.world import World


class FileAgent(NoAgentInterface):
    """The agent of a server whose data folder exists."""

    def __init__(self, world: World, folder: Path, *, interval_ns: int = HOUR) -> None:
        super().__init__()
        self._world = world
        self._folder = folder
        self._settings = AgentSettings(snapshots=SnapshotSettings(interval=Duration(interval_ns)))

    async def read_audit_log(self, query: AuditQuery) -> AuditLogPage:
        return read_audit_log(self._folder / AUDIT_FILE, query)

    async def read_snapshot_schedule(self) -> SnapshotSchedule:
        return read_schedule(self._settings, self._folder, now_ns=self._world.now_ns())


def give_files(server: OneServer, folder: Path, *, interval_ns: int = HOUR) -> None:
    """Let a server write its audit log into a folder, and save its snapshots there."""
    (folder / SERVER_ID_FILE).write_text(server.server.identity.member_id)
    server.server.agent = FileAgent(server.world, folder, interval_ns=interval_ns)
    server.api = server.exchange.api = server.build_api(audit=AuditLog(folder / AUDIT_FILE, Rotation()))
