"""The table of bans stays within its size, whatever callers send."""

from msgspec.structs import replace

from tests.limits.builders import MINUTE_MS, NOON_MS, SECOND_MS, InMemoryLimiter, a_user
from wharf.limits.core.counting.bans import MIN_EVICTION_INTERVAL_MS, BanRecord, BanRecords
from wharf.limits.core.request import RequestFacts

SIZE = 10
LIMITER = InMemoryLimiter()
CALL = LIMITER.core.build_call(RequestFacts("r1", "GET", "/meta", a_user()), NOON_MS)


def add_refusal(bans: BanRecords, subject: str, now_ms: int) -> None:
    """Record a refusal of this subject, which is asked to wait for a minute."""
    call = replace(CALL, plan=replace(CALL.plan, ban_subject=subject))
    bans.add_refusal(call, [0], [now_ms + MINUTE_MS], now_ms)


def make_full_table(*, banned: int) -> BanRecords:
    """Return a full table in which this number of subjects is banned; the bans end one minute after another."""
    bans = BanRecords(SIZE)
    for number in range(SIZE):
        if number < banned:
            bans.ban(f"banned-{number}", NOON_MS + (number + 1) * MINUTE_MS)
        else:
            add_refusal(bans, f"refused-{number}", NOON_MS)
    return bans


def test_a_table_full_of_bans_in_force_records_no_further_subject_and_keeps_them() -> None:
    bans = make_full_table(banned=SIZE)
    before = set(bans)

    for number in range(1_000):
        add_refusal(bans, f"new-{number}", NOON_MS + number)

    assert set(bans) == before


def test_the_oldest_records_without_a_ban_make_room() -> None:
    bans = make_full_table(banned=8)

    add_refusal(bans, "new", NOON_MS)

    assert sorted(bans) == sorted([*(f"banned-{number}" for number in range(8)), "refused-9", "new"])


def test_expired_bans_make_room() -> None:
    bans = make_full_table(banned=SIZE)
    later_ms = NOON_MS + SIZE * MINUTE_MS + CALL.ban_rules.forget_ms

    add_refusal(bans, "new", later_ms)

    assert list(bans) == ["new"]


def test_a_full_table_is_examined_once_in_a_second() -> None:
    bans = make_full_table(banned=SIZE - 1)
    add_refusal(bans, "first", NOON_MS)

    add_refusal(bans, "too soon", NOON_MS + MIN_EVICTION_INTERVAL_MS - 1)
    early = "too soon" in bans
    add_refusal(bans, "later", NOON_MS + MIN_EVICTION_INTERVAL_MS)

    assert (early, "first" in bans, "later" in bans, len(bans)) == (False, False, True, SIZE)


def test_a_clock_that_was_set_back_does_not_stop_evictions() -> None:
    bans = make_full_table(banned=SIZE - 1)
    add_refusal(bans, "first", NOON_MS)

    add_refusal(bans, "second", NOON_MS - 5 * SECOND_MS)

    assert ("second" in bans, len(bans)) == (True, SIZE)


def test_the_ban_of_an_operator_replaces_the_ban_that_ends_first() -> None:
    bans = make_full_table(banned=SIZE)

    bans.ban("operator", NOON_MS + 60 * MINUTE_MS)

    assert (bans.get_end_ms("operator", NOON_MS) > NOON_MS, "banned-0" in bans, len(bans)) == (True, False, SIZE)


def test_a_stored_table_that_is_too_large_is_loaded_up_to_the_limit() -> None:
    bans = BanRecords(SIZE)

    bans.load((f"s{number}", BanRecord(banned_until_ms=NOON_MS)) for number in range(3 * SIZE))
    bans.load([("s29", BanRecord(banned_until_ms=1))])

    assert (len(bans), "s29" in bans, bans["s29"].banned_until_ms) == (SIZE, True, 1)
