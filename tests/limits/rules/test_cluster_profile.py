"""The profile of the cluster API: machines have a rule and are never limited."""

import pytest

from wharf.limits.core.callers.caller import CallerClass
from wharf.limits.core.rule import UNLIMITED, ConnectionClass
from wharf.limits.rules import lint_rules, read_rules
from wharf.limits.rules.rules_file import read_profile

CLUSTER = read_profile("cluster")


def test_lint_finds_nothing_in_the_cluster_profile() -> None:
    assert lint_rules(CLUSTER) == []


def test_one_rule_applies_to_machines_and_it_is_unlimited() -> None:
    assert {
        rule.name: rule.ceilings[CallerClass.MACHINE] for rule in CLUSTER.rules if rule.applies_to(CallerClass.MACHINE)
    } == {"machines": UNLIMITED}


def test_waiting_requests_have_their_own_limit_of_ten_thousand() -> None:
    (waiting,) = [rule for rule in CLUSTER.rules if rule.connection is ConnectionClass.WAITING]

    assert set(waiting.ceilings.values()) == {10_000}


@pytest.mark.parametrize(
    "rule",
    [
        'name = "machines"\nceiling = { machine = 100000 }',
        'name = "fair"\nwindow = "1m"\ncounts = "points"\nceiling = { any = 900, machine = 900 }',
        'name = "beats"\ncounts = "points"\nmatch = ["PUT /v1/node/{id}/heartbeat"]\nceiling = 5',
    ],
)
def test_a_rule_that_would_refuse_a_heartbeat_is_an_error(rule: str) -> None:
    found = lint_rules(read_rules(f'profile = "cluster"\n[[rule]]\n{rule}\n'))

    assert ["limits-machines"] == [finding.code for finding in found if finding.severity.value == "error"]


def test_a_number_for_all_callers_does_not_apply_to_machines() -> None:
    rules = read_rules('profile = "cluster"\n[[rule]]\nname = "all"\ncounts = "points"\nwindow = "1m"\nceiling = 900\n')

    assert not next(rule for rule in rules.rules if rule.name == "all").applies_to(CallerClass.MACHINE)


def test_another_service_can_limit_a_path_that_looks_like_a_heartbeat() -> None:
    rules = read_rules(
        '[[rule]]\nname = "b"\ncounts = "points"\nmatch = ["PUT /v1/node/{id}/heartbeat"]\nceiling = 5\n'
    )

    assert [finding for finding in lint_rules(rules) if finding.code == "limits-machines"] == []
