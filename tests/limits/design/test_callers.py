"""Section 4 of the design: callers. The numbers in test names are its rules."""

from ipaddress import ip_address

import pytest

from tests.limits.builders import MINUTE_MS, SECOND_MS, InMemoryLimiter, a_user, an_installation, anonymous
from wharf.limits.core.callers.addresses import (
    InvalidProxies,
    build_address_scope,
    build_network_scope,
    find_address,
    parse_address,
    read_proxies,
)
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.responses import build_bucket_headers

SOCKET = "10.0.0.1"
TRUSTED = read_proxies(trusted=["10.0.0.0/8"])


def find_caller_address(*lines: str, trusted: bool = True, hops: int = 0) -> str:
    proxies = read_proxies(trusted=["10.0.0.0/8"] if trusted and not hops else [], hops=hops)
    return str(find_address(SOCKET, proxies, forwarded_for=lines))


# -- 4.1 -----------------------------------------------------------------------------------------------------------


def test_4_1_without_proxies_the_address_is_the_peer_address_of_the_socket() -> None:
    assert find_caller_address("192.0.2.9", trusted=False) == SOCKET


def test_4_1_with_trusted_networks_the_address_is_the_first_untrusted_entry_from_the_right() -> None:
    assert find_caller_address("203.0.113.1, 192.0.2.9, 10.0.0.7") == "192.0.2.9"


def test_4_1_headers_of_an_untrusted_peer_are_ignored() -> None:
    assert str(find_address("192.0.2.1", TRUSTED, forwarded_for=["203.0.113.1"])) == "192.0.2.1"


def test_4_1_with_hops_the_address_is_that_number_of_entries_from_the_right() -> None:
    assert [find_caller_address("203.0.113.1, 192.0.2.9, 10.0.0.7", hops=hops) for hops in (1, 2, 9)] == [
        "10.0.0.7",
        "192.0.2.9",
        "203.0.113.1",
    ]


def test_4_1_trusted_and_hops_cannot_both_be_set() -> None:
    with pytest.raises(InvalidProxies, match="are both set"):
        read_proxies(trusted=["10.0.0.0/8"], hops=1)


def test_4_1_header_lines_are_joined_in_order() -> None:
    assert find_caller_address("203.0.113.1", "192.0.2.9, 10.0.0.7") == "192.0.2.9"


@pytest.mark.parametrize("malformed", ["unknown", "", "300.1.1.1", "_hidden"])
def test_4_1_reading_from_the_right_stops_at_a_malformed_entry(malformed: str) -> None:
    assert find_caller_address(f"192.0.2.9, {malformed}, 10.0.0.7") == "10.0.0.7"


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:4711", "192.0.2.7"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("[2001:db8::1]", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        (" 192.0.2.7 ", "192.0.2.7"),
    ],
)
def test_4_1_ports_and_zones_are_cut_and_mapped_addresses_are_ipv4(text: str, address: str) -> None:
    assert str(parse_address(text)) == address


def test_4_1_forwarded_is_read_only_if_named() -> None:
    lines = ['for=192.0.2.9;proto=https, for="[2001:db8::1]:9"']
    named = read_proxies(hops=2, should_read_forwarded=True)
    with_hops_only = read_proxies(hops=2)

    assert [str(find_address(SOCKET, proxies, forwarded=lines)) for proxies in (named, with_hops_only)] == [
        "192.0.2.9",
        SOCKET,
    ]


def test_4_1_ipv6_counts_by_64_bits() -> None:
    addresses = ["2001:db8:1:2:3::1", "2001:db8:1:2:ffff::9", "2001:db8:1:3::1"]

    assert [build_address_scope(ip_address(text)) for text in addresses] == [
        "address:2001:db8:1:2::/64",
        "address:2001:db8:1:2::/64",
        "address:2001:db8:1:3::/64",
    ]


def test_4_1_too_many_addresses_share_networks_of_48_or_24_bits() -> None:
    assert [build_network_scope(ip_address(text)) for text in ("2001:db8:1:2:3::1", "192.0.2.9")] == [
        "address:2001:db8:1::/48",
        "address:192.0.2.0/24",
    ]


@pytest.mark.parametrize("network", ["10.0.0.0/99", "x"])
def test_4_1_invalid_networks_are_rejected_with_an_example(network: str) -> None:
    with pytest.raises(InvalidProxies, match=r"write networks such as 10\.0\.0\.0/8"):
        read_proxies(trusted=[network])


