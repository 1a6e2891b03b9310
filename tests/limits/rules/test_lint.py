"""Lint: each kind of finding, and no mistake in the built-in profile."""

import pytest

from tests.limits.builders import CODE_HOST
from wharf.limits.core.rule import RuleSet
from wharf.limits.rules import Severity, lint_rules, read_rules

NO_PROFILE = 'profile = "none"\n'
CORE = '[[rule]]\nname = "core"\nresource = "core"\nceiling = 100\n'


def list_findings(text: str, before: RuleSet | None = None) -> list[tuple[str, str, str]]:
    findings = lint_rules(read_rules(NO_PROFILE + text + CORE, "mine.toml"), before)
    return [(finding.severity.value, finding.code, finding.rule) for finding in findings]


def test_lint_finds_no_mistake_in_the_built_in_profile() -> None:
    assert [str(finding) for finding in lint_rules(CODE_HOST) if finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize(
    "earlier",
    ["* /search/*", "GET /search/{what}", "GET /{any}/*"],
)
def test_a_primary_rule_covered_by_an_earlier_rule_is_unreachable(earlier: str) -> None:
    first = f'[[rule]]\nname = "first"\nmatch = "{earlier}"\nresource = "a"\nceiling = 1\n'
    second = '[[rule]]\nname = "second"\nmatch = "GET /search/code"\nresource = "b"\nceiling = 1\n'

    assert list_findings(first + second) == [("error", "unreachable", "second")]


@pytest.mark.parametrize("earlier", ["POST /search/*", "GET /search/users", "GET /search/code/{x}", "GET /search"])
def test_a_primary_rule_that_is_not_fully_covered_is_reachable(earlier: str) -> None:
    first = f'[[rule]]\nname = "first"\nmatch = "{earlier}"\nresource = "a"\nceiling = 1\n'
    second = '[[rule]]\nname = "second"\nmatch = "GET /search/code"\nresource = "b"\nceiling = 1\n'

    assert list_findings(first + second) == []


def test_an_earlier_rule_for_other_callers_covers_nothing() -> None:
    first = '[[rule]]\nname = "first"\nmatch = "GET /a"\nresource = "a"\nceiling = { none = 1 }\n'
    second = '[[rule]]\nname = "second"\nmatch = "GET /a"\nresource = "b"\nceiling = { user = 1 }\n'

    assert list_findings(first + second) == []


def test_a_rule_without_ceilings_is_unreachable() -> None:
    assert list_findings('[[rule]]\nname = "mine"\nceiling = {}\n') == [("error", "unreachable", "mine")]


def test_an_endpoint_with_a_repeated_pattern_is_never_reached() -> None:
    repeated = '[[endpoint]]\nmatch = "GET /a"\npoints = 1\n[[endpoint]]\nmatch = "GET /a"\npoints = 2\n'

    assert list_findings(repeated) == [("warning", "unreachable", "endpoint")]


@pytest.mark.parametrize(
    ("pattern", "codes"),
    [
        ("GET /api/v1/search", ["misplaced"]),
        ("GET outside:/api/v1/search", ["misplaced"]),
        ("GET /search", []),
        ("GET /api/v10/search", []),
        ("GET outside:/search", []),
        ("GET outside:/api/v10/search", []),
    ],
)
def test_a_pattern_on_the_wrong_side_of_the_base_path_is_found(pattern: str, codes: list[str]) -> None:
    rule = f'[[rule]]\nname = "mine"\nmatch = "{pattern}"\nresource = "a"\nceiling = 1\n'

    assert [code for _, code, _ in list_findings('base_path = "/api/v1"\n' + rule)] == codes


def test_a_pattern_with_the_path_of_an_api_is_right_without_a_base_path() -> None:
    rule = '[[rule]]\nname = "mine"\nmatch = "GET outside:/api/v1/search"\nresource = "a"\nceiling = 1\n'

    assert list_findings(rule) == []


def test_unlimited_numbers_of_counters_are_found() -> None:
    rule = '[[rule]]\nname = "mine"\ncounts = "points"\nper_endpoint = true\nkeys_most = 0\nceiling = 10\n'

    assert list_findings(rule) == [("warning", "unbounded", "mine")]


def test_counting_by_address_is_unbounded_and_needs_a_second_call() -> None:
    rule = '[[rule]]\nname = "mine"\nscope = "address"\nceiling = 10\n'

    assert list_findings(rule) == [("warning", "unbounded", "mine"), ("note", "second-call", "mine")]


def test_3_1_a_rule_by_app_needs_a_second_call_for_users_on_a_cluster() -> None:
    findings = lint_rules(read_rules('[[rule]]\nname = "mine"\nscope = "app"\nceiling = { user = 10 }\n'))

    assert [f.what for f in findings if f.rule == "mine"] == [
        "needs a second call on a Redis cluster for user: it counts by app, not by caller"
    ]


def test_a_limit_above_its_parent_is_found() -> None:
    hour = '[[rule]]\nname = "hour"\ncounts = "content"\nwindow = "1h"\nceiling = 50\n'
    minute = '[[rule]]\nname = "minute"\ncounts = "content"\nwindow = "1m"\nceiling = 80\n'

    assert list_findings(hour + minute) == [("warning", "above-parent", "minute")]


def test_a_limit_below_its_parent_is_accepted() -> None:
    hour = '[[rule]]\nname = "hour"\ncounts = "content"\nwindow = "1h"\nceiling = 500\n'
    minute = '[[rule]]\nname = "minute"\ncounts = "content"\nwindow = "1m"\nceiling = 80\n'

    assert list_findings(hour + minute) == []


def test_2_11_a_cost_above_the_whole_ceiling_is_an_error() -> None:
    endpoint = '[[endpoint]]\nmatch = "GET /report"\npoints = 20\n'
    rule = '[[rule]]\nname = "mine"\ncounts = "points"\nceiling = 10\n'

    assert list_findings(rule + endpoint) == [("error", "never-passes", "mine")]


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
def test_a_cost_that_a_rule_never_charges_is_accepted(rule: str, more: str) -> None:
    assert list_findings(f'[[rule]]\nname = "mine"\ncounts = "points"\n{rule}\n{more}') == []


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("ceiling = 3", "mine.toml:2: error: mine: POST costs 5 points and is always refused: the ceiling is 3"),
        (
            'match = "* /a/*"\nceiling = 10\n[[endpoint]]\nmatch = "GET /a/b"\npoints = 20',
            "mine.toml:7: error: mine: GET /a/b costs 20 points and is always refused: the ceiling is 10",
        ),
        (
            'interface = "graphql"\nceiling = 4\n[[endpoint]]\nmatch = "POST /graphql"\ninterface = "graphql"',
            "mine.toml:2: error: mine: a GraphQL mutation costs 5 points and is always refused: the ceiling is 4",
        ),
    ],
)
def test_a_cost_above_a_ceiling_is_reported_at_the_line_of_the_cost(rule: str, problem: str) -> None:
    text = f'{NO_PROFILE}[[rule]]\nname = "mine"\ncounts = "points"\n{rule}\n{CORE}'

    assert [str(finding) for finding in lint_rules(read_rules(text, "mine.toml"))] == [problem]


