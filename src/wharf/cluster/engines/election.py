"""Who leads: an election on top of the log, by leases.

The leader is whoever wrote the record ("leader", "leader"); the record hangs on its lease and vanishes with it. Safety
rests on nothing but the version of that record: every write that only a leader may make carries
`Leadership.condition()`. The clock only makes leaders stop early, so that two never believe to lead for long.

A member's record stands under its id, and one living process at a time may use an id: a data folder that was copied brings
its id along, and two under one id would take each other's record away. Whoever finds another's record under its id waits
as long as a process that is gone could still be seen, and then does not join.

Knows nothing of records' contents, nor of the replica: a `View` tells what the replica knows. The log must be
founded before anybody stands.
"""

import asyncio
import contextlib
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
)
from wharf.contract.model.log import Cause, CauseKind, Condition
from wharf.world import World

LEADER_TABLE: Final = "leader"
LEADER_KEY: Final = "leader"
MEMBERS_TABLE: Final = "members"

SUCCESSOR_TIMEOUT_S: Final = 3.0
"""How long an heir may take to take over, before anybody may."""

_PAUSE_S: Final = 0.2
_WRITE_AGAIN_S: Final = 1.0


class MemberIdInUse(Exception):
    """Another process that lives is a member under our id. A sentence that says which, and what to do."""


class ElectionRecords(Protocol):
    """What the replica knows of the leader's record, and of the one under this member's id."""

    def get_leader_version(self) -> int:
        """The record's version; 0: there is none."""
        ...

    async def wait_leader_changed(self, version: int) -> None:
        """Until the record has another version than this."""
        ...

    def is_successor(self) -> bool:
        """Whether the leader's record offers the leadership to this member."""
        ...

    def get_member_version(self) -> int:
        """The version of the member's record; 0: there is none."""
        ...

    async def wait_member_changed(self, version: int) -> None:
        """Until the member's record has another version than this."""
        ...

    def describe_other_holder(self) -> str:
        """Which process the member's record is of, as `name at address`; empty when it is this one's own, written in this
        life or an earlier one, or there is none."""
        ...


class ElectionCandidate(Protocol):
    """A member that stands. The records are asked for when they are written: they may tell when that was."""

    member_id: str

    def build_member_record(self) -> bytes: ...

    def build_leader_record(self, *, successor: str = "") -> bytes:
        """`heir`: the member that the leadership is offered to."""
        ...


class Leadership:
    """One term of this member. Ends once and for all."""

    def __init__(self, election: "Election", lease: Lease, version: int) -> None:
        self.version = version
        self._election = election
        self._lease = lease
        self._ended = ""
        self._handing_over = asyncio.Lock()
        self._is_handed_over = False

    def build_condition(self) -> Condition:
        """What every write of a leader carries: the record is still the one that this term created."""
        return Condition(LEADER_TABLE, LEADER_KEY, self.version)

    def is_held(self) -> bool:
        """Whether this member may act as leader at this instant; false in good time before anybody else can be elected."""
        return not self.get_end_reason()

    def get_end_reason(self) -> str:
        """A sentence; empty while the term lasts."""
        if not self._ended:
            self._ended = self._election.find_loss_reason(self._lease, self.version)
        return self._ended

    async def wait_lost(self) -> None:
        """Until the term has ended. The lease is given up then, so that others need not wait for it."""
        while not self.get_end_reason():
            await self._election.wait_leader_changed(self.version, self._lease)
        async with self._handing_over:  # The replica may hear of an offer before whoever makes it.
            if not self._is_handed_over:
                await self._election.release_lease(self._lease)

    async def transfer(self, successor: str) -> bool:
        """End the term and offer the leadership to the member `heir`, who takes over at once. Where it does not within
        `HEIR_WITHIN_S`, anybody may. False when the offer could not be written; the term then goes on, if it still can.
        Raises `Unavailable` or `Behind`: nobody can tell, and the term ends.
        """
        async with self._handing_over:
            self._is_handed_over = await self._election.offer_leadership(self._lease, self.version, successor)
            if self._is_handed_over:
                self._ended = f"the leadership was handed over to {successor}"
            return self._is_handed_over

    async def resign(self) -> None:
        """End the term now."""
        self._ended = self._ended or "the leader resigned"
        await self._election.release_lease(self._lease)


