"""Values and tables of rules and directory files: what is accepted, at its edges, and what each key sets."""

from typing import Any

import pytest

from wharf.limits.core.callers.caller import LIMITED_CLASSES, CallerClass, CredentialKind
from wharf.limits.core.callers.directory import App, DirectoryToken, Installation, Organization
from wharf.limits.core.rule import UNLIMITED, Interface
from wharf.limits.rules import InvalidFile, read_directory, read_rules
from wharf.limits.rules.document import format_key
from wharf.limits.rules.values import (
    ACCOUNT,
    CEILINGS,
    DURATION,
    FLAG,
    NAME,
    TEXT,
    TEXTS,
    InvalidValue,
    TomlValueKind,
    format_value,
    make_choice_kind,
    make_choices_kind,
    make_integer_kind,
)

DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (TEXT, "x", "x"),
        (NAME, "a", "a"),
        (NAME, "a" + "0" * 63, "a" + "0" * 63),
        (ACCOUNT, "Ada.L", "Ada.L"),
        (FLAG, False, False),
        (FLAG, True, True),
        (TEXTS, "x", ("x",)),
        (TEXTS, ["x", "y"], ("x", "y")),
        (TEXTS, [], ()),
        (DURATION, "1ms", 1),
        (DURATION, "1h30m", 5_400_000),
        (DURATION, "1d1s", DAY_MS + 1_000),
        (DURATION, "366d", 366 * DAY_MS),
        (make_integer_kind(2, 5), 2, 2),
        (make_integer_kind(2, 5), 5, 5),
        (make_choice_kind(Interface), "rest", Interface.REST),
        (make_choice_kind(Interface, [Interface.REST]), "rest", Interface.REST),
        (make_choices_kind(Interface), ["rest", "graphql"], (Interface.REST, Interface.GRAPHQL)),
        (make_choices_kind(Interface), "graphql", (Interface.GRAPHQL,)),
        (CEILINGS, 0, dict.fromkeys(LIMITED_CLASSES, 0)),
        (CEILINGS, UNLIMITED - 1, dict.fromkeys(LIMITED_CLASSES, UNLIMITED - 1)),
        (CEILINGS, "unlimited", dict.fromkeys(LIMITED_CLASSES, UNLIMITED)),
        (CEILINGS, {"user": 3, "machine": "unlimited"}, {CallerClass.USER: 3, CallerClass.MACHINE: UNLIMITED}),
        (CEILINGS, {"none": 1, "any": 2}, {**dict.fromkeys(LIMITED_CLASSES, 2), CallerClass.NONE: 1}),
        (
            CEILINGS,
            {"credential": 1},
            {case: 1 for case in LIMITED_CLASSES if case is not CallerClass.NONE},
        ),
    ],
)
def test_a_value_of_the_right_kind_is_read(kind: TomlValueKind, value: object, expected: object) -> None:
    assert kind.read(value) == expected


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (TEXT, "", '"" is not a text'),
        (TEXT, 3, "3 is not a text"),
        (NAME, "A", "is not a name"),
        (NAME, "a" * 65, "is not a name"),
        (NAME, "", "is not a text"),
        (ACCOUNT, "a/b", "is not an account name"),
        (ACCOUNT, "a b", "is not an account name"),
        (FLAG, 1, "1 is neither true nor false"),
        (TEXTS, "", '"" is neither a text nor a list'),
        (TEXTS, 3, "3 is neither a text nor a list"),
        (TEXTS, ["x", ""], '"" is not a text'),
        (DURATION, 60, "60 is not a duration"),
        (DURATION, "1", "is not a duration"),
        (DURATION, "1 s", "is not a duration"),
        (DURATION, "0s", "is out of range"),
        (DURATION, "366d1ms", "is out of range"),
        (make_integer_kind(2, 5), 1, "1 is not a whole number from 2 to 5$"),
        (make_integer_kind(2, 5), 6, "6 is not a whole number"),
        (make_integer_kind(0, 5), True, "true is not a whole number"),
        (make_integer_kind(0, 5), 2.0, "2.0 is not a whole number"),
        (make_choice_kind(Interface, [Interface.REST]), "graphql", '"graphql" is not known: known are rest$'),
        (make_choice_kind(Interface), ["rest"], "is not known"),
        (make_choices_kind(Interface), ["rest", "x"], '"x" is not known'),
        (CEILINGS, -1, "-1 is not a whole number"),
        (CEILINGS, UNLIMITED, 'or "unlimited"'),
        (CEILINGS, "none", '"none" is not a whole number'),
        (CEILINGS, {"machines": 1}, "'machines' is not a class of callers"),
    ],
)
def test_a_value_of_another_kind_is_refused(kind: TomlValueKind, value: object, message: str) -> None:
    with pytest.raises(InvalidValue, match=message):
        kind.read(value)


