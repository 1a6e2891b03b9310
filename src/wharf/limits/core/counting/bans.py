"""Who goes on while limited is banned: when, and for how long. A pure step from record to record."""

import msgspec

from wharf.limits.core.rule import MINUTE_MS, BanRules


class BanRecord(msgspec.Struct, frozen=True, gc=False):
    """What is remembered of a subject that was refused."""

    told_ms: int = 0
    """When the refusal that stands was told, and until when it asks to wait."""
    wait_until_ms: int = 0
    minute: int = 0
    refusals: int = 0
    """Counted refusals of that minute."""
    minutes_over: int = 0
    """Minutes running, up to `minute`, with too many."""
    banned_until_ms: int = 0
    bans: int = 0
    seen_ms: int = 0
    """When a refusal last counted."""

    def is_banned(self, now_ms: int) -> bool:
        return now_ms < self.banned_until_ms

    def is_expired(self, now_ms: int, rules: BanRules) -> bool:
        return now_ms >= max(self.seen_ms, self.banned_until_ms, self.wait_until_ms) + rules.forget_ms


def record_refusal(record: BanRecord, rules: BanRules, *, now_ms: int, wait_until_ms: int, ceiling: int) -> BanRecord:
    """Return the record after a refusal that asks to wait until then, by a limit with this ceiling.

    A refusal counts once its predecessor has been told for `grace_ms`: requests that were under way when the first
    refusal went out are not held against anyone, and who waits as told never counts.
    """
    if now_ms >= record.wait_until_ms or now_ms < record.told_ms:
        # The wait is over (or time stepped back): this is a first refusal again.
        return msgspec.structs.replace(record, told_ms=now_ms, wait_until_ms=wait_until_ms)
    if now_ms < record.told_ms + rules.grace_ms:
        return msgspec.structs.replace(record, wait_until_ms=max(wait_until_ms, record.wait_until_ms))
    return _counted(record, rules, now_ms=now_ms, wait_until_ms=wait_until_ms, ceiling=ceiling)


def _counted(record: BanRecord, rules: BanRules, *, now_ms: int, wait_until_ms: int, ceiling: int) -> BanRecord:
    is_quiet = now_ms >= max(record.seen_ms, record.banned_until_ms) + rules.forget_ms
    bans = 0 if is_quiet else record.bans
    minute = now_ms // MINUTE_MS
    refusals = record.refusals + 1 if minute == record.minute else 1
    # Minutes in which there were too many stay counted as long as they follow each other.
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
