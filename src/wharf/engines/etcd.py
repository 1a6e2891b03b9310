"""The engine `etcd`: several servers on one log that etcd keeps.

This module puts the parts together; what they do stands in theirs: `etcd_layout` (keys, indexes), `etcd_client` (calls),
`etcd_door` (epochs), `etcd_commit`, `etcd_feed`, `etcd_load`, `etcd_history`, `etcd_keepalive`, `etcd_restore`.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from typing import Final

from wharf.engines import etcd_messages as messages
from wharf.engines.etcd_client import EtcdRefusal, Reason
from wharf.engines.etcd_commit import bounds_of, commit_to
from wharf.engines.etcd_door import EtcdDoor
from wharf.engines.etcd_feed import EtcdFeed
from wharf.engines.etcd_history import find_write, lease_endings
from wharf.engines.etcd_keepalive import HeldLease, Keepalive
from wharf.engines.etcd_layout import Epoch, raise_to
from wharf.engines.etcd_load import EtcdLoad
from wharf.engines.etcd_restore import restore_into
from wharf.engines.etcd_settings import EtcdSettings
from wharf.engines.port import Batch, Health, LogWrite, Outcome, Refused, Row, Standing, Unavailable
from wharf.engines.shared_read import SharedRead
from wharf.world import World

_PULSE_S: Final = 1.0
"""An idle door asks this often whether the log is still there."""


class EtcdEngine:
    single_server = False

    def __init__(self, settings: EtcdSettings, world: World) -> None:
        self.bounds = bounds_of(settings)
        self._settings = settings
        self._world = world
        self._door = EtcdDoor(settings, world)
        self._door.on_new_epoch = self._end_leases
        self._heads = SharedRead(world, self._read_head, name="barrier of etcd")
        self._keepalive = Keepalive(settings, world)
        self._leases: dict[int, HeldLease] = {}
        self._pulse: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.close()
        self._keepalive = Keepalive(self._settings, self._world)
        self._door.client.open()
        try:
            await self._door.verify()
            await self._door.look()
        except Unavailable:
            await self._door.client.close()
            raise
        self._pulse = self._world.start(self._beat(), name="pulse of etcd")

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
            contact_s = self._door.contact_s
            if contact_s is not None and self._world.monotonic_s() - contact_s < _PULSE_S:
                continue
            try:
                await self.barrier()
            except Unavailable:
                continue  # `last_contact_s` stands still and tells everybody.

    # --- reading ---

    def load(self) -> EtcdLoad:
        return EtcdLoad(self._door)

    def follow(self, after: int) -> AsyncIterator[Batch]:
        return EtcdFeed(self._door, after)

    async def find(self, write_id: str, *, since: int) -> int | None:
        return await find_write(self._door, write_id, since)

    async def barrier(self) -> int:
        if self._door.client.closed:
            raise Unavailable(f"the door to {self._settings.where()} is closed")
        return await self._heads.ask()

    async def _read_head(self) -> int:
        look = await self._door.look()
        return look.epoch.index_of(look.head) if look.epoch.fence else 0

    def last_contact_s(self) -> float | None:
        return self._door.contact_s

    # --- writing ---

    async def commit(self, write: LogWrite) -> Outcome:
        lease = self._leases.get(write.lease)
        if write.lease and (lease is None or lease.has_ended):
            return Refused("the lease of this write has ended")
        return await commit_to(self._door, write, self.bounds)

    async def restore(self, rows: AsyncIterator[Sequence[Row]], standing: Standing) -> int:
        return await restore_into(self._door, rows, standing)

    # --- leases ---

    async def grant(self, ttl_s: float) -> "EtcdLease":
        sent_s = self._world.monotonic_s()
        try:
            reply = await self._door.client.ask("grant", messages.lease_grant(max(math.ceil(ttl_s), 1)))
        except EtcdRefusal as error:
            raise Unavailable(str(error)) from error
        held = HeldLease(reply.ID, float(reply.TTL), sent_s)
        self._leases[held.id] = held
        self._keepalive.add(held)
        return EtcdLease(self, held)

    async def revoke(self, held: HeldLease) -> None:
        held.has_ended = True
        self._leases.pop(held.id, None)
        self._keepalive.remove(held.id)
        try:
            await self._door.client.ask("revoke", messages.lease_revocation(held.id))
        except EtcdRefusal as error:
            if error.reason is not Reason.LEASE_ENDED:
                raise Unavailable(str(error)) from error

    def _end_leases(self) -> None:
        """A new epoch: what hung on a lease is gone."""
        for held in self._leases.values():
            held.has_ended = True
            self._keepalive.remove(held.id)
        self._leases.clear()

    # --- upkeep ---

    async def compact(self, before: int) -> None:
        door = self._door
        look = await door.look()
        epoch = look.epoch
        revision = min(epoch.revision_of(before) - 1, look.revision)
        if not epoch.fence or revision < epoch.since:
            return
        try:
            await self._note_lease_endings(epoch, revision)
            await door.client.ask("compact", messages.compaction(revision))
        except EtcdRefusal as error:
            if error.reason is not Reason.COMPACTED:
                raise Unavailable(str(error)) from error

    async def _note_lease_endings(self, epoch: Epoch, revision: int) -> None:
        """What a compaction takes from history must stand in the state before."""
        door, rows = self._door, self._door.rows_of(epoch)
        endings = await lease_endings(door, epoch, up_to=revision)
        if not endings:
            return
        noted = await door.ask("range", messages.page(rows.ended, rows.ended_end))
        marks = {rows.table_of_mark(pair.key): int(pair.value) for pair in noted.kvs}
        for ending in endings:
            raise_to(marks, {ending.table: ending.revision})
            note = messages.put(rows.ended_of(ending.table), str(marks[ending.table]).encode())
            # If the record was put on a lease again meanwhile, its key is still needed.
            is_same = messages.moved_at(ending.held, ending.held_revision)
            try:
                await door.ask("txn", messages.transaction([is_same], [note, messages.delete(ending.held)], [note]))
            except EtcdRefusal as error:
                if error.reason is Reason.NO_SPACE:
                    return  # Compacting is what gives etcd its space back.
                raise

    async def health(self) -> Health:
        client = self._door.client
        try:
            status = await client.ask("status", messages.status())
            alarms = (await client.ask("alarm", messages.alarms())).alarms
        except (Unavailable, EtcdRefusal) as error:
            return Health(writable=False, why=str(error))
        is_full = any(messages.is_out_of_space(alarm) for alarm in alarms)
        why = f"{self._settings.where()} has used up its quota and takes no writes (alarm NOSPACE)" if is_full else ""
        return Health(
            writable=not is_full, why=why, size_bytes=int(status.dbSize), quota_bytes=self._settings.quota_bytes
        )


class EtcdLease:
    def __init__(self, engine: EtcdEngine, held: HeldLease) -> None:
        self.id = held.id
        self._engine = engine
        self._held = held

    def valid_until_s(self) -> float:
        return self._held.valid_until_s()

    async def revoke(self) -> None:
        await self._engine.revoke(self._held)
