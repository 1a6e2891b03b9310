"""Leader election on top of the log, with leases.

The leader is the member that wrote the record ("leader", "leader"). The record belongs to the member's lease and is
deleted with it. Safety depends only on the version of that record: every write that only a leader may make carries
`Leadership.build_condition()`. The clock only makes a leader stop early, so that two members never believe for long
that they lead.

A member's record has the member's id as its key. Only one running process may use an id: with a copied data folder, two
processes would use the same id and replace each other's record. Only one may use a name, because operators address
servers by name. A process that finds another process's record with its id or name waits until the record of a dead
process would have expired. If the record is still there, the process does not join.

This module does not know the contents of records nor the replica; `ElectionRecords` gives access to what the replica
knows. The log must have been written once before a member can campaign.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Sequence
from typing import Final, Protocol

from wharf.cluster.engines.port import (
    Committed,
    EncodedChange,
    EncodedWrite,
    FollowerBehind,
    Lease,
    LogEngine,
    LogUnavailable,
    WriteOutcomeUnknown,
    WriteRejected,
)
from wharf.contract.model.log import Cause, CauseKind, Condition
from wharf.world import World
from wharf.world.backoff import Backoff

log = logging.getLogger(__name__)

LEADER_TABLE: Final = "leader"
LEADER_KEY: Final = "leader"
MEMBERS_TABLE: Final = "members"

SUCCESSOR_TIMEOUT_S: Final = 3.0
"""How long only the successor may take over an offered leadership; afterwards every member may."""

_VERSION_OF_PENDING_OFFER: Final = sys.maxsize
"""Stands for the version of an offer whose write has not returned yet: no leader record is newer."""
_RETRY_DELAY_S: Final = 0.2
"""Pause before an attempt is repeated, unless the replica changes earlier."""
_MAX_RETRY_DELAY_S: Final = 1.0
"""The longest pause of a candidate while the log is unavailable."""
_REWRITE_DELAY_S: Final = 1.0
"""How long to wait until a rewritten member record appears in the replica, before it is written again."""
_MAX_UNREVOKED_LEASES: Final = 8
"""Leases that are remembered to be revoked later. Each outage of the log leaves one; the oldest expires by itself."""


class MemberIdInUse(Exception):
    """Another running process is a member with the same id or name. The message names it and says what to do."""


class ElectionRecords(Protocol):
    """What the replica knows of the leader record and of this member's record."""

    def get_leader_version(self) -> int:
        """Return the version of the leader record; 0 if it does not exist."""
        ...

    async def wait_leader_changed(self, version: int) -> None:
        """Wait until the leader record has a version other than `version`."""
        ...

    def is_successor(self) -> bool:
        """Return whether the leader record offers the leadership to this member."""
        ...

    def get_member_version(self) -> int:
        """Return the version of this member's record; 0 if it does not exist."""
        ...

    async def wait_member_changed(self, version: int) -> None:
        """Wait until this member's record has a version other than `version`."""
        ...

    def get_index(self) -> int:
        """Return the log index up to which the replica has applied the log."""
        ...

    def describe_conflict(self) -> str:
        """Return which other process uses this member's id or name, and what to do about it; empty if none does.

        A record that this process wrote, before or after a restart, is no conflict.
        """
        ...

    async def wait_conflict_ended(self) -> None:
        """Wait until no other process uses this member's id or name."""
        ...


class ElectionCandidate(Protocol):
    """A member that takes part in the election. Its records are built at the time of each write, because they may
    contain that time."""

    member_id: str

    def build_member_record(self) -> bytes: ...

    def build_leader_record(self, *, successor: str = "") -> bytes:
        """Build the leader record. `successor`: the member that the leadership is offered to."""
        ...