def test_descriptions_name_the_choices_and_ranges() -> None:
    assert [
        make_integer_kind(1, 9_000).description,
        make_choice_kind(Interface).description,
        make_choice_kind(Interface, [Interface.REST]).description,
        make_choices_kind(Interface).description,
    ] == [
        "A whole number from 1 to 9,000.",
        'One of `"rest"`, `"graphql"`, `"large_files"`, `"files"`.',
        'One of `"rest"`.',
        'One, or a list, of `"rest"`, `"graphql"`, `"large_files"`, `"files"`.',
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "true"),
        ("a", '"a"'),
        (3, "3"),
        ("x" * 58, '"' + "x" * 58 + '"'),
        ("x" * 59, '"' + "x" * 56 + "..."),
    ],
)
def test_values_in_messages_are_written_as_in_the_file_and_cut(value: object, text: str) -> None:
    assert format_value(value) == text


@pytest.mark.parametrize(
    ("path", "text"),
    [((), "x"), (("rule",), "rule.x"), (("rule", 2), "rule[2].x"), (("user", 0, "tokens", 1), "user[0].tokens[1].x")],
)
def test_keys_in_messages_are_written_as_users_write_them(path: tuple[str | int, ...], text: str) -> None:
    assert format_key(path, "x") == text


# -- rules files ---------------------------------------------------------------------------------------------------

NO_PROFILE = 'profile = "none"\n[[rule]]\nname = "core"\nresource = "core"\nceiling = 10\n'


def list_problems(text: str) -> list[str]:
    with pytest.raises(InvalidFile) as caught:
        read_rules(text, "mine.toml")
    return [f"{problem.location.line}:{problem.location.column} {problem.key}: {problem.message}" for problem in caught.value.problems]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ('was = "old"', "was", "old"),
        ('match = ["GET /a", "* /b/*"]', "match", ("GET /a", "* /b/*")),
        ('interface = "graphql"', "interface", (Interface.GRAPHQL,)),
        ('scope = ["user", "app"]', "scope", ("user", "app")),
        ("per_endpoint = true", "per_endpoint", True),
        ('window = "5m"', "window_ms", 300_000),
        ("slices = 7", "slices", 7),
        ("keys_most = 9", "keys_most", 9),
        ("hidden = true", "hidden", True),
        ("shadow = true", "shadow", True),
        ("enforce = 40", "enforce_percent", 40),
        ("status = 429", "status", 429),
    ],
)
def test_each_key_of_a_rule_sets_its_field(text: str, field: str, value: object) -> None:
    rules = [
        next(rule for rule in read_rules(NO_PROFILE + f'[[rule]]\nname = "mine"\nceiling = 3\n{more}\n').rules if rule.name == "mine")
        for more in ("", text)
    ]  # fmt: skip

    assert getattr(rules[1], field) == value
    assert getattr(rules[0], field) != value


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("disclose_secondary = true", "disclose_secondary", True),
        ('documentation = "/docs"', "documentation", "/docs"),
        ("keys_most = 2000", "keys_most", 2_000),
    ],
)
def test_each_top_level_key_sets_its_field(text: str, field: str, value: object) -> None:
    assert getattr(read_rules(f"{text}\n{NO_PROFILE}"), field) == value
    assert getattr(read_rules(NO_PROFILE), field) != value


