"""Rules files: their content and their problems."""

from collections.abc import Mapping

import pytest

from tests.limits.builders import CODE_HOST, InMemoryLimiter, a_user
from wharf.limits.core.callers.caller import CallerClass
from wharf.limits.core.rule import (
    UNLIMITED,
    Algorithm,
    CountedUnit,
    EscapedSlash,
    MethodOverride,
    PathDifference,
    PathRules,
    Rule,
    RuleSet,
    SegmentTreatment,
)
from wharf.limits.core.rulebook import hash_rules
from wharf.limits.rules import InvalidFile, read_rules
from wharf.limits.rules.rules_file import read_profile

CORE_RULE = '[[rule]]\nname = "core"\nresource = "core"\nceiling = 10\n'


def rule_of(text: str, name: str = "mine") -> Rule:
    return next(rule for rule in read_rules(text).rules if rule.name == name)


def problems_of(text: str) -> list[str]:
    with pytest.raises(InvalidFile) as caught:
        read_rules(text, "mine.toml")
    return [str(problem) for problem in caught.value.problems]


# -- content of a file ---------------------------------------------------------------------------------------------


def test_the_example_of_the_design_is_read() -> None:
    rules = read_rules(
        """
        profile = "code-host"
        [[rule]]
        name = "search"
        match = ["GET /search/*"]
        resource = "search"
        scope = "user"
        window = "1m"
        ceiling = { user = 30, none = 10 }
        on_store_loss = "local"
        shadow = false
        """
    )
    search = next(rule for rule in rules.rules if rule.name == "search")

    ceilings = (search.ceilings[CallerClass.USER], search.ceilings[CallerClass.NONE])
    assert (ceilings, search.window_ms, search.scope) == ((30, 10), 60_000, ("user",))


def test_an_empty_file_gives_the_built_in_profile() -> None:
    assert [rule.name for rule in read_rules("").rules] == [rule.name for rule in CODE_HOST.rules]


def test_rules_of_the_file_come_before_rules_of_the_profile() -> None:
    rules = read_rules('[[rule]]\nname = "mine"\nmatch = "GET /zen"\nresource = "zen"\nceiling = 1\n').rules

    assert [rule.name for rule in rules][:2] == ["mine", CODE_HOST.rules[0].name]


def test_a_rule_with_a_built_in_name_changes_only_the_keys_that_it_sets() -> None:
    before = next(rule for rule in CODE_HOST.rules if rule.name == "points")
    after = rule_of('[[rule]]\nname = "points"\nceiling = 5\n', "points")

    assert (after.per_endpoint, after.window_ms, after.ceilings[CallerClass.USER]) == (True, before.window_ms, 5)


def test_a_rule_with_a_built_in_name_keeps_its_position() -> None:
    rules = read_rules('[[rule]]\nname = "points"\nceiling = 5\n').rules

    assert [rule.name for rule in rules] == [rule.name for rule in CODE_HOST.rules]


def test_an_endpoint_of_the_file_precedes_an_endpoint_of_the_profile() -> None:
    limiter = InMemoryLimiter('[[endpoint]]\nmatch = "POST /gists"\npoints = 3\n')
    costs = {charge.name: charge.cost for charge in limiter.send(a_user(), "/gists", method="POST").charges}

    assert (costs["points"], "content" in costs) == (3, False)


def test_a_ceiling_may_be_one_number_for_all() -> None:
    assert set(rule_of(CORE_RULE + '[[rule]]\nname = "mine"\nceiling = 7\n').ceilings.values()) == {7}


def test_any_applies_to_all_classes_that_are_not_named() -> None:
    ceilings = rule_of(CORE_RULE + '[[rule]]\nname = "mine"\nceiling = { any = 7, none = 1 }\n').ceilings

    assert (ceilings[CallerClass.NONE], ceilings[CallerClass.WORKFLOW]) == (1, 7)


def test_credential_applies_to_all_callers_with_a_credential_and_named_classes_take_precedence() -> None:
    ceilings = rule_of(
        CORE_RULE + '[[rule]]\nname = "mine"\nceiling = { client = 1, credential = 7, any = 3 }\n'
    ).ceilings

    assert (ceilings[CallerClass.NONE], ceilings[CallerClass.USER], ceilings[CallerClass.CLIENT]) == (3, 7, 1)


