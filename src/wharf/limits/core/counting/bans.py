"""Bans of callers that continue to send requests while they are limited: when, and for how long.

Pure functions from one record to the next. Stores keep the records.
"""

import msgspec

from wharf.limits.core.rule import MINUTE_MS, BanRules


class BanRecord(msgspec.Struct, frozen=True, gc=False):
    """The refusals and bans of one subject (an app, token or address)."""

    told_ms: int = 0
    """When the current refusal was first sent."""
    wait_until_ms: int = 0
    """Until when that refusal tells the caller to wait."""
    minute: int = 0
    refusals: int = 0
    """The counted refusals of that minute."""
    minutes_over: int = 0
    """The number of consecutive minutes, up to `minute`, with too many refusals."""
    banned_until_ms: int = 0
    bans: int = 0
    seen_ms: int = 0
    """When the last refusal was counted."""

    def is_banned(self, now_ms: int) -> bool:
        return now_ms < self.banned_until_ms

    def is_expired(self, now_ms: int, rules: BanRules) -> bool:
        """Return whether the record can be deleted, because the next ban would be a first ban again."""
        return now_ms >= max(self.seen_ms, self.banned_until_ms, self.wait_until_ms) + rules.forget_ms


def record_refusal(record: BanRecord, rules: BanRules, *, now_ms: int, wait_until_ms: int, ceiling: int) -> BanRecord:
    """Return the record after a refusal that asks to wait until `wait_until_ms`.

    A refusal is counted only if the previous one was sent `grace_ms` before, so requests that were already in flight
    do not count. A caller that waits as told is never counted. `ceiling` is that of the limit that refused.
    """
    if now_ms >= record.wait_until_ms or now_ms < record.told_ms:
        # The wait is over, or the clock stepped back: this is a first refusal again.
        return msgspec.structs.replace(record, told_ms=now_ms, wait_until_ms=wait_until_ms)
    if now_ms < record.told_ms + rules.grace_ms:
        return msgspec.structs.replace(record, wait_until_ms=max(wait_until_ms, record.wait_until_ms))
    return _count_refusal(record, rules, now_ms=now_ms, wait_until_ms=wait_until_ms, ceiling=ceiling)


def _count_refusal(record: BanRecord, rules: BanRules, *, now_ms: int, wait_until_ms: int, ceiling: int) -> BanRecord:
    """Count a refusal, and ban the subject if there were too many in enough consecutive minutes."""
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