class Election:
    """`ttl_s` is how long a silent leader is waited for; `margin_s` before that it stops by itself."""

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
        self._view = records
        self._ttl_s = ttl_s
        self._margin_s = margin_s
        self._lease: Lease | None = None
        self._led_on: Lease | None = None
        """The lease of the newest term. It serves no other: renewing it would keep that term's record, too."""
        self._offer: tuple[int, float] | None = None
        """The version of the record by which this member offered its leadership to another, and how long that may take."""

    async def campaign(self) -> Leadership:
        """Join the members and wait to be leader. Raises `IdInUse`.

        Returns after the replica has passed the election: whoever acts on it sees all that earlier leaders wrote.
        """
        while True:
            try:
                lease = await self.join()
                version = await self._run_for_it(lease)
            except (LogUnavailable, FollowerBehind):
                await asyncio.sleep(_PAUSE_S)
                continue
            if version is None:
                continue
            leadership = Leadership(self, lease, version)
            while self._is_safe(lease) and self._view.get_leader_version() < version:
                await self.wait_leader_changed(self._view.get_leader_version(), lease)
            if leadership.is_held():
                return leadership
            await self.release_lease(lease)

    async def join(self) -> Lease:
        """Have a lease, with this member's record on it. Raises `IdInUse`, or `Unavailable`."""
        if self._lease is not None and self._is_safe(self._lease):
            return self._lease
        if self._lease is not None:
            await self.release_lease(self._lease)
        if not self._engine.is_single_server:
            await self._until_id_is_free()
        lease = await self._engine.grant_lease(self._ttl_s)
        while not await self._write_member(lease):
            # Our replica has yet to hear what stands under our id, or the log takes no writes just now.
            await self._member_moved(self._view.get_member_version(), within_s=_PAUSE_S)
            if not self._is_safe(lease) or self._is_taken():
                await self._revoke(lease)
                raise LogUnavailable("the member's record could not be written")
        self._lease = lease
        return lease

    async def maintain_membership(self) -> None:
        """Until cancelled: write this member's record again where it vanished although its lease lives. Without it nobody
        finds the way to this member, be it the leader or not.
        """
        while True:
            seen = self._view.get_member_version()
            lease = self._lease
            if seen or lease is None or not self._is_safe(lease):
                # Looked at now and then too: what came and went at once moved nothing.
                await self._member_moved(seen, within_s=self._ttl_s)
                continue
            with contextlib.suppress(LogUnavailable, FollowerBehind):
                await self._write_member(lease)
            # Written, or not: our replica hears of it, or it is tried again.
            await self._member_moved(seen, within_s=_WRITE_AGAIN_S)

    async def leave(self) -> None:
        """Give up membership and leadership at once."""
        if self._lease is not None:
            await self.release_lease(self._lease)

    # --- membership ---

    async def _write_member(self, lease: Lease) -> bool:
        """False when something else stands under our id than our replica knows, or the log refused."""
        # The only server there can be asks nobody, its earlier self least of all.
        seen = () if self._engine.is_single_server else (self._as_seen(),)
        record = EncodedChange(MEMBERS_TABLE, self._candidate.member_id, self._candidate.build_member_record())
        return await self._write("member-joined", record, seen, lease) is not None

    def _as_seen(self) -> Condition:
        return Condition(MEMBERS_TABLE, self._candidate.member_id, self._view.get_member_version())

    def _is_taken(self) -> bool:
        return not self._engine.is_single_server and bool(self._view.describe_other_holder())

    async def _until_id_is_free(self) -> None:
        """The record of a process that is gone vanishes within the time to live; one that stays is of one that lives."""
        if not self._is_taken():
            return
        await self._free_within(self._ttl_s)
        # Only who has contact with the log can tell a record that stays from one that it did not hear the end of.
        await self._engine.barrier()
        await self._free_within(self._ttl_s / 2)
        if self._is_taken():
            raise MemberIdInUse(
                f"the server-id {self._candidate.member_id} is in use by {self._view.describe_other_holder()}; if this data folder "
                f"is a copy of that server's, remove `server-id` from this data folder"
            )

    async def _free_within(self, seconds: float) -> None:
        until_s = self._world.monotonic_s() + seconds
        while self._is_taken() and (remaining_s := until_s - self._world.monotonic_s()) > 0:
            await self._member_moved(self._view.get_member_version(), within_s=remaining_s)

    async def _member_moved(self, version: int, *, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._view.wait_member_changed(version)

    # --- the campaign ---

    async def _run_for_it(self, lease: Lease) -> int | None:
        """The version of the record that makes us leader; None: the lease has become too old to try."""
        while self._is_safe(lease):
            seen = self._view.get_leader_version()
            if seen and not self._engine.is_single_server and not self._view.is_successor():
                remaining_s = self._remaining_of_offer_s(seen)
                if (remaining_s is None and self._led_on is lease) or (remaining_s is not None and remaining_s <= 0):
                    # What we wrote as leader hangs on this lease and may be what stands there: an offer that nobody took,
                    # or the record of an older term that came back with a restored log. Make way for everybody.
                    self._offer = None
                    await self.release_lease(lease)
                    return None
                await self.wait_leader_changed(seen, lease, timeout_s=remaining_s)
                continue
            record = EncodedChange(LEADER_TABLE, LEADER_KEY, self._candidate.build_leader_record())
            condition = Condition(LEADER_TABLE, LEADER_KEY, seen)
            version = await self._write("leader-elected", record, (condition,), lease)
            if version is not None:
                self._led_on = lease
                return version
            # Somebody was quicker and our replica has yet to hear of it, or the log takes no writes just now.
            await self.wait_leader_changed(seen, lease, timeout_s=_PAUSE_S)
        return None

    async def offer_leadership(self, lease: Lease, version: int, successor: str) -> bool:
        """Write that the leader offers its leadership to the heir. From then on no write of this term is taken."""
        record = EncodedChange(LEADER_TABLE, LEADER_KEY, self._candidate.build_leader_record(successor=successor))
        offered = await self._write("leader-hands-over", record, (Condition(LEADER_TABLE, LEADER_KEY, version),), lease)
        if offered is not None:
            self._offer = (offered, self._world.monotonic_s() + SUCCESSOR_TIMEOUT_S)
        return offered is not None

    def _remaining_of_offer_s(self, seen: int) -> float | None:
        """How long this member's heir may still take; None: it has none, or the heir was quicker."""
        if self._offer is None or seen > self._offer[0]:
            self._offer = None
            return None
        return self._offer[1] - self._world.monotonic_s()

    async def _write(
        self, kind: str, change: EncodedChange, conditions: tuple[Condition, ...], lease: Lease
    ) -> int | None:
        """The index at which it was committed; None: it was not."""
        since = await self._engine.barrier()
        cause = Cause(CauseKind.LEASE, self._candidate.member_id)
        write = EncodedWrite(self._world.new_id(), kind, cause, conditions, (change,), lease.id)
        outcome = await self._engine.commit(write)
        if isinstance(outcome, Committed):
            return outcome.index
        if not isinstance(outcome, WriteOutcomeUnknown):
            return None
        try:
            await self._engine.barrier()
            return await self._engine.find_write(write.id, since=since)
        except (LogUnavailable, FollowerBehind):
            # Nobody can tell whether the record is there. Without its lease it is not.
            await self.release_lease(lease)
            raise

    # --- time and change ---

    def _is_safe(self, lease: Lease) -> bool:
        return self._world.monotonic_s() < lease.get_valid_until_s() - self._margin_s

    def find_loss_reason(self, lease: Lease, version: int) -> str:
        if not self._is_safe(lease):
            return "the leader's lease could not be renewed in time"
        if self._view.get_leader_version() != version:
            return "another leader's record stands in place of ours"
        return ""

    async def wait_leader_changed(self, version: int, lease: Lease, *, timeout_s: float | None = None) -> None:
        """Until the leader's record is no longer of this version, or the lease has to be looked at again."""
        remaining_s = lease.get_valid_until_s() - self._margin_s - self._world.monotonic_s()
        if timeout_s is not None:
            remaining_s = min(remaining_s, timeout_s)
        try:
            async with asyncio.timeout(max(remaining_s, 0.0)):
                await self._view.wait_leader_changed(version)
        except TimeoutError:
            return

    async def release_lease(self, lease: Lease) -> None:
        """Let go of a lease; if it cannot be revoked now, it runs out by itself."""
        if self._lease is lease:
            self._lease = None
        await self._revoke(lease)

    async def _revoke(self, lease: Lease) -> None:
        try:
            await lease.revoke()
        except LogUnavailable:
            return