def test_a_rule_does_not_apply_to_callers_that_its_ceiling_does_not_name() -> None:
    rule = rule_of(CORE_RULE + '[[rule]]\nname = "mine"\nceiling = { user = 7 }\n')

    assert [case for case in CallerClass if rule.applies_to(case)] == [CallerClass.USER, CallerClass.USER_ENTERPRISE]


def test_a_ceiling_may_be_unlimited() -> None:
    assert (
        rule_of(CORE_RULE + '[[rule]]\nname = "mine"\nceiling = "unlimited"\n').ceilings[CallerClass.USER] == UNLIMITED
    )


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("1500ms", 1_500), ("30s", 30_000), ("1m", 60_000), ("1h30m", 5_400_000), ("7d", 604_800_000)],
)
def test_durations_are_written_with_their_units(text: str, milliseconds: int) -> None:
    assert rule_of(CORE_RULE + f'[[rule]]\nname = "mine"\nceiling = 1\nwindow = "{text}"\n').window_ms == milliseconds


@pytest.mark.parametrize(
    ("counts", "algorithm"),
    [
        ("requests", Algorithm.WINDOW),
        ("points", Algorithm.SLICES),
        ("content", Algorithm.SLICES),
        ("cpu_ms", Algorithm.METER),
        ("connections", Algorithm.LEASES),
    ],
)
def test_the_counted_unit_selects_the_algorithm_unless_the_rule_sets_one(counts: str, algorithm: Algorithm) -> None:
    rule = rule_of(CORE_RULE + f'[[rule]]\nname = "mine"\nceiling = 1\ncounts = "{counts}"\n')

    assert (rule.counts, rule.algorithm) == (CountedUnit(counts), algorithm)


def test_a_rule_has_its_file_and_line() -> None:
    rules = read_rules(
        CORE_RULE.replace("\n", "\n\n", 1) + '\n[[rule]]\nname = "mine"\nceiling = 1\n', "mine.toml"
    ).rules

    assert [(rule.file, rule.line) for rule in rules if rule.name == "mine"] == [("mine.toml", 7)]


def test_a_file_may_have_no_profile() -> None:
    assert [rule.name for rule in read_rules('profile = "none"\n' + CORE_RULE).rules] == ["core"]


def test_the_tables_of_points_graphql_and_bans_are_read() -> None:
    rules: RuleSet = read_rules(
        """
        [points]
        write = 7
        [graphql]
        mutation_points = 9
        [ban]
        first = "1h"
        shadow = true
        """
    )

    assert (rules.points.write, rules.graphql.mutation_points, rules.ban.first_ms, rules.ban.shadow) == (
        7,
        9,
        3_600_000,
        True,
    )


def test_the_table_of_paths_is_read_over_that_of_the_profile() -> None:
    text = 'profile = "cluster"\n[paths]\ndot_segments = "remove"\ncase = "ignore"\nformats = ["json", "*"]\n'

    assert read_rules(text).paths == PathRules(
        dot_segments=SegmentTreatment.REMOVE,
        empty_segments=SegmentTreatment.KEEP,
        escaped_slash=EscapedSlash.TEXT,
        parameters=PathDifference.EXACT,
        case=PathDifference.IGNORE,
        formats=("json", "*"),
        method_override=MethodOverride.IGNORE,
    )


def test_owner_paths_are_placed_below_the_base_path_and_replace_those_of_the_profile() -> None:
    paths = 'owner_paths = ["* /t/{owner}/*", "GET outside:/{owner}"]\n'
    texts = (
        f'profile = "gitea"\nsite_path = "/git"\n{paths}',
        f'profile = "code-host"\n{paths}',
        'profile = "gitlab"\nsite_path = "/x"\nowner_paths = []\n',
    )

    assert [read_rules(text).owner_paths for text in texts] == [
        ("* /git/api/v1/t/{owner}/*", "GET outside:/git/{owner}"),
        ("* /t/{owner}/*",),
        (),
    ]


