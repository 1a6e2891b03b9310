"""Which failures of a repeated request are logged."""

from wharf.contract.client import Unreachable
from wharf.contract.model.refusal import Refusal, no_leader
from wharf.node.agent.servers.repeated_failures import RepeatedFailures

OUTAGES = [no_leader(f"the store has not replied since 21:43:0{second}Z: connection refused") for second in range(3)]


def test_servers_that_name_other_times_of_one_outage_give_one_reason() -> None:
    failures = RepeatedFailures()

    assert [failures.is_new(each) for each in OUTAGES * 2] == [True, False, False, False, False, False]


def test_servers_that_fail_in_turns_for_other_reasons_are_logged_once_each() -> None:
    failures = RepeatedFailures()
    errors: list[Refusal | Unreachable] = [
        OUTAGES[0],
        no_leader(),
        Unreachable("10.0.0.1:4646: connection refused", is_sent=False),
    ]

    assert [failures.is_new(each) for each in errors * 2] == [True, True, True, False, False, False]


def test_a_reason_is_logged_again_after_a_success() -> None:
    failures = RepeatedFailures()
    first = failures.is_new(OUTAGES[0])
    failures.clear()

    assert (first, failures.is_new(OUTAGES[0])) == (True, True)
