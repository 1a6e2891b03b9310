"""Every rule of the specification's section "Filtering" that is about the language."""

import pytest

from tests.languages.filters.datum import DATUM, Datum, accepts
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.job import Job
from wharf.languages.filters import (
    FilterEvaluationError,
    FilterSyntaxError,
    compile_filter,
    format_filter,
    parse_filter,
)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        *(('Name == "web"', True), ('Name != "web"', False), ("Name is empty", False), ("Name is not empty", True)),
        *(('"dc1" in DCs', True), ('"dc1" not in DCs', False), ('DCs contains "dc1"', True)),
        *(('DCs not contains "dc1"', False), ('Name matches "^w"', True), ('Name not matches "^w"', False)),
        *(('"we" in Name', True), ('Name contains "we"', True)),
    ],
)
def test_every_matching_form_of_the_table_works(text: str, result: bool) -> None:
    assert result is accepts(text)


def test_rule_1_a_selector_is_names_of_letters_digits_and_underscores_joined_by_dots() -> None:
    assert accepts("Sub.Name == inner")
    for text in ("1Sub == x", "_Sub == x", "Sub.-Name == x", "Sub..Name == x", "Süb == x"):
        with pytest.raises(FilterSyntaxError):
            parse_filter(text)


def test_rule_2_a_key_in_brackets_is_the_same_as_after_a_dot() -> None:
    assert parse_filter('Meta["a"] == b') == parse_filter("Meta.a == b")
    assert accepts('Meta["x.y"] == z')


def test_rule_3_a_value_is_a_word_a_number_or_a_string_of_either_form() -> None:
    assert accepts("Name == web")
    assert accepts("N == 50")
    assert accepts("F == 1.5")
    assert accepts('Name == "web"')
    assert accepts("Name == `web`")


def test_rule_3_a_string_in_backticks_is_raw() -> None:
    assert parse_filter('Name == "\\\\n"') == parse_filter("Name == `\\n`")
    assert parse_filter('Name == "a\\nb"') == parse_filter("Name == `a\nb`")


def test_rule_4_precedence_is_the_standard_one() -> None:
    assert parse_filter("A == 1 and not B == 1 or C == 1") == parse_filter("(A == 1 and (not B == 1)) or C == 1")


def test_rule_5_white_space_is_ignored_except_inside_strings() -> None:
    assert parse_filter("\n\tName   ==\r\n web  and\t( N == 50 ) ") == parse_filter("Name==web and (N==50)")
    assert parse_filter('Name == "a b"') != parse_filter('Name == "ab"')


def test_rule_6_a_match_on_an_item_inside_returns_the_whole_record() -> None:
    found = compile_filter('any Subs as s { s.Name == "s1" }', Datum)

    assert [record for record in (DATUM,) if found.accepts(record)] == [DATUM]


def test_rule_9_the_selectors_that_occur_work() -> None:
    job = Job(id="web", datacenters=("dc1",))
    deployment = Deployment(
        id="1", status=DeploymentStatus.RUNNING, task_groups={"web": DeploymentGroup(desired_total=2)}
    )

    assert compile_filter('Datacenters contains "dc1"', Job).accepts(job)
    assert compile_filter('Status == "running"', Deployment).accepts(deployment)
    assert compile_filter("TaskGroups.web.DesiredTotal == 2", Deployment).accepts(deployment)
    assert compile_filter("web in TaskGroups", Deployment).accepts(deployment)
    assert compile_filter("TaskGroups.web is not empty", Deployment).accepts(deployment)
    assert compile_filter("TaskGroups.db is empty", Deployment).accepts(deployment)


def test_an_operator_that_an_existing_field_does_not_support_is_an_error_with_its_location() -> None:
    job = Job(id="web", meta={"team": "red"})
    nil = compile_filter("ID == web and Meta.team is nil", Job)

    with pytest.raises(FilterEvaluationError) as raised:
        nil.accepts(job)

    assert raised.value.text.startswith("1:15 (14): cannot perform is-nil operations on type string")


@pytest.mark.parametrize(
    ("text", "spaced"),
    [
        ('(Name=="x")or(Name=="web")', '(Name == "x") or (Name == "web")'),
        ('(Name=="web")and(N==50)', '(Name == "web") and (N == 50)'),
        ('not(Name=="x")', 'not (Name == "x")'),
        ('"dc1"in DCs', '"dc1" in DCs'),
        ('"dc1"not in DCs', '"dc1" not in DCs'),
        ('Name contains"eb"', 'Name contains "eb"'),
        ("Name matches`^w`", "Name matches `^w`"),
        ('Name not matches"^w"', 'Name not matches "^w"'),
        ('Meta["a"]contains"b"', 'Meta["a"] contains "b"'),
        ('Meta["a"]is not empty', 'Meta["a"] is not empty'),
        ('Meta [ "a" ] == "b"', 'Meta["a"] == "b"'),
        ('Meta . a == "b"', 'Meta.a == "b"'),
        ('Subs\t.\n0 . Name == "s0"', 'Subs.0.Name == "s0"'),
        ("any Subs as s{s.Port==2}", "any Subs as s { s.Port == 2 }"),
        ('any"/Subs"as s{s.Port==2}', 'any "/Subs" as s { s.Port == 2 }'),
        ('Name=="web"or N==50', 'Name == "web" or N == 50'),
    ],
)
def test_white_space_between_tokens_is_free(text: str, spaced: str) -> None:
    assert format_filter(parse_filter(text)) == format_filter(parse_filter(spaced))
    assert accepts(text) == accepts(spaced)


@pytest.mark.parametrize(
    "text",
    ["Namecontains x", "Name containsx", "Name isempty", "Name is emptyor N == 50", "N == 50or N == 1", "x inDCs"],
)
def test_white_space_that_separates_two_names_is_needed(text: str) -> None:
    with pytest.raises(FilterSyntaxError):
        parse_filter(text)


def test_white_space_inside_a_string_is_not_ignored() -> None:
    assert accepts('Name == "w eb"') is False


def test_white_space_in_a_value_that_is_a_selector_is_ignored() -> None:
    assert format_filter(parse_filter('Name == a . b [ "c d" ]')) == format_filter(parse_filter('Name == a.b["c d"]'))


def test_carriage_returns_are_dropped_from_strings_in_backticks() -> None:
    assert accepts("Name == `w\reb`") is True
