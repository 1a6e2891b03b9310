"""When a caller is banned that continues to send requests while it is limited, and for how long."""

import pytest
from msgspec.structs import replace

from tests.limits.builders import MINUTE_MS, NOON_MS, SECOND_MS, InMemoryLimiter, a_user
from wharf.limits.core.counting.bans import BanRecord, BanRecords, find_ban_wait, record_refusal
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rule import BanRules
from wharf.limits.core.store_calls import StoreCall

RULES = BanRules(
    refusals_least=3, percent=10, minutes=2, grace_ms=2_000, first_ms=1_000_000, most_ms=3_500_000, forget_ms=9_000_000
)
MINUTE = NOON_MS // MINUTE_MS
WAITING = BanRecord(told_ms=NOON_MS - 5_000, wait_until_ms=NOON_MS + 60_000)


def refuse(
    record: BanRecord, *, now_ms: int = NOON_MS, wait_ms: int = 60_000, ceiling: int = 10, rules: BanRules = RULES
) -> BanRecord:
    return record_refusal(record, rules, now_ms=now_ms, wait_until_ms=now_ms + wait_ms, ceiling=ceiling)


@pytest.mark.parametrize("wait_until_ms", [0, NOON_MS])
def test_a_refusal_after_the_wait_starts_a_new_wait(wait_until_ms: int) -> None:
    record = replace(WAITING, wait_until_ms=wait_until_ms, refusals=2, minute=MINUTE)

    assert refuse(record) == replace(record, told_ms=NOON_MS, wait_until_ms=NOON_MS + 60_000)


def test_a_refusal_before_the_wait_began_starts_a_new_wait() -> None:
    record = replace(WAITING, told_ms=NOON_MS + 1)

    assert refuse(record) == replace(record, told_ms=NOON_MS, wait_until_ms=NOON_MS + 60_000)


@pytest.mark.parametrize("told_ago_ms", [0, 1_999])
@pytest.mark.parametrize(("wait_ms", "wait_until_ms"), [(90_000, NOON_MS + 90_000), (10, NOON_MS + 60_000)])
def test_a_refusal_of_a_request_in_flight_only_lengthens_the_wait(
    told_ago_ms: int, wait_ms: int, wait_until_ms: int
) -> None:
    record = replace(WAITING, told_ms=NOON_MS - told_ago_ms)

    assert refuse(record, wait_ms=wait_ms) == replace(record, wait_until_ms=wait_until_ms)


@pytest.mark.parametrize("told_ago_ms", [2_000, 5_000])
def test_a_refusal_during_the_wait_is_counted(told_ago_ms: int) -> None:
    record = replace(WAITING, told_ms=NOON_MS - told_ago_ms)

    assert refuse(record, wait_ms=90_000) == replace(
        record, wait_until_ms=NOON_MS + 90_000, minute=MINUTE, refusals=1, seen_ms=NOON_MS
    )
    assert refuse(record, wait_ms=10).wait_until_ms == NOON_MS + 60_000


def test_refusals_are_counted_by_the_minute() -> None:
    record = replace(WAITING, minute=MINUTE, refusals=2)

    assert refuse(record).refusals == 3
    assert refuse(replace(record, minute=MINUTE - 1)).refusals == 1
    assert refuse(replace(record, minute=MINUTE + 1)).refusals == 1


@pytest.mark.parametrize(
    ("ceiling", "refusals", "minutes_over"),
    [(10, 2, 0), (10, 3, 1), (10, 4, 0), (39, 3, 1), (40, 3, 0), (40, 4, 1), (100, 10, 1), (100, 9, 0)],
)
def test_a_minute_has_too_many_refusals_above_a_number_and_a_share_of_the_ceiling(
    ceiling: int, refusals: int, minutes_over: int
) -> None:
    assert refuse(replace(WAITING, minute=MINUTE, refusals=refusals), ceiling=ceiling).minutes_over == minutes_over


@pytest.mark.parametrize(
    ("minute", "refusals", "minutes_over"),
    [
        (MINUTE, 9, 1),  # The minute was counted already.
        (MINUTE - 1, 4, 1),
        (MINUTE - 1, 3, 0),
        (MINUTE - 2, 9, 0),
        (MINUTE + 1, 9, 0),
    ],
)
def test_minutes_with_too_many_refusals_count_only_while_they_are_consecutive(
    minute: int, refusals: int, minutes_over: int
) -> None:
    record = replace(WAITING, minute=minute, refusals=refusals, minutes_over=1)

    assert refuse(record, rules=replace(RULES, minutes=9)).minutes_over == minutes_over


def test_enough_minutes_with_too_many_refusals_lead_to_a_ban() -> None:
    record = replace(WAITING, minute=MINUTE, refusals=3, minutes_over=1)

    assert refuse(record) == replace(
        record, refusals=0, minutes_over=0, banned_until_ms=NOON_MS + 1_000_000, bans=1, seen_ms=NOON_MS
    )
    assert refuse(replace(record, refusals=2)).bans == 0
    assert refuse(replace(record, minutes_over=0)).bans == 0


def test_too_few_refusals_in_a_later_minute_lead_to_no_ban() -> None:
    record = replace(WAITING, minute=MINUTE - 1, refusals=9, minutes_over=2)

    assert (refuse(record).bans, refuse(record).minutes_over) == (0, 2)


@pytest.mark.parametrize(("bans", "length_ms"), [(0, 1_000_000), (1, 2_000_000), (2, 3_500_000), (99, 3_500_000)])
def test_each_further_ban_is_twice_as_long_up_to_the_maximum(bans: int, length_ms: int) -> None:
    record = replace(WAITING, minute=MINUTE, refusals=3, minutes_over=1, bans=bans, seen_ms=NOON_MS)

    assert (refuse(record).banned_until_ms, refuse(record).bans) == (NOON_MS + length_ms, bans + 1)


