"""What lint finds: each kind of finding, and that the built-in profile has none but notes."""

import pytest

from tests.limits.builders import CODE_HOST
from wharf.limits.core.rule import RuleSet
from wharf.limits.rules import Severity, lint_rules, read_rules

REST = 'profile = "none"\n'
CORE = '[[rule]]\nname = "core"\nresource = "core"\nceiling = 100\n'


def found(text: str, before: RuleSet | None = None) -> list[tuple[str, str, str]]:
    findings = lint_rules(read_rules(REST + text + CORE, "mine.toml"), before)
    return [(finding.severity.value, finding.code, finding.rule) for finding in findings]


def test_the_built_in_profile_has_nothing_to_be_said_of_it() -> None:
    assert [str(finding) for finding in lint_rules(CODE_HOST) if finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize(
    "earlier",
    ["* /search/*", "GET /search/{what}", "GET /{any}/*"],
)
def test_a_primary_rule_that_an_earlier_one_takes_everything_from_is_unreachable(earlier: str) -> None:
    first = f'[[rule]]\nname = "first"\nmatch = "{earlier}"\nresource = "a"\nceiling = 1\n'
    second = '[[rule]]\nname = "second"\nmatch = "GET /search/code"\nresource = "b"\nceiling = 1\n'

    assert found(first + second) == [("error", "unreachable", "second")]


@pytest.mark.parametrize("earlier", ["POST /search/*", "GET /search/users", "GET /search/code/{x}", "GET /search"])
def test_a_primary_rule_that_something_is_left_for_is_reachable(earlier: str) -> None:
    first = f'[[rule]]\nname = "first"\nmatch = "{earlier}"\nresource = "a"\nceiling = 1\n'
    second = '[[rule]]\nname = "second"\nmatch = "GET /search/code"\nresource = "b"\nceiling = 1\n'

    assert found(first + second) == []


def test_an_earlier_rule_for_other_callers_takes_nothing() -> None:
    first = '[[rule]]\nname = "first"\nmatch = "GET /a"\nresource = "a"\nceiling = { none = 1 }\n'
    second = '[[rule]]\nname = "second"\nmatch = "GET /a"\nresource = "b"\nceiling = { user = 1 }\n'

    assert found(first + second) == []


def test_a_rule_whose_ceiling_names_nobody_is_unreachable() -> None:
    assert found('[[rule]]\nname = "mine"\nceiling = {}\n') == [("error", "unreachable", "mine")]


def test_an_endpoint_that_was_described_before_is_never_reached() -> None:
    twice = '[[endpoint]]\nmatch = "GET /a"\npoints = 1\n[[endpoint]]\nmatch = "GET /a"\npoints = 2\n'

    assert found(twice) == [("warning", "unreachable", "endpoint")]


def test_counters_without_a_bound_are_found() -> None:
    rule = '[[rule]]\nname = "mine"\ncounts = "points"\nper_endpoint = true\nkeys_most = 0\nceiling = 10\n'

    assert found(rule) == [("warning", "unbounded", "mine")]


def test_counting_callers_with_credentials_by_address_is_unbounded_and_costs_a_second_call() -> None:
    rule = '[[rule]]\nname = "mine"\nscope = "address"\nceiling = 10\n'

    assert found(rule) == [("warning", "unbounded", "mine"), ("note", "second-call", "mine")]


def test_3_1_a_rule_by_app_costs_users_a_second_call_on_a_cluster() -> None:
    findings = lint_rules(read_rules('[[rule]]\nname = "mine"\nscope = "app"\nceiling = { user = 10 }\n'))

    assert [f.what for f in findings if f.rule == "mine"] == [
        "costs a second call on a cluster of stores, for user: it counts by app, not by caller"
    ]


def test_a_limit_above_its_parents_is_found() -> None:
    hour = '[[rule]]\nname = "hour"\ncounts = "content"\nwindow = "1h"\nceiling = 50\n'
    minute = '[[rule]]\nname = "minute"\ncounts = "content"\nwindow = "1m"\nceiling = 80\n'

    assert found(hour + minute) == [("warning", "above-parent", "minute")]


def test_a_limit_below_its_parents_is_not() -> None:
    hour = '[[rule]]\nname = "hour"\ncounts = "content"\nwindow = "1h"\nceiling = 500\n'
    minute = '[[rule]]\nname = "minute"\ncounts = "content"\nwindow = "1m"\nceiling = 80\n'

    assert found(hour + minute) == []


def test_2_11_a_cost_above_the_whole_ceiling_is_an_error() -> None:
    endpoint = '[[endpoint]]\nmatch = "GET /report"\npoints = 20\n'
    rule = '[[rule]]\nname = "mine"\ncounts = "points"\nceiling = 10\n'

    assert found(rule + endpoint) == [("error", "never-passes", "mine")]


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        ('match = "GET /a"\nceiling = 3', ""),
        ('match = "POST /a"\nceiling = 3', '[[endpoint]]\nmatch = "* /a"\npoints = 1\n'),
        ('match = "* /a/*"\nceiling = 10', '[[endpoint]]\nmatch = "GET /b"\npoints = 20\n'),
        ('interface = "graphql"\nceiling = 10', '[[endpoint]]\nmatch = "GET /b"\npoints = 20\n'),
    ],
    ids=["reads only", "a price of its own", "another path", "another interface"],
)
def test_a_cost_that_never_meets_a_rule_is_none_of_its_mistakes(rule: str, more: str) -> None:
    assert found(f'[[rule]]\nname = "mine"\ncounts = "points"\n{rule}\n{more}') == []


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        ("ceiling = 3", "mine.toml:2: error: mine: POST costs 5 points and can never pass: the ceiling is 3"),
        (
            'match = "* /a/*"\nceiling = 10\n[[endpoint]]\nmatch = "GET /a/b"\npoints = 20',
            "mine.toml:7: error: mine: GET /a/b costs 20 points and can never pass: the ceiling is 10",
        ),
        (
            'interface = "graphql"\nceiling = 4\n[[endpoint]]\nmatch = "POST /graphql"\ninterface = "graphql"',
            "mine.toml:2: error: mine: a GraphQL mutation costs 5 points and can never pass: the ceiling is 4",
        ),
    ],
)
def test_what_can_never_pass_is_named_where_its_cost_stands(rule: str, what: str) -> None:
    text = f'{REST}[[rule]]\nname = "mine"\ncounts = "points"\n{rule}\n{CORE}'

    assert [str(finding) for finding in lint_rules(read_rules(text, "mine.toml"))] == [what]