class Leadership:
    """One term of this member as leader. A term that has ended stays ended."""

    def __init__(self, election: "Election", lease: Lease, version: int) -> None:
        self.version = version
        self._election = election
        self._lease = lease
        self._end_reason = ""
        self._transfer_lock = asyncio.Lock()
        self._is_transferred = False

    def build_condition(self) -> Condition:
        """Return the condition that every write of the leader carries: the leader record is still the one this term
        created."""
        return Condition(LEADER_TABLE, LEADER_KEY, self.version)

    def is_held(self) -> bool:
        """Return whether this member may act as leader now. Becomes false before another member can be elected."""
        return not self.get_end_reason()

    def get_end_reason(self) -> str:
        """Return why the term ended; empty while it lasts."""
        if not self._end_reason:
            self._end_reason = self._election.find_loss_reason(self._lease, self.version)
        return self._end_reason

    async def wait_lost(self) -> None:
        """Wait until the term has ended, then release the lease, so that other members need not wait until it expires."""
        while not self.get_end_reason():
            await self._election.wait_leader_changed(self.version, self._lease)
        async with self._transfer_lock:  # The replica may show the offer before `transfer` returns.
            if not self._is_transferred:
                await self._election.release_lease(self._lease)

    async def transfer(self, successor: str) -> bool:
        """End the term and offer the leadership to the member `successor`, which takes over at once.

        If it has not taken over after `SUCCESSOR_TIMEOUT_S`, every member may. Returns False when the offer could not
        be written; the term then continues if its lease is still valid. Raises `LogUnavailable` or `FollowerBehind`
        when it is unknown whether the offer was written; the term then ends.
        """
        async with self._transfer_lock:
            self._is_transferred = await self._election.offer_leadership(self._lease, self.version, successor)
            if self._is_transferred:
                self._end_reason = f"the leadership was handed over to {successor}"
            return self._is_transferred

    async def resign(self) -> None:
        """End the term now and release its lease."""
        self._end_reason = self._end_reason or "the leader resigned"
        await self._election.release_lease(self._lease)