@pytest.mark.parametrize(
    ("table", "text", "field", "value"),
    [
        ("ban", 'grace = "5s"', "grace_ms", 5_000),
        ("ban", 'first = "5m"', "first_ms", 300_000),
        ("ban", 'most = "2h"', "most_ms", 7_200_000),
        ("ban", 'forget = "2h"', "forget_ms", 7_200_000),
        ("ban", "minutes = 7", "minutes", 7),
        ("points", "read = 3", "read", 3),
        ("graphql", "nodes_most = 7000", "nodes_most", 7_000),
    ],
)
def test_each_key_of_another_table_sets_its_field(table: str, text: str, field: str, value: object) -> None:
    rules = [read_rules(NO_PROFILE + f"[{table}]\n{more}\n") for more in ("", text)]

    assert [getattr(getattr(each, table), field) == value for each in rules] == [False, True]


CEILING = "ceiling = 3\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CEILING + "scale = 1", "9:1 rule[1].scale: must be a table: write [rule.scale]"),
        (CEILING + 'scope = "usr"', "9:1 rule[1].scope: 'usr' is not known; did you mean 'user'?"),
        (CEILING + "scope = []", "9:1 rule[1].scope: must be one member or two different members"),
        (CEILING + 'scope = ["user", "user"]', "9:1 rule[1].scope: must be one member or two different members"),
        (
            CEILING + 'scope = ["user", "app", "token"]',
            "9:1 rule[1].scope: must be one member or two different members",
        ),
        (CEILING + 'resource = "r"\ncounts = "points"', "10:1 rule mine: counts: a primary limit must count"),
        (CEILING + 'resource = "r"\nalgorithm = "slices"', "6:1 rule mine: counts: a primary limit must count"),
        (CEILING + 'resource = "r"\nmatch = "GET /a"\nhidden = true', "11:1 rule mine: hidden: a primary limit cannot"),
        (CEILING + 'algorithm = "leases"', "9:1 rule mine: algorithm: connections must be counted by leases"),
        (
            CEILING + 'counts = "connections"\nalgorithm = "window"',
            "10:1 rule mine: algorithm: connections must be counted by leases",
        ),
        (CEILING + 'algorithm = "meter"', "9:1 rule mine: algorithm: CPU time must be counted by a meter"),
        (
            CEILING + 'counts = "cpu_ms"\nalgorithm = "slices"',
            "10:1 rule mine: algorithm: CPU time must be counted by a meter",
        ),
        (
            "ceiling = { user = 3 }\n[rule.scale]\nper_user = 3",
            "6:1 rule mine: scale: needs a ceiling for `installation`",
        ),
        (CEILING + 'was = "core"', "9:1 rule mine: was: 'core' is still the name of a rule"),
        (CEILING + "objects_most = 3", "9:1 rule mine: objects_most: is only allowed for a primary limit"),
    ],
)
def test_wrong_combinations_of_keys_are_refused(text: str, expected: str) -> None:
    (problem,) = list_problems(NO_PROFILE + f'[[rule]]\nname = "mine"\n{text}\n')

    assert problem.startswith(expected)


@pytest.mark.parametrize(
    "text",
    [
        'resource = "r"\nmatch = "GET /a"\nobjects_most = 3',
        'resource = "r"\nmatch = "GET /a"\ncounts = "query_cost"',
        'was = "other"',
        "hidden = true",
        'scope = ["user", "app"]',
        "[rule.scale]\nper_user = 3",
    ],
)
def test_right_combinations_of_keys_are_accepted(text: str) -> None:
    assert read_rules(NO_PROFILE + f'[[rule]]\nname = "mine"\n{CEILING}{text}\n').rules[1].name == "mine"


@pytest.mark.parametrize(
    ("ceiling", "missing"),
    [
        ("{ user = 1 }", "none, installation, client, workflow"),
        ("{ none = 1, user = 1, installation = 1, client = 1 }", "workflow"),
    ],
)
def test_every_class_of_callers_needs_a_bucket_for_all_requests(ceiling: str, missing: str) -> None:
    for more in (
        "",
        '[[rule]]\nname = "a"\nmatch = "GET /a"\nresource = "a"\nceiling = 1\n',
        '[[rule]]\nname = "b"\nceiling = 1\n',
    ):
        (problem,) = list_problems(NO_PROFILE.replace("10", ceiling) + more)

        assert problem.startswith(f"1:1 : no primary limit applies to all other requests of {missing}: add a rule")


