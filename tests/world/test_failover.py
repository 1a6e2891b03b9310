"""Failover between addresses: their order, the division of a call's time, and the notice of silent addresses."""

import pytest

from wharf.world import SimulatedWorld
from wharf.world.failover import MAX_PART_S, Attempt, CallBudget, FailoverAddresses


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0


def make_addresses(count: int) -> tuple[FailoverAddresses, Clock]:
    clock = Clock()
    return FailoverAddresses(SimulatedWorld(1, lambda: clock.now_s), count), clock


def miss_all_replies(addresses: FailoverAddresses, clock: Clock, budget: CallBudget, attempts: int) -> list[Attempt]:
    made = []
    for _ in range(attempts):
        made.append(budget.next_attempt())
        clock.now_s += made[-1].timeout_s
        addresses.on_silence(made[-1])
    return made


@pytest.mark.parametrize(
    ("count", "budget_s", "parts_s"),
    [
        (1, 10.0, [10.0]),
        (2, 10.0, [2.5, 7.5]),
        (3, 10.0, [2.5, 2.5, 5.0]),
        (3, 3.0, [1.0, 1.0, 1.0]),
        (5, 30.0, [2.5, 2.5, 2.5, 2.5, 20.0]),
    ],
)
def test_the_time_of_a_call_is_divided_among_the_addresses(count: int, budget_s: float, parts_s: list[float]) -> None:
    addresses, clock = make_addresses(count)

    made = miss_all_replies(addresses, clock, addresses.start_call(budget_s), count)

    assert [each.timeout_s for each in made] == pytest.approx(parts_s)
    assert [each.position for each in made] == list(range(count))


def test_a_call_has_no_time_for_a_further_address_when_its_budget_is_spent() -> None:
    addresses, clock = make_addresses(3)
    budget = addresses.start_call(10.0)
    budget.next_attempt()

    assert budget.has_untried
    clock.now_s += 10.0

    assert not budget.has_untried


def test_the_next_call_begins_with_the_address_that_replied_last() -> None:
    addresses, clock = make_addresses(3)
    miss_all_replies(addresses, clock, addresses.start_call(10.0), 1)
    addresses.on_reply(1)

    assert addresses.start_call(10.0).next_attempt().position == 1


def test_an_address_that_failed_is_tried_after_those_that_did_not() -> None:
    addresses, clock = make_addresses(4)
    miss_all_replies(addresses, clock, addresses.start_call(10.0), 2)

    addresses.on_failure(addresses.current)

    assert addresses.list_order() == [3, 0, 1, 2]


def test_an_address_that_replied_again_is_no_longer_tried_last() -> None:
    addresses, clock = make_addresses(3)
    miss_all_replies(addresses, clock, addresses.start_call(10.0), 2)
    addresses.on_reply(1)

    assert addresses.list_order() == [2, 1, 0]


def test_late_failures_of_one_address_switch_only_once() -> None:
    addresses, _ = make_addresses(3)
    attempts = [addresses.start_call(10.0).next_attempt() for _ in range(5)]

    for attempt in attempts:
        addresses.on_silence(attempt)

    assert addresses.current == 1


def test_a_call_continues_at_the_address_that_another_call_found() -> None:
    addresses, _ = make_addresses(4)
    budget = addresses.start_call(10.0)
    budget.next_attempt()
    for failed in (0, 1):
        addresses.on_failure(failed)

    assert budget.next_attempt().position == 2


def test_silence_of_an_address_is_notified_only_to_those_that_wait_for_that_address() -> None:
    addresses, clock = make_addresses(2)
    notified: list[str] = []
    with (
        addresses.watch_silence(0, lambda: notified.append("first")),
        addresses.watch_silence(1, lambda: notified.append("second")),
    ):
        miss_all_replies(addresses, clock, addresses.start_call(10.0), 1)
    miss_all_replies(addresses, clock, addresses.start_call(10.0), 2)

    assert notified == ["first"]


def test_an_address_that_replies_to_other_calls_is_slow_and_not_silent() -> None:
    addresses, _ = make_addresses(2)
    notified: list[str] = []
    attempt = addresses.start_call(10.0).next_attempt()
    addresses.on_reply(0)

    with addresses.watch_silence(0, lambda: notified.append("silent")):
        addresses.on_silence(attempt)

    assert (notified, addresses.current) == ([], 1)


def test_the_silence_of_the_only_address_is_not_notified() -> None:
    addresses, clock = make_addresses(1)
    notified: list[str] = []

    with addresses.watch_silence(0, lambda: notified.append("silent")):
        miss_all_replies(addresses, clock, addresses.start_call(10.0), 1)

    assert notified == []


def test_the_rest_of_the_time_is_not_for_an_address_that_failed_before() -> None:
    addresses, clock = make_addresses(2)
    (silent,) = miss_all_replies(addresses, clock, addresses.start_call(30.0), 1)

    made = miss_all_replies(addresses, clock, addresses.start_call(30.0), 3)

    assert silent.position == 0
    assert [(each.position, each.timeout_s) for each in made] == [(1, 2.5), (0, 2.5), (1, 25.0)]


def test_the_last_address_gets_the_rest_of_the_time_if_the_first_one_failed_too() -> None:
    addresses, clock = make_addresses(2)
    miss_all_replies(addresses, clock, addresses.start_call(5.0), 2)

    made = miss_all_replies(addresses, clock, addresses.start_call(30.0), 2)

    assert [each.timeout_s for each in made] == [2.5, 27.5]


def test_an_address_that_replied_again_gets_the_rest_of_the_time() -> None:
    addresses, clock = make_addresses(2)
    miss_all_replies(addresses, clock, addresses.start_call(30.0), 1)
    addresses.on_reply(0)

    made = miss_all_replies(addresses, clock, addresses.start_call(30.0), 2)

    assert [(each.position, each.timeout_s) for each in made] == [(1, 2.5), (0, 27.5)]


def test_an_attempt_at_a_chosen_address_leaves_the_others_untried() -> None:
    addresses, clock = make_addresses(3)
    budget = addresses.start_call(10.0)

    first = budget.next_attempt(2)
    clock.now_s += first.timeout_s
    repeated = budget.next_attempt(2)

    assert (first.position, first.timeout_s, repeated.position, budget.round_count) == (2, 2.5, 2, 2)
    assert budget.has_untried


def test_a_new_round_gives_each_address_a_part_again() -> None:
    addresses, clock = make_addresses(2)
    budget = addresses.start_call(30.0)
    for _ in range(2):
        budget.next_attempt()
        clock.now_s += 1.0

    attempt = budget.next_attempt()

    assert (attempt.timeout_s, budget.round_count) == (MAX_PART_S, 2)
