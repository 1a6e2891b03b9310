"""The engine `etcd`: several servers share one log in etcd.

This module connects the parts: `layout` (keys, indexes), `client` (calls), `session` (epochs), `commit`, `feed`,
`load`, `history`, `keepalive`, `restore`.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Final

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdRefusal, EtcdRefusalReason
from wharf.cluster.engines.etcd.commit import NO_SPACE_REMEDY, NO_SPACE_TEXT, commit_write, compute_write_limits
from wharf.cluster.engines.etcd.feed import EtcdFeed
from wharf.cluster.engines.etcd.history import find_write, list_lease_endings
from wharf.cluster.engines.etcd.keepalive import KeepaliveLease, LeaseKeepalive
from wharf.cluster.engines.etcd.layout import Epoch, raise_marks
from wharf.cluster.engines.etcd.load import EtcdLoad
from wharf.cluster.engines.etcd.member_watch import MemberWatch
from wharf.cluster.engines.etcd.restore import restore_log
from wharf.cluster.engines.etcd.session import EtcdSession
from wharf.cluster.engines.etcd.settings import EtcdSettings
from wharf.cluster.engines.etcd.shared_read import SharedRead
from wharf.cluster.engines.port import (
    Batch,
    EncodedWrite,
    LogHealth,
    LogPosition,
    LogUnavailable,
    StoredRecord,
    WriteOutcome,
    WriteRejected,
)
from wharf.world import World
from wharf.world.tasks import cancel_tasks

NEARLY_FULL_SHARE: Final = 0.8
"""From this share of its quota on, the health of a server warns. etcd counts the size of its file, which only grows."""
NEARLY_FULL_REMEDY: Final = (
    "Before it refuses writes, defragment it (etcdctl defrag), or raise --quota-backend-bytes and state.etcd.quota"
)
_CONTACT_INTERVAL_S: Final = 1.0
"""How often an idle engine checks that the log can be reached."""


class EtcdEngine:
    """The port to a log in etcd."""

    is_single_server = False

    def __init__(self, settings: EtcdSettings, world: World) -> None:
        self.limits = compute_write_limits(settings)
        self._settings = settings
        self._world = world
        self._session = EtcdSession(settings, world)
        self._session.on_new_epoch = self._end_leases
        self._barriers = SharedRead(world, self._read_head, name="barrier of etcd")
        self._keepalive = LeaseKeepalive(settings, world)
        self._leases: dict[int, KeepaliveLease] = {}
        self._members = MemberWatch(world, self._session.client, settings)
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def open(self) -> None:
        """Connect, check that the log is still the one known here, and start to maintain contact."""
        await self.close()
        self._keepalive = LeaseKeepalive(self._settings, self._world)
        self._session.client.open()
        try:
            await self._session.verify_log()
            await self._session.read_status()
        except LogUnavailable:
            await self._session.client.close()
            raise
        self._tasks = (
            self._world.start_task(self._maintain_contact(), name="contact with etcd"),
            self._world.start_task(self._members.run(), name="watch of etcd members"),
        )

    async def close(self) -> None:
        """Disconnect. Leases expire afterwards."""
        tasks, self._tasks = self._tasks, ()
        await cancel_tasks(*tasks)
        await self._barriers.stop()
        await self._session.client.close()
        self._leases.clear()
        # A renewal in progress may take a moment; the loop must not block on it.
        await asyncio.to_thread(self._keepalive.stop)

    async def _maintain_contact(self) -> None:
        """Send a barrier whenever the log has not replied for a while. Runs until cancelled."""
        while True:
            await asyncio.sleep(_CONTACT_INTERVAL_S)
            contact_s = self._session.last_contact_s
            if contact_s is not None and self._world.monotonic_s() - contact_s < _CONTACT_INTERVAL_S:
                continue
            try:
                await self.barrier()
            except LogUnavailable:
                continue  # `last_contact_s` keeps its old value, which shows the failure.

    # --- reading ---

    def load(self) -> EtcdLoad:
        return EtcdLoad(self._session)

    def follow(self, after: int) -> AsyncIterator[Batch]:
        return EtcdFeed(self._session, after)

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        return await find_write(self._session, write_id, since)

    def read_published_index(self) -> None:
        """Return `None`: only a barrier returns the newest index."""

    async def barrier(self) -> int:
        if self._session.client.is_closed:
            raise LogUnavailable(f"the connection to {self._settings.describe()} is closed")
        return await self._barriers.read()

    async def _read_head(self) -> int:
        """Return the index of the newest write."""
        status = await self._session.read_status()
        return status.epoch.to_index(status.head_revision) if status.epoch.fence else 0

    def get_last_contact_s(self) -> float | None:
        return self._session.last_contact_s

    # --- writing ---

    async def commit(self, write: EncodedWrite) -> WriteOutcome:
        lease = self._leases.get(write.lease)
        if write.lease and (lease is None or lease.has_ended):
            return WriteRejected("the lease of this write has ended")
        return await commit_write(self._session, write, self.limits)

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        return await restore_log(self._session, records, position)

    # --- leases ---

    async def grant_lease(self, ttl_s: float) -> "EtcdLease":
        """Grant a lease and start to renew it. Raises `LogUnavailable`."""
        sent_s = self._world.monotonic_s()
        try:
            reply = await self._session.client.send_request(
                "grant", messages.build_lease_grant(max(math.ceil(ttl_s), 1))
            )
        except EtcdRefusal as error:
            raise LogUnavailable(str(error)) from error
        lease = KeepaliveLease(reply.ID, float(reply.TTL), sent_s)
        self._leases[lease.id] = lease
        self._keepalive.add(lease)
        return EtcdLease(self, lease)

    async def revoke_lease(self, lease: KeepaliveLease) -> None:
        """Stop to renew a lease and revoke it. Raises `LogUnavailable`."""
        lease.has_ended = True
        self._leases.pop(lease.id, None)
        self._keepalive.remove(lease.id)
        try:
            await self._session.client.send_request("revoke", messages.build_lease_revocation(lease.id))
        except EtcdRefusal as error:
            if error.reason is not EtcdRefusalReason.LEASE_ENDED:
                raise LogUnavailable(str(error)) from error

    def _end_leases(self) -> None:
        """Mark all leases as ended after a new epoch began: their records are deleted."""
        for lease in self._leases.values():
            lease.has_ended = True
            self._keepalive.remove(lease.id)
        self._leases.clear()

    # --- upkeep ---

    async def compact(self, before: int) -> None:
        """Compact etcd up to the revision before the index `before`, after storing the revisions at which leases ended."""
        session = self._session
        status = await session.read_status()
        epoch = status.epoch
        revision = min(epoch.to_revision(before) - 1, status.revision)
        if not epoch.fence or revision < epoch.since:
            return
        try:
            await self._store_lease_endings(epoch, revision)
            await session.client.send_request("compact", messages.build_compaction(revision))
        except EtcdRefusal as error:
            if error.reason is not EtcdRefusalReason.COMPACTED:
                raise LogUnavailable(str(error)) from error

    async def _store_lease_endings(self, epoch: Epoch, revision: int) -> None:
        """Store in the state at which revision leases ended, because the compaction deletes that from etcd's history."""
        session, keys = self._session, self._session.get_generation_keys(epoch)
        endings = await list_lease_endings(session, epoch, last_revision=revision)
        if not endings:
            return
        stored = await session.send_request("range", messages.build_range(keys.ended, keys.ended_end))
        marks = {keys.read_mark_table(pair.key): int(pair.value) for pair in stored.kvs}
        for ending in endings:
            raise_marks(marks, {ending.table: ending.revision})
            put_mark = messages.build_put(keys.build_ended_key(ending.table), str(marks[ending.table]).encode())
            # If a newer record uses a lease, its key is still needed.
            is_same = messages.compare_revision(ending.held_key, ending.held_revision)
            try:
                await session.send_request(
                    "txn",
                    messages.build_transaction(
                        [is_same], [put_mark, messages.build_delete(ending.held_key)], [put_mark]
                    ),
                )
            except EtcdRefusal as error:
                if error.reason is EtcdRefusalReason.NO_SPACE:
                    return  # Let the compaction continue: it frees space.
                raise

    async def read_health(self) -> LogHealth:
        """Return size and quota, and whether etcd reports that its quota is used up or a member does not reply."""
        client = self._session.client
        try:
            status = await client.send_request("status", messages.build_status())
            alarms = (await client.send_request("alarm", messages.build_alarm_list())).alarms
        except (LogUnavailable, EtcdRefusal) as error:
            return LogHealth(writable=False, why=str(error), public_why="etcd cannot be used")
        is_full = any(messages.is_out_of_space(alarm) for alarm in alarms)
        size_bytes, quota_bytes = int(status.dbSize), self._settings.quota_bytes
        problem = NO_SPACE_TEXT if is_full else _describe_used_quota(size_bytes, quota_bytes)
        remedy = NO_SPACE_REMEDY if is_full else NEARLY_FULL_REMEDY
        reasons = [
            f"{self._settings.describe()} {problem}. {remedy}" if problem else "",
            self._members.describe_problem(names_addresses=True),
        ]
        public_reasons = [
            f"etcd {problem}" if problem else "",
            self._members.describe_problem(names_addresses=False),
        ]
        return LogHealth(
            writable=not is_full,
            why=". ".join(filter(None, reasons)),
            size_bytes=size_bytes,
            quota_bytes=quota_bytes,
            public_why=". ".join(filter(None, public_reasons)),
        )


def _describe_used_quota(size_bytes: int, quota_bytes: int) -> str:
    """Return how much of the quota etcd has used, if it is nearly used up; else an empty text."""
    if size_bytes < quota_bytes * NEARLY_FULL_SHARE:
        return ""
    return f"has used {size_bytes * 100 // quota_bytes} % of its quota of {quota_bytes:,} bytes"


class EtcdLease:
    """A lease of an etcd engine."""

    def __init__(self, engine: EtcdEngine, lease: KeepaliveLease) -> None:
        self.id = lease.id
        self._engine = engine
        self._lease = lease

    def get_valid_until_s(self) -> float:
        return self._lease.get_valid_until_s()

    async def revoke(self) -> None:
        await self._engine.revoke_lease(self._lease)