def test_every_problem_of_a_table_is_reported() -> None:
    text = NO_PROFILE + '[[rule]]\nname = "mine"\nunknown = 1\nother = 2\nceiling = -1\nslices = 0\n'

    assert [problem.partition(": ")[0] for problem in list_problems(text)] == [
        "8:1 rule[1].unknown",
        "9:1 rule[1].other",
        "10:1 rule[1].ceiling",
        "11:1 rule[1].slices",
    ]


def test_two_rules_with_one_name_are_refused() -> None:
    assert list_problems(NO_PROFILE + '[[rule]]\nname = "core"\nceiling = 1\n') == [
        "6:1 rule[1].name: 'core' is the name of two rules"
    ]


def test_a_rule_of_the_profile_may_be_changed_in_part() -> None:
    profile, changed = (
        read_rules(text, "m.toml") for text in ("", '[[rule]]\nname = "core"\nceiling = { user = 7 }\n')
    )
    before, after = ({rule.name: rule for rule in rules.rules}["core"] for rules in (profile, changed))

    assert after.ceilings == {**before.ceilings, CallerClass.USER: 7}
    assert (after.file, after.line, after.resource) == ("m.toml", 1, "core")


def test_a_rule_that_the_profile_does_not_have_needs_all_keys() -> None:
    problems = list_problems('[[rule]]\nname = "mine"\n[[rule]]\nname = "core"\n[[rule]]\nceiling = 1\n')

    assert [problem.partition(" is missing")[0] for problem in problems] == [
        "1:1 rule[0].ceiling:",
        "5:1 rule[2].name:",
    ]


def test_the_scale_of_a_profile_rule_is_kept_unless_the_file_sets_one() -> None:
    rules = [
        next(rule for rule in read_rules(text).rules if rule.name == "core")
        for text in (
            "",
            '[[rule]]\nname = "core"\nceiling = 9\n',
            '[[rule]]\nname = "core"\nceiling = 9\n[rule.scale]\nper_user = 3\n',
        )
    ]

    assert rules[0].scale is not None
    assert rules[1].scale == rules[0].scale
    assert rules[2].scale is not None
    assert rules[2].scale.per_user == 3


# -- directory files -----------------------------------------------------------------------------------------------

FULL = f"""
[[user]]
login = "ada"
id = 5
tokens = [
  {{ sha256 = "{"a" * 64}" }},
  {{ sha256 = "{"b" * 64}", app = 8, scopes = ["repo"], expires = 2027-01-15T08:00:00Z }},
  {{ sha256 = "{"c" * 64}", app = 7, revoked = true }},
]
[[user]]
login = "eve"
[[organization]]
login = "acme"
members = ["ada"]
owners = ["eve"]
[[organization]]
login = "rich"
tier = "enterprise"
[[organization]]
login = "part"
enterprise = "corp"
[[enterprise]]
name = "corp"
[[app]]
id = 7
owner = "acme"
client_id = "x"
client_secret_sha256 = "{"d" * 64}"
approved_by = ["acme", "rich"]
[[app.installations]]
id = 71
on = "acme"
repositories = 4
members = 2
tokens = [{{ sha256 = "{"e" * 64}" }}]
[[app]]
id = 8
owner = "ada"
client_secret_sha256 = "{"d" * 64}"
[[app]]
id = 9
owner = "corp"
oauth = true
[[repository]]
name = "acme/site"
tokens = [{{ sha256 = "{"f" * 64}" }}]
"""