class Election:
    """This member's part in the election: its lease, its member record and its campaigns.

    `ttl_s`: how long other members wait for a leader that is silent. `margin_s`: how long before that the leader stops
    by itself.
    """

    def __init__(
        self,
        world: World,
        engine: LogEngine,
        candidate: ElectionCandidate,
        records: ElectionRecords,
        *,
        ttl_s: float,
        margin_s: float,
    ) -> None:
        assert 0 < margin_s < ttl_s / 2, "a margin that leaves no time between renewals would end every term"
        self._world = world
        self._engine = engine
        self._candidate = candidate
        self._records = records
        self._ttl_s = ttl_s
        self._margin_s = margin_s
        self._lease: Lease | None = None
        self._term_lease: Lease | None = None
        """The lease of the newest term. No later term may use it, because renewing it would also keep that term's
        leader record."""
        self._offer: tuple[int, float] | None = None
        """Version of the record by which this member offered the leadership to another, and when the offer expires."""
        self._unrevoked_leases: dict[int, Lease] = {}
        """Released leases that the log could not revoke, because it could not be reached, by id."""
        self._problem = ""
        """Why the log does not execute the writes of this member; empty if it does. Each problem is logged once."""

    async def campaign(self) -> Leadership:
        """Join the members and wait until this member is elected. Raises `MemberIdInUse`.

        Returns after the replica has applied the election, so the new leader sees everything that earlier leaders
        wrote.
        """
        backoff = Backoff(self._world.random, min_s=_RETRY_DELAY_S, max_s=_MAX_RETRY_DELAY_S)
        while True:
            try:
                lease = await self.join()
                version = await self._try_become_leader(lease)
            except (LogUnavailable, FollowerBehind) as error:
                self._record_problem(str(error))
                await asyncio.sleep(backoff.next_delay_s())
                continue
            backoff.reset()
            if version is None:
                continue
            leadership = Leadership(self, lease, version)
            while self._is_safe(lease) and self._records.get_leader_version() < version:
                await self.wait_leader_changed(self._records.get_leader_version(), lease)
            if leadership.is_held():
                return leadership
            await self.release_lease(lease)

    async def join(self) -> Lease:
        """Return a valid lease with this member's record on it. Raises `MemberIdInUse` or `LogUnavailable`."""
        if self._lease is not None and self._is_safe(self._lease):
            return self._lease
        if self._lease is not None:
            await self.release_lease(self._lease)
        await self._wait_until_id_is_free()
        lease = await self._engine.grant_lease(self._ttl_s)
        while not await self._write_member(lease):
            # Another server joined with this id or name, the replica is behind and has an older version of the record, or
            # the log rejects writes at the moment.
            await self._wait_member_changed(self._records.get_member_version(), within_s=_RETRY_DELAY_S)
            if not self._is_safe(lease):
                await self._revoke(lease)
                raise LogUnavailable("the member's record could not be written")
            if self._is_id_in_use():
                await self._revoke(lease)
                await self._wait_until_id_is_free()
                lease = await self._engine.grant_lease(self._ttl_s)
        self._lease = lease
        # Not before: the record of this member would be deleted with its earlier lease.
        await self._revoke_remaining_leases()
        return lease

    async def maintain_membership(self) -> None:
        """Write this member's record again if it is deleted while its lease is valid. Runs until cancelled.

        Without the record no other server finds the address of this member, leader or not.
        """
        while True:
            version = self._records.get_member_version()
            lease = self._lease
            if version or lease is None or not self._is_safe(lease):
                # The timeout is needed: a record that appears and disappears at once leaves the version unchanged.
                await self._wait_member_changed(version, within_s=self._ttl_s)
                continue
            with contextlib.suppress(LogUnavailable, FollowerBehind):
                await self._write_member(lease)
            # Wait until the replica shows the record. If the write failed, the timeout leads to the next attempt.
            await self._wait_member_changed(version, within_s=_REWRITE_DELAY_S)

    async def leave(self, farewell: Sequence[EncodedChange] = ()) -> None:
        """Give up membership and leadership at once.

        `farewell`: changes to commit together with the deletion of the member record, by which other servers learn that
        this member left on purpose. They are omitted if this member has not joined. Raises `LogUnavailable`.
        """
        if self._lease is None:
            return
        if farewell and self._is_safe(self._lease):
            own_record = EncodedChange(MEMBERS_TABLE, self._candidate.member_id, None)
            cause = Cause(CauseKind.LEASE, self._candidate.member_id)
            await self._engine.commit(
                EncodedWrite(self._world.new_id(), "member-left", cause, (), (own_record, *farewell), 0)
            )
        await self.release_lease(self._lease)

    # --- membership ---

    async def _write_member(self, lease: Lease) -> bool:
        """Write this member's record. Returns False when the record changed since the replica's version, or the log
        rejected the write."""
        # On a single-server log the only other writer is an earlier run of this server, so no condition is needed.
        conditions = () if self._engine.is_single_server else self._build_member_conditions()
        if self._is_id_in_use():
            return False
        record = EncodedChange(MEMBERS_TABLE, self._candidate.member_id, self._candidate.build_member_record())
        return await self._write("member-joined", record, conditions, lease) is not None

    def _build_member_conditions(self) -> tuple[Condition, ...]:
        """Return the conditions of a write of this member's record: it is unchanged, and so are all other members.

        If several servers start at once, each sees the records of those that were faster before it writes its own.
        """
        return (
            Condition(MEMBERS_TABLE, self._candidate.member_id, self._records.get_member_version()),
            Condition(MEMBERS_TABLE, "", self._records.get_index(), is_prefix=True),
        )

    def _is_id_in_use(self) -> bool:
        """Return whether another process uses this member's id or name."""
        return not self._engine.is_single_server and bool(self._records.describe_conflict())

    async def _wait_until_id_is_free(self) -> None:
        """Wait until a dead process's record with this id or name has expired. Raises `MemberIdInUse` if it stays."""
        if not self._is_id_in_use():
            return
        await self._wait_id_free(self._ttl_s)
        # A replica without contact to the log does not show that a record was deleted. The barrier ensures contact.
        await self._engine.barrier()
        await self._wait_id_free(self._ttl_s / 2)
        if conflict := self._records.describe_conflict():
            raise MemberIdInUse(conflict)

    async def _wait_id_free(self, seconds: float) -> None:
        """Wait until no other process uses this member's id or name, for at most `seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._records.wait_conflict_ended()

    async def _wait_member_changed(self, version: int, *, within_s: float) -> None:
        """Wait until this member's record has another version than `version`, for at most `within_s`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._records.wait_member_changed(version)

    # --- the campaign ---

    async def _try_become_leader(self, lease: Lease) -> int | None:
        """Try to write the leader record. Return its version, or None if the lease is too old to try."""
        while self._is_safe(lease):
            version_seen = self._records.get_leader_version()
            if version_seen and not self._engine.is_single_server and not self._records.is_successor():
                remaining_s = self._compute_offer_remaining_s(version_seen)
                if (remaining_s is None and self._term_lease is lease) or (
                    remaining_s is not None and remaining_s <= 0
                ):
                    # The leader record may be one that this member wrote on this lease: an offer that the successor
                    # did not accept, or the record of an older term from a restored log. Release the lease, so that
                    # any member can be elected.
                    self._offer = None
                    await self.release_lease(lease)
                    return None
                await self.wait_leader_changed(version_seen, lease, timeout_s=remaining_s)
                continue
            record = EncodedChange(LEADER_TABLE, LEADER_KEY, self._candidate.build_leader_record())
            condition = Condition(LEADER_TABLE, LEADER_KEY, version_seen)
            version = await self._write("leader-elected", record, (condition,), lease)
            if version is not None:
                self._term_lease = lease
                return version
            # Another member was elected and the replica does not show it yet, or the log rejects writes at the
            # moment.
            await self.wait_leader_changed(version_seen, lease, timeout_s=_RETRY_DELAY_S)
        return None

    async def offer_leadership(self, lease: Lease, version: int, successor: str) -> bool:
        """Write an offer of the leadership to `successor`. Afterwards the conditions of this term's writes no longer
        hold."""
        record = EncodedChange(LEADER_TABLE, LEADER_KEY, self._candidate.build_leader_record(successor=successor))
        # The replica may show the offer before its write returns, and the next campaign of this member then begins.
        self._offer = (_VERSION_OF_PENDING_OFFER, self._world.monotonic_s() + SUCCESSOR_TIMEOUT_S)
        offer_version = None
        try:
            offer_version = await self._write(
                "leader-hands-over", record, (Condition(LEADER_TABLE, LEADER_KEY, version),), lease
            )
        finally:
            self._offer = (
                (offer_version, self._world.monotonic_s() + SUCCESSOR_TIMEOUT_S) if offer_version is not None else None
            )
        return offer_version is not None

    def _compute_offer_remaining_s(self, leader_version: int) -> float | None:
        """Return how long the successor may still take to accept; None without an offer, or when it has accepted."""
        if self._offer is None or leader_version > self._offer[0]:
            self._offer = None
            return None
        return self._offer[1] - self._world.monotonic_s()

    async def _write(
        self, kind: str, change: EncodedChange, conditions: tuple[Condition, ...], lease: Lease
    ) -> int | None:
        """Write one record on the lease and return the index of the commit; None if it was not committed."""
        since_index = await self._engine.barrier()
        cause = Cause(CauseKind.LEASE, self._candidate.member_id)
        write = EncodedWrite(self._world.new_id(), kind, cause, conditions, (change,), lease.id)
        outcome = await self._engine.commit(write)
        if isinstance(outcome, Committed):
            self._problem = ""
            return outcome.index
        if isinstance(outcome, WriteRejected):
            self._record_problem(outcome.why)
        if not isinstance(outcome, WriteOutcomeUnknown):
            return None
        try:
            await self._engine.barrier()
            return await self._engine.find_write(write.id, since=since_index)
        except (LogUnavailable, FollowerBehind):
            # It is unknown whether the record was written. Without its lease it is deleted.
            await self.release_lease(lease)
            raise

    def _record_problem(self, reason: str) -> None:
        """Log why this member cannot join or lead, once for each outage: attempts are repeated every second."""
        if not self._problem:
            log.warning("election failed, will retry reason=%s", reason)
        self._problem = reason or self._problem

    # --- time and change ---

    def _is_safe(self, lease: Lease) -> bool:
        """Return whether the lease stays valid for more than the safety margin (`margin_s`) before its expiry."""
        return self._world.monotonic_s() < lease.get_valid_until_s() - self._margin_s

    def find_loss_reason(self, lease: Lease, version: int) -> str:
        """Return why the term with this leader record has ended; empty while it lasts."""
        if not self._is_safe(lease):
            return "the leader's lease could not be renewed in time"
        if self._records.get_leader_version() != version:
            return "another leader's record replaced ours"
        return ""

    async def wait_leader_changed(self, version: int, lease: Lease, *, timeout_s: float | None = None) -> None:
        """Wait until the leader record has a version other than `version`, the lease's margin begins, or the timeout
        passes."""
        remaining_s = lease.get_valid_until_s() - self._margin_s - self._world.monotonic_s()
        if timeout_s is not None:
            remaining_s = min(remaining_s, timeout_s)
        try:
            async with asyncio.timeout(max(remaining_s, 0.0)):
                await self._records.wait_leader_changed(version)
        except TimeoutError:
            return

    async def release_lease(self, lease: Lease) -> None:
        """Stop using a lease and revoke it. A lease that cannot be revoked now is revoked when this member has joined again."""
        if self._lease is lease:
            self._lease = None
        await self._revoke(lease)

    async def _revoke(self, lease: Lease) -> None:
        """Revoke a lease. If the log cannot be reached, remember the lease."""
        try:
            await lease.revoke()
        except LogUnavailable:
            if self._engine.is_single_server:
                return  # Nobody else waits for the records of the lease.
            self._unrevoked_leases.pop(lease.id, None)
            if len(self._unrevoked_leases) >= _MAX_UNREVOKED_LEASES:
                del self._unrevoked_leases[next(iter(self._unrevoked_leases))]
            self._unrevoked_leases[lease.id] = lease
        else:
            self._unrevoked_leases.pop(lease.id, None)

    async def _revoke_remaining_leases(self) -> None:
        """Revoke the leases that could not be revoked when they were released, so that their records do not delay an election.

        etcd without a quorum expires no lease. When it has a quorum again, each lease is valid for its whole time to live.
        """
        for lease in tuple(self._unrevoked_leases.values()):
            await self._revoke(lease)
