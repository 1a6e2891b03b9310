"""Lint: the edges of each kind of finding, where one rule less or one step more makes no mistake."""

import pytest

from wharf.limits.core.rule import RuleSet
from wharf.limits.rules import lint_rules, read_rules

NO_PROFILE = 'profile = "none"\n'
CORE = '[[rule]]\nname = "core"\nresource = "core"\nceiling = 100\n'
MACHINES = '[[rule]]\nname = "nodes"\ncounts = "points"\nceiling = { any = 100, machine = "unlimited" }\n'


def make_rule(name: str, text: str) -> str:
    return f'[[rule]]\nname = "{name}"\n{text}\n'


def list_findings(text: str, before: RuleSet | None = None, *, core: str = CORE) -> list[str]:
    """Return code and rule of each finding in these rules."""
    findings = lint_rules(read_rules(NO_PROFILE + text + core, "mine.toml"), before)
    return [f"{finding.code} {finding.rule}" for finding in findings]


def list_messages(text: str, code: str) -> list[str]:
    findings = lint_rules(read_rules(NO_PROFILE + text + CORE, "mine.toml"))
    return [finding.what for finding in findings if finding.code == code]


# -- machines ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ceiling", "expected"),
    [
        ('{ any = 9, machine = "unlimited" }', []),
        ("{ any = 9, machine = 999999999999998 }", ["limits-machines mine"]),
        ("{ any = 9 }", []),
    ],
)
def test_a_rule_must_not_limit_machines(ceiling: str, expected: list[str]) -> None:
    assert list_findings(make_rule("mine", f'counts = "points"\nceiling = {ceiling}')) == expected


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ('"* /v1/node/{id}/heartbeat"', ["limits-machines mine"]),
        ('["PUT /v1/node/*/report", "GET /v1/node/{node_id}/desired"]', ["limits-machines mine"]),
        ('["PUT /v1/node/{id}/report", "GET /v1/jobs"]', []),
        ('"GET /v1/node/{id}/other"', []),
    ],
)
def test_a_rule_only_for_requests_of_nodes_is_an_error(match: str, expected: list[str]) -> None:
    if "/*/" in match:
        match = match.replace("/*/", "/{node}/")
    text = MACHINES + make_rule("mine", f'counts = "points"\nmatch = {match}\nceiling = 9')

    assert [finding for finding in list_findings(text) if finding.startswith("limits-")] == expected


def test_without_rules_for_machines_a_rule_may_match_their_paths() -> None:
    text = make_rule("mine", 'counts = "points"\nmatch = "* /v1/node/{id}/heartbeat"\nceiling = 9')

    assert list_findings(text) == []


# -- unreachable ---------------------------------------------------------------------------------------------------


def test_several_earlier_rules_can_cover_a_rule_together() -> None:
    none = make_rule("none", 'match = "GET /a/*"\nresource = "a"\nceiling = { none = 1 }')
    users = make_rule("users", 'match = "* /a/{b}"\nresource = "b"\nceiling = { user = 1 }')
    both = make_rule("both", 'match = "GET /a/b"\nresource = "c"\nceiling = { none = 1, user = 1 }')

    assert list_findings(none + both) == []
    assert list_messages(none + users + both, "unreachable") == [
        "is never reached: none, users before it matches the same requests"
    ]


def test_a_rule_for_all_requests_makes_later_primary_rules_unreachable() -> None:
    later = make_rule("mine", 'match = "GET /a"\nresource = "a"\nceiling = 1')

    assert list_findings(CORE + later, core="") == ["unreachable mine"]
    assert list_findings(CORE + later.replace('resource = "a"\n', ""), core="") == []


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("", 'interface = "graphql"\n', ["unreachable second"]),
        ('interface = "graphql"\n', 'interface = "graphql"\n', ["unreachable second"]),
        ('interface = ["graphql", "rest"]\n', 'interface = "graphql"\n', ["unreachable second"]),
        ('interface = "graphql"\n', 'interface = ["graphql", "rest"]\n', []),
        ('interface = "graphql"\n', "", []),
        ('interface = "graphql"\n', 'interface = "rest"\n', []),
    ],
)
def test_a_rule_is_covered_only_by_rules_for_all_of_its_interfaces(
    first: str, second: str, expected: list[str]
) -> None:
    rules = [
        make_rule(name, f'match = "POST /a"\n{interface}resource = "{name}"\nceiling = 1')
        for name, interface in (("first", first), ("second", second))
    ]

    assert list_findings("".join(rules)) == expected


def test_all_patterns_of_a_rule_must_be_covered() -> None:
    first = make_rule("first", 'match = "GET /a/*"\nresource = "a"\nceiling = 1')
    second = make_rule("second", 'match = ["GET /a/b", "GET /c"]\nresource = "b"\nceiling = 1')

    assert list_findings(first + second) == []
    assert list_findings(first + second.replace("/c", "/a/c")) == ["unreachable second"]