@pytest.mark.parametrize(
    ("seen_ago_ms", "banned_ago_ms", "bans"),
    [(8_999_999, 9_500_000, 3), (9_000_000, 9_500_000, 0), (9_500_000, 8_999_999, 3), (9_500_000, 9_000_000, 0)],
)
def test_after_a_quiet_time_the_next_ban_is_a_first_ban_again(seen_ago_ms: int, banned_ago_ms: int, bans: int) -> None:
    record = replace(WAITING, bans=3, seen_ms=NOON_MS - seen_ago_ms, banned_until_ms=NOON_MS - banned_ago_ms)

    assert refuse(record).bans == bans


@pytest.mark.parametrize(("offset_ms", "is_banned"), [(-1, True), (0, False)])
def test_a_ban_ends_at_its_time(offset_ms: int, is_banned: bool) -> None:
    bans = BanRecords()
    bans.ban("s", NOON_MS)

    assert bans["s"].is_banned(NOON_MS + offset_ms) is is_banned
    assert bans.get_end_ms("s", NOON_MS + offset_ms) == (NOON_MS if is_banned else 0)
    assert bans.get_end_ms("unknown", NOON_MS) == 0


@pytest.mark.parametrize("field", ["seen_ms", "banned_until_ms", "wait_until_ms"])
@pytest.mark.parametrize(("age_ms", "is_expired"), [(8_999_999, False), (9_000_000, True)])
def test_a_record_expires_when_the_next_ban_would_be_a_first_ban(field: str, age_ms: int, is_expired: bool) -> None:
    record = replace(BanRecord(), **{field: NOON_MS - age_ms})

    assert record.is_expired(NOON_MS, RULES) is is_expired


# -- which refusals count ------------------------------------------------------------------------------------------


def make_call(path: str = "/meta") -> StoreCall:
    limiter = InMemoryLimiter(
        'profile = "none"\n[[rule]]\nname = "core"\nresource = "core"\nceiling = 7\n'
        '[[rule]]\nname = "points"\ncounts = "points"\nceiling = 9\n'
        '[[rule]]\nname = "shadow"\ncounts = "points"\nceiling = 11\nshadow = true\n'
        '[[endpoint]]\nmatch = ["GET /free"]\nfree = true\n'
    )
    return limiter.core.build_call(RequestFacts("r1", "GET", path, a_user()), NOON_MS)


def test_the_limit_that_admits_last_decides_how_long_to_wait() -> None:
    call = make_call()

    assert find_ban_wait(call, [0, 1], [NOON_MS + 5, NOON_MS + 3]) == (NOON_MS + 5, 7)
    assert find_ban_wait(call, [0, 1], [NOON_MS + 3, NOON_MS + 5]) == (NOON_MS + 5, 9)
    assert find_ban_wait(call, [1], [NOON_MS + 3]) == (NOON_MS + 3, 9)


def test_a_limit_in_shadow_mode_leads_to_no_ban() -> None:
    assert find_ban_wait(make_call(), [2], [NOON_MS]) is None


def test_a_free_request_leads_to_no_ban() -> None:
    assert find_ban_wait(make_call("/free"), [0], [NOON_MS]) is None


@pytest.mark.parametrize(("required", "expected"), [(7, (NOON_MS, 7)), (8, None)])
def test_a_request_that_never_fits_leads_to_no_ban(required: int, expected: tuple[int, int] | None) -> None:
    call = make_call()
    call = replace(call, charges=(replace(call.charges[0], required=required), *call.charges[1:]))

    assert find_ban_wait(call, [0], [NOON_MS]) == expected


def test_a_refusal_without_a_wait_is_not_recorded() -> None:
    bans = BanRecords()

    bans.add_refusal(make_call(), [2], [NOON_MS], NOON_MS)

    assert len(bans) == 0


def test_a_refusal_is_recorded_for_the_ban_subject_of_the_call() -> None:
    bans, call = BanRecords(), make_call()
    bans.ban(call.plan.ban_subject, 5)

    bans.add_refusal(call, [0], [NOON_MS + SECOND_MS], NOON_MS)

    assert bans[call.plan.ban_subject] == BanRecord(
        told_ms=NOON_MS, wait_until_ms=NOON_MS + SECOND_MS, banned_until_ms=5
    )


# -- a full table --------------------------------------------------------------------------------------------------


def test_a_known_subject_is_banned_and_refused_in_a_full_table() -> None:
    bans, call = BanRecords(2), make_call()
    bans.ban("a", NOON_MS + 1)
    bans.ban(call.plan.ban_subject, NOON_MS + 2)

    bans.ban("a", NOON_MS + 3)
    bans.add_refusal(call, [0], [NOON_MS + 9], NOON_MS)
    bans.load([("a", BanRecord(banned_until_ms=7))])

    assert (bans["a"].banned_until_ms, bans[call.plan.ban_subject].wait_until_ms, len(bans)) == (7, NOON_MS + 9, 2)


def test_a_full_table_evicts_a_tenth_of_a_segment_at_most() -> None:
    bans = BanRecords(40)
    for number in range(40):
        call = make_call()
        bans.add_refusal(replace(call, plan=replace(call.plan, ban_subject=f"s{number}")), [0], [NOON_MS + 9], NOON_MS)

    bans.add_refusal(make_call(), [0], [NOON_MS + 9], NOON_MS)

    assert ([f"s{number}" in bans for number in range(5)], len(bans)) == ([False] * 4 + [True], 37)