# -- 4.2 -----------------------------------------------------------------------------------------------------------


def test_4_2_replies_before_a_caller_is_known_show_the_core_bucket_of_the_address_without_charging_it() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(3, anonymous())
    charge = limiter.core.rulebook.build_core_charge(anonymous())
    headers = [
        dict(build_bucket_headers(charge, limiter.counters.peek([charge], limiter.now_ms)[0], limiter.now_ms))
        for _ in range(2)
    ]

    assert [(h["x-ratelimit-resource"], h["x-ratelimit-used"]) for h in headers] == [("core", "3")] * 2


def failed_login(limiter: InMemoryLimiter, number: int, address: str = "192.0.2.7") -> LimitDecision:
    call = limiter.core.build_failed_login_call(f"login{number}", anonymous(address), limiter.now_ms)
    return limiter.core.decide(call, limiter.counters.take(call, limiter.now_ms))


def test_4_2_failed_logins_have_a_limit_by_address() -> None:
    limiter = InMemoryLimiter()
    admitted = sum(failed_login(limiter, number).is_admitted for number in range(61))
    refusal = limiter.refusal(failed_login(limiter, 99), anonymous())

    assert (admitted, refusal.status, refusal.body[:55]) == (
        60,
        403,
        b'{"message":"Maximum number of login attempts exceeded. ',
    )


def test_4_2_failed_logins_affect_no_other_address_and_no_valid_credential() -> None:
    limiter = InMemoryLimiter()
    for number in range(61):
        failed_login(limiter, number)

    assert (failed_login(limiter, 98, "192.0.2.8").is_admitted, limiter.send(a_user()).is_admitted) == (True, True)


# -- 4.3 -----------------------------------------------------------------------------------------------------------

APP = a_user(app="app:9")
PATH = "/search/code"  # 10 a minute: soon limited.