def test_owner_paths_are_no_part_of_the_hash_that_processes_compare() -> None:
    texts = ("", 'owner_paths = ["* /teams/{owner}"]\n')

    assert len({hash_rules(read_rules(text)) for text in texts}) == 1


# -- problems --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'owner_paths = ["* /t/{owner}", "* /t/{team}"]',
            [
                "mine.toml:1:32: owner_paths: '* /t/{team}' names no owner: write a segment {owner}, such as "
                "'* /repos/{owner}/*'"
            ],
        ),
        ("x = = 1", ["mine.toml:1:5: is not valid TOML: Invalid value"]),
        ('[[rule]]\nname = "a', ["mine.toml:2:10: is not valid TOML: Unterminated string"]),
        (
            'profil = "code-host"',
            ["mine.toml:1:1: profil: is not known; did you mean 'profile'?"],
        ),
        (
            'profile = "code-hoast"',
            ["mine.toml:1:1: profile: 'code-hoast' is not a profile; did you mean 'code-host'?"],
        ),
        (
            '[paths]\nformats = [".json"]\ncases = 3',
            [
                'mine.toml:2:1: paths.formats: ".json" is not a format: write at most 16 lowercase letters and digits '
                'without a dot, such as "json", or "*" for any format',
                "mine.toml:3:1: paths.cases: is not known; did you mean 'case'?",
            ],
        ),
        (
            '[[rule]]\nname = "core"\n  ceilng = 3',
            ["mine.toml:3:3: rule[0].ceilng: is not known; did you mean 'ceiling'?"],
        ),
        (
            '[[rule]]\nname = "core"\nceiling = { usr = 3 }',
            [
                "mine.toml:3:1: rule[0].ceiling: 'usr' is not a class of callers: known are any, credential, none, user, "
                "user_enterprise, installation, installation_enterprise, client, client_enterprise, workflow, "
                "workflow_enterprise, machine"
            ],
        ),
        (
            '[[rule]]\nname = "core"\nwindow = "1 hour"',
            ['mine.toml:3:1: rule[0].window: "1 hour" is not a duration: write "30s", "1m", "1h30m" or "7d"'],
        ),
        (
            '[[rule]]\nname = "core"\nwindow = 60',
            ['mine.toml:3:1: rule[0].window: 60 is not a duration: write "30s", "1m", "1h30m" or "7d"'],
        ),
        (
            '[[rule]]\nname = "core"\nshadow = 1',
            ["mine.toml:3:1: rule[0].shadow: 1 is neither true nor false"],
        ),
        (
            '[[rule]]\nname = "core"\nslices = 0',
            ["mine.toml:3:1: rule[0].slices: 0 is not a whole number from 1 to 60"],
        ),
        (
            '[[rule]]\nname = "core"\ncounts = "bytes"',
            [
                'mine.toml:3:1: rule[0].counts: "bytes" is not known: known are requests, query_cost, points, content, '
                "cpu_ms, connections, failed_logins"
            ],
        ),
        (
            '[[rule]]\nname = "core"\nmatch = [\n  "GET /a",\n  "/b",\n]',
            [
                "mine.toml:5:3: rule[0].match: '/b' is not a pattern: write a method and a path, such as 'GET /search/*' "
                "or '* /files/{id}'"
            ],
        ),
        (
            '[[rule]]\nname = "core"\nmatch = "GET /a/*/b"',
            [
                "mine.toml:3:1: rule[0].match: 'GET /a/*/b': the segment '*' is neither text nor '{name}'; '*' is "
                "only allowed as the last segment"
            ],
        ),
        (
            '[[rule]]\nname = "core"\nscope = "usr"',
            ["mine.toml:3:1: rule[0].scope: 'usr' is not known; did you mean 'user'?"],
        ),
        (
            '[[rule]]\nname = "core"\nscope = ["user", "user"]',
            ["mine.toml:3:1: rule[0].scope: must be one member or two different members"],
        ),
        (
            '[[rule]]\nname = "Core Limit"\nceiling = 1',
            [
                'mine.toml:2:1: rule[0].name: "Core Limit" is not a name: use lowercase letters, digits and `_`, '
                "starting with a letter, at most 64 characters"
            ],
        ),
        (
            '[[rule]]\nname = "core"\n[[rule]]\nname = "core"',
            ["mine.toml:3:1: rule[1].name: 'core' is the name of two rules"],
        ),
        ("rule = 3", ["mine.toml:1:1: rule: must be a list of tables: write [[rule]]"]),
        ("ban = 3", ["mine.toml:1:1: ban: 3 is not a table: write [ban]"]),
        ('[[rule]]\nname = "core"\nscale = 1', ["mine.toml:3:1: rule[0].scale: must be a table: write [rule.scale]"]),
        (
            '[[rule]]\nname = "core"\n[rule.scale]\nper_repo = 1',
            ["mine.toml:4:1: rule[0].scale.per_repo: is not known; did you mean 'per_repository'?"],
        ),
        (
            '[[rule]]\nname = "core"\nhidden = true',
            ["mine.toml:3:1: rule core: hidden: a primary limit cannot be hidden: headers always report it"],
        ),
        (
            '[[rule]]\nname = "core"\ncounts = "points"',
            [
                "mine.toml:3:1: rule core: counts: a primary limit must count requests or query_cost in "
                "a window, because headers report its end"
            ],
        ),
        (
            '[[rule]]\nname = "cpu"\nalgorithm = "slices"',
            [
                "mine.toml:3:1: rule cpu: algorithm: CPU time must be counted by a meter, and a meter counts nothing else"
            ],
        ),
        (
            '[[rule]]\nname = "concurrent"\nalgorithm = "slices"',
            [
                "mine.toml:3:1: rule concurrent: algorithm: connections must be counted by leases, and leases count "
                "nothing else"
            ],
        ),
        (
            '[[rule]]\nname = "points"\nwas = "core"',
            [
                "mine.toml:3:1: rule points: was: 'core' is still the name of a rule: a counter cannot belong to both rules"
            ],
        ),
        (
            '[[rule]]\nname = "points"\nobjects_most = 3',
            ["mine.toml:3:1: rule points: objects_most: is only allowed for a primary limit: set a `resource`"],
        ),
        (
            'profile = "none"',
            [
                "mine.toml:1:1: no primary limit applies to all other requests of none, user, installation, client, "
                "workflow: add a rule with a `resource`, without `match`, and with a ceiling for them"
            ],
        ),
    ],
)
def test_a_problem_is_reported_with_its_location_and_how_to_fix_it(text: str, expected: list[str]) -> None:
    assert problems_of(text) == expected


