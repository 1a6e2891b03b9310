"""Settings without effect are accepted and reported."""

import pytest

from wharf.config.configuration import CommandFlag, load_configuration
from wharf.config.ineffective import REASON_BY_KEY, get_ineffective_reason, list_warnings
from wharf.config.schema import iterate_fields
from wharf.config.tree import KeyPath


def find_warnings(path: KeyPath, value: str | int | bool) -> list[str]:
    flags = [
        CommandFlag("a flag", ("server", "enabled"), True),
        CommandFlag("a flag", ("data_dir",), "/var/lib/wharf"),
        CommandFlag("a file", path, value),
    ]
    return list(list_warnings(load_configuration(environment={}, flags=flags)))


def test_a_setting_with_an_effect_is_not_reported() -> None:
    assert find_warnings(("api", "max_body_size"), "1MB") == []


def test_a_setting_without_meaning_is_reported_with_the_reason() -> None:
    assert find_warnings(("server", "plan_rejection_tracker", "enabled"), True) == [
        "a file: server.plan_rejection_tracker.enabled has no meaning here: "
        "only the leader makes plans, and nodes do not reject them"
    ]


@pytest.mark.parametrize("path", [*REASON_BY_KEY])
def test_settings_without_effect_are_declared(path: KeyPath) -> None:
    assert any(declared[: len(path)] == path for declared, _ in iterate_fields())


def test_an_entry_applies_to_all_keys_below_it() -> None:
    assert get_ineffective_reason(("server", "plan_rejection_tracker", "enabled")) is not None


def test_a_sink_is_reported_for_an_agent_that_is_only_a_node() -> None:
    path = ("sinks", "a", "path")
    flags = [
        CommandFlag("a flag", ("client", "enabled"), True),
        CommandFlag("a flag", ("client", "servers"), ["10.0.0.1:4646"]),
        CommandFlag("a flag", ("data_dir",), "/var/lib/wharf"),
        CommandFlag("a file", path, "/x"),
    ]

    assert list(list_warnings(load_configuration(environment={}, flags=flags))) == [
        "a file: sinks.a.path has no effect: only servers send records of writes and events"
    ]
    assert find_warnings(path, "/x") == []


@pytest.mark.parametrize("path", [("ports", "http"), ("advertise", "http")])
def test_an_address_of_http_is_reported_for_an_agent_that_is_only_a_node(path: KeyPath) -> None:
    value: str | int = 31651 if path[0] == "ports" else "10.0.0.7:4646"
    flags = [
        CommandFlag("a flag", ("client", "enabled"), True),
        CommandFlag("a flag", ("client", "servers"), ["10.0.0.1:4646"]),
        CommandFlag("a flag", ("data_dir",), "/var/lib/wharf"),
        CommandFlag("a file", path, value),
    ]

    assert list(list_warnings(load_configuration(environment={}, flags=flags))) == [
        f"a file: {'.'.join(path)} has no effect: an agent without a server opens no HTTP port; "
        "`wharf node status NODE` shows the health of its node"
    ]
    assert find_warnings(path, value) == []