def continue_sending(
    limiter: InMemoryLimiter, seconds: int, *, a_second: int = 5, caller: object = APP
) -> list[Verdict]:
    verdicts = []
    for _ in range(seconds * a_second):
        verdicts.append(limiter.send(caller, PATH).verdict)  # type: ignore[arg-type]  # Callers only.
        limiter.wait(SECOND_MS // a_second)
    return verdicts


def make_exhausted_limiter(caller: object = APP, *, rules: str = "") -> InMemoryLimiter:
    """Return a limiter in which the bucket of this caller is used up for an hour."""
    limiter = InMemoryLimiter('[[rule]]\nname = "code_search"\nwindow = "1h"\nceiling = 10\n' + rules)
    limiter.send_many(10, caller, PATH)  # type: ignore[arg-type]  # Callers only.
    return limiter


def test_4_3_over_60_refusals_in_each_of_three_consecutive_minutes_are_a_ban_of_ten_minutes() -> None:
    limiter = make_exhausted_limiter()
    verdicts = continue_sending(limiter, 4 * 60)
    first = verdicts.index(Verdict.BANNED)
    retry_after_s = limiter.send(APP, PATH).retry_after_s or 0
    record = limiter.counters.bans["app:9"]

    assert (
        2 * 60 * 5 < first <= 3 * 60 * 5,
        retry_after_s > 600,
        record.banned_until_ms - limiter.now_ms <= 600_000,
    ) == (
        True,
        True,
        True,
    )


def test_4_3_two_minutes_are_not_enough() -> None:
    limiter = make_exhausted_limiter()
    continue_sending(limiter, 119)
    limiter.wait(2 * MINUTE_MS)

    assert Verdict.BANNED not in continue_sending(limiter, 119)


def test_4_3_the_three_minutes_must_be_consecutive() -> None:
    limiter = make_exhausted_limiter()
    verdicts = [
        *continue_sending(limiter, 120),
        *continue_sending(limiter, 60, a_second=1),
        *continue_sending(limiter, 119),
    ]

    assert Verdict.BANNED not in verdicts


def test_4_3_sixty_refusals_a_minute_are_not_enough() -> None:
    assert Verdict.BANNED not in continue_sending(make_exhausted_limiter(), 10 * 60, a_second=1)


def test_4_3_a_tenth_of_the_limit_is_tolerated_if_it_is_more() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(5_000, APP, every_ms=100)
    verdicts = set()
    for _ in range(5 * 60 * 8):  # 480 a minute: below a tenth of 5,000.
        verdicts.add(limiter.send(APP).verdict)
        limiter.wait(SECOND_MS // 8)

    assert verdicts == {Verdict.PRIMARY}


def test_4_3_a_refusal_counts_two_seconds_after_the_previous_one_was_sent() -> None:
    limiter = InMemoryLimiter()
    limiter.send_many(10, APP, PATH)
    for _ in range(1_000):
        limiter.send(APP, PATH)
    limiter.wait(1_999)
    limiter.send(APP, PATH)
    before = limiter.counters.bans["app:9"].refusals
    limiter.wait(1)
    limiter.send(APP, PATH)

    assert (before, limiter.counters.bans["app:9"].refusals) == (0, 1)


def test_4_3_a_caller_that_waits_for_retry_after_is_never_banned() -> None:
    limiter = InMemoryLimiter('[[rule]]\nname = "code_search"\nwindow = "1s"\nceiling = 1\n')
    verdicts = []
    for _ in range(1_000):
        verdicts.append(limiter.send(APP, PATH).verdict)
        refusal = limiter.send(APP, PATH)
        limiter.wait((refusal.retry_after_s or 0) * SECOND_MS)

    assert (set(verdicts), limiter.counters.bans["app:9"].refusals) == ({Verdict.ADMITTED}, 0)


def test_4_3_the_subject_is_the_app_and_never_a_whole_user() -> None:
    limiter = make_exhausted_limiter()
    continue_sending(limiter, 4 * 60)

    assert [limiter.send(caller).verdict for caller in (APP, a_user(token="t2"), a_user(app="app:10"))] == [
        Verdict.BANNED,
        Verdict.ADMITTED,
        Verdict.ADMITTED,
    ]


def test_4_3_without_an_app_the_subject_is_the_token() -> None:
    caller = a_user(token="t9")
    limiter = make_exhausted_limiter(caller)
    continue_sending(limiter, 4 * 60, caller=caller)

    assert [limiter.send(sender).verdict for sender in (caller, a_user(token="t1"))] == [
        Verdict.BANNED,
        Verdict.ADMITTED,
    ]


def test_4_3_for_addresses_a_ban_is_only_reported() -> None:
    caller = anonymous()
    limiter = make_exhausted_limiter(caller)
    verdicts = continue_sending(limiter, 4 * 60, caller=caller)
    decision = limiter.send(caller, "/meta")

    assert (set(verdicts), decision.verdict, decision.result.banned_until_ms > 0) == (
        {Verdict.PRIMARY},
        Verdict.ADMITTED,
        True,
    )


def test_4_3_requests_during_a_ban_do_not_lengthen_it() -> None:
    limiter = make_exhausted_limiter()
    continue_sending(limiter, 4 * 60)
    until_ms = limiter.counters.bans["app:9"].banned_until_ms
    continue_sending(limiter, 60)

    assert limiter.counters.bans["app:9"].banned_until_ms == until_ms


def ban_lengths(limiter: InMemoryLimiter, count: int, *, pause_ms: int = 0) -> list[int]:
    """Return the lengths, in minutes, of `count` consecutive bans of a caller that never stops."""
    lengths: list[int] = []
    while len(lengths) < count:
        decision = limiter.send(APP, PATH)
        until_ms = decision.result.banned_until_ms
        if until_ms:
            lengths.append(round((until_ms - limiter.now_ms) / MINUTE_MS))
            limiter.now_ms = until_ms + pause_ms
        elif decision.is_admitted:
            limiter.send_many(10, APP, PATH)
        limiter.wait(SECOND_MS // 5)
    return lengths


def test_4_3_each_ban_doubles_the_last_up_to_24_hours() -> None:
    assert ban_lengths(make_exhausted_limiter(), 9) == [10, 20, 40, 80, 160, 320, 640, 1_280, 1_440]


def test_4_3_after_a_day_without_refusals_a_ban_is_a_first_ban() -> None:
    assert ban_lengths(make_exhausted_limiter(), 3, pause_ms=24 * 60 * MINUTE_MS) == [10, 10, 10]


def test_4_3_an_installations_subject_is_its_app() -> None:
    assert an_installation().ban_subject == "app:7"
