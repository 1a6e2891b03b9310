"""Bans of callers that continue to send requests while they are limited: when, and for how long.

Pure functions from one record to the next, and the records of one process.
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from wharf.limits.core.counting.segmented_dict import SegmentedDict
from wharf.limits.core.rule import MINUTE_MS, BanRules
from wharf.limits.core.store_calls import StoreCall

MAX_BAN_RECORDS: Final = 100_000
"""Limits the memory for ban records."""
MIN_EVICTION_INTERVAL_MS: Final = 1_000
"""Limits the time for evictions: a full table would be examined at every refusal."""


class BanRecord(msgspec.Struct, frozen=True, gc=False):
    """The refusals and bans of one subject (an app, token or address)."""

    told_ms: int = 0
    """When the refusal was sent that started the current wait."""
    wait_until_ms: int = 0
    """Until when the caller must wait; later refusals can extend it."""
    minute: int = 0
    """The minute of the last counted refusal, since the Unix epoch."""
    refusals: int = 0
    """The counted refusals of that minute."""
    minutes_over: int = 0
    """The number of consecutive minutes, up to `minute`, with too many refusals."""
    banned_until_ms: int = 0
    bans: int = 0
    """The number of bans so far; each further ban is twice as long."""
    seen_ms: int = 0
    """When the last refusal was counted."""

    def is_banned(self, now_ms: int) -> bool:
        return now_ms < self.banned_until_ms

    def is_expired(self, now_ms: int, rules: BanRules) -> bool:
        """Return whether the record can be deleted, because the next ban would be a first ban again."""
        return now_ms >= max(self.seen_ms, self.banned_until_ms, self.wait_until_ms) + rules.forget_ms


USER_PREFIX: Final = "user:"
"""Begins the name of a user as the subject of a ban."""


class OperatorBan(msgspec.Struct, frozen=True, kw_only=True):
    """A ban by an operator: of an app, a token, an address, or of a whole user with all its credentials."""

    subject: str
    until_ms: int
    by: str = ""
    reason: str = ""
    """For the audit log."""
    message: str = ""
    """The text for the caller; empty without one."""


def record_refusal(record: BanRecord, rules: BanRules, *, now_ms: int, wait_until_ms: int, ceiling: int) -> BanRecord:
    """Return the ban record of a caller after one more refusal, which asks the caller to wait until `wait_until_ms`.

    A refusal counts towards a ban only if it falls into the wait that an earlier refusal asked for, at least `grace_ms`
    after that refusal: requests that were already in flight do not count. So a caller that waits is never banned.
    `ceiling` is the ceiling of the limit that refused.
    """
    if now_ms >= record.wait_until_ms or now_ms < record.told_ms:
        # The wait is over, or the clock stepped back: this is a first refusal again.
        return msgspec.structs.replace(record, told_ms=now_ms, wait_until_ms=wait_until_ms)
    if now_ms < record.told_ms + rules.grace_ms:
        return msgspec.structs.replace(record, wait_until_ms=max(wait_until_ms, record.wait_until_ms))
    return _count_refusal(record, rules, now_ms=now_ms, wait_until_ms=wait_until_ms, ceiling=ceiling)


def _count_refusal(record: BanRecord, rules: BanRules, *, now_ms: int, wait_until_ms: int, ceiling: int) -> BanRecord:
    """Return the record with one more counted refusal, and with a ban if too many fell into enough consecutive minutes."""
    is_quiet = now_ms >= max(record.seen_ms, record.banned_until_ms) + rules.forget_ms
    bans = 0 if is_quiet else record.bans
    minute = now_ms // MINUTE_MS
    refusals = record.refusals + 1 if minute == record.minute else 1
    # Minutes with too many refusals count only while they are consecutive.
    minutes_over = record.minutes_over if minute in (record.minute, record.minute + 1) else 0
    too_many = max(rules.refusals_least, ceiling * rules.percent // 100)
    if minute == record.minute + 1 and record.refusals <= too_many:
        minutes_over = 0
    if refusals == too_many + 1:
        minutes_over += 1
    banned_until_ms = record.banned_until_ms
    if minutes_over >= rules.minutes and refusals > too_many:
        banned_until_ms = now_ms + min(rules.first_ms << min(bans, 20), rules.most_ms)
        bans += 1
        refusals = minutes_over = 0
    return msgspec.structs.replace(
        record,
        wait_until_ms=max(wait_until_ms, record.wait_until_ms),
        minute=minute,
        refusals=refusals,
        minutes_over=minutes_over,
        banned_until_ms=banned_until_ms,
        bans=bans,
        seen_ms=now_ms,
    )


def find_ban_wait(call: StoreCall, hit_indexes: Sequence[int], free_at_ms: Sequence[int]) -> tuple[int, int] | None:
    """Return the time at which a refused request would be admitted, and the ceiling of the limit that admits it last.

    `hit_indexes` are the indexes of the charges that exceed their ceiling, and `free_at_ms` has the time at which each
    of them would fit again; the latest of these times counts. Return `None` if the refusal does not count for bans: the request is free of charge, or no
    enforced limit could ever admit it.
    """
    if call.plan.is_free:
        return None
    waits = [
        (free_ms, charge.ceiling)
        for charge, free_ms in zip((call.charges[index] for index in hit_indexes), free_at_ms, strict=True)
        if charge.is_enforced and charge.required <= charge.ceiling
    ]
    return max(waits, default=None)


_NEW_RECORD: Final = BanRecord()


class BanRecords(SegmentedDict[str, BanRecord]):
    """The ban records of one process by subject, at most `max_records`.

    Add records only with `ban`, `add_refusal` and `load`, which respect the limit.
    """

    def __init__(self, max_records: int = MAX_BAN_RECORDS) -> None:
        super().__init__()
        self._max_records = max_records
        self._evicted_ms: int | None = None
        """When evictions last examined the whole table; `None`: never."""
        self._examined_segments = 0
        """The number of segments that evictions have examined since then."""

    def ban(self, subject: str, until_ms: int) -> None:
        """Ban a subject until this time. A time in the past ends a ban.

        If the table is full, the record with the earliest end of ban is removed, because an operator requested this
        ban.
        """
        if subject not in self and len(self) >= self._max_records:
            del self[min(self, key=lambda known: self[known].banned_until_ms)]
        self[subject] = msgspec.structs.replace(self.get(subject) or _NEW_RECORD, banned_until_ms=until_ms)

    def load(self, records: Iterable[tuple[str, BanRecord]]) -> None:
        """Add stored records, or replace those of the same subjects.

        If the table is full, the stored records of further subjects replace the first ones.
        """
        for subject, record in records:
            if subject not in self and len(self) >= self._max_records:
                del self[next(iter(self))]
            self[subject] = record

    def get_end_ms(self, subject: str, now_ms: int) -> int:
        """Return when the ban of a subject ends, in Unix milliseconds; 0 if it is not banned."""
        record = self.get(subject)
        return record.banned_until_ms if record is not None and record.is_banned(now_ms) else 0

    def add_refusal(self, call: StoreCall, hit_indexes: Sequence[int], free_at_ms: Sequence[int], now_ms: int) -> None:
        """Record a refusal of the call's ban subject; this bans it if it continued to send requests for too long.

        `hit_indexes` are the indexes of the charges that exceed their ceiling; `free_at_ms` has the time at which each
        of them would fit. If the table is full of bans in force, refusals of further subjects are not recorded; their
        counters still limit them.
        """
        wait = find_ban_wait(call, hit_indexes, free_at_ms)
        if wait is None:
            return
        subject = call.plan.ban_subject
        if subject not in self and len(self) >= self._max_records and not self._evict(call.ban_rules, now_ms):
            return
        wait_until_ms, ceiling = wait
        self[subject] = record_refusal(
            self.get(subject) or _NEW_RECORD,
            call.ban_rules,
            now_ms=now_ms,
            wait_until_ms=wait_until_ms,
            ceiling=ceiling,
        )

    def _evict(self, rules: BanRules, now_ms: int) -> bool:
        """Remove expired records; if none is expired, the oldest records of subjects that are not banned.

        This examines one segment of the table, so that it takes about a millisecond. The second step removes at most a
        tenth of the segment. Return whether there is room for a new record. There is none if all subjects of the segment
        are banned, or if the whole table was examined too recently.
        """
        is_recent = self._evicted_ms is not None and 0 <= now_ms - self._evicted_ms < MIN_EVICTION_INTERVAL_MS
        if not self._examined_segments and is_recent:
            return False
        segments = self.segments
        segment = segments[self._examined_segments % len(segments)]
        self._examined_segments += 1
        if self._examined_segments >= len(segments):
            self._examined_segments, self._evicted_ms = 0, now_ms
        max_removed = max(1, len(segment) // 10)
        for subject in [subject for subject, record in segment.items() if record.is_expired(now_ms, rules)]:
            del self[subject]
        if len(self) >= self._max_records:  # Never remove a ban that is in force.
            not_banned = [subject for subject, record in segment.items() if not record.is_banned(now_ms)]
            for subject in not_banned[:max_removed]:
                del self[subject]
        return len(self) < self._max_records
