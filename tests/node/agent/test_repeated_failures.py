"""Which failures of a repeated request are logged."""

import pytest

from wharf.contract.client import Unreachable
from wharf.contract.model.refusal import Refusal, no_leader
from wharf.node.agent.servers.repeated_failures import RepeatedFailures
from wharf.node.agent.servers.session import describe_failure

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


@pytest.mark.parametrize(
    ("address", "is_sent", "is_silent", "has_hint"),
    [
        ("https://s1:4646", True, False, True),
        ("http://s1:4646", True, False, False),
        ("https://s1:4646", False, False, False),
        ("https://s1:4646", True, True, False),
    ],
)
def test_a_closed_connection_to_a_server_with_tls_is_logged_with_the_settings_to_check(
    address: str, is_sent: bool, is_silent: bool, has_hint: bool
) -> None:
    error = Unreachable(f"no reply from {address} (ReadError)", is_sent=is_sent, is_silent=is_silent)

    text = describe_failure(error)

    assert text.startswith(str(error))
    assert has_hint is ("tls.verify_https_client" in text and "set tls.cert_file" in text)
