"""What is declared and not followed yet is told, wherever somebody gives it."""

import pytest

from wharf.config.configuration import CommandFlag, load_configuration
from wharf.config.ineffective import CAPABILITY_BY_KEY, REASON_BY_KEY, get_awaited_capability, list_warnings
from wharf.config.schema import iterate_fields
from wharf.config.tree import KeyPath


def given(path: KeyPath, value: str | int | bool) -> list[str]:
    flags = [
        CommandFlag("a flag", ("server", "enabled"), True),
        CommandFlag("a flag", ("data_dir",), "/var/lib/wharf"),
        CommandFlag("a file", path, value),
    ]
    return list(list_warnings(load_configuration(environment={}, flags=flags)))


def test_a_setting_that_nothing_follows_yet_is_told_with_its_place_and_what_it_waits_for() -> None:
    assert given(("telemetry", "publish_node_metrics"), True) == [
        "a file: telemetry.publish_node_metrics has no effect yet; it comes with the node"
    ]


def test_a_setting_that_is_followed_is_not_told() -> None:
    assert given(("api", "max_body_size"), "1MB") == []


def test_a_setting_that_steers_nothing_here_is_told_with_the_reason() -> None:
    assert given(("server", "plan_rejection_tracker", "enabled"), True) == [
        "a file: server.plan_rejection_tracker.enabled has no meaning here: "
        "plans are made by the one leader, and no node refuses them"
    ]


@pytest.mark.parametrize("path", [*CAPABILITY_BY_KEY, *REASON_BY_KEY])
def test_what_waits_is_declared(path: KeyPath) -> None:
    assert any(declared[: len(path)] == path for declared, _ in iterate_fields())


def test_the_capability_holds_for_everything_below() -> None:
    assert get_awaited_capability(("ui", "enabled")) == "the pages"