def test_two_buckets_of_one_name_are_found() -> None:
    rule = '[[rule]]\nname = "mine"\nmatch = "GET /a"\nresource = "core"\nceiling = 10\n'

    assert list_findings(rule) == [("warning", "same-resource", "core")]


def test_2_1_a_removed_rule_loses_its_counters_unless_it_was_renamed() -> None:
    before = read_rules(NO_PROFILE + '[[rule]]\nname = "old"\nceiling = 10\n' + CORE)
    silent = '[[rule]]\nname = "new"\nceiling = 10\n'

    assert (list_findings(silent, before), list_findings(silent + 'was = "old"\n', before)) == (
        [("warning", "counters-lost", "old")],
        [],
    )


def test_2_1_a_rule_with_another_algorithm_loses_its_counters() -> None:
    before = read_rules(NO_PROFILE + '[[rule]]\nname = "mine"\nceiling = 10\n' + CORE)

    assert list_findings('[[rule]]\nname = "mine"\nalgorithm = "slices"\nceiling = 10\n', before) == [
        ("warning", "counters-lost", "mine")
    ]


def test_the_previous_name_of_a_rule_must_exist() -> None:
    before = read_rules(NO_PROFILE + CORE)

    assert list_findings('[[rule]]\nname = "mine"\nwas = "nothing"\nceiling = 10\n', before) == [
        ("warning", "unknown-name", "mine")
    ]


def test_a_finding_names_file_and_line_of_the_rule() -> None:
    text = NO_PROFILE + '[[rule]]\nname = "mine"\nceiling = {}\n' + CORE

    assert str(lint_rules(read_rules(text, "mine.toml"))[0]) == (
        "mine.toml:2: error: mine: is never reached: its ceiling names no class of callers"
    )


def test_waiting_routes_need_a_limit_on_how_many_requests_wait() -> None:
    route = '[[endpoint]]\nmatch = ["GET /events"]\nwaiting = true\n'
    limit = '[[rule]]\nname = "streams"\ncounts = "connections"\nconnection = "waiting"\nceiling = 9\n'

    assert list_findings(route) == [("warning", "unlimited-waiting", "endpoint")]
    assert list_findings(route + limit) == []
