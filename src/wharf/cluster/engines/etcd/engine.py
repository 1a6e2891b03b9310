"""The engine `etcd`: several servers on one log that etcd keeps.

This module puts the parts together; what they do stands in theirs: `etcd_layout` (keys, indexes), `etcd_client` (calls),
`etcd_door` (epochs), `etcd_commit`, `etcd_feed`, `etcd_load`, `etcd_history`, `etcd_keepalive`, `etcd_restore`.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Final

from wharf.cluster.engines.etcd import messages
from wharf.cluster.engines.etcd.client import EtcdRefusal, EtcdRefusalReason
from wharf.cluster.engines.etcd.commit import commit_write, compute_write_limits
from wharf.cluster.engines.etcd.feed import EtcdFeed
from wharf.cluster.engines.etcd.history import find_write, list_lease_endings
from wharf.cluster.engines.etcd.keepalive import KeepaliveLease, LeaseKeepalive
from wharf.cluster.engines.etcd.layout import Epoch, raise_marks
from wharf.cluster.engines.etcd.load import EtcdLoad
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

_PULSE_S: Final = 1.0
"""An idle door asks this often whether the log is still there."""


class EtcdEngine:
    is_single_server = False

    def __init__(self, settings: EtcdSettings, world: World) -> None:
        self.limits = compute_write_limits(settings)
        self._settings = settings
        self._world = world
        self._door = EtcdSession(settings, world)
        self._door.on_new_epoch = self._end_leases
        self._heads = SharedRead(world, self._read_head, name="barrier of etcd")
        self._keepalive = LeaseKeepalive(settings, world)
        self._leases: dict[int, KeepaliveLease] = {}
        self._pulse: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.close()
        self._keepalive = LeaseKeepalive(self._settings, self._world)
        self._door.client.open()
        try:
            await self._door.verify_log()
            await self._door.read_status()
        except LogUnavailable:
            await self._door.client.close()
            raise
        self._pulse = self._world.start_task(self._beat(), name="pulse of etcd")

    async def close(self) -> None:
        pulse, self._pulse = self._pulse, None
        if pulse is not None:
            pulse.cancel()
            await asyncio.gather(pulse, return_exceptions=True)
        await self._heads.stop()
        await self._door.client.close()
        self._leases.clear()
        # A renewal under way may take a moment; the loop goes on meanwhile.
        await asyncio.to_thread(self._keepalive.stop)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_PULSE_S)
            contact_s = self._door.last_contact_s
            if contact_s is not None and self._world.monotonic_s() - contact_s < _PULSE_S:
                continue
            try:
                await self.barrier()
            except LogUnavailable:
                continue  # `last_contact_s` stands still and tells everybody.

    # --- reading ---

    def load(self) -> EtcdLoad:
        return EtcdLoad(self._door)

    def follow(self, after: int) -> AsyncIterator[Batch]:
        return EtcdFeed(self._door, after)

    async def find_write(self, write_id: str, *, since: int) -> int | None:
        return await find_write(self._door, write_id, since)

    async def barrier(self) -> int:
        if self._door.client.is_closed:
            raise LogUnavailable(f"the door to {self._settings.describe()} is closed")
        return await self._heads.read()

    async def _read_head(self) -> int:
        look = await self._door.read_status()
        return look.epoch.to_index(look.head_revision) if look.epoch.fence else 0

    def get_last_contact_s(self) -> float | None:
        return self._door.last_contact_s

    # --- writing ---

    async def commit(self, write: EncodedWrite) -> WriteOutcome:
        lease = self._leases.get(write.lease)
        if write.lease and (lease is None or lease.has_ended):
            return WriteRejected("the lease of this write has ended")
        return await commit_write(self._door, write, self.limits)

    async def restore(self, records: AsyncIterator[Sequence[StoredRecord]], position: LogPosition) -> int:
        return await restore_log(self._door, records, position)

    # --- leases ---

    async def grant_lease(self, ttl_s: float) -> "EtcdLease":
        sent_s = self._world.monotonic_s()
        try:
            reply = await self._door.client.send_request("grant", messages.build_lease_grant(max(math.ceil(ttl_s), 1)))
        except EtcdRefusal as error:
            raise LogUnavailable(str(error)) from error
        held = KeepaliveLease(reply.ID, float(reply.TTL), sent_s)
        self._leases[held.id] = held
        self._keepalive.add(held)
        return EtcdLease(self, held)

    async def revoke_lease(self, held: KeepaliveLease) -> None:
        held.has_ended = True
        self._leases.pop(held.id, None)
        self._keepalive.remove(held.id)
        try:
            await self._door.client.send_request("revoke", messages.build_lease_revocation(held.id))
        except EtcdRefusal as error:
            if error.reason is not EtcdRefusalReason.LEASE_ENDED:
                raise LogUnavailable(str(error)) from error

    def _end_leases(self) -> None:
        """A new epoch: what hung on a lease is gone."""
        for held in self._leases.values():
            held.has_ended = True
            self._keepalive.remove(held.id)
        self._leases.clear()

    # --- upkeep ---

    async def compact(self, before: int) -> None:
        door = self._door
        look = await door.read_status()
        epoch = look.epoch
        revision = min(epoch.to_revision(before) - 1, look.revision)
        if not epoch.fence or revision < epoch.since:
            return
        try:
            await self._note_lease_endings(epoch, revision)
            await door.client.send_request("compact", messages.build_compaction(revision))
        except EtcdRefusal as error:
            if error.reason is not EtcdRefusalReason.COMPACTED:
                raise LogUnavailable(str(error)) from error

    async def _note_lease_endings(self, epoch: Epoch, revision: int) -> None:
        """What a compaction takes from history must stand in the state before."""
        door, rows = self._door, self._door.get_generation_keys(epoch)
        endings = await list_lease_endings(door, epoch, last_revision=revision)
        if not endings:
            return
        noted = await door.send_request("range", messages.build_range(rows.ended, rows.ended_end))
        marks = {rows.read_mark_table(pair.key): int(pair.value) for pair in noted.kvs}
        for ending in endings:
            raise_marks(marks, {ending.table: ending.revision})
            note = messages.build_put(rows.build_ended_key(ending.table), str(marks[ending.table]).encode())
            # If the record was put on a lease again meanwhile, its key is still needed.
            is_same = messages.compare_revision(ending.held_key, ending.held_revision)
            try:
                await door.send_request(
                    "txn", messages.build_transaction([is_same], [note, messages.build_delete(ending.held_key)], [note])
                )
            except EtcdRefusal as error:
                if error.reason is EtcdRefusalReason.NO_SPACE:
                    return  # Compacting is what gives etcd its space back.
                raise

    async def read_health(self) -> LogHealth:
        client = self._door.client
        try:
            status = await client.send_request("status", messages.build_status())
            alarms = (await client.send_request("alarm", messages.build_alarm_list())).alarms
        except (LogUnavailable, EtcdRefusal) as error:
            return LogHealth(writable=False, why=str(error))
        is_full = any(messages.is_out_of_space(alarm) for alarm in alarms)
        why = (
            f"{self._settings.describe()} has used up its quota and takes no writes (alarm NOSPACE)" if is_full else ""
        )
        return LogHealth(
            writable=not is_full, why=why, size_bytes=int(status.dbSize), quota_bytes=self._settings.quota_bytes
        )


class EtcdLease:
    def __init__(self, engine: EtcdEngine, held: KeepaliveLease) -> None:
        self.id = held.id
        self._engine = engine
        self._held = held

    def get_valid_until_s(self) -> float:
        return self._held.get_valid_until_s()

    async def revoke(self) -> None:
        await self._engine.revoke_lease(self._held)
