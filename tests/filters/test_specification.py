"""Every rule of the specification's section "Filtering" that is about the language."""

import pytest

from tests.filters.datum import DATUM, Datum, accepts
from wharf.filters import NotAnExpression, NotReadable, compile_filter, parse
from wharf.model.deployment import Deployment, DeploymentGroup, DeploymentStatus
from wharf.model.job import Job


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
        with pytest.raises(NotAnExpression):
            parse(text)


def test_rule_2_a_key_in_brackets_is_the_same_as_after_a_dot() -> None:
    assert parse('Meta["a"] == b') == parse("Meta.a == b")
    assert accepts('Meta["x.y"] == z')


def test_rule_3_a_value_is_a_word_a_number_or_a_string_of_either_form() -> None:
    assert accepts("Name == web")
    assert accepts("N == 50")
    assert accepts("F == 1.5")
    assert accepts('Name == "web"')
    assert accepts("Name == `web`")


def test_rule_3_a_string_in_backticks_is_raw() -> None:
    assert parse('Name == "\\\\n"') == parse("Name == `\\n`")
    assert parse('Name == "a\\nb"') == parse("Name == `a\nb`")


def test_rule_4_precedence_is_the_standard_one() -> None:
    assert parse("A == 1 and not B == 1 or C == 1") == parse("(A == 1 and (not B == 1)) or C == 1")


def test_rule_5_white_space_is_ignored_except_inside_strings() -> None:
    assert parse("\n\tName   ==\r\n web  and\t( N == 50 ) ") == parse("Name==web and (N==50)")
    assert parse('Name == "a b"') != parse('Name == "ab"')


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


def test_what_a_key_that_is_there_cannot_be_asked_is_told_with_its_place() -> None:
    job = Job(id="web", meta={"team": "red"})
    nil = compile_filter("ID == web and Meta.team is nil", Job)

    with pytest.raises(NotReadable) as told:
        nil.accepts(job)

    assert told.value.text.startswith("1:15 (14): cannot perform is-nil operations on type string")