def test_every_account_of_a_directory_is_read() -> None:
    directory = read_directory(FULL)

    assert [(user.login, user.id) for user in directory.users.values()] == [("ada", 5), ("eve", None)]
    assert directory.organizations == {
        "acme": Organization(login="acme", members=frozenset({"ada", "eve"}), owners=frozenset({"eve"})),
        "rich": Organization(login="rich", is_enterprise_tier=True),
        "part": Organization(login="part", is_enterprise_tier=True),
    }
    assert directory.enterprises == {"corp"}
    assert directory.apps == {
        7: App(
            id=7,
            owner="acme",
            client_id="x",
            client_secret_sha256="d" * 64,
            approved_by=frozenset({"acme", "rich"}),
        ),
        8: App(id=8, owner="ada", is_oauth=True, client_secret_sha256="d" * 64),
        9: App(id=9, owner="corp", is_oauth=True),
    }
    assert directory.installations == {71: Installation(id=71, app=7, account="acme", repositories=4, members=2)}
    assert directory.clients == {"x": directory.apps[7]}
    assert [repository.owner for repository in directory.repositories.values()] == ["acme"]


def test_every_token_of_a_directory_is_read() -> None:
    tokens = {sha256[0]: token for sha256, token in read_directory(FULL).tokens.items()}

    def make(letter: str, kind: CredentialKind, **fields: Any) -> DirectoryToken:
        return DirectoryToken(sha256=letter * 64, kind=kind, **fields)

    assert tokens == {
        "a": make("a", CredentialKind.PERSONAL_TOKEN, user="ada"),
        "b": make("b", CredentialKind.OAUTH_TOKEN, user="ada", app=8, scopes=("repo",), expires_ms=1_800_000_000_000),
        "c": make("c", CredentialKind.APP_USER_TOKEN, user="ada", app=7, is_revoked=True),
        "e": make("e", CredentialKind.INSTALLATION_TOKEN, installation=71),
        "f": make("f", CredentialKind.WORKFLOW_TOKEN, repository="acme/site"),
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[[organization]]\nlogin = "acme"\nowners = ["ada"]', ["organization[0].owners: 'ada' is not a user; known are none"]),
        ('[[app]]\nid = 1\nowner = "acme"', ["app[0].owner: 'acme' is not an account; known are none"]),
        (
            '[[user]]\nlogin = "ada"\n[[app]]\nid = 1\nowner = "ada"\napproved_by = ["acme"]',
            ["app[0].approved_by: 'acme' is not an organization; known are none"],
        ),
        (
            '[[user]]\nlogin = "ada"\n[[app]]\nid = 1\nowner = "ada"\n'
            'installations = [{ id = 1, on = "ada" }, { id = 1, on = "ada" }]',
            ["app[0].installations[1].id: 1 is the id of two installations"],
        ),
        (
            '[[organization]]\nlogin = "acme"\nids = [7, 8]\n[[organization]]\nlogin = "big"\nids = 8',
            ["organization[1].ids: 8 is an id of two organizations"],
        ),
        (
            '[[repository]]\nname = "a/b"\nid = 7\n[[repository]]\nname = "a/c"\nid = 7',
            ["repository[1].id: 7 is the id of two repositories"],
        ),
        (
            '[[organization]]\nlogin = "acme"\nids = [7, 0]',
            ["organization[0].ids: 0 is not a whole number from 1 to 9007199254740992, or a list of these"],
        ),
        ('[[user]]\nlogin = "ada"\ntokens = 3', ["tokens: must be a list of tables: write [[tokens]]"]),
        ('[[user]]\nid = "x"\n[[organization]]\nid = 3', [
            "organization[0].id: is not known; did you mean 'ids'?",
            "organization[0].login: is missing. The login. The name of an account.",
            'user[0].id: "x" is not a whole number from 1 to 9007199254740992',
            "user[0].login: is missing. The login. The name of an account.",
        ]),
        (
            f'[[repository]]\nname = "acme/site"\ntokens = [{{ sha256 = "{"a" * 64}" }}]\n'
            f'[[user]]\nlogin = "ada"\ntokens = [{{ sha256 = "{"a" * 64}" }}]',
            ["repository[0].tokens[0].sha256: the token is listed twice: it can have only one owner"],
        ),
    ],
)  # fmt: skip
def test_accounts_that_contradict_each_other_are_refused(text: str, expected: list[str]) -> None:
    with pytest.raises(InvalidFile) as caught:
        read_directory(text)

    assert sorted(f"{problem.key}: {problem.message}" for problem in caught.value.problems) == expected