# -- unbounded -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('per_endpoint = true\nkeys_most = 0\nceiling = 9', ["unbounded mine"]),
        ('per_endpoint = true\nkeys_most = 1\nceiling = 9', []),
        ("keys_most = 0\nceiling = 9", []),
        ('scope = "address"\nceiling = { none = 9 }', []),
        ('scope = "address"\nceiling = { none = 9, user = 9 }', ["unbounded mine", "second-call mine"]),
    ],
)  # fmt: skip
def test_a_rule_with_any_number_of_counters_is_unbounded(text: str, expected: list[str]) -> None:
    assert list_findings(make_rule("mine", f'counts = "points"\n{text}')) == expected


# -- above its parent ----------------------------------------------------------------------------------------------

PARENT = 'counts = "content"\nwindow = "1m"\nceiling = 50'


@pytest.mark.parametrize(
    ("parent", "child", "expected"),
    [
        (PARENT, PARENT.replace("50", "51"), True),
        (PARENT, PARENT, False),
        (PARENT, PARENT.replace("50", "51").replace("1m", "2m"), False),
        (PARENT.replace("1m", "2m"), PARENT.replace("50", "51"), True),
        (PARENT + "\nshadow = true", PARENT.replace("50", "51"), False),
        (PARENT + "\nenforce = 99", PARENT.replace("50", "51"), False),
        (PARENT + "\nenforce = 100", PARENT.replace("50", "51"), True),
        (PARENT, PARENT.replace("50", "51").replace("content", "points"), False),
        (PARENT + '\nscope = "user"', PARENT.replace("50", "51"), False),
        (PARENT + "\nper_endpoint = true", PARENT.replace("50", "51"), False),
        (PARENT + "\nper_endpoint = true", PARENT.replace("50", "51") + "\nper_endpoint = true", True),
        (PARENT, PARENT.replace("50", "51") + "\nper_endpoint = true", True),
        (PARENT + '\nmatch = "POST /a"', PARENT.replace("50", "51"), False),
        (PARENT, PARENT.replace("50", "51") + '\nmatch = "POST /a"', True),
        (PARENT.replace("50", "{ user = 50 }"), PARENT.replace("50", "{ none = 51 }"), False),
        (PARENT.replace("50", "{ user = 50 }"), PARENT.replace("50", "{ user_enterprise = 51 }"), True),
        (PARENT.replace("50", "{ user = 50 }"), PARENT.replace("50", "{ user = 50, none = 51 }"), False),
    ],
)
def test_a_ceiling_above_that_of_a_wider_limit_is_found(parent: str, child: str, expected: bool) -> None:
    texts = make_rule("parent", parent), make_rule("child", child)
    for findings in (list_findings(texts[0] + texts[1]), list_findings(texts[1] + texts[0])):
        assert ("above-parent child" in findings) is expected
        assert "above-parent parent" not in findings


def test_concurrency_limits_have_no_parent() -> None:
    slots = 'counts = "connections"\nceiling = '

    assert list_findings(make_rule("parent", slots + "5") + make_rule("child", slots + "9")) == []


# -- second calls --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        ("caller", []),
        ("user", []),
        ("address", ["user", "installation", "client", "workflow"]),
        ("app", ["user", "installation"]),
        ("token", ["user", "installation", "workflow"]),
        ("installation", []),
        ("repository", []),
    ],
)
def test_a_limit_by_another_owner_needs_a_second_call(scope: str, expected: list[str]) -> None:
    text = make_rule("mine", f'scope = "{scope}"\ncounts = "points"\nceiling = 9')

    assert list_messages(text, "second-call") == (
        [f"needs a second call on a Redis cluster for {', '.join(expected)}: it counts by {scope}, not by caller"]
        if expected
        else []
    )


def test_failed_logins_need_no_second_call() -> None:
    text = make_rule("logins", 'scope = "address"\ncounts = "failed_logins"\nceiling = { none = 9 }')

    assert list_findings(text) == []


# -- costs above a ceiling -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('counts = "points"\nceiling = 5', []),
        ('counts = "points"\nceiling = 4', ["POST costs 5 points and is always refused: the ceiling is 4"]),
        ('counts = "content"\nceiling = 4', []),
        ('counts = "points"\nceiling = { user = 9, none = 4 }', ["POST costs 5 points and is always refused: the ceiling is 4"]),
        ('counts = "points"\nceiling = { user = 9, none = 0 }', []),
        ('counts = "points"\nmatch = "GET /a"\nceiling = 4', []),
        ('counts = "points"\nmatch = ["GET /a", "PATCH /b"]\nceiling = 4', ["PATCH costs 5 points and is always refused: the ceiling is 4"]),
        ('counts = "points"\ninterface = ["graphql", "rest"]\nceiling = 4', ["POST costs 5 points and is always refused: the ceiling is 4"]),
    ],
)  # fmt: skip
def test_a_method_that_costs_more_than_a_ceiling_is_always_refused(text: str, expected: list[str]) -> None:
    assert list_messages(make_rule("mine", text), "never-passes") == expected


