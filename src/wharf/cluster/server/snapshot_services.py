"""The services of a server in a copy of its process, where the state no longer changes.

Handlers use the same interfaces as in the api process. The copy decides and encodes writes; the api process sends them to
the log and calls the leader.
"""

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Protocol, TypeVar

from wharf.cluster.engines.port import Committed, EncodedWrite, WriteConflict
from wharf.cluster.operations.decision import Decision
from wharf.cluster.server.cpu_budget import OffLoopWorker
from wharf.cluster.server.log.preview import PREVIEW_INDEX, forbid_in_preview, get_current_preview
from wharf.cluster.server.log.reader import Reader
from wharf.cluster.server.log.writer import MAX_ATTEMPTS, WriteOperation, Writer, log_rejected_parts
from wharf.cluster.server.loop_slots import LoopSlots, leave_slots
from wharf.cluster.server.rpc.leader_client import LeaderClient
from wharf.cluster.server.rpc.method import RpcReply
from wharf.cluster.server.server import Server
from wharf.contract.model.log import Write
from wharf.contract.model.refusal import Refusal, RefusalCode, no_leader
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.world import World

T = TypeVar("T")


class StaleSnapshot(Exception):
    """Another write came first, so the request must be executed again on a newer state. Nothing was written."""


class ProcessChannel(Protocol):
    """The api process, as its copy reaches it. Calls block the copy until the reply arrives."""

    def commit(self, write: EncodedWrite) -> int | None:
        """Return the log index of the write once the api process has applied it; `None` after a conflict.

        Raises `Refusal`.
        """
        ...

    def call(self, member_id: str | None, name: str, body: bytes, *, is_repeatable: bool) -> RpcReply:
        """Call a method of the leader's brain, or of the brain of a member, and return its reply. Raises `Refusal`."""
        ...


class Snapshot:
    """The state of the api process when it was copied."""

    def __init__(self, channel: ProcessChannel, catch_up_failure: Refusal | None) -> None:
        """`catch_up_failure`: why the replica could not catch up with the log before the copy; `None` if it did."""
        self.channel = channel
        self._catch_up_failure = catch_up_failure
        self._has_acted = False
        self._is_stale = False

    def commit(self, write: EncodedWrite) -> Committed | WriteConflict:
        """Commit a write through the api process."""
        index = self.channel.commit(write)
        if index is None:
            self._is_stale = True
            return WriteConflict(())
        self._has_acted = True
        return Committed(index)

    def call(self, member_id: str | None, name: str, body: bytes, *, is_repeatable: bool) -> RpcReply:
        """Call a brain through the api process."""
        self._has_acted = self._has_acted or not is_repeatable
        return self.channel.call(member_id, name, body, is_repeatable=is_repeatable)

    def require_current(self) -> None:
        """Raise unless the state has every write that was acknowledged before the request was executed.

        Raises `StaleSnapshot` after a conflict, or a `Refusal` if the request cannot be executed again.
        """
        if self._is_stale:
            if self._has_acted:
                raise Refusal(
                    RefusalCode.OUTCOME_UNKNOWN, "another write came first; check the current state before you retry"
                )
            raise StaleSnapshot
        if self._catch_up_failure is not None:
            raise self._catch_up_failure

    @property
    def has_acted(self) -> bool:
        """Whether the request has written or called something, so that it must not be executed again."""
        return self._has_acted


class SnapshotWriter(Writer):
    """Decides on the snapshot, and commits through the api process."""

    def __init__(self, server: Server, snapshot: Snapshot) -> None:
        super().__init__(server.world, server.engine, server.follower)
        self._snapshot = snapshot

    async def execute(
        self, operation: WriteOperation[T], *, max_attempts: int = MAX_ATTEMPTS, is_long: bool = False
    ) -> T:
        # After a conflict, the api process executes the request again. This process executes nothing else meanwhile.
        del max_attempts, is_long
        preview = get_current_preview()
        try:
            decision: Decision[T] = operation(self._follower.replica, self.read_clock())
        except Refusal:
            self._snapshot.require_current()
            raise
        except InvalidTransition as error:
            self._snapshot.require_current()
            raise self.refuse_transition(error) from error
        if decision.write is None:
            self._snapshot.require_current()
        if preview is not None:
            preview.record_decision(decision)
            return decision.build_reply(PREVIEW_INDEX if decision.write is not None else self._follower.replica.index)
        log_rejected_parts(decision)
        if decision.write is None:
            return decision.build_reply(self._follower.replica.index)
        outcome = await self.commit(decision.write)
        if isinstance(outcome, WriteConflict):
            self._snapshot.require_current()
            raise StaleSnapshot
        return decision.build_reply(outcome.index)

    async def commit(
        self, write: Write, *, lease: int = 0, meanwhile: Callable[[], Awaitable[None]] | None = None
    ) -> Committed | WriteConflict:
        assert meanwhile is None, "only the leader has something to do meanwhile"
        forbid_in_preview()
        return self._snapshot.commit(self.encode_write(write, lease=lease))

    async def catch_up(self) -> None:
        self._snapshot.require_current()

    async def wait_until_visible(self, index: int) -> None:
        """Return at once: the api process has applied the write before it replied."""


class SnapshotReader(Reader):
    """Reads the snapshot."""

    def __init__(self, server: Server, snapshot: Snapshot) -> None:
        super().__init__(server.world, server.engine, server.follower)
        self._snapshot = snapshot

    async def catch_up(self) -> None:
        if not self.has_leader():
            raise no_leader()
        self._snapshot.require_current()


class SnapshotLeaderClient(LeaderClient):
    """Calls brains through the api process."""

    def __init__(self, server: Server, snapshot: Snapshot) -> None:
        super().__init__(server.replica, server.identity.member_id, _NoTransport(), None)
        self._snapshot = snapshot

    async def call_encoded(self, name: str, body: bytes, *, is_repeatable: bool) -> RpcReply:
        return self._snapshot.call(None, name, body, is_repeatable=is_repeatable)

    async def call_member_encoded(self, member_id: str, name: str, body: bytes) -> RpcReply:
        return self._snapshot.call(member_id, name, body, is_repeatable=True)


class SnapshotLoopSlots(LoopSlots):
    """Gives each slot at once: the copy executes one request, without an event loop."""

    async def begin(self) -> None:
        pass

    async def wait(self) -> None:
        await asyncio.sleep(0)


class SnapshotOffLoopWorker(OffLoopWorker):
    """Computes at once: the copy has no event loop that must stay free, and no threads."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.loop_slots = SnapshotLoopSlots()

    async def run(self, work: Callable[[], T], owner: Hashable = None) -> T:  # noqa: ARG002 (as `OffLoopWorker`)
        return work()


class _NoTransport:
    """The transport of a client that sends nothing itself."""

    async def call(self, name: str, body: bytes) -> RpcReply:
        raise AssertionError(f"{name} must be called through the api process ({len(body)} bytes)")


def use_snapshot_services(server: Server, snapshot: Snapshot) -> None:
    """Replace the services of the server in this copy of its process."""
    leave_slots()
    server.writer = SnapshotWriter(server, snapshot)
    server.reader = SnapshotReader(server, snapshot)
    server.leader = SnapshotLeaderClient(server, snapshot)
    server.off_loop = SnapshotOffLoopWorker(server.world)
    server.access.can_create_keys = False