def test_all_problems_are_reported_together_in_the_order_of_the_file() -> None:
    found = problems_of('[[rule]]\nshadow = 1\nwindow = 3\n[[endpoint]]\npoints = "x"\n')

    assert [problem.split(": ")[:2] for problem in found] == [
        ["mine.toml:1:1", "rule[0].ceiling"],
        ["mine.toml:1:1", "rule[0].name"],
        ["mine.toml:2:1", "rule[0].shadow"],
        ["mine.toml:3:1", "rule[0].window"],
        ["mine.toml:4:1", "endpoint[0].match"],
        ["mine.toml:5:1", "endpoint[0].points"],
    ]


def test_a_file_nested_too_deeply_is_rejected() -> None:
    assert problems_of("a = " + "[" * 100_000)[0].startswith("mine.toml:1:")


def test_a_table_of_ceilings_changes_the_named_classes_and_a_number_changes_all() -> None:
    def core(text: str) -> Mapping[CallerClass, int]:
        rules = read_rules(f'[[rule]]\nname = "core"\nceiling = {text}\n')
        return next(rule for rule in rules.rules if rule.name == "core").ceilings

    built_in = next(rule for rule in read_profile().rules if rule.name == "core").ceilings

    assert core("{ none = 7 }") == {**built_in, CallerClass.NONE: 7}
    assert set(core("7").values()) == {7}
    assert {case for case, ceiling in core("{ credential = 7 }").items() if ceiling != 7} == {CallerClass.NONE}
