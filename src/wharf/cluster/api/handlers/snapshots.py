"""Endpoints that save and restore the whole state of the cluster as one archive, and list scheduled snapshots."""

from base64 import b64encode
from typing import Final

from wharf.cluster.api.relay.members import relay_to_named_member
from wharf.cluster.api.requests.body import ClientDisconnected
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, StreamedBody
from wharf.cluster.server.server import Server
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.operator import ScheduledSnapshots, SnapshotFile

SNAPSHOT_CONTENT_TYPE: Final = "application/x-gzip"


class SnapshotActions:
    """Saves the whole state to a snapshot archive, and restores it from one."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def save_snapshot(self, request: Request) -> ActionResult:
        """Send an archive with the whole state; unless `stale` is set, with all acknowledged writes."""
        if "stale" not in request.query:
            await self._server.reader.catch_up()
        snapshot = await self._server.agent.save_snapshot(self._server.engine)
        headers = [(b"digest", b"sha-256=" + b64encode(snapshot.sha256))]
        return ActionResult(StreamedBody(snapshot.parts, SNAPSHOT_CONTENT_TYPE, headers=headers), snapshot.index)

    async def list_snapshots(self, request: Request) -> ActionResult:
        """Return the snapshots that this server, or the one that the request names, has saved on schedule. Raises `Refusal`."""
        if (relayed := await relay_to_named_member(self._server, request)) is not None:
            return relayed
        schedule = await self._server.agent.read_snapshot_schedule()
        files = [
            SnapshotFile(name=each.name, saved_at=each.saved_ns, size_bytes=each.size_bytes, index=each.index)
            for each in schedule.snapshots
        ]
        return ActionResult(
            ScheduledSnapshots(
                server_id=self._server.identity.member_id,
                interval=schedule.interval_ns,
                keep=schedule.keep,
                folder=schedule.folder,
                snapshots=files,
                problem=schedule.problem,
            )
        )

    async def restore_snapshot(self, request: Request) -> ActionResult:
        """Replace the whole state by that of the archive in the body. Return the new log index.

        Nothing is replaced before the whole archive was received and verified.
        """
        assert request.body_parts is not None, "the endpoint declares a streamed body"
        try:
            index = await self._server.agent.restore_snapshot(
                self._server.engine, request.body_parts, self._server.access.keyring.list_wrapping_keys()
            )
        except ClientDisconnected:
            raise invalid_request("failed to restore from snapshot: the request ended before its body") from None
        await self._server.writer.wait_until_visible(index)
        return ActionResult(None, index)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = SnapshotActions(server)
    return {
        "operator.save_snapshot": actions.save_snapshot,
        "operator.snapshots": actions.list_snapshots,
        "operator.restore_snapshot": actions.restore_snapshot,
    }