def test_two_buckets_of_one_name_are_found() -> None:
    rule = '[[rule]]\nname = "mine"\nmatch = "GET /a"\nresource = "core"\nceiling = 10\n'

    assert found(rule) == [("warning", "same-resource", "core")]


def test_2_1_a_rule_that_is_gone_loses_its_counters_unless_another_says_that_it_was_it() -> None:
    before = read_rules(REST + '[[rule]]\nname = "old"\nceiling = 10\n' + CORE)
    silent = '[[rule]]\nname = "new"\nceiling = 10\n'

    assert (found(silent, before), found(silent + 'was = "old"\n', before)) == (
        [("warning", "counters-lost", "old")],
        [],
    )


def test_2_1_a_rule_that_counts_otherwise_begins_anew() -> None:
    before = read_rules(REST + '[[rule]]\nname = "mine"\nceiling = 10\n' + CORE)

    assert found('[[rule]]\nname = "mine"\nalgorithm = "slices"\nceiling = 10\n', before) == [
        ("warning", "counters-lost", "mine")
    ]


def test_what_a_rule_was_must_have_been_a_name() -> None:
    before = read_rules(REST + CORE)

    assert found('[[rule]]\nname = "mine"\nwas = "nothing"\nceiling = 10\n', before) == [
        ("warning", "unknown-name", "mine")
    ]


def test_a_finding_says_where_the_rule_stands() -> None:
    text = REST + '[[rule]]\nname = "mine"\nceiling = {}\n' + CORE

    assert str(lint_rules(read_rules(text, "mine.toml"))[0]) == (
        "mine.toml:2: error: mine: is never reached: its ceiling names no kind of caller"
    )