def test_reads_can_cost_more_than_a_ceiling_too() -> None:
    text = "[points]\nread = 7\nwrite = 3\n" + make_rule("mine", 'counts = "points"\nmatch = "GET /a"\nceiling = 6')

    assert list_messages(text, "never-passes") == ["GET costs 7 points and is always refused: the ceiling is 6"]


@pytest.mark.parametrize(
    ("rule", "endpoint", "expected"),
    [
        ("ceiling = 10", 'match = "GET /a"\npoints = 10', []),
        ("ceiling = 10", 'match = ["GET /a", "GET /b"]\npoints = 11', ["GET /a and GET /b costs 11 points"]),
        ('match = "GET /a"\nceiling = 10', 'match = "GET /a"\npoints = 11', ["GET /a costs 11 points"]),
        ('match = "GET /b"\nceiling = 10', 'match = "GET /a"\npoints = 11', []),
        ('match = "GET /a"\ninterface = "graphql"\nceiling = 10', 'match = "GET /a"\npoints = 11', []),
        ('match = "GET /a"\ninterface = "rest"\nceiling = 10', 'match = "GET /a"\npoints = 11', ["GET /a costs 11 points"]),
        ('interface = "rest"\nceiling = 10', 'match = "GET /a"\npoints = 11', ["GET /a costs 11 points"]),
        ("ceiling = 10", 'match = "GET /a"\npoints = 11\n[[endpoint]]\nmatch = "GET /b"\npoints = 12', ["GET /b costs 12 points"]),
        ("ceiling = 10", 'match = "GET /a"\npoints = 11\n[[endpoint]]\nmatch = "GET /b"', ["GET /a costs 11 points"]),
    ],
)  # fmt: skip
def test_an_endpoint_that_costs_more_than_a_ceiling_is_always_refused(
    rule: str, endpoint: str, expected: list[str]
) -> None:
    text = make_rule("mine", f'counts = "points"\n{rule}') + f"[[endpoint]]\n{endpoint}\n"

    assert [message.partition(" and is")[0] for message in list_messages(text, "never-passes")] == [
        message.partition(" and is")[0] for message in expected
    ]


def test_graphql_costs_its_own_points() -> None:
    graphql = '[[endpoint]]\nmatch = "POST /graphql"\ninterface = "graphql"\npoints = 99\n'
    text = "[graphql]\nquery_points = 7\nmutation_points = 8\n" + make_rule("mine", 'counts = "points"\nceiling = 6')

    assert [message.partition(" costs")[0] for message in list_messages(text + graphql, "never-passes")] == [
        "a GraphQL query",
        "a GraphQL mutation",
    ]


# -- names ---------------------------------------------------------------------------------------------------------


def test_each_repeated_pattern_is_found_once() -> None:
    endpoints = [
        f"[[endpoint]]\nmatch = {match}\n" for match in ('["GET /a", "GET /b"]', '["GET /b", "GET /c"]', '"GET /d"')
    ]

    assert list_findings("".join(endpoints)) == ["unreachable endpoint"]


def test_one_name_for_the_buckets_of_different_callers_is_accepted() -> None:
    rules = [
        make_rule(name, f'match = "GET /{name}"\nresource = "same"\nceiling = {{ {case} = 9 }}')
        for name, case in (("a", "none"), ("b", "user"))
    ]

    assert list_findings("".join(rules)) == []
    assert list_findings("".join(rules).replace("none", "user_enterprise")) == ["same-resource b"]


def test_a_renamed_rule_is_compared_with_its_previous_algorithm() -> None:
    before = read_rules(NO_PROFILE + make_rule("old", "ceiling = 9") + CORE)

    assert list_findings(make_rule("new", 'was = "old"\nalgorithm = "slices"\nceiling = 9'), before) == [
        "counters-lost new"
    ]


def test_a_previous_name_that_was_applied_already_is_accepted() -> None:
    before = read_rules(NO_PROFILE + make_rule("new", "ceiling = 9") + CORE)

    assert list_findings(make_rule("new", 'was = "old"\nceiling = 9'), before) == []


def test_findings_are_sorted_by_severity_and_line() -> None:
    address = make_rule("a", 'scope = "address"\nceiling = 9\ncounts = "points"')
    text = address + make_rule("b", "ceiling = {}") + address.replace('"a"', '"c"')

    assert list_findings(text) == ["unreachable b", "unbounded a", "unbounded c", "second-call a", "second-call c"]


# -- several rules -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("harmless", "text", "code"),
    [
        (
            'counts = "failed_logins"\nscope = "address"\nceiling = 9',
            'counts = "points"\nscope = "app"\nceiling = 9',
            "second-call",
        ),
        ('counts = "points"\ninterface = "graphql"\nceiling = 4', 'counts = "points"\nceiling = 4', "never-passes"),
    ],
)
def test_a_rule_without_a_finding_does_not_hide_the_findings_of_others(harmless: str, text: str, code: str) -> None:
    text = make_rule("first", text) + make_rule("harmless", harmless) + make_rule("last", text)

    assert [finding for finding in list_findings(text) if finding.startswith(code)] == [f"{code} first", f"{code} last"]
